"""Import of the package `sam2`, also without torchvision, from which it only uses image resizing."""

from __future__ import annotations

import sys
import types
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from kinema4d_ros.core.errors import ErrorCode, SetupError

__all__ = ["Normalize", "Resize", "Sam2Package", "ToTensor", "import_sam2"]

# Replacements for what sam2 uses from torchvision: image to tensor, resize, normalise. sam2 compiles them with
# `torch.jit.script`.


class ToTensor:
    """Conversion of (H, W, 3) uint8 to (3, H, W) float32 in [0, 1]."""

    def __call__(self, image: np.ndarray) -> torch.Tensor:
        """Convert one image."""
        return torch.from_numpy(np.ascontiguousarray(image)).permute(2, 0, 1).to(torch.float32) / 255


class Resize(nn.Module):
    """Resizing of (C, H, W), bilinear with antialiasing, as torchvision does for tensors."""

    def __init__(self, size: tuple[int, int]) -> None:
        super().__init__()
        self.size = [int(side) for side in size]

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Resize one image."""
        return functional.interpolate(image[None], self.size, mode="bilinear", align_corners=False, antialias=True)[0]


class Normalize(nn.Module):
    """Normalisation of (C, H, W): subtract the mean and divide by the deviation of each channel."""

    def __init__(self, mean: list[float], std: list[float]) -> None:
        super().__init__()
        self.mean = [float(value) for value in mean]
        self.std = [float(value) for value in std]

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Normalise one image."""
        mean = torch.tensor(self.mean, dtype=image.dtype, device=image.device)
        std = torch.tensor(self.std, dtype=image.dtype, device=image.device)
        return (image - mean[:, None, None]) / std[:, None, None]


class Sam2Package(NamedTuple):
    """Parts of `sam2` used here."""

    build_video_predictor: Any
    ImagePredictor: Any
    names: dict[str, tuple[str, str]]
    """Published model -> its configuration and the name of its checkpoint."""


def import_sam2() -> Sam2Package:
    """Import sam2; if torchvision is missing or built for another torch, use our replacements for it."""
    stand_in = not _torchvision_works()
    kept = {name: sys.modules.pop(name) for name in list(sys.modules) if stand_in and _is_torchvision(name)}
    if stand_in:
        package, transforms = (types.ModuleType(name) for name in ("torchvision", "torchvision.transforms"))
        for thing in (ToTensor, Resize, Normalize):
            setattr(transforms, thing.__name__, thing)
        sys.modules.update({"torchvision": package, "torchvision.transforms": transforms})
    try:
        from sam2.build_sam import HF_MODEL_ID_TO_FILENAMES, build_sam2_video_predictor
        from sam2.sam2_image_predictor import SAM2ImagePredictor
    except ImportError as error:
        raise SetupError(
            f"SAM 2 cannot be loaded: {error}",
            expected="the package sam2 and what it needs",
            hint="pip install -r requirements/model.in with SAM2_BUILD_CUDA=0, or the method classical",
            code=ErrorCode.SETUP_MISSING,
        ) from None
    finally:
        if stand_in:
            # Remove the replacement, so that other code does not import it.
            for name in ("torchvision", "torchvision.transforms"):
                sys.modules.pop(name, None)
            sys.modules.update(kept)
    return Sam2Package(build_sam2_video_predictor, SAM2ImagePredictor, dict(HF_MODEL_ID_TO_FILENAMES))


def _is_torchvision(name: str) -> bool:
    return name == "torchvision" or name.startswith("torchvision.")


def _torchvision_works() -> bool:
    try:
        import torchvision.transforms  # noqa: F401
    except (ImportError, RuntimeError):  # built for CUDA, beside torch for the CPU: its operators are missing
        return False
    return True
