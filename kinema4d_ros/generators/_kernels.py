"""Compiled kernels of the generators: compositing, request hashing, moved objects and patch inpainting."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, prange
from numpy.typing import NDArray

__all__ = [
    "compose_frame",
    "compose_frames",
    "copy_flat",
    "label_things",
    "pack_robot",
    "paint_patches",
    "search_patches",
    "shade_frames",
    "splat_points",
]

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]


@njit(cache=True, nogil=True)
def copy_flat(source: NDArray[Any], target: NDArray[Any]) -> None:
    """Copy an array (N,): this loop is compiled to vector copies, assignments of rows are not."""
    for i in range(source.size):
        target[i] = source[i]


@njit(cache=True, nogil=True)
def compose_frame(
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
    """Composite the robot into the scene with a z-test, in one frame; all arrays are (H, W[, 3])."""
    height, width = robot_ids.shape
    top, bottom, left, right = height, -1, width, -1
    # Everything first: copying is several times faster than selecting pixel by pixel.
    copy_flat(world_xyz.reshape(-1), xyz.reshape(-1))
    copy_flat(world_rgb.reshape(-1), rgb.reshape(-1))
    for v in range(height):
        for u in range(width):
            mask[v, u] = False
            # This form of the comparison never lets a missing scene point (NaN) hide the robot.
            if robot_ids[v, u] == 0 or robot_xyz[v, u, 2] > world_xyz[v, u, 2]:
                continue
            mask[v, u] = True
            for c in range(3):
                xyz[v, u, c] = robot_xyz[v, u, c]
                rgb[v, u, c] = robot_rgb[v, u, c]
            top, bottom, left, right = min(top, v), max(bottom, v), min(left, u), max(right, u)
    if not soft:
        return
    for v in range(max(1, top - 1), min(height - 1, bottom + 2)):
        for u in range(max(1, left - 1), min(width - 1, right + 2)):
            here = mask[v, u]
            if mask[v - 1, u] == here and mask[v + 1, u] == here and mask[v, u - 1] == here and mask[v, u + 1] == here:
                continue
            share = 0.0
            red = green = blue = 0.0
            for dv in range(-1, 2):
                for du in range(-1, 2):
                    if mask[v + dv, u + du]:
                        weight = (2.0 - abs(dv)) * (2.0 - abs(du)) / 16.0
                        share += weight
                        red += weight * robot_rgb[v + dv, u + du, 0]
                        green += weight * robot_rgb[v + dv, u + du, 1]
                        blue += weight * robot_rgb[v + dv, u + du, 2]
            rest = 1.0 - share
            rgb[v, u, 0] = np.uint8(red + rest * world_rgb[v, u, 0] + 0.5)
            rgb[v, u, 1] = np.uint8(green + rest * world_rgb[v, u, 1] + 0.5)
            rgb[v, u, 2] = np.uint8(blue + rest * world_rgb[v, u, 2] + 0.5)


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
    """Composite the robot into the scene, one frame (H, W, 3); robot and outputs are (T, H, W[, 3])."""
    for t in prange(len(robot_ids)):
        compose_frame(
            world_rgb, world_xyz, robot_xyz[t], robot_ids[t], robot_rgb[t], soft, rgb[t], xyz[t], mask[t]
        )  # fmt: skip


@njit(cache=True, parallel=True, nogil=True)
def shade_frames(xyz: Floats, ids: Bytes, out: Bytes) -> None:
    """Shade a grey robot lit from the camera, for requests without colours; 0 = no robot."""
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
def pack_robot(xyz: Floats, ids: Bytes, rgb: Bytes, depths: Floats, colours: Bytes) -> int:
    """Write z and colour of one frame's robot pixels, row by row; return their number.

    xyz (H, W, 3), ids (H, W), rgb (H, W, 3) or empty, depths (N,), colours (N, 3) or empty.
    """
    count, coloured = 0, len(rgb) > 0
    for v in range(ids.shape[0]):
        for u in range(ids.shape[1]):
            if ids[v, u] != 0:
                depths[count] = xyz[v, u, 2]
                if coloured:
                    for c in range(3):
                        colours[count, c] = rgb[v, u, c]
                count += 1
    return count


# Kernels of the carry hypothesis: segment objects, and draw an object at another place.


@njit(cache=True, nogil=True)
def label_things(xyz: Floats, thing: NDArray[np.bool_], gap_m: float, labels: NDArray[np.int32]) -> int:
    """Label connected objects: neighbours in the image whose points are at most `gap_m` apart; 0 = none.

    xyz (H, W, 3), thing and labels (H, W). Returns the number of labels.
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
    """Project a point to column and row, integers at pixel centres; NaN if it is not in front of the camera."""
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
    """Draw points (N, 3) in the camera frame into a frame (H, W, 3), each into the four pixels around it.

    Points of one pixel within `same_m` behind the nearest are blended by their distance from the pixel's centre.
    A pixel with a nearer point is unchanged.
    """
    height, width = rgb.shape[:2]
    # Only the window that the points fall into has to be cleared and written.
    first_row, last_row, first_column, last_column = height, -1, width, -1
    for i in range(len(points)):
        u, v = _pixel(points[i], K)
        # Written so that a point behind the camera (NaN) is left out.
        if not (-1.0 < u < width and -1.0 < v < height):
            continue
        left, top = int(np.floor(u)), int(np.floor(v))
        first_row, last_row = min(first_row, max(top, 0)), max(last_row, min(top + 1, height - 1))
        first_column, last_column = min(first_column, max(left, 0)), max(last_column, min(left + 1, width - 1))
    if last_row < first_row or last_column < first_column:
        return
    rows, columns = last_row - first_row + 1, last_column - first_column + 1
    nearest = np.full((rows, columns), np.inf, np.float32)
    for i in range(len(points)):
        z = points[i, 2]
        u, v = _pixel(points[i], K)
        if not (-1.0 < u < width and -1.0 < v < height):
            continue
        left, top = int(np.floor(u)), int(np.floor(v))
        for row in range(max(top, 0), min(top + 2, height)):
            for column in range(max(left, 0), min(left + 2, width)):
                if z < nearest[row - first_row, column - first_column]:
                    nearest[row - first_row, column - first_column] = z
    total = np.zeros((rows, columns, 5), np.float64)
    for i in range(len(points)):
        z = points[i, 2]
        u, v = _pixel(points[i], K)
        if not (-1.0 < u < width and -1.0 < v < height):
            continue
        left, top = int(np.floor(u)), int(np.floor(v))
        for row in range(max(top, 0), min(top + 2, height)):
            for column in range(max(left, 0), min(left + 2, width)):
                if z > nearest[row - first_row, column - first_column] + same_m:
                    continue
                weight = (1.0 - abs(u - column)) * (1.0 - abs(v - row))
                sums = total[row - first_row, column - first_column]
                sums[0] += weight
                sums[4] += weight * z
                for c in range(3):
                    sums[1 + c] += weight * colours[i, c]
    for row in range(first_row, last_row + 1):
        for column in range(first_column, last_column + 1):
            sums = total[row - first_row, column - first_column]
            weight = sums[0]
            # Below a third of a pixel, the object's border, the background is kept.
            if weight < 0.34:
                continue
            depth = sums[4] / weight
            if depth > xyz[row, column, 2]:
                continue
            for c in range(3):
                rgb[row, column, c] = np.uint8(sums[1 + c] / weight + 0.5)
            # The point must lie on the pixel's own ray.
            xyz[row, column, 0] = np.float32(depth * (column + 0.5 - K[0, 2]) / K[0, 0])
            xyz[row, column, 1] = np.float32(depth * (row + 0.5 - K[1, 2]) / K[1, 1])
            xyz[row, column, 2] = np.float32(depth)


# Kernels of the inpainting: search for matching patches, and weighted painting with them.

_PULL = 200.0
"""Cost (squared grey levels) of a patch at a distance of the image's width."""

Image = NDArray[np.float32]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int32]


@njit(cache=True, nogil=True)
def _difference(image: Image, v: int, u: int, w: int, x: int, radius: int, bound: float) -> float:
    """Compute the mean squared difference of two patches over the part of the first inside the image; stop above bound.

    Distant patches cost more: the hidden scene more likely resembles its surroundings.
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

    Each round propagates the neighbours' matches, alternately forwards and backwards, and tries random places around
    the current match at halving distances. `sources` (H, W) is True where a whole patch is known.
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
    """Write each hole pixel as the mean of the overlapping patches, weighted by their match quality."""
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
