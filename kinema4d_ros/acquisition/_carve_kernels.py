"""Numba kernel for voxel carving: signed distance to all outlines, and to measured surfaces where depth is available.

Blocks of 8 x 8 x 8 voxels that are outside an outline, or far inside all of them, are decided by their centre.
"""

from __future__ import annotations

import numba
import numpy as np

__all__ = ["BLOCK", "carve_field"]

BLOCK = 8
MOST_MISSES = 4


@numba.njit(cache=True, nogil=True, inline="always")
def _bilinear(image, x, y):  # type: ignore[no-untyped-def]
    """Interpolate at x, y in pixels with centres at integers; NaN outside the image or next to a NaN."""
    h, w = image.shape
    if not (x >= 0.0 and y >= 0.0 and x <= w - 1.0 and y <= h - 1.0):
        return np.nan
    i, j = min(int(y), h - 2), min(int(x), w - 2)
    a, b = y - i, x - j
    top = image[i, j] * (1 - b) + image[i, j + 1] * b
    return top * (1 - a) + (image[i + 1, j] * (1 - b) + image[i + 1, j + 1] * b) * a


@numba.njit(cache=True, nogil=True, inline="always")
def _worst(values, count, misses):  # type: ignore[no-untyped-def]
    """Find the smallest value after ignoring the `misses` smallest ones."""
    for k in range(misses + 1):
        low = k
        for i in range(k + 1, count):
            if values[i] < values[low]:
                low = i
        values[k], values[low] = values[low], values[k]
    return values[misses]


@numba.njit(cache=True, nogil=True)
def carve_field(field, origin, axes, P, sizes, sdf, focal, depth, has_depth, reach, misses, least_seen):  # type: ignore[no-untyped-def]
    """Fill `field` (X, Y, Z) float32 with the signed distance of every voxel, positive inside, in world units.

    Args:
        origin, axes: voxel (i, j, k) is at origin + axes * (i, j, k); axes is the side of a voxel.
        P: (N, 3, 4) from world to pixels (centres at integers) times depth.
        sizes: (N, 2) int64, rows and columns of each view within `sdf`.
        sdf: (N, H, W) float32, distance to the outline, pixels, positive inside; NaN = not visible to the camera.
        focal: (N,) focal length, pixels.
        depth: (N, H, W) float32, metres or NaN; read only if has_depth.
        reach: truncation distance of the depth images.
        misses: number of views that may disagree.
        least_seen: voxels visible in fewer views are outside.
    """
    nx, ny, nz = field.shape
    count = len(P)
    values = np.empty(count)
    radius = 0.5 * axes * BLOCK * np.sqrt(3.0)
    for bx in range(0, nx, BLOCK):
        for by in range(0, ny, BLOCK):
            for bz in range(0, nz, BLOCK):
                ex, ey, ez = min(bx + BLOCK, nx), min(by + BLOCK, ny), min(bz + BLOCK, nz)
                cx = origin[0] + axes * (bx + 0.5 * (BLOCK - 1))
                cy = origin[1] + axes * (by + 0.5 * (BLOCK - 1))
                cz = origin[2] + axes * (bz + 0.5 * (BLOCK - 1))
                missed, inside = 0, True
                for n in range(count):
                    w = P[n, 2, 0] * cx + P[n, 2, 1] * cy + P[n, 2, 2] * cz + P[n, 2, 3]
                    if w <= 1.5 * radius:
                        inside = False
                        continue
                    u = (P[n, 0, 0] * cx + P[n, 0, 1] * cy + P[n, 0, 2] * cz + P[n, 0, 3]) / w
                    v = (P[n, 1, 0] * cx + P[n, 1, 1] * cy + P[n, 1, 2] * cz + P[n, 1, 3]) / w
                    s = _bilinear(sdf[n, : sizes[n, 0], : sizes[n, 1]], u, v)
                    if np.isnan(s):
                        inside = False
                        continue
                    # Twice the radius on the axis covers the wider projection near the edge of the image.
                    most = 2.0 * focal[n] * radius / (w - radius) + 1.0
                    if s < -most:
                        missed += 1
                    if s < most:
                        inside = False
                if missed > misses:
                    field[bx:ex, by:ey, bz:ez] = -radius
                    continue
                if inside and not has_depth:
                    field[bx:ex, by:ey, bz:ez] = radius
                    continue
                for i in range(bx, ex):
                    x = origin[0] + axes * i
                    for j in range(by, ey):
                        y = origin[1] + axes * j
                        for k in range(bz, ez):
                            z = origin[2] + axes * k
                            seen, total, weight = 0, 0.0, 0.0
                            for n in range(count):
                                w = P[n, 2, 0] * x + P[n, 2, 1] * y + P[n, 2, 2] * z + P[n, 2, 3]
                                if w <= 1e-6:
                                    continue
                                u = (P[n, 0, 0] * x + P[n, 0, 1] * y + P[n, 0, 2] * z + P[n, 0, 3]) / w
                                v = (P[n, 1, 0] * x + P[n, 1, 1] * y + P[n, 1, 2] * z + P[n, 1, 3]) / w
                                s = _bilinear(sdf[n, : sizes[n, 0], : sizes[n, 1]], u, v)
                                if np.isnan(s):
                                    continue
                                values[seen] = s * w / focal[n]
                                seen += 1
                                if has_depth:
                                    # Nearest neighbour: interpolation would create surfaces between two depths.
                                    d = depth[n, int(v + 0.5), int(u + 0.5)]
                                    if not np.isnan(d) and w - d > -4.0 * reach and w - d < reach:
                                        total += min(w - d, reach)
                                        weight += 1.0
                                    elif not np.isnan(d) and w - d <= -4.0 * reach:
                                        total -= reach
                                        weight += 1.0
                            if seen < max(least_seen, misses + 1):
                                field[i, j, k] = -axes
                                continue
                            value = _worst(values, seen, misses)
                            if has_depth and weight > 0.0:
                                value = min(value, total / weight)
                            field[i, j, k] = value
