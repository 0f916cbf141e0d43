"""Compiled passes over predicted frames: upsampling within surfaces, projection onto rays, blending two videos."""

from __future__ import annotations

import numpy as np
from numba import njit, prange
from numpy.typing import NDArray

__all__ = ["add_rest", "grow_frames", "mix_frame", "move_onto_rays", "paste_frames"]

Floats = NDArray[np.float32]
Ints = NDArray[np.intp]


@njit(cache=True, parallel=True, nogil=True)
def grow_frames(
    xyz: Floats, rows: Ints, row_shares: Floats, columns: Ints, column_shares: Floats, edge: float, out: Floats
) -> None:
    """Write the bilinear mean of those of the four neighbours whose z agrees with the nearest one; else NaN."""
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
                    # Written so that NaN in either value excludes the neighbour.
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
    """Write each point's closest point on its ray, NaN if nearer than `nearest`; sums of squared shifts and counts."""
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
    """Write the robot's points and colours where its ids are not 0; with a zero-length robot_rgb, rgb is kept."""
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


@njit(cache=True, nogil=True)
def mix_frame(
    rgb: NDArray[np.uint8],
    xyz: Floats,
    mask: NDArray[np.bool_],
    other_rgb: NDArray[np.uint8],
    other_xyz: Floats,
    other_mask: NDArray[np.bool_],
    share: float,
) -> None:
    """Mix a share (float32) of another frame into one (H, W[, 3]); more than a half also takes its points and mask."""
    height, width = mask.shape
    for v in range(height):
        for u in range(width):
            for c in range(3):
                # Equal levels stay as they are, also after rounding.
                if rgb[v, u, c] != other_rgb[v, u, c]:
                    level = (1 - share) * rgb[v, u, c] + share * other_rgb[v, u, c]
                    rgb[v, u, c] = np.uint8(level + np.float32(0.5))
        if share > np.float32(0.5):
            mask[v] = other_mask[v]
            xyz[v] = other_xyz[v]


@njit(cache=True, nogil=True)
def _loud_cells(values: Floats, limit: float) -> NDArray[np.bool_]:
    """Return (K, h, w): whether one of a cell's four corners in (K, h, w, C) exceeds the limit, or almost."""
    count, rows, columns, channels = values.shape
    least = limit * (1.0 - 1e-6)
    large = np.zeros((count, rows, columns), np.bool_)
    for k in range(count):
        for i in range(rows):
            for j in range(columns):
                for c in range(channels):
                    # Written so that NaN is large.
                    if not abs(values[k, i, j, c]) <= least:
                        large[k, i, j] = True
    out = np.zeros((count, rows, columns), np.bool_)
    for k in range(count):
        for i in range(rows):
            below = min(i + 1, rows - 1)
            for j in range(columns):
                right = min(j + 1, columns - 1)
                out[k, i, j] = large[k, i, j] or large[k, i, right] or large[k, below, j] or large[k, below, right]
    return out


@njit(cache=True, parallel=True, nogil=True)
def add_rest(
    rgb: NDArray[np.uint8],
    xyz: Floats,
    mask: NDArray[np.bool_],
    rest_rgb: Floats,
    rest_z: Floats,
    before: Ints,
    share: Floats,
    window: Ints,
    quiet_levels: float,
    quiet_m: float,
) -> None:
    """Add to frames (T, H, W[, 3]), in place, what neither world shows; the robot under the mask stays exact.

    The rest is (K, h, w[, 3]) over `window` (left, top, width, height) at K times; `before` and `share` (T,) give frame
    t's position between them. Changes up to `quiet_levels` or `quiet_m` count as noise. Most cells of the rest are
    quiet in all corners: an interpolated value is no larger, so their pixels are skipped.
    """
    frames, height, width = mask.shape
    rows, columns = rest_z.shape[1:]
    left, top, wide, high = window[0], window[1], window[2], window[3]
    last = len(rest_z) - 1
    loud_rgb = _loud_cells(rest_rgb, quiet_levels)
    loud_z = _loud_cells(rest_z.reshape((*rest_z.shape, 1)), quiet_m)
    across, across_share = np.empty(wide, np.intp), np.empty(wide, np.float32)
    for i in range(wide):
        x = min(max((i + 0.5) * columns / wide - 0.5, 0.0), columns - 1.0)
        across[i] = int(x)
        across_share[i] = np.float32(x - across[i])
    for t in prange(frames):
        now, following, later = before[t], min(before[t] + 1, last), share[t]
        for v in range(max(top, 0), min(top + high, height)):
            y = min(max((v - top + 0.5) * rows / high - 0.5, 0.0), rows - 1.0)
            row = int(y)
            below = min(row + 1, rows - 1)
            fy = np.float32(y - row)
            for u in range(max(left, 0), min(left + wide, width)):
                column = across[u - left]
                coloured = loud_rgb[now, row, column] or loud_rgb[following, row, column]
                deep = loud_z[now, row, column] or loud_z[following, row, column]
                # The robot is exact: the network changes nothing there.
                if not (coloured or deep) or mask[t, v, u]:
                    continue
                right = min(column + 1, columns - 1)
                fx = across_share[u - left]
                a, b = (1 - fy) * (1 - fx), (1 - fy) * fx
                p, q = fy * (1 - fx), fy * fx
                if coloured:
                    for c in range(3):
                        one = (
                            a * rest_rgb[now, row, column, c]
                            + b * rest_rgb[now, row, right, c]
                            + p * rest_rgb[now, below, column, c]
                            + q * rest_rgb[now, below, right, c]
                        )
                        two = (
                            a * rest_rgb[following, row, column, c]
                            + b * rest_rgb[following, row, right, c]
                            + p * rest_rgb[following, below, column, c]
                            + q * rest_rgb[following, below, right, c]
                        )
                        change = (1 - later) * one + later * two
                        if change > quiet_levels:
                            change -= quiet_levels
                        elif change < -quiet_levels:
                            change += quiet_levels
                        else:
                            continue
                        level = rgb[t, v, u, c] + change
                        rgb[t, v, u, c] = np.uint8(min(max(level + np.float32(0.5), np.float32(0)), np.float32(255)))
                z = xyz[t, v, u, 2]
                # Written so that NaN (no point) stays NaN.
                if not deep or not z > 0:
                    continue
                moved = (1 - later) * (
                    a * rest_z[now, row, column]
                    + b * rest_z[now, row, right]
                    + p * rest_z[now, below, column]
                    + q * rest_z[now, below, right]
                ) + later * (
                    a * rest_z[following, row, column]
                    + b * rest_z[following, row, right]
                    + p * rest_z[following, below, column]
                    + q * rest_z[following, below, right]
                )
                if abs(moved) <= quiet_m or z + moved < np.float32(0.01):
                    continue
                scale = (z + moved) / z
                for c in range(3):
                    xyz[t, v, u, c] *= scale
