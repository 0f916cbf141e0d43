"""Segmenters by name: what a command line says becomes an object that segments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kinema4d_ros.core.errors import ErrorCode, SetupError
from kinema4d_ros.segmentation.protocol import RobotSegmenter, SegmentationError

__all__ = ["METHODS", "best_method", "make_segmenter"]

METHODS: dict[str, str] = {
    "rendered": "robot, camera, q",
    "classical": "background, margin_px, rounds (all optional)",
    "sam2": "weights; detector, device (optional)",
}
"""Name of each method: the options it takes."""


def make_segmenter(name: str, **options: Any) -> RobotSegmenter:
    """A segmenter by name; options are those of its class.

    >>> make_segmenter("classical").name
    'classical'
    """
    if name not in METHODS:
        raise SegmentationError(f"there is no method '{name}'", expected=f"one of {', '.join(METHODS)}")
    try:
        if name == "rendered":
            from kinema4d_ros.segmentation.rendered import RenderedSegmenter

            return RenderedSegmenter(**options)
        if name == "classical":
            from kinema4d_ros.segmentation.classical import ClassicalSegmenter

            return ClassicalSegmenter(**options)
        return _sam2(**options)
    except TypeError as error:
        raise SegmentationError(
            f"method '{name}' cannot be made from {', '.join(options) or 'no options'}: {error}",
            expected=f"its options: {METHODS[name]}",
        ) from error


def best_method(
    *, weights: str | Path | None = None, pictures: int = 1, background: bool = False, rendered: bool = False
) -> str:
    """What "auto" stands for: the best that can work with what there is.

    Args:
        weights: folder of SAM 2, if there is one.
        pictures: how many images.
        background: a picture without the robot is there.
        rendered: robot, joint positions and camera are there.
    """
    if weights is not None:
        return "sam2"
    if background or pictures >= 5 or not rendered:
        return "classical"
    return "rendered"


def _sam2(**options: Any) -> RobotSegmenter:
    try:
        from kinema4d_model.segmentation.sam2_segmenter import Sam2Segmenter
    except ImportError as error:
        raise SetupError(
            f"SAM 2 cannot be loaded: {error}",
            expected="torch, sam2 and what else requirements/model.in names",
            hint="pip install -r requirements/model.in, or the method classical",
            code=ErrorCode.SETUP_MISSING,
        ) from None
    return Sam2Segmenter(**options)
