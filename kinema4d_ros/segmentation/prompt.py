"""Prompts for a segmenter: text, points, boxes, or masks such as the rendered robot."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kinema4d_ros.core.errors import ErrorCode, KinemaError

__all__ = ["Prompt"]


@dataclass(frozen=True, eq=False)
class Prompt:
    """Prompt with any of these parts. Pixels are as in `core.camera`: (0, 0) is the image corner, x right, y down.

    Attributes:
        text: object to look for, such as "a robot arm"; needs a grounding detector.
        points: (N, 2) float64, pixels, on the robot or, with label False, on the background.
        labels: (N,) bool; all True by default.
        boxes: (B, 4) float64, pixels: left, top, right, bottom; together they contain the robot.
        mask: (H, W) bool, approximate robot mask, or (T, H, W), one for each image: usually the rendered robot.
        frame: index of the image that text, points, boxes and a single mask belong to.
    """

    text: str = ""
    points: NDArray[np.float64] | ArrayLike | None = None
    labels: NDArray[np.bool_] | ArrayLike | None = None
    boxes: NDArray[np.float64] | ArrayLike | None = None
    mask: NDArray[np.bool_] | None = None
    frame: int = 0

    def __post_init__(self) -> None:
        """Check the fields that can be checked without images, and convert them to arrays."""
        points = _numbers(self.points, "points", 2)
        boxes = _numbers(self.boxes, "boxes", 4)
        labels = np.ones(len(points), np.bool_) if self.labels is None else np.asarray(self.labels)
        if labels.shape != (len(points),) or not np.isin(labels, (0, 1)).all():
            raise _bad(f"labels are {_short(labels)} for {len(points)} points", "one per point: 1 = robot, 0 = not")
        if len(boxes) and not (boxes[:, :2] < boxes[:, 2:]).all():
            raise _bad(f"boxes are {_short(boxes)}", "left < right and top < bottom")
        if self.mask is not None:
            shape, kind = getattr(self.mask, "shape", None), getattr(self.mask, "dtype", None)
            if kind != np.bool_ or shape is None or len(shape) not in (2, 3):
                raise _bad(f"the mask is {kind} of shape {shape}", "bool of shape (H, W) or (T, H, W)")
        if isinstance(self.frame, bool) or not isinstance(self.frame, (int, np.integer)) or self.frame < 0:
            raise _bad(f"frame is {self.frame!r}", "the index of an image, from 0")
        for name, value in (("points", points), ("labels", labels.astype(np.bool_)), ("boxes", boxes)):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "text", self.text.strip())

    @property
    def point_array(self) -> NDArray[np.float64]:
        """Points (N, 2) float64, pixels."""
        return np.asarray(self.points, dtype=np.float64)

    @property
    def label_array(self) -> NDArray[np.bool_]:
        """Labels (N,) bool, True = robot."""
        return np.asarray(self.labels, dtype=np.bool_)

    @property
    def box_array(self) -> NDArray[np.float64]:
        """Boxes (B, 4) float64, pixels: left, top, right, bottom."""
        return np.asarray(self.boxes, dtype=np.float64)

    @property
    def is_empty(self) -> bool:
        """True if the prompt has no text, point, box or mask."""
        return not (self.text or len(self.point_array) or len(self.box_array) or self.mask is not None)

    @property
    def each(self) -> bool:
        """True if there is a mask for each image."""
        return self.mask is not None and self.mask.ndim == 3

    def mask_of(self, frame: int) -> NDArray[np.bool_] | None:
        """Return the mask (H, W) bool of an image, or None."""
        if self.mask is None:
            return None
        return np.asarray(self.mask[frame] if self.mask.ndim == 3 else self.mask)

    def misfit(self, count: int, height: int, width: int) -> tuple[str, str] | None:
        """Check against the number and size of the images; return problem and expectation, or None if all fits."""
        if self.frame >= count:
            return f"the prompt is for image {self.frame} of {count}", f"0 to {count - 1}"
        size = f"inside the image of {width} x {height}"
        points, boxes = self.point_array, self.box_array
        outside = (points < 0) | (points > (width, height))
        if outside.any():
            return f"point {_short(points[outside.any(axis=1)][0])} is outside", size
        outside = (boxes < 0) | (boxes > (width, height, width, height))
        if outside.any():
            return f"box {_short(boxes[outside.any(axis=1)][0])} is outside", size
        if self.mask is not None and self.mask.shape not in ((height, width), (count, height, width)):
            return f"the mask has shape {self.mask.shape}", f"({height}, {width}) or ({count}, {height}, {width})"
        return None


def _numbers(value: ArrayLike | None, name: str, columns: int) -> NDArray[np.float64]:
    if value is None:
        return np.empty((0, columns))
    try:
        array = np.array(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise _bad(f"{name} are {str(value)[:80]}", f"numbers of shape (N, {columns})") from None
    array = array[None] if array.shape == (columns,) else array
    if array.size == 0:
        return np.empty((0, columns))
    if array.ndim != 2 or array.shape[1] != columns or not np.isfinite(array).all():
        raise _bad(f"{name} are {_short(array)} of shape {array.shape}", f"finite numbers of shape (N, {columns})")
    return array


def _short(array: NDArray[np.generic]) -> str:
    return str(np.asarray(array).tolist())[:80]


def _bad(what: str, expected: str) -> KinemaError:
    return KinemaError(what, expected=expected, code=ErrorCode.ARGUMENT_INVALID)
