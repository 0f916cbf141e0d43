"""The package `sam2`, imported where torchvision is missing too: all it takes from there is how to resize a picture."""

from __future__ import annotations

import sys
import types
from typing import Any, NamedTuple

from kinema4d_model.segmentation.plain_transforms import Normalize, Resize, ToTensor
from kinema4d_ros.core.errors import ErrorCode, SetupError

__all__ = ["Sam2Package", "import_sam2"]


class Sam2Package(NamedTuple):
    """What we call of `sam2`."""

    build_video_predictor: Any
    ImagePredictor: Any
    names: dict[str, tuple[str, str]]
    """Published model: its configuration and the name of its checkpoint."""


def import_sam2() -> Sam2Package:
    """Import the package; without torchvision, or with one that was built for another torch, its resizing is ours."""
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
            # Nobody else may take it for the real one.
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
