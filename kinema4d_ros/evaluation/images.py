"""Image metrics of a prediction against the truth: PSNR and SSIM of whole frames or of the dynamic region.

Images are (T, H, W, 3) uint8. Masks are (T, H, W) bool, True = counted; a frame without counted pixels gives NaN.

>>> truth = np.zeros((1, 16, 16, 3), np.uint8)
>>> psnr(truth + np.uint8(10), truth).round(2), ssim(truth, truth)
(array([28.13]), array([1.]))
"""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.core.errors import EvaluationError
from kinema4d_ros.core.pointmap import map_frames

__all__ = ["dynamic_region", "psnr", "psnr_overall", "require_masks", "require_videos", "squared_error", "ssim"]

Video = NDArray[np.uint8]
Masks = NDArray[np.bool_]
Floats = NDArray[np.float64]

_PEAK = 255.0
_SIGMA, _RADIUS = 1.5, 5
"""The window of Wang et al. 2004: a Gaussian of 11 x 11 pixels."""
_C1, _C2 = (0.01 * _PEAK) ** 2, (0.03 * _PEAK) ** 2


def require_videos(predicted: Any, truth: Any) -> tuple[Video, Video]:
    """Return both as (T, H, W, 3) uint8 of the same shape; otherwise raise an error that names the difference."""
    pair = []
    for name, video in (("the prediction", predicted), ("the truth", truth)):
        array = np.asarray(video)
        if array.dtype != np.uint8 or array.ndim != 4 or array.shape[-1] != 3 or 0 in array.shape:
            raise EvaluationError(
                f"{name} is {array.dtype} of shape {array.shape}", expected="images, uint8 of shape (T, H, W, 3)"
            )
        pair.append(array)
    a, b = pair
    if len(a) != len(b):
        raise EvaluationError(
            f"the prediction has {len(a)} frames, the truth {len(b)}",
            expected="equal numbers",
            hint="resample one of them to the times of the other",
        )
    if a.shape != b.shape:
        raise EvaluationError(
            f"the prediction is {a.shape[2]} x {a.shape[1]}, the truth {b.shape[2]} x {b.shape[1]} (width x height)",
            expected="equal sizes",
        )
    return a, b


def require_masks(mask: Any, shape: tuple[int, ...], name: str = "mask") -> Masks:
    """Return the mask as bool of `shape` (T, H, W); an (H, W) mask is used for every frame."""
    array = np.asarray(mask)
    if array.dtype == np.bool_ and array.shape == shape[1:]:
        array = np.broadcast_to(array, shape)
    if array.dtype != np.bool_ or array.shape != shape:
        raise EvaluationError(f"{name} is {array.dtype} of shape {array.shape}", expected=f"bool of shape {shape}")
    return array


def squared_error(predicted: Video, truth: Video, mask: Masks | None = None) -> tuple[Floats, NDArray[np.int64]]:
    """Sum squared differences (T,) over counted pixels and channels, and count the values (T,)."""
    a, b = require_videos(predicted, truth)
    counted = None if mask is None else require_masks(mask, a.shape[:3])
    total, count = np.zeros(len(a)), np.zeros(len(a), np.int64)
    for t in range(len(a)):
        # Exact in int64: a squared difference is at most 65025, and a frame has fewer than 2^40 of them.
        difference = a[t].astype(np.int32) - b[t]
        if counted is not None:
            difference = difference[counted[t]]
        total[t] = np.einsum("i,i->", difference.ravel(), difference.ravel(), dtype=np.int64)
        count[t] = difference.size
    return total, count


def psnr(predicted: Video, truth: Video, mask: Masks | None = None) -> Floats:
    """Compute PSNR (T,) in dB, peak 255; infinite where the counted pixels are equal, NaN where none is counted."""
    total, count = squared_error(predicted, truth, mask)
    return _decibel(total, count)


def psnr_overall(predicted: Video, truth: Video, mask: Masks | None = None) -> float:
    """Compute PSNR in dB over all counted pixels of all frames together.

    Not the mean over frames: one exactly predicted frame has infinite PSNR and would hide all others.
    """
    total, count = squared_error(predicted, truth, mask)
    return float(_decibel(np.array([total.sum()]), np.array([count.sum()]))[0])


