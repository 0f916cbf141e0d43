"""Exact nearest-neighbour distances between two organised clouds, by a tree of boxes over blocks of pixels.

Neighbours in an image are mostly neighbours in space. Boxes around blocks of 4 x 4 pixels, around 4 x 4 of those, and
so on, form a search tree that is built in one pass, and the same pixel of the other cloud is a first guess that prunes
nearly all of it. The clouds must have the same shape; the result does not depend on the guess.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

__all__ = ["build_boxes", "nearest_squared"]

_BRANCH = 4

Points = NDArray[np.float32]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def build_boxes(xyz: Points) -> tuple[Points, Ints]:
    """Build boxes (N, 2, 3) of all levels of blocks over (H, W, 3), and (levels, 3): first box, rows, columns of each.

    Level 0 has blocks of pixels; the last level is one block. A block without points has an inverted box.
    """
    low = np.where(np.isnan(xyz), np.float32(np.inf), xyz)
    high = np.where(np.isnan(xyz), np.float32(-np.inf), xyz)
    boxes, levels, first = [], [], 0
    while True:
        low, high = _blocks(low, np.inf).min(axis=(1, 3)), _blocks(high, -np.inf).max(axis=(1, 3))
        rows, columns = low.shape[:2]
        boxes.append(np.stack([low.reshape(-1, 3), high.reshape(-1, 3)], axis=1))
        levels.append((first, rows, columns))
        first += rows * columns
        if rows * columns == 1:
            return np.ascontiguousarray(np.concatenate(boxes)), np.array(levels, dtype=np.int64)


def _blocks(image: Points, filler: float) -> Points:
    """View an image as (rows, 4, columns, 4, 3), padded to whole blocks."""
    height, width = image.shape[:2]
    padded = np.pad(image, ((0, -height % _BRANCH), (0, -width % _BRANCH), (0, 0)), constant_values=filler)
    return padded.reshape(padded.shape[0] // _BRANCH, _BRANCH, padded.shape[1] // _BRANCH, _BRANCH, 3)


@njit(cache=True, nogil=True)
def nearest_squared(query: Points, xyz: Points, boxes: Points, levels: Ints, out: Floats) -> None:
    """Write to out (H, W) the squared distance of each query point (H, W, 3) to the nearest of xyz; NaN = no query.

    `boxes` and `levels` are `build_boxes(xyz)`. Infinite where xyz has no points. The tree is traversed once per block
    of 4 x 4 queries, with their common box and their worst first guess; each query then searches the leaves found.
    """
    height, width = out.shape
    top = levels.shape[0] - 1
    # Depth-first: each level has at most 16 children on the stack.
    stack = np.empty((16 * levels.shape[0] + 1, 3), np.int64)
    leaves = np.empty((levels[0, 1] * levels[0, 2], 2), np.int64)
    low, high = np.empty(3), np.empty(3)
    for v0 in range(0, height, _BRANCH):
        for u0 in range(0, width, _BRANCH):
            v1, u1 = min(v0 + _BRANCH, height), min(u0 + _BRANCH, width)
            low[:], high[:] = np.inf, -np.inf
            worst = -1.0
            for v in range(v0, v1):
                for u in range(u0, u1):
                    px, py, pz = np.float64(query[v, u, 0]), np.float64(query[v, u, 1]), np.float64(query[v, u, 2])
                    if np.isnan(px + py + pz):
                        out[v, u] = np.nan
                        continue
                    low[0], low[1], low[2] = min(low[0], px), min(low[1], py), min(low[2], pz)
                    high[0], high[1], high[2] = max(high[0], px), max(high[1], py), max(high[2], pz)
                    best = np.inf
                    for row in range(v0, v1):
                        for column in range(u0, u1):
                            dx, dy = px - xyz[row, column, 0], py - xyz[row, column, 1]
                            dz = pz - xyz[row, column, 2]
                            d = dx * dx + dy * dy + dz * dz
                            if d < best:
                                best = d
                    out[v, u] = best
                    worst = max(worst, best)
            if worst <= 0:
                continue
            found, count = 0, 1
            stack[0, 0], stack[0, 1], stack[0, 2] = top, 0, 0
            while count > 0:
                count -= 1
                level, i, j = stack[count, 0], stack[count, 1], stack[count, 2]
                node = levels[level, 0] + i * levels[level, 2] + j
                gap = 0.0
                for c in range(3):
                    g = max(boxes[node, 0, c] - high[c], low[c] - boxes[node, 1, c], 0.0)
                    gap += g * g
                if gap >= worst:
                    continue
                if level == 0:
                    leaves[found, 0], leaves[found, 1] = i, j
                    found += 1
                    continue
                for row in range(i * _BRANCH, min(i * _BRANCH + _BRANCH, levels[level - 1, 1])):
                    for column in range(j * _BRANCH, min(j * _BRANCH + _BRANCH, levels[level - 1, 2])):
                        stack[count, 0], stack[count, 1], stack[count, 2] = level - 1, row, column
                        count += 1
            for v in range(v0, v1):
                for u in range(u0, u1):
                    best = out[v, u]
                    if np.isnan(best):
                        continue
                    px, py, pz = np.float64(query[v, u, 0]), np.float64(query[v, u, 1]), np.float64(query[v, u, 2])
                    for k in range(found):
                        i, j = leaves[k, 0], leaves[k, 1]
                        node = i * levels[0, 2] + j
                        dx = max(boxes[node, 0, 0] - px, px - boxes[node, 1, 0], 0.0)
                        dy = max(boxes[node, 0, 1] - py, py - boxes[node, 1, 1], 0.0)
                        dz = max(boxes[node, 0, 2] - pz, pz - boxes[node, 1, 2], 0.0)
                        if dx * dx + dy * dy + dz * dz >= best:
                            continue
                        for row in range(i * _BRANCH, min(i * _BRANCH + _BRANCH, height)):
                            for column in range(j * _BRANCH, min(j * _BRANCH + _BRANCH, width)):
                                dx, dy = px - xyz[row, column, 0], py - xyz[row, column, 1]
                                dz = pz - xyz[row, column, 2]
                                d = dx * dx + dy * dy + dz * dz
                                if d < best:
                                    best = d
                    out[v, u] = best
