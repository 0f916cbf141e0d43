"""Compiled passes over one frame of points: rays, steps for the wire and back, clouds for RViz.

Each reads and writes every pixel once and releases the interpreter lock, so that frames run in parallel.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

__all__ = ["measure", "pack_cloud", "points_on_rays", "steps_to_xyz", "xyz_to_steps", "z_to_steps"]

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]


@njit(cache=True, nogil=True)
def measure(xyz: Floats, K: Doubles, low: Doubles, high: Doubles) -> tuple[float, int, int]:
    """Farthest distance (m) of a point from its pixel's ray, in x or y at its depth; number of points; number of
    points that are infinite or only partly NaN. Writes the least and largest x, y, z."""
    height, width, _ = xyz.shape
    fx, fy, cx, cy = K[0, 0], K[1, 1], K[0, 2], K[1, 2]
    worst, count, bad = 0.0, 0, 0
    low[:] = np.inf
    high[:] = -np.inf
    for v in range(height):
        slope_y = (v + 0.5 - cy) / fy
        for u in range(width):
            x, y, z = np.float64(xyz[v, u, 0]), np.float64(xyz[v, u, 1]), np.float64(xyz[v, u, 2])
            if np.isnan(x) and np.isnan(y) and np.isnan(z):
                continue
            # A sum is finite exactly when its terms are: float32 metres cannot overflow in float64.
            if not np.isfinite(x + y + z):
                bad += 1
                continue
            count += 1
            worst = max(worst, abs(x - z * (u + 0.5 - cx) / fx), abs(y - z * slope_y))
            low[0], low[1], low[2] = min(low[0], x), min(low[1], y), min(low[2], z)
            high[0], high[1], high[2] = max(high[0], x), max(high[1], y), max(high[2], z)
    return worst, count, bad


@njit(cache=True, nogil=True)
def z_to_steps(xyz: Floats, offset: float, scale: float, out: NDArray[np.uint16]) -> None:
    """Write 1 + the nearest number of steps from `offset` to z, 0 = nothing; the caller has checked the range."""
    height, width, _ = xyz.shape
    inverse = 1.0 / scale
    for v in range(height):
        for u in range(width):
            z = np.float64(xyz[v, u, 2])
            out[v, u] = np.uint16(0) if np.isnan(z) else np.uint16(np.rint((z - offset) * inverse) + 1.0)


@njit(cache=True, nogil=True)
def xyz_to_steps(xyz: Floats, offset: Doubles, scale: Doubles, out: NDArray[np.uint16]) -> None:
    """The same for all three axes; nothing is 0 in all of them."""
    height, width, _ = xyz.shape
    inverse = 1.0 / scale
    for v in range(height):
        for u in range(width):
            nothing = np.isnan(xyz[v, u, 2])
            for c in range(3):
                step = 0.0 if nothing else np.rint((np.float64(xyz[v, u, c]) - offset[c]) * inverse[c]) + 1.0
                out[v, u, c] = np.uint16(step)


@njit(cache=True, nogil=True)
def points_on_rays(steps: NDArray[np.uint16], offset: float, scale: float, K: Doubles, out: Floats) -> None:
    """Write the points (H, W, 3) on the pixels' rays at depth offset + scale * (steps - 1); NaN where steps is 0."""
    height, width = steps.shape
    fx, fy, cx, cy = K[0, 0], K[1, 1], K[0, 2], K[1, 2]
    nothing = np.float32(np.nan)
    for v in range(height):
        slope_y = (v + 0.5 - cy) / fy
        for u in range(width):
            step = steps[v, u]
            if step == 0:
                out[v, u, 0] = out[v, u, 1] = out[v, u, 2] = nothing
                continue
            z = offset + scale * (np.float64(step) - 1.0)
            out[v, u, 0] = np.float32(z * (u + 0.5 - cx) / fx)
            out[v, u, 1] = np.float32(z * slope_y)
            out[v, u, 2] = np.float32(z)


@njit(cache=True, nogil=True)
def steps_to_xyz(steps: NDArray[np.uint16], offset: Doubles, scale: Doubles, out: Floats) -> None:
    """Write offset + scale * (steps - 1) per axis; NaN where the last axis is 0."""
    height, width, _ = steps.shape
    for v in range(height):
        for u in range(width):
            nothing = steps[v, u, 2] == 0
            for c in range(3):
                value = offset[c] + scale[c] * (np.float64(steps[v, u, c]) - 1.0)
                out[v, u, c] = np.float32(np.nan) if nothing else np.float32(value)


@njit(cache=True, nogil=True)
def pack_cloud(xyz: Floats, rgb: NDArray[np.uint8], points: Floats, bits: NDArray[np.uint32]) -> None:
    """Write rows x, y, z, 0x00RRGGBB; `points` and `bits` are two views (N, 4) of the same memory."""
    for i in range(xyz.shape[0]):
        points[i, 0], points[i, 1], points[i, 2] = xyz[i, 0], xyz[i, 1], xyz[i, 2]
        bits[i, 3] = (np.uint32(rgb[i, 0]) << 16) | (np.uint32(rgb[i, 1]) << 8) | np.uint32(rgb[i, 2])