def ssim(predicted: Video, truth: Video, mask: Masks | None = None) -> Floats:
    """Compute mean structural similarity (T,) with a Gaussian window of 11 x 11, per channel.

    The border of 5 pixels, where the window is incomplete, is never counted.
    """
    a, b = require_videos(predicted, truth)
    height, width = a.shape[1:3]
    if min(height, width) <= 2 * _RADIUS:
        raise EvaluationError(
            f"images of {width} x {height} pixels", expected=f"more than {2 * _RADIUS} pixels on each side for SSIM"
        )
    counted = None if mask is None else require_masks(mask, a.shape[:3])

    def one(t: int) -> float:
        inner = None if counted is None else counted[t, _RADIUS:-_RADIUS, _RADIUS:-_RADIUS]
        if inner is None:
            return float(_ssim_map(a[t], b[t]).mean())
        rows, columns = np.flatnonzero(inner.any(axis=1)), np.flatnonzero(inner.any(axis=0))
        if not rows.size:
            return float("nan")
        v, u = slice(rows[0], rows[-1] + 1), slice(columns[0], columns[-1] + 1)
        wide_v, wide_u = slice(v.start, v.stop + 2 * _RADIUS), slice(u.start, u.stop + 2 * _RADIUS)
        return float(_ssim_map(a[t, wide_v, wide_u], b[t, wide_v, wide_u])[inner[v, u]].mean())

    return np.array(map_frames(one, range(len(a))))


def dynamic_region(
    robot_mask: Masks,
    ids: NDArray[np.integer[Any]] | None = None,
    moving: Any = (),
    *,
    reach_px: int = 6,
    with_start: bool = True,
) -> Masks:
    """Mark the pixels near the robot or near moving objects: (T, H, W) bool.

    A static background makes full-frame metrics look good; this region measures what the model must predict.

    Args:
        robot_mask: (T, H, W) bool, the exact robot.
        ids: (T, H, W) integers, object id of each pixel of the true images.
        moving: ids of the moving objects.
        reach_px: margin in rows and in columns.
        with_start: include the position of moving objects in the first frame, so that a copy left behind counts.
    """
    robot = np.asarray(robot_mask)
    if robot.dtype != np.bool_ or robot.ndim != 3:
        raise EvaluationError(f"robot_mask is {robot.dtype} of shape {robot.shape}", expected="bool of shape (T, H, W)")
    if reach_px < 0:
        raise EvaluationError(f"reach_px is {reach_px}", expected="pixels, 0 or more")
    region = robot.copy()
    numbers = np.atleast_1d(np.asarray(moving, dtype=np.int64))
    if numbers.size:
        things = np.asarray(ids)
        if ids is None or things.shape != robot.shape or not np.issubdtype(things.dtype, np.integer):
            raise EvaluationError(f"ids have shape {things.shape}", expected=f"integers of shape {robot.shape}")
        seen = np.isin(things, numbers)
        region |= seen
        if with_start:
            region |= seen[0]
    kernel = np.ones((2 * reach_px + 1, 2 * reach_px + 1), np.uint8)
    return np.stack([cv2.dilate(frame.astype(np.uint8), kernel) != 0 for frame in region])


def _decibel(total: Floats, count: NDArray[np.int64]) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(10.0 * np.log10(_PEAK**2 / (total / count)))


def _ssim_map(a: Video, b: Video) -> Floats:
    """Compute the similarity (H - 10, W - 10, 3) of two (H, W, 3) images."""
    taps = np.exp(-0.5 * (np.arange(-_RADIUS, _RADIUS + 1) / _SIGMA) ** 2)
    taps /= taps.sum()
    # Centred values keep squares small, which reduces cancellation in their differences.
    x, y = a.astype(np.float64) - 127.5, b.astype(np.float64) - 127.5

    def blur(image: Floats) -> Floats:
        smooth = cv2.sepFilter2D(image, cv2.CV_64F, taps, taps)
        return np.asarray(smooth[_RADIUS:-_RADIUS, _RADIUS:-_RADIUS])

    mean_x, mean_y = blur(x), blur(y)
    spread = blur(x * x + y * y) - mean_x * mean_x - mean_y * mean_y
    together = blur(x * y) - mean_x * mean_y
    mean_x += 127.5
    mean_y += 127.5
    products = mean_x * mean_y
    squares = mean_x * mean_x + mean_y * mean_y
    return np.asarray((2 * products + _C1) * (2 * together + _C2) / ((squares + _C1) * (spread + _C2)))
