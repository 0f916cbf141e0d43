"""SAM 2 from a folder: a published checkpoint under its own name, or any other with a `sam2.yaml`.

FOLDER/
  sam2.1_hiera_tiny.safetensors   tensors by name; or .pt as published, read with `weights_only=True`
  sam2.yaml                       only for other names: `config`, one of sam2's own, and `overrides` of its numbers
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from torch import nn

from kinema4d_model.checkpoints.tensor_files import differences, load_pickled, raise_if, read_tensors
from kinema4d_model.segmentation.sam2_package import import_sam2
from kinema4d_ros.core.errors import ErrorCode, FileFormatError
from kinema4d_ros.io.files import read_yaml

__all__ = ["DESCRIPTION", "build_sam2", "load_sam2"]

DESCRIPTION = "sam2.yaml"
_SUFFIXES = (".safetensors", ".pt")

_OVERRIDE = re.compile(r"\+{0,2}model\.[a-z0-9_.]+=[-a-z0-9_., \[\]]*", re.IGNORECASE)
"""Overrides of numbers and words in the configuration; a `_target_` could name code to run."""

_AS_PUBLISHED = (
    # What sam2 enables for inference, except filling holes, which it can only do on CUDA.
    "++model.sam_mask_decoder_extra_args.dynamic_multimask_via_stability=true",
    "++model.sam_mask_decoder_extra_args.dynamic_multimask_stability_delta=0.05",
    "++model.sam_mask_decoder_extra_args.dynamic_multimask_stability_thresh=0.98",
    "++model.binarize_mask_from_pts_for_mem_enc=true",
)


def build_sam2(config: str, overrides: list[str] | tuple[str, ...] = (), device: str = "cpu") -> Any:
    """Build a SAM 2 video predictor with random weights from the name of one of sam2's configurations."""
    package = import_sam2()
    known = sorted({config for config, _ in package.names.values()})
    if config not in known:
        raise FileFormatError(f"configuration {config!r} is not one of sam2's", expected=f"one of {', '.join(known)}")
    for line in overrides:
        if not isinstance(line, str) or "_target_" in line or not _OVERRIDE.fullmatch(line):
            raise FileFormatError(f"override {line!r} is refused", expected="a number, as model.image_size=512")
    try:
        return package.build_video_predictor(
            config,
            None,
            device=device,
            hydra_overrides_extra=[*_AS_PUBLISHED, *overrides],
            apply_postprocessing=False,
        )
    except Exception as error:  # hydra's own errors, or any that a wrong number raises in a constructor
        raise FileFormatError(
            f"sam2 cannot be built from {config} with {list(overrides)}: {error}"[:400],
            expected="consistent numbers",
        ) from error


def load_sam2(folder: str | Path, device: str = "cpu") -> Any:
    """Load the SAM 2 network of a folder with its weights, for images and videos, in evaluation mode.

    Raises:
        FileFormatError: no folder, no checkpoint, one that could run code, or one that does not match the network.
    """
    root = Path(folder)
    if not root.is_dir():
        raise FileFormatError(
            f"{root} is not a folder",
            expected="a folder with SAM 2's weights",
            hint="the SAM 2 project publishes them, for example sam2.1_hiera_tiny.pt",
            code=ErrorCode.FILE_MISSING,
        )
    path = _checkpoint(root)
    config, overrides = _configuration(root, path)
    tensors = dict(read_tensors(path)) if path.suffix == ".safetensors" else _read_pt(path)
    model = build_sam2(config, overrides)
    _fill(model, tensors, path)
    return model.to(device).eval().requires_grad_(False)


def _checkpoint(folder: Path) -> Path:
    found = sorted(
        (p for p in folder.iterdir() if p.suffix in _SUFFIXES), key=lambda p: (_SUFFIXES.index(p.suffix), p.name)
    )
    stems = {p.stem for p in found}
    if len(stems) != 1:
        what = f"{folder} holds {', '.join(sorted(stems))}" if stems else f"{folder} holds no weights"
        raise FileFormatError(
            what,
            expected="one checkpoint, such as sam2.1_hiera_tiny.safetensors or .pt",
            code=ErrorCode.FILE_MALFORMED if stems else ErrorCode.FILE_MISSING,
        )
    return found[0]


def _configuration(folder: Path, checkpoint: Path) -> tuple[str, list[str]]:
    published = {Path(file).stem: config for config, file in import_sam2().names.values()}
    if not (folder / DESCRIPTION).is_file():
        if checkpoint.stem not in published:
            raise FileFormatError(
                f"the name of {checkpoint} does not identify its network",
                expected=f"one of {', '.join(sorted(published))}, or a {DESCRIPTION} beside it",
            )
        return published[checkpoint.stem], []
    document = read_yaml(folder / DESCRIPTION)
    config, overrides = document.get("config"), document.get("overrides", [])
    if not isinstance(config, str) or not isinstance(overrides, list):
        raise FileFormatError(
            f"{folder / DESCRIPTION} has config {config!r}, overrides {overrides!r}"[:300],
            expected="the name of a configuration and a list of overrides",
        )
    return config, overrides


def _fill(model: nn.Module, tensors: dict[str, torch.Tensor], path: Path) -> None:
    wanted = {name: tuple(t.shape) for name, t in model.state_dict().items()}
    raise_if(differences(wanted, {name: tuple(t.shape) for name, t in tensors.items()}), path)
    model.load_state_dict(tensors)


def _read_pt(path: Path) -> dict[str, torch.Tensor]:
    found: Any = load_pickled(path)
    tensors = found.get("model", found) if isinstance(found, dict) else None
    if not isinstance(tensors, dict) or not all(isinstance(t, torch.Tensor) for t in tensors.values()):
        raise FileFormatError(f"{path} is not a state dictionary", expected='tensors by name, or "model" with them')
    return tensors
