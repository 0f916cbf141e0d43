"""Compiled passes over whole pointmap sequences: bounds, normalisation, depth; one frame per task.

Each reads and writes every pixel once; numpy's masked indexing takes 20 to 30 times as long.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange
from numpy.typing import NDArray

__all__ = ["frame_bounds", "frames_denormalise", "frames_normalise", "frames_quantise", "frames_unproject"]

Floats = NDArray[np.float32]


@njit(cache=True, parallel=True, nogil=True)
def frame_bounds(xyz: Floats, ids: NDArray[np.uint8]) -> tuple[Floats, Floats, NDArray[np.int64], NDArray[np.int64]]:
    """Per frame: low (T, 3), high (T, 3), number of points (T,), number of points that are not finite (T,)."""
    frames, height, width = ids.shape
    low = np.full((frames, 3), np.float32(np.inf))
    high = np.full((frames, 3), np.float32(-np.inf))
    count = np.zeros(frames, np.int64)
    bad = np.zeros(frames, np.int64)
    for t in prange(frames):
        x0 = y0 = z0 = np.float32(np.inf)
        x1 = y1 = z1 = np.float32(-np.inf)
        points = 0
        broken = 0
        for v in range(height):
            for u in range(width):
                if ids[t, v, u] == 0:
                    continue
                x, y, z = xyz[t, v, u, 0], xyz[t, v, u, 1], xyz[t, v, u, 2]
                points += 1
                # A sum is finite exactly when its terms are (float32 metres cannot overflow in float64).
                if not np.isfinite(np.float64(x) + np.float64(y) + np.float64(z)):
                    broken += 1
                    continue
                x0, x1 = min(x0, x), max(x1, x)
                y0, y1 = min(y0, y), max(y1, y)
                z0, z1 = min(z0, z), max(z1, z)
        low[t, 0], low[t, 1], low[t, 2] = x0, y0, z0
        high[t, 0], high[t, 1], high[t, 2] = x1, y1, z1
        count[t] = points
        bad[t] = broken
    return low, high, count, bad


@njit(cache=True, parallel=True, nogil=True)
def frames_normalise(xyz: Floats, ids: NDArray[np.uint8], low: Floats, scale: Floats, out: Floats) -> None:
    """Write clip((xyz - low) * scale, 0, 1) under the mask and 0 elsewhere."""
    frames, height, width = ids.shape
    zero, one = np.float32(0), np.float32(1)
    for t in prange(frames):
        for v in range(height):
            for u in range(width):
                if ids[t, v, u] == 0:
                    for c in range(3):
                        out[t, v, u, c] = zero
                else:
                    for c in range(3):
                        out[t, v, u, c] = min(max((xyz[t, v, u, c] - low[c]) * scale[c], zero), one)


@njit(cache=True, parallel=True, nogil=True)
def frames_denormalise(values: Floats, mask: NDArray[np.bool_], low: Floats, span: Floats, out: Floats) -> None:
    """Write low + values * span under the mask and NaN elsewhere."""
    frames, height, width = mask.shape
    nan = np.float32(np.nan)
    for t in prange(frames):
        for v in range(height):
            for u in range(width):
                if mask[t, v, u]:
                    for c in range(3):
                        out[t, v, u, c] = low[c] + values[t, v, u, c] * span[c]
                else:
                    for c in range(3):
                        out[t, v, u, c] = nan


@njit(cache=True, parallel=True, nogil=True)
def frames_quantise(
    xyz: Floats, ids: NDArray[np.uint8], unit: float, out: NDArray[np.uint16]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Write round(z / unit) under the mask and 0 elsewhere; per frame: how many do not fit, and one such z."""
    frames, height, width = ids.shape
    bad = np.zeros(frames, np.int64)
    example = np.zeros(frames, np.float64)
    for t in prange(frames):
        for v in range(height):
            for u in range(width):
                if ids[t, v, u] == 0:
                    out[t, v, u] = 0
                    continue
                steps = np.float64(xyz[t, v, u, 2]) / unit + 0.5
                if 1.0 <= steps < 65536.0:
                    out[t, v, u] = np.uint16(steps)
                else:
                    out[t, v, u] = 0
                    bad[t] += 1
                    example[t] = xyz[t, v, u, 2]
    return bad, example


@njit(cache=True, parallel=True, nogil=True)
def frames_unproject(depth: NDArray[np.uint16], unit: float, K: NDArray[np.float64], out: Floats) -> None:
    """Write the point of every pixel centre at depth * unit, NaN where depth is 0."""
    frames, height, width = depth.shape
    nan = np.float32(np.nan)
    inverse_fx, inverse_fy, cx, cy = 1.0 / K[0, 0], 1.0 / K[1, 1], K[0, 2], K[1, 2]
    for t in prange(frames):
        for v in range(height):
            y = (v + 0.5 - cy) * inverse_fy
            for u in range(width):
                if depth[t, v, u] == 0:
                    for c in range(3):
                        out[t, v, u, c] = nan
                else:
                    z = depth[t, v, u] * unit
                    out[t, v, u, 0] = np.float32((u + 0.5 - cx) * inverse_fx * z)
                    out[t, v, u, 1] = np.float32(y * z)
                    out[t, v, u, 2] = np.float32(z)
