"""Robot pointmaps over time: XYZ and link id per pixel, the gripper track, and reversible normalisation."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kinema4d_ros.core._kernels import denormalise_frame, frame_bounds, normalise_frame
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import CameraError, ErrorCode, PointmapError
from kinema4d_ros.robot.gripper import Fingers

__all__ = ["GripTrack", "NormalisedPointmap", "PointmapSequence", "denormalise", "each_frame", "map_frames"]

# Gripper pose and opening per frame.


@dataclass(frozen=True, eq=False)
class GripTrack:
    """Commanded gripper pose and opening over time.

    Attributes:
        base_T_grip: (T, 4, 4) float64, metres: the point between the finger tips; the fingers close along x, the
            gripper approaches along z.
        width_m: (T,) float64, metres between the finger pads.
        fingers: finger geometry; without it the pads are points.
    """

    base_T_grip: NDArray[np.float64]
    width_m: NDArray[np.float64]
    fingers: Fingers = field(default_factory=Fingers)

    def __post_init__(self) -> None:
        """Check shapes and values."""
        poses, width = self.base_T_grip, self.width_m
        if poses.ndim != 3 or poses.shape[1:] != (4, 4) or width.shape != poses.shape[:1]:
            raise PointmapError(
                f"a grip of poses {poses.shape} and widths {width.shape}", expected="(T, 4, 4) and (T,), one T for both"
            )
        if not np.isfinite(poses).all() or not np.isfinite(width).all() or (width < 0).any():
            raise PointmapError("a grip holds NaN, infinity or a negative width", expected="finite metres")
        turns = poses[:, :3, :3]
        if not np.allclose(turns @ turns.swapaxes(1, 2), np.eye(3), atol=1e-3):
            raise PointmapError("a grip's poses are not rotations and translations", expected="rigid transforms")

    def __len__(self) -> int:
        """Number of frames."""
        return len(self.width_m)

    def at(self, frames: NDArray[np.intp] | slice) -> GripTrack:
        """Return a subset of the frames."""
        return replace(self, base_T_grip=self.base_T_grip[frames], width_m=self.width_m[frames])


# One call per frame on all cores. The threads end with the call, so that the process may fork before or after.

A = TypeVar("A")
B = TypeVar("B")


def map_frames(work: Callable[[A], B], items: Iterable[A]) -> list[B]:
    """Return `work` of every item, in order, on all cores; useful for work that releases the GIL."""
    return list(each_frame(work, items))


def each_frame(work: Callable[[A], B], items: Iterable[A]) -> Generator[B, None, None]:
    """Yield what `map_frames` returns, as soon as it is there; closing it ends the work."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with ThreadPoolExecutor(cores) as pool:
        yield from pool.map(work, items)


_NO_EXTENT_M = 1e-9


@dataclass(frozen=True, eq=False)
class NormalisedPointmap:
    """Pointmap sequence normalised to [0, 1], with the bounds for the inverse.

    Attributes:
        values: (T, H, W, 3) float32 in [0, 1]; 0 where there is no robot, and on an axis on which all
            points agree to a nanometre.
        mask: (T, H, W) bool, True = robot. Only the mask separates "no robot" from "at the lower bound".
        bounds: (2, 3) float64, metres, camera optical frame: smallest and largest x, y, z of the sequence.
    """

    values: NDArray[np.float32]
    mask: NDArray[np.bool_]
    bounds: NDArray[np.float64]

    def inverse(self) -> NDArray[np.float32]:
        """Return (T, H, W, 3) float32, metres, camera optical frame, NaN = no robot."""
        return denormalise(self.values, self.bounds, self.mask)


