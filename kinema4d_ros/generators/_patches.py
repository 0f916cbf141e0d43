"""Compiled search for patches that continue an image into a hole, and the vote that paints with them."""

from __future__ import annotations

import numpy as np
from numba import njit, prange
from numpy.typing import NDArray

__all__ = ["paint_patches", "search_patches"]

_PULL = 200.0
"""Squared grey levels that a patch as far away as the image is wide loses against one nearby."""

Image = NDArray[np.float32]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int32]


@njit(cache=True, nogil=True)
def _difference(image: Image, v: int, u: int, w: int, x: int, radius: int, bound: float) -> float:
    """Mean squared difference of two patches over the part of the first that is in the image; stops above bound.

    Far patches cost more: what is behind the robot more likely looks like what is beside it.
    """
    height, width = image.shape[:2]
    low_v, high_v = max(-radius, -v), min(radius, height - 1 - v)
    low_u, high_u = max(-radius, -u), min(radius, width - 1 - u)
    count = (high_v - low_v + 1) * (high_u - low_u + 1)
    limit = bound * count
    away = ((v - w) ** 2 + (u - x) ** 2) / (width * width)
    total = np.float32(_PULL * away * count)
    if total > limit:
        return bound
    for dv in range(low_v, high_v + 1):
        for du in range(low_u, high_u + 1):
            for c in range(3):
                d = image[v + dv, u + du, c] - image[w + dv, x + du, c]
                total += d * d
        if total > limit:
            return bound
    return float(total / count)


@njit(cache=True, nogil=True)
def search_patches(
    image: Image, targets: Ints, sources: Bools, match: Ints, cost: Image, radius: int, rounds: int, seed: int
) -> None:
    """Improve `match` (H, W, 2), the source patch of every target, and its `cost` (H, W).

    Each round passes on the neighbours' matches, forwards and backwards in turn, and tries random places around
    the match it has, half as far away each time. `sources` (H, W) is True where a whole patch is known.
    """
    height, width = sources.shape
    state = np.uint64(seed * 2654435761 + 1)
    for k in range(targets.shape[0]):
        v, u = targets[k]
        cost[v, u] = _difference(image, v, u, match[v, u, 0], match[v, u, 1], radius, np.inf)
    for turn in range(rounds):
        step = 1 if turn % 2 == 0 else -1
        for i in range(targets.shape[0]):
            v, u = targets[i if step == 1 else targets.shape[0] - 1 - i]
            best = cost[v, u]
            for side in range(2):
                nv, nu = (v - step, u) if side == 0 else (v, u - step)
                if nv < 0 or nu < 0 or nv >= height or nu >= width or match[nv, nu, 0] < 0:
                    continue
                w, x = match[nv, nu, 0] + v - nv, match[nv, nu, 1] + u - nu
                if w < 0 or x < 0 or w >= height or x >= width or not sources[w, x]:
                    continue
                d = _difference(image, v, u, w, x, radius, best)
                if d < best:
                    best = d
                    match[v, u, 0], match[v, u, 1] = w, x
            reach = max(height, width) // 2
            while reach >= 1:
                state = state * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
                dv = np.int64((state >> np.uint64(33)) % np.uint64(2 * reach + 1)) - reach
                state = state * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
                du = np.int64((state >> np.uint64(33)) % np.uint64(2 * reach + 1)) - reach
                w, x = match[v, u, 0] + dv, match[v, u, 1] + du
                if 0 <= w < height and 0 <= x < width and sources[w, x]:
                    d = _difference(image, v, u, w, x, radius, best)
                    if d < best:
                        best = d
                        match[v, u, 0], match[v, u, 1] = w, x
                reach //= 2
            cost[v, u] = best


@njit(cache=True, nogil=True, parallel=True)
def paint_patches(
    image: Image, colours: Image, hole: Ints, match: Ints, cost: Image, radius: int, softness: float, out: Image
) -> None:
    """Write each hole pixel as the mean of what the patches around it say, the better ones counting more."""
    height, width = cost.shape
    for k in prange(hole.shape[0]):
        v, u = hole[k]
        best = np.float32(np.inf)
        for qv in range(max(0, v - radius), min(height, v + radius + 1)):
            for qu in range(max(0, u - radius), min(width, u + radius + 1)):
                if match[qv, qu, 0] >= 0:
                    best = min(best, cost[qv, qu])
        weight_sum = 0.0
        red = green = blue = 0.0
        for qv in range(max(0, v - radius), min(height, v + radius + 1)):
            for qu in range(max(0, u - radius), min(width, u + radius + 1)):
                if match[qv, qu, 0] < 0:
                    continue
                weight = np.exp(-(cost[qv, qu] - best) / softness)
                w, x = match[qv, qu, 0] + v - qv, match[qv, qu, 1] + u - qu
                weight_sum += weight
                red += weight * colours[w, x, 0]
                green += weight * colours[w, x, 1]
                blue += weight * colours[w, x, 2]
        if weight_sum > 0.0:
            out[v, u, 0] = red / weight_sum
            out[v, u, 1] = green / weight_sum
            out[v, u, 2] = blue / weight_sum
