"""Compiled passes of the carry hypothesis: which pixels are one thing, and that thing drawn somewhere else."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

__all__ = ["label_things", "splat_points"]

Floats = NDArray[np.float32]


@njit(cache=True, nogil=True)
def label_things(xyz: Floats, thing: NDArray[np.bool_], gap_m: float, labels: NDArray[np.int32]) -> int:
    """Number the connected things: neighbours in the image whose points are at most `gap_m` apart; 0 = none.

    xyz (H, W, 3), thing and labels (H, W). Returns how many there are.
    """
    height, width = thing.shape
    rows = np.empty(height * width, np.int32)
    columns = np.empty(height * width, np.int32)
    labels[:] = 0
    count = 0
    limit = gap_m * gap_m
    for v0 in range(height):
        for u0 in range(width):
            if not thing[v0, u0] or labels[v0, u0] != 0:
                continue
            count += 1
            labels[v0, u0] = count
            rows[0], columns[0] = v0, u0
            waiting = 1
            while waiting > 0:
                waiting -= 1
                v, u = rows[waiting], columns[waiting]
                for dv in range(-1, 2):
                    for du in range(-1, 2):
                        vn, un = v + dv, u + du
                        if vn < 0 or un < 0 or vn >= height or un >= width:
                            continue
                        if not thing[vn, un] or labels[vn, un] != 0:
                            continue
                        square = 0.0
                        for c in range(3):
                            difference = np.float64(xyz[vn, un, c]) - xyz[v, u, c]
                            square += difference * difference
                        if square <= limit:
                            labels[vn, un] = count
                            rows[waiting], columns[waiting] = vn, un
                            waiting += 1
    return count


@njit(cache=True, nogil=True)
def _pixel(point: Floats, K: NDArray[np.float64]) -> tuple[float, float]:
    """Column and row of a point, integers at pixel centres; NaN if it is not in front of the camera."""
    if point[2] <= 0.01:
        return np.nan, np.nan
    return K[0, 0] * point[0] / point[2] + K[0, 2] - 0.5, K[1, 1] * point[1] / point[2] + K[1, 2] - 0.5


@njit(cache=True, nogil=True)
def splat_points(
    points: Floats,
    colours: NDArray[np.uint8],
    K: NDArray[np.float64],
    same_m: float,
    rgb: NDArray[np.uint8],
    xyz: Floats,
) -> None:
    """Draw points (N, 3) in the camera frame over a frame (H, W, 3), each over the four pixels around it.

    Of the points that meet in a pixel, those within `same_m` behind the nearest are mixed by their distance from
    the pixel's centre. A pixel that already shows something nearer keeps it.
    """
    height, width = rgb.shape[:2]
    nearest = np.full((height, width), np.inf, np.float32)
    for i in range(len(points)):
        z = points[i, 2]
        u, v = _pixel(points[i], K)
        # Written so that a point behind the camera (NaN) is left out.
        if not (-1.0 < u < width and -1.0 < v < height):
            continue
        left, top = int(np.floor(u)), int(np.floor(v))
        for row in range(max(top, 0), min(top + 2, height)):
            for column in range(max(left, 0), min(left + 2, width)):
                if z < nearest[row, column]:
                    nearest[row, column] = z
    total = np.zeros((height, width, 5), np.float64)
    for i in range(len(points)):
        z = points[i, 2]
        u, v = _pixel(points[i], K)
        # Written so that a point behind the camera (NaN) is left out.
        if not (-1.0 < u < width and -1.0 < v < height):
            continue
        left, top = int(np.floor(u)), int(np.floor(v))
        for row in range(max(top, 0), min(top + 2, height)):
            for column in range(max(left, 0), min(left + 2, width)):
                if z > nearest[row, column] + same_m:
                    continue
                weight = (1.0 - abs(u - column)) * (1.0 - abs(v - row))
                total[row, column, 0] += weight
                total[row, column, 4] += weight * z
                for c in range(3):
                    total[row, column, 1 + c] += weight * colours[i, c]
    for row in range(height):
        for column in range(width):
            weight = total[row, column, 0]
            # Under a third of a pixel: the thing's border, which the background keeps.
            if weight < 0.34:
                continue
            depth = total[row, column, 4] / weight
            if depth > xyz[row, column, 2]:
                continue
            for c in range(3):
                rgb[row, column, c] = np.uint8(total[row, column, 1 + c] / weight + 0.5)
            # On the pixel's own ray: it can show nothing else.
            xyz[row, column, 0] = np.float32(depth * (column + 0.5 - K[0, 2]) / K[0, 0])
            xyz[row, column, 1] = np.float32(depth * (row + 0.5 - K[1, 2]) / K[1, 1])
            xyz[row, column, 2] = np.float32(depth)
