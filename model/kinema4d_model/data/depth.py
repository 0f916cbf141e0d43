"""Conversion between metric depth, uint16 steps of 0.1 mm and point clouds."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import DataError

__all__ = ["DEPTH_UNIT_M", "pack_depth", "point_bounds", "points_from_depth", "unpack_depth"]

DEPTH_UNIT_M = 1e-4
_MAX_STEPS = 65535


def pack_depth(depth_m: NDArray[np.float32], unit_m: float = DEPTH_UNIT_M) -> NDArray[np.uint16]:
    """Return (T, H, W) uint16 steps of `unit_m`, 0 = nothing (NaN); raise DataError for depth out of range."""
    known = np.isfinite(depth_m)
    steps = np.zeros(depth_m.shape, np.float64)
    np.divide(depth_m, unit_m, out=steps, where=known)
    steps = np.rint(steps)
    if np.any(known & ((steps < 1) | (steps > _MAX_STEPS))):
        worst = depth_m[known]
        raise DataError(
            f"depth ranges from {worst.min():g} to {worst.max():g} m",
            expected=f"{unit_m:g} to {unit_m * _MAX_STEPS:g} m, NaN for empty pixels",
            hint="use a larger unit_m",
        )
    return steps.astype(np.uint16)


def unpack_depth(steps: NDArray[np.uint16], unit_m: float = DEPTH_UNIT_M) -> NDArray[np.float32]:
    """Return (T, H, W) float32 metres along the optical axis, NaN = nothing."""
    return np.where(steps > 0, steps * np.float32(unit_m), np.float32(np.nan)).astype(np.float32)


def points_from_depth(depth_m: NDArray[np.float32], camera: PinholeCamera) -> NDArray[np.float32]:
    """Return (T, H, W, 3) float32 metres, camera optical frame, NaN = nothing, for depth (T, H, W) at pixel centres."""
    if depth_m.shape[-2:] != (camera.height, camera.width):
        raise DataError(f"depth is {depth_m.shape[-2:]}", expected=f"({camera.height}, {camera.width}), as the camera")
    return np.asarray(camera.rays().astype(np.float32) * depth_m[..., None], np.float32)


def point_bounds(*clouds: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return (2, 3) float64: minimum and maximum x, y, z in metres of all finite points of arrays (..., 3)."""
    low, high = np.full(3, np.inf), np.full(3, -np.inf)
    for cloud in clouds:
        points = cloud.reshape(-1, 3)
        points = points[np.isfinite(points[:, 2])]
        if len(points):
            low, high = np.minimum(low, points.min(axis=0)), np.maximum(high, points.max(axis=0))
    if not np.all(np.isfinite(low)):
        raise DataError("no finite point to compute bounds from", expected="at least one pixel with depth")
    return np.stack([low, high])
