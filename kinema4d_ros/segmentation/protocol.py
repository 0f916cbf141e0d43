"""Interface of the robot segmenters (images and a prompt in, masks with scores out), and their factory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.core.errors import ErrorCode, KinemaError, SetupError
from kinema4d_ros.segmentation.prompt import Prompt

__all__ = [
    "METHODS",
    "ReportFrame",
    "RobotSegmenter",
    "Segmentation",
    "SegmentationError",
    "as_stack",
    "best_method",
    "make_segmenter",
    "result_of",
    "which_images",
]

ReportFrame = Callable[[int, int], None]
"""Progress callback: (images done, total images)."""

_MAX_SIDE = 16384


class SegmentationError(KinemaError):
    """Invalid images, prompts or options of a segmenter."""

    default_code = ErrorCode.ARGUMENT_INVALID


@dataclass(frozen=True, eq=False)
class Segmentation:
    """Masks of the robot.

    Attributes:
        masks: (H, W) bool of one image or (T, H, W) of several; True = robot. All False = nothing found.
        scores: (T,) float64, 0 to 1, one for each image (T = 1 for one): confidence by the method's own measure; 0 if
            nothing was found. Scores of different methods are not comparable.
        method: name of the segmenter.
        notes: remarks for the user, such as images without a robot or a poor background.
        drawn: indices of images whose mask is rendered, not observed: it contains no information on the camera pose.
        doubtful: indices of images whose mask contradicts the prompt, where it is unknown which of them is right.
    """

    masks: NDArray[np.bool_]
    scores: NDArray[np.float64]
    method: str
    notes: tuple[str, ...] = ()
    drawn: tuple[int, ...] = ()
    doubtful: tuple[int, ...] = ()

    @property
    def empty(self) -> tuple[int, ...]:
        """Indices of the images in which nothing was found."""
        stack = self.masks[None] if self.masks.ndim == 2 else self.masks
        return tuple(i for i, mask in enumerate(stack) if not mask.any())


@runtime_checkable
class RobotSegmenter(Protocol):
    """Segmenter of the robot. Requirements of each method:

    | name | needs | prompt |
    |---|---|---|
    | rendered | robot, joint positions, calibrated camera | none |
    | classical | a background image, or a video in which the robot moves, or a prompt | optional: mask, boxes, points |
    | sam2 | the package `sam2` and its weights | one of: mask, points, boxes, text (with a detector's weights) |
    """

    name: str

    def segment(
        self, images: NDArray[np.uint8], prompt: Prompt | None = None, *, progress: ReportFrame | None = None
    ) -> Segmentation:
        """Segment one image (H, W, 3), or several (T, H, W, 3) of one camera, uint8 RGB."""
        ...


def as_stack(images: NDArray[np.generic], prompt: Prompt | None = None) -> NDArray[np.uint8]:
    """Check one image or several, and their prompt; return (T, H, W, 3) uint8."""
    array = np.asarray(images)
    if array.dtype != np.uint8 or array.ndim not in (3, 4) or array.shape[-1] != 3 or 0 in array.shape:
        raise SegmentationError(
            f"the images are {array.dtype} of shape {array.shape}",
            expected="uint8 RGB of shape (H, W, 3) or (T, H, W, 3), not empty",
            code=ErrorCode.IMAGE_INVALID,
        )
    if max(array.shape[-3:-1]) > _MAX_SIDE:
        raise SegmentationError(
            f"the images are {array.shape[-2]} x {array.shape[-3]}",
            expected=f"sides of at most {_MAX_SIDE}",
            code=ErrorCode.IMAGE_INVALID,
        )
    stack = np.asarray(array if array.ndim == 4 else array[None], dtype=np.uint8)
    if prompt is not None:
        problem = prompt.misfit(len(stack), stack.shape[1], stack.shape[2])
        if problem is not None:
            raise SegmentationError(problem[0], expected=problem[1])
    return stack


def result_of(
    images: NDArray[np.uint8],
    masks: NDArray[np.bool_],
    scores: NDArray[np.float64],
    method: str,
    notes: tuple[str, ...] = (),
    *,
    drawn: Sequence[int] = (),
    doubtful: Sequence[int] = (),
) -> Segmentation:
    """Build the result in the shape of the input images; images without a robot get score 0 and a note."""
    none = [i for i, mask in enumerate(masks) if not mask.any()]
    scores = np.clip(np.where([i in none for i in range(len(masks))], 0.0, scores), 0.0, 1.0)
    if none:
        notes = (*notes, f"no robot found in {which_images(none, len(masks))}")
    form = masks if images.ndim == 4 else masks[0]
    return Segmentation(form, scores, method, notes, tuple(drawn), tuple(doubtful))


def which_images(chosen: Sequence[int], count: int) -> str:
    """Format image indices for notes, such as "2 of 8 images (3, 5)"."""
    return f"{len(chosen)} of {count} images ({', '.join(map(str, chosen[:8]))}{' ...' if len(chosen) > 8 else ''})"


# Factory: segmenters by name.

METHODS: dict[str, str] = {
    "rendered": "robot, camera, q",
    "classical": "background, margin_px, rounds (all optional)",
    "sam2": "weights; detector, device (optional)",
}
"""Options of each method, by name."""


def make_segmenter(name: str, **options: Any) -> RobotSegmenter:
    """Create a segmenter by name; options are those of its class.

    >>> make_segmenter("classical").name
    'classical'
    """
    if name not in METHODS:
        raise SegmentationError(f"unknown method '{name}'", expected=f"one of {', '.join(METHODS)}")
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
            f"method '{name}' does not accept {', '.join(options) or 'no options'}: {error}",
            expected=f"the options {METHODS[name]}",
        ) from error


def best_method(
    *, weights: str | Path | None = None, pictures: int = 1, background: bool = False, rendered: bool = False
) -> str:
    """Choose the method for "auto": the best one for the available inputs.

    Args:
        weights: folder of SAM 2 weights; None = not available.
        pictures: number of images.
        background: an image without the robot is available.
        rendered: robot, joint positions and camera are available.
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
            expected="torch, sam2 and the other packages in requirements/model.in",
            hint="pip install -r requirements/model.in, or use the method classical",
            code=ErrorCode.SETUP_MISSING,
        ) from None
    return Sam2Segmenter(**options)
