"""Compiled passes over one frame of points: bounds, normalisation, depth.

Each reads and writes every pixel once, without the interpreter lock; numpy's masked indexing takes
20 to 30 times as long.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

__all__ = ["denormalise_frame", "frame_bounds", "normalise_frame", "quantise_frame", "unproject_frame"]

Floats = NDArray[np.float32]


def _jit(function: Any) -> Any:
    """Compile, and keep the result on disk where a folder is writable."""
    try:
        return numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:
        return numba.njit(nogil=True)(function)


@_jit
def frame_bounds(xyz: Floats, ids: NDArray[np.uint8], low: Floats, high: Floats) -> tuple[int, int]:
    """Write the extremes of the finite points to low (3,) and high (3,); how many points, how many not finite."""
    height, width = ids.shape
    x0 = y0 = z0 = np.float32(np.inf)
    x1 = y1 = z1 = np.float32(-np.inf)
    points = 0
    broken = 0
    for v in range(height):
        for u in range(width):
            if ids[v, u] == 0:
                continue
            x, y, z = xyz[v, u, 0], xyz[v, u, 1], xyz[v, u, 2]
            points += 1
            # A sum is finite exactly when its terms are: three float32 cannot overflow a float64.
            if not np.isfinite(np.float64(x) + np.float64(y) + np.float64(z)):
                broken += 1
                continue
            x0, x1 = min(x0, x), max(x1, x)
            y0, y1 = min(y0, y), max(y1, y)
            z0, z1 = min(z0, z), max(z1, z)
    low[0], low[1], low[2] = x0, y0, z0
    high[0], high[1], high[2] = x1, y1, z1
    return points, broken


@_jit
def normalise_frame(xyz: Floats, ids: NDArray[np.uint8], low: Floats, scale: Floats, out: Floats) -> None:
    """Write clip((xyz - low) * scale, 0, 1) under the mask and 0 elsewhere."""
    height, width = ids.shape
    zero, one = np.float32(0), np.float32(1)
    for v in range(height):
        for u in range(width):
            if ids[v, u] == 0:
                for c in range(3):
                    out[v, u, c] = zero
            else:
                for c in range(3):
                    out[v, u, c] = min(max((xyz[v, u, c] - low[c]) * scale[c], zero), one)


@_jit
def denormalise_frame(values: Floats, mask: NDArray[np.bool_], low: Floats, span: Floats, out: Floats) -> None:
    """Write low + values * span under the mask and NaN elsewhere."""
    height, width = mask.shape
    nan = np.float32(np.nan)
    for v in range(height):
        for u in range(width):
            if mask[v, u]:
                for c in range(3):
                    out[v, u, c] = low[c] + values[v, u, c] * span[c]
            else:
                for c in range(3):
                    out[v, u, c] = nan


@_jit
def quantise_frame(xyz: Floats, ids: NDArray[np.uint8], unit: float, out: NDArray[np.uint16]) -> tuple[int, float]:
    """Write round(z / unit) under the mask and 0 elsewhere; how many do not fit, and one such z."""
    height, width = ids.shape
    bad = 0
    example = 0.0
    for v in range(height):
        for u in range(width):
            if ids[v, u] == 0:
                out[v, u] = 0
                continue
            steps = np.float64(xyz[v, u, 2]) / unit + 0.5
            if 1.0 <= steps < 65536.0:
                out[v, u] = np.uint16(steps)
            else:
                out[v, u] = 0
                bad += 1
                example = np.float64(xyz[v, u, 2])
    return bad, example


@_jit
def unproject_frame(depth: NDArray[np.uint16], unit: float, K: NDArray[np.float64], out: Floats) -> None:
    """Write the point of every pixel centre at depth * unit, NaN where depth is 0."""
    height, width = depth.shape
    nan = np.float32(np.nan)
    inverse_fx, inverse_fy, cx, cy = 1.0 / K[0, 0], 1.0 / K[1, 1], K[0, 2], K[1, 2]
    for v in range(height):
        y = (v + 0.5 - cy) * inverse_fy
        for u in range(width):
            if depth[v, u] == 0:
                for c in range(3):
                    out[v, u, c] = nan
            else:
                z = depth[v, u] * unit
                out[v, u, 0] = np.float32((u + 0.5 - cx) * inverse_fx * z)
                out[v, u, 1] = np.float32(y * z)
                out[v, u, 2] = np.float32(z)
