"""Compiled passes over predicted points: growing within surfaces, and moving onto rays."""

from __future__ import annotations

import numpy as np
from numba import njit, prange
from numpy.typing import NDArray

__all__ = ["grow_frames", "move_onto_rays", "paste_frames"]

Floats = NDArray[np.float32]
Ints = NDArray[np.intp]


@njit(cache=True, parallel=True, nogil=True)
def grow_frames(
    xyz: Floats, rows: Ints, row_shares: Floats, columns: Ints, column_shares: Floats, edge: float, out: Floats
) -> None:
    """Write the bilinear mean of those of four neighbours whose z agrees with the nearest one's; NaN without it."""
    frames, height, width = out.shape[:3]
    last_row, last_column = xyz.shape[1] - 1, xyz.shape[2] - 1
    for t in prange(frames):
        for v in range(height):
            top = rows[v]
            bottom = min(top + 1, last_row)
            down = row_shares[v]
            near_row = top if down < 0.5 else bottom
            for u in range(width):
                left = columns[u]
                right = min(left + 1, last_column)
                across = column_shares[u]
                reference = xyz[t, near_row, left if across < 0.5 else right, 2]
                tolerance = edge * abs(reference)
                x = y = z = total = np.float32(0)
                for i in range(4):
                    row = top if i < 2 else bottom
                    column = left if i % 2 == 0 else right
                    # Written so that a NaN on either side does not count.
                    if not abs(xyz[t, row, column, 2] - reference) <= tolerance:
                        continue
                    weight = (1 - down if i < 2 else down) * (1 - across if i % 2 == 0 else across)
                    x += weight * xyz[t, row, column, 0]
                    y += weight * xyz[t, row, column, 1]
                    z += weight * xyz[t, row, column, 2]
                    total += weight
                if total > 0:
                    out[t, v, u, 0], out[t, v, u, 1], out[t, v, u, 2] = x / total, y / total, z / total
                else:
                    out[t, v, u, 0] = out[t, v, u, 1] = out[t, v, u, 2] = np.nan


@njit(cache=True, parallel=True, nogil=True)
def move_onto_rays(
    xyz: Floats, rays: Floats, nearest: float, out: Floats, squares: NDArray[np.float64], counts: Ints
) -> None:
    """Write each point's nearest place on its ray, NaN in front of `nearest`; squares moved and points per frame."""
    frames, height, width = out.shape[:3]
    for t in prange(frames):
        total = 0.0
        count = 0
        for v in range(height):
            for u in range(width):
                rx, ry, rz = rays[v, u, 0], rays[v, u, 1], rays[v, u, 2]
                px, py, pz = xyz[t, v, u, 0], xyz[t, v, u, 1], xyz[t, v, u, 2]
                z = (px * rx + py * ry + pz * rz) / (rx * rx + ry * ry + rz * rz)
                if not z > nearest:
                    out[t, v, u, 0] = out[t, v, u, 1] = out[t, v, u, 2] = np.nan
                    continue
                qx, qy, qz = z * rx, z * ry, z * rz
                out[t, v, u, 0], out[t, v, u, 1], out[t, v, u, 2] = qx, qy, qz
                total += (qx - px) ** 2 + (qy - py) ** 2 + (qz - pz) ** 2
                count += 1
        squares[t] = total
        counts[t] = count


@njit(cache=True, parallel=True, nogil=True)
def paste_frames(
    ids: NDArray[np.uint8], robot_xyz: Floats, robot_rgb: NDArray[np.uint8], xyz: Floats, rgb: NDArray[np.uint8]
) -> None:
    """Write the robot's points and colours where its ids are not 0; colours of no frames leave rgb alone."""
    frames, height, width = ids.shape
    coloured = robot_rgb.shape[0] == frames
    for t in prange(frames):
        for v in range(height):
            for u in range(width):
                if ids[t, v, u] == 0:
                    continue
                for c in range(3):
                    xyz[t, v, u, c] = robot_xyz[t, v, u, c]
                    if coloured:
                        rgb[t, v, u, c] = robot_rgb[t, v, u, c]