@dataclass(frozen=True, eq=False)
class PointmapSequence:
    """Robot points per pixel and frame, as seen by the camera.

    Attributes:
        xyz: (T, H, W, 3) float32, metres, camera optical frame, NaN = no robot.
        link_ids: (T, H, W) uint8: 0 = no robot, i + 1 = `robot.links[i]`.
        camera: the distortion-free camera of that size.
        times: (T,) float64, seconds, never decreasing; or None.
        rgb: (T, H, W, 3) uint8 shaded robot, 0 = no robot; or None.
        grip: gripper pose and opening per frame; None without a gripper or if unknown.
    """

    xyz: NDArray[np.float32]
    link_ids: NDArray[np.uint8]
    camera: PinholeCamera
    times: NDArray[np.float64] | None = None
    rgb: NDArray[np.uint8] | None = None
    grip: GripTrack | None = None

    def __post_init__(self) -> None:
        """Check shapes, types and sizes; `check_points` checks every pixel."""
        shape = self.link_ids.shape
        _require(self.link_ids, "link_ids", np.uint8, shape if len(shape) == 3 else (None, None, None))
        _require(self.xyz, "xyz", np.float32, (*shape, 3))
        if self.rgb is not None:
            _require(self.rgb, "rgb", np.uint8, (*shape, 3))
        if shape[1:] != (self.camera.height, self.camera.width):
            raise CameraError(
                f"the pointmaps are {shape[2]} x {shape[1]}, the camera is {self.camera.width} x {self.camera.height}",
                expected="the same width x height",
                hint="use camera.scaled(width, height)",
                code=ErrorCode.CAMERA_BAD_SIZE,
            )
        if self.camera.has_distortion:
            raise CameraError(
                f"the camera of a pointmap has lens distortion {list(self.camera.distortion)}",
                expected="a pinhole, because pixel and depth must give the point",
                hint="use camera.rectified(), and camera.rectify(image) for its images",
                code=ErrorCode.CAMERA_BAD_DISTORTION,
            )
        if self.times is not None:
            times = np.asarray(self.times, dtype=np.float64)
            _require(times, "times", np.float64, shape[:1])
            if not np.all(np.isfinite(times)) or np.any(np.diff(times) < 0):
                raise PointmapError("times are not finite or go backwards", expected="seconds that never decrease")
            object.__setattr__(self, "times", times)
        if self.grip is not None and len(self.grip) != shape[0]:
            raise PointmapError(f"a grip of {len(self.grip)} frames", expected=f"{shape[0]}, one a frame")

    def __len__(self) -> int:
        """Number of frames."""
        return int(self.link_ids.shape[0])

    @cached_property
    def mask(self) -> NDArray[np.bool_]:
        """(T, H, W) bool, True = robot."""
        return np.asarray(self.link_ids != 0)

    def check_points(self) -> None:
        """Raise PointmapError for points that are not finite under the mask, or present outside of it."""
        for t in range(len(self)):
            finite = np.isfinite(self.xyz[t]).all(-1)
            if not np.array_equal(finite, self.mask[t]):
                wrong = np.argwhere(finite != self.mask[t])
                raise PointmapError(
                    f"frame {t} has {len(wrong)} pixels where xyz and link_ids disagree, "
                    f"the first in row {wrong[0][0]}, column {wrong[0][1]}",
                    expected="finite points exactly where link_ids is not 0",
                )

    def bounds(self) -> NDArray[np.float64]:
        """Return (2, 3) float64, metres, camera optical frame: smallest and largest x, y, z of all robot points."""
        low, high = np.empty((len(self), 3), np.float32), np.empty((len(self), 3), np.float32)
        found = map_frames(lambda t: frame_bounds(self.xyz[t], self.link_ids[t], low[t], high[t]), range(len(self)))
        count, bad = np.array(found).T
        if not count.any():
            raise PointmapError(
                "no frame shows the robot",
                expected="at least one robot pixel",
                hint="check base_T_camera: the robot may be behind the camera or outside its view",
                code=ErrorCode.POINTMAP_EMPTY,
            )
        if bad.any():
            raise PointmapError(
                f"frame {int(bad.argmax())} has {int(bad.max())} robot pixels whose point is NaN or infinite",
                expected="finite points where link_ids is not 0",
            )
        return np.stack([low.min(0), high.max(0)]).astype(np.float64)

    def normalised(self, bounds: ArrayLike | None = None) -> NormalisedPointmap:
        """Normalise to [0, 1] per axis, min-max over all robot pixels of the sequence.

        Args:
            bounds: (2, 3) metres to use instead of the sequence's own, e.g. those of a longer
                sequence; points outside are clipped to [0, 1].
        """
        limits = self.bounds() if bounds is None else _require_bounds(bounds)
        low, span = limits[0].astype(np.float32), (limits[1] - limits[0]).astype(np.float32)
        scale = np.divide(np.float32(1), span, out=np.zeros_like(span), where=span > _NO_EXTENT_M)
        values = np.empty(self.xyz.shape, np.float32)
        map_frames(lambda t: normalise_frame(self.xyz[t], self.link_ids[t], low, scale, values[t]), range(len(self)))
        return NormalisedPointmap(values, self.mask, limits)


def denormalise(values: NDArray[np.float32], bounds: ArrayLike, mask: NDArray[np.bool_]) -> NDArray[np.float32]:
    """Return metres (T, H, W, 3) float32 of values in [0, 1]; NaN where `mask` (T, H, W) is False."""
    limits = _require_bounds(bounds)
    _require(mask, "mask", np.bool_, mask.shape if mask.ndim == 3 else (None, None, None))
    _require(values, "values", np.float32, (*mask.shape, 3))
    out = np.empty(values.shape, np.float32)
    low, span = limits[0].astype(np.float32), (limits[1] - limits[0]).astype(np.float32)
    map_frames(lambda t: denormalise_frame(values[t], mask[t], low, span, out[t]), range(len(mask)))
    return out


def _require_bounds(bounds: ArrayLike) -> NDArray[np.float64]:
    limits = np.asarray(bounds, dtype=np.float64)
    if limits.shape != (2, 3) or not np.all(np.isfinite(limits)) or np.any(limits[0] > limits[1]):
        raise PointmapError(
            f"bounds {limits.tolist()} are invalid", expected="(2, 3) finite metres, lower row <= upper row"
        )
    return limits


def _require(array: NDArray[np.generic], name: str, dtype: type, shape: tuple[int | None, ...]) -> None:
    if array.dtype != dtype or array.shape != shape or 0 in array.shape:
        wanted = ", ".join("any" if n is None else str(n) for n in shape)
        raise PointmapError(
            f"{name} is {array.dtype} of shape {array.shape}",
            expected=f"{np.dtype(dtype).name} of shape ({wanted}), not empty",
        )
