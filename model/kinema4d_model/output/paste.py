"""The exact robot over the prediction: under its mask nothing is left to the network."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kinema4d_model.output._kernels import move_onto_rays, paste_frames
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.pointmap import PointmapSequence

__all__ = ["paste_robot", "points_on_rays"]


def paste_robot(rgb: NDArray[np.uint8], xyz: NDArray[np.float32], robot: PointmapSequence) -> None:
    """Write the robot's points, and its colours where the sequence has them, into rgb and xyz (T, H, W, 3)."""
    colours = np.empty((0, 1, 1, 3), np.uint8) if robot.rgb is None else robot.rgb
    paste_frames(robot.link_ids, robot.xyz, colours, xyz, rgb)


def points_on_rays(
    xyz: NDArray[np.float32], camera: PinholeCamera, *, nearest_m: float = 0.01
) -> tuple[NDArray[np.float32], float]:
    """The points moved onto their pixels' rays, and how far they had been off them.

    A pixel can only show what lies on its ray, and the camera is known: each predicted point (T, H, W, 3)
    moves to the nearest place on it, which uses all three of its coordinates. NaN where that place is closer
    than `nearest_m` in z or behind the camera.

    Returns:
        (T, H, W, 3) float32, metres, camera optical frame; and the RMS distance moved, metres.
    """
    out = np.empty_like(xyz)
    squares, counts = np.zeros(len(xyz)), np.zeros(len(xyz), np.intp)
    move_onto_rays(np.ascontiguousarray(xyz), camera.rays().astype(np.float32), nearest_m, out, squares, counts)
    count = int(counts.sum())
    return out, float(np.sqrt(squares.sum() / count)) if count else 0.0
