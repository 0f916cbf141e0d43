"""Compiled passes of the generators: draw the exact robot into a world, pack what identifies a request."""

from __future__ import annotations

import numpy as np
from numba import njit, prange
from numpy.typing import NDArray

__all__ = ["compose_frames", "pack_depths", "shade_frames"]

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]


@njit(cache=True, parallel=True, nogil=True)
def compose_frames(
    world_rgb: Bytes,
    world_xyz: Floats,
    robot_xyz: Floats,
    robot_ids: Bytes,
    robot_rgb: Bytes,
    soft: bool,
    rgb: Bytes,
    xyz: Floats,
    mask: NDArray[np.bool_],
) -> None:
    """Write the world with the robot wherever it is not behind it; one frame per task.

    The world is one frame (H, W, 3), the robot and the outputs are (T, H, W[, 3]).
    """
    frames, height, width = robot_ids.shape
    for t in prange(frames):
        top, bottom, left, right = height, -1, width, -1
        for v in range(height):
            # Whole rows first: copying is several times faster than choosing pixel by pixel.
            xyz[t, v] = world_xyz[v]
            rgb[t, v] = world_rgb[v]
            mask[t, v] = False
            for u in range(width):
                # Written so that a world without a point (NaN) never hides the robot.
                if robot_ids[t, v, u] == 0 or robot_xyz[t, v, u, 2] > world_xyz[v, u, 2]:
                    continue
                mask[t, v, u] = True
                for c in range(3):
                    xyz[t, v, u, c] = robot_xyz[t, v, u, c]
                    rgb[t, v, u, c] = robot_rgb[t, v, u, c]
                top, bottom, left, right = min(top, v), max(bottom, v), min(left, u), max(right, u)
        if not soft:
            continue
        for v in range(max(1, top - 1), min(height - 1, bottom + 2)):
            for u in range(max(1, left - 1), min(width - 1, right + 2)):
                here = mask[t, v, u]
                if (
                    mask[t, v - 1, u] == here
                    and mask[t, v + 1, u] == here
                    and mask[t, v, u - 1] == here
                    and mask[t, v, u + 1] == here
                ):
                    continue
                share = 0.0
                red = green = blue = 0.0
                for dv in range(-1, 2):
                    for du in range(-1, 2):
                        if mask[t, v + dv, u + du]:
                            weight = (2.0 - abs(dv)) * (2.0 - abs(du)) / 16.0
                            share += weight
                            red += weight * robot_rgb[t, v + dv, u + du, 0]
                            green += weight * robot_rgb[t, v + dv, u + du, 1]
                            blue += weight * robot_rgb[t, v + dv, u + du, 2]
                rest = 1.0 - share
                rgb[t, v, u, 0] = np.uint8(red + rest * world_rgb[v, u, 0] + 0.5)
                rgb[t, v, u, 1] = np.uint8(green + rest * world_rgb[v, u, 1] + 0.5)
                rgb[t, v, u, 2] = np.uint8(blue + rest * world_rgb[v, u, 2] + 0.5)


@njit(cache=True, parallel=True, nogil=True)
def shade_frames(xyz: Floats, ids: Bytes, out: Bytes) -> None:
    """Write a grey robot lit from the camera, for requests that bring no colours; 0 = no robot."""
    frames, height, width = ids.shape
    for t in prange(frames):
        for v in range(height):
            for u in range(width):
                level = 0.0
                if ids[t, v, u] != 0:
                    # Neighbours inside the same link, so that a normal never spans a gap.
                    left = u - 1 if u > 0 and ids[t, v, u - 1] == ids[t, v, u] else u
                    right = u + 1 if u + 1 < width and ids[t, v, u + 1] == ids[t, v, u] else u
                    above = v - 1 if v > 0 and ids[t, v - 1, u] == ids[t, v, u] else v
                    below = v + 1 if v + 1 < height and ids[t, v + 1, u] == ids[t, v, u] else v
                    ax = np.float64(xyz[t, v, right, 0]) - xyz[t, v, left, 0]
                    ay = np.float64(xyz[t, v, right, 1]) - xyz[t, v, left, 1]
                    az = np.float64(xyz[t, v, right, 2]) - xyz[t, v, left, 2]
                    bx = np.float64(xyz[t, below, u, 0]) - xyz[t, above, u, 0]
                    by = np.float64(xyz[t, below, u, 1]) - xyz[t, above, u, 1]
                    bz = np.float64(xyz[t, below, u, 2]) - xyz[t, above, u, 2]
                    nx, ny, nz = ay * bz - az * by, az * bx - ax * bz, ax * by - ay * bx
                    norm = np.sqrt(nx * nx + ny * ny + nz * nz)
                    facing = abs(nz) / norm if norm > 0.0 else 0.5
                    level = 70.0 + 150.0 * facing
                for c in range(3):
                    out[t, v, u, c] = np.uint8(level)


@njit(cache=True, nogil=True)
def pack_depths(xyz: Floats, ids: Bytes, out: Floats) -> int:
    """Write the z of one frame's robot pixels, row by row, to `out`; returns how many."""
    count = 0
    for v in range(ids.shape[0]):
        for u in range(ids.shape[1]):
            if ids[v, u] != 0:
                out[count] = xyz[v, u, 2]
                count += 1
    return count
