"""`GripTrack`: where the fingers close and how far they are open, frame by frame: what a hand does to the world."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.errors import PointmapError
from kinema4d_ros.robot.gripper import Fingers

__all__ = ["GripTrack"]


@dataclass(frozen=True, eq=False)
class GripTrack:
    """The commanded hand over time.

    Attributes:
        base_T_grip: (T, 4, 4) float64, metres: the point between the finger tips; x is the direction in which the
            fingers close, z the one in which the hand approaches.
        width_m: (T,) float64, metres between the finger pads.
        fingers: their shape; pads are points where it is not known.
    """

    base_T_grip: NDArray[np.float64]
    width_m: NDArray[np.float64]
    fingers: Fingers = field(default_factory=Fingers)

    def __post_init__(self) -> None:
        """Check shapes and numbers."""
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
        """Some of the frames."""
        return replace(self, base_T_grip=self.base_T_grip[frames], width_m=self.width_m[frames])
