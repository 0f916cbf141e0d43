"""Pretrained networks from a user's folder: expected file names; there is no fallback for a missing file.

Tensors only: safetensors, or PyTorch files read with `weights_only=True`, which cannot run code.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from kinema4d_model.checkpoints.folder import PRESET_FILE, load_vae
from kinema4d_model.checkpoints.tensor_files import load_pickled, read_tensors
from kinema4d_model.codec.video_codec import VideoCodec
from kinema4d_model.metrics.networks import AlexNetLpips, I3dFeatures, InceptionFeatures
from kinema4d_model.preset import load_preset
from kinema4d_model.shipped import shipped_weights
from kinema4d_ros.core.errors import ErrorCode, FileFormatError

__all__ = ["EXPECTED", "Expected", "load_codec", "load_network"]

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Expected:
    """Accepted files, preferred first; their network; where they are published; prefixes of unused keys."""

    files: tuple[str, ...]
    make: Callable[[], nn.Module]
    source: str
    unused: tuple[str, ...] = ()


EXPECTED: dict[str, Expected] = {
    "lpips": Expected(
        ("alexnet.safetensors", "alexnet-owt-7be5be79.pth"),
        AlexNetLpips,
        "torchvision's AlexNet_Weights.IMAGENET1K_V1; the linear heads come with torchmetrics",
        ("classifier.",),
    ),
    "fid": Expected(
        ("inception_fid.safetensors", "pt_inception-2015-12-05-6726825d.pth"),
        InceptionFeatures,
        "the pytorch-fid project",
        ("fc.", "AuxLogits."),
    ),
    "fvd": Expected(
        ("i3d.safetensors", "rgb_imagenet.pt"), I3dFeatures, "the pytorch-i3d project (RGB, ImageNet and Kinetics-400)"
    ),
}
"""Expected files by metric."""


def load_codec(folder: str | Path | None) -> VideoCodec:
    """Load the codec of a model folder, without its network; of the shipped nano if no folder is given."""
    root = shipped_weights("nano") if folder is None else Path(folder)
    if root is None or not (root / PRESET_FILE).is_file():
        raise FileFormatError(
            f"{root or 'the shipped model'} has no {PRESET_FILE}",
            expected="a model folder, whose codec makes the latents",
            hint="give --codec DIR",
            code=ErrorCode.FILE_MISSING,
        )
    with torch.device("meta"):
        codec = VideoCodec.from_spec(load_preset(root / PRESET_FILE).codec)
    load_vae(codec.vae, root / "vae")
    return codec.eval()


def load_network(metric: str, folder: str | Path | None) -> nn.Module:
    """Load the network of a metric with its weights, in evaluation mode.

    Raises:
        FileFormatError: FILE_MISSING with the expected names, or a file that does not match the network.
    """
    expected = EXPECTED[metric]
    names = " or ".join(expected.files)
    paths = [] if folder is None else [Path(folder) / name for name in expected.files]
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        where = "no folder was given" if folder is None else f"{folder} has no {names}"
        raise FileFormatError(
            f"{metric} needs a pretrained network: {where}",
            expected=f"a folder with {names}",
            hint=f"from {expected.source}; give the folder as --weights",
            code=ErrorCode.FILE_MISSING,
        )
    tensors = {
        name: tensor
        for name, tensor in _read(path).items()
        if not name.startswith(expected.unused) and not name.endswith("num_batches_tracked")
    }
    if metric == "lpips":
        tensors = {**_heads(), **tensors}
    network = expected.make()
    wanted = {k: v for k, v in network.state_dict().items() if not k.endswith("num_batches_tracked")}
    missing, other = sorted(wanted.keys() - tensors.keys()), sorted(tensors.keys() - wanted.keys())
    shapes = [name for name in wanted.keys() & tensors.keys() if wanted[name].shape != tensors[name].shape]
    if missing or other or shapes:
        detail = (
            (f"lacks {missing[0]}" if missing else f"has {other[0]}") if missing or other else f"shape of {shapes[0]}"
        )
        raise FileFormatError(
            f"{path} does not match the {metric} network: {detail}, {len(missing) + len(other) + len(shapes)} in all",
            expected=f"the weights of {expected.source}",
        )
    network.load_state_dict(tensors, strict=False)
    return network.eval().requires_grad_(False)


def _read(path: Path) -> Tensors:
    found: Any = dict(read_tensors(path)) if path.suffix == ".safetensors" else load_pickled(path)
    if not isinstance(found, dict) or not all(isinstance(tensor, torch.Tensor) for tensor in found.values()):
        raise FileFormatError(f"{path} is not a state dictionary", expected="tensors by name")
    return found


def _heads() -> Tensors:
    """Read LPIPS's linear heads shipped with torchmetrics: `lin0.model.1.weight` (1, C, 1, 1) and so on."""
    spec = importlib.util.find_spec("torchmetrics")
    root = Path(spec.origin).parent if spec is not None and spec.origin else Path("torchmetrics")
    path = root / "functional" / "image" / "lpips_models" / "alex.pth"
    if not path.is_file():
        raise FileFormatError(
            f"{path} does not exist", expected="LPIPS's heads, which torchmetrics ships", code=ErrorCode.FILE_MISSING
        )
    return {name.split(".")[0]: tensor for name, tensor in _read(path).items()}
