"""Small requests for generators: a square robot that moves over a plane."""

from __future__ import annotations

import numpy as np
from support.scenes import overhead_camera

from kinema4d_ros.core.pointmap import PointmapSequence


def robot_of_a_square(
    width: int = 72, height: int = 48, frames: int = 3, depth_m: float = 0.4, rgb: bool = True
) -> PointmapSequence:
    """Return a request with a square, parallel to the image, that moves right by a third of its side per frame."""
    camera = overhead_camera(width, height)
    side = height // 3
    ids = np.zeros((frames, height, width), np.uint8)
    for t in range(frames):
        left = side // 2 + t * side // 3
        ids[t, side : 2 * side, left : left + side] = 3
    points = (camera.rays() * depth_m).astype(np.float32)
    xyz = np.where((ids != 0)[..., None], points, np.float32(np.nan))
    colours = np.where((ids != 0)[..., None], np.array([200, 30, 40], np.uint8), np.uint8(0)) if rgb else None
    return PointmapSequence(xyz, ids, camera, np.arange(frames) * 0.1, colours)
