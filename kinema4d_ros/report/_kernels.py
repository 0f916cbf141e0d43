"""Compiled passes of the plan report: the world as seen so far, its tiles, the point nearest to the robot."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from kinema4d_ros.report._tree import box_distance, is_inside, nearest

__all__ = ["TILE", "changed_frames", "first_seen", "flood_object", "hold_frame", "nearest_point", "tile_bounds"]

TILE = 8
"""Pixels on a side of a tile: its points are judged together before any of them alone."""

Floats = NDArray[np.float64]
Points = NDArray[np.float32]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@njit(cache=True, nogil=True)
def first_seen(xyz: Points, hidden: Bools, out: Points) -> None:
    """Write each pixel's first world point (H, W, 3) of xyz (T, H, W, 3) that is not hidden; NaN = never one."""
    frames, height, width = hidden.shape
    for v in range(height):
        for u in range(width):
            out[v, u, 0] = out[v, u, 1] = out[v, u, 2] = np.nan
            for t in range(frames):
                if not hidden[t, v, u] and np.isfinite(xyz[t, v, u, 2]):
                    out[v, u, 0], out[v, u, 1], out[v, u, 2] = xyz[t, v, u, 0], xyz[t, v, u, 1], xyz[t, v, u, 2]
                    break


@njit(cache=True, nogil=True)
def hold_frame(xyz: Points, hidden: Bools, world: Points, spheres: Floats, renew: bool) -> None:
    """Bring the world (H, W, 3) up to date with a frame; hidden pixels keep what was seen there last.

    `spheres` (rows, columns, 4) gets centre and radius of each tile's points, radius -1 = no point; tiles
    without a change are skipped unless `renew`.
    """
    height, width = hidden.shape
    for row in range(spheres.shape[0]):
        for column in range(spheres.shape[1]):
            v1, u1 = min((row + 1) * TILE, height), min((column + 1) * TILE, width)
            changed = renew
            for v in range(row * TILE, v1):
                for u in range(column * TILE, u1):
                    if hidden[v, u]:
                        continue
                    same = world[v, u, 2] == xyz[v, u, 2] and world[v, u, 0] == xyz[v, u, 0]
                    # NaN differs from itself; nothing that stays nothing is no change.
                    if same or (np.isnan(world[v, u, 2]) and np.isnan(xyz[v, u, 2])):
                        continue
                    changed = True
                    for c in range(3):
                        world[v, u, c] = xyz[v, u, c]
            if not changed:
                continue
            low = np.full(3, np.inf)
            high = np.full(3, -np.inf)
            for v in range(row * TILE, v1):
                for u in range(column * TILE, u1):
                    if np.isfinite(world[v, u, 2]):
                        for c in range(3):
                            low[c] = min(low[c], world[v, u, c])
                            high[c] = max(high[c], world[v, u, c])
            if low[2] > high[2]:
                spheres[row, column, 3] = -1.0
                continue
            square = 0.0
            for c in range(3):
                spheres[row, column, c] = 0.5 * (low[c] + high[c])
                square += 0.25 * (high[c] - low[c]) ** 2
            spheres[row, column, 3] = np.sqrt(square)


@njit(cache=True, nogil=True, inline="always")
def _to_shape(shape_T_camera: Floats, x: float, y: float, z: float, out: Floats) -> None:
    for i in range(3):
        row = shape_T_camera[i]
        out[i] = row[0] * x + row[1] * y + row[2] * z + row[3]


@njit(cache=True, nogil=True)
def tile_bounds(spheres: Floats, shape_T_camera: Floats, roots: Ints, box: Floats) -> Floats:
    """(rows * columns,) what no point of a tile is nearer than, to any shape's box; infinite without points."""
    rows, columns = spheres.shape[:2]
    p = np.empty(3)
    least = np.full(rows * columns, np.inf)
    for tile in range(rows * columns):
        sphere = spheres[tile // columns, tile % columns]
        if sphere[3] < 0.0:
            continue
        for g in range(roots.size):
            _to_shape(shape_T_camera[g], sphere[0], sphere[1], sphere[2], p)
            least[tile] = min(least[tile], box_distance(p[0], p[1], p[2], box[roots[g]]) - sphere[3])
    return least


@njit(cache=True, nogil=True)
def nearest_point(
    world: Points,
    spheres: Floats,
    least: Floats,
    order: Ints,
    shape_T_camera: Floats,
    roots: Ints,
    closed: Bools,
    triangles: Floats,
    box: Floats,
    child: Ints,
    span: Ints,
    on_shape: Floats,
) -> tuple[float, int, int, int]:
    """The world point with the least signed distance to any of the shapes, negative inside.

    Exact for every point: whole tiles are passed over only when no point of theirs can be nearer. `least` is
    that of `tile_bounds`, `order` sorts it. Returns distance, shape, row and column; infinity and -1 without
    points. `on_shape` (3,) gets the surface point in the shape's frame.
    """
    columns = spheres.shape[1]
    shapes = roots.size
    p = np.empty(3)
    best, best_shape, best_v, best_u = np.inf, -1, -1, -1
    surface = np.empty(3)
    for tile in order:
        if least[tile] == np.inf or (least[tile] > 0.0 and least[tile] >= best):
            break
        row, column = tile // columns, tile % columns
        sphere = spheres[row, column]
        radius = sphere[3]
        for g in range(shapes):
            _to_shape(shape_T_camera[g], sphere[0], sphere[1], sphere[2], p)
            reach = radius + max(best, 0.0)
            outside = box_distance(p[0], p[1], p[2], box[roots[g]])
            if outside > reach:
                continue
            inside = closed[g] and outside == 0.0 and is_inside(p, roots[g], triangles, box, child, span)
            # A hair more than what matters, so that a distance of exactly `reach` is found.
            bound = np.inf if inside else reach * (1.0 + 1e-9) + 1e-12
            centre = nearest(p, roots[g], bound, triangles, box, child, span, surface)
            if (inside and -(centre + radius) >= best) or (not inside and centre > reach):
                continue
            # Farther from the surface than the tile's radius, all of its points are on the same side.
            mixed = closed[g] and centre <= radius
            for v in range(row * TILE, min((row + 1) * TILE, world.shape[0])):
                for u in range(column * TILE, min((column + 1) * TILE, world.shape[1])):
                    if not np.isfinite(world[v, u, 2]):
                        continue
                    _to_shape(shape_T_camera[g], world[v, u, 0], world[v, u, 1], world[v, u, 2], p)
                    within = inside
                    if mixed:
                        within = box_distance(p[0], p[1], p[2], box[roots[g]]) == 0.0 and is_inside(
                            p, roots[g], triangles, box, child, span
                        )
                    if within:
                        distance = -nearest(p, roots[g], np.inf, triangles, box, child, span, surface)
                    elif best > 0.0:
                        distance = nearest(p, roots[g], best, triangles, box, child, span, surface)
                    else:
                        continue
                    if distance < best:
                        best, best_shape, best_v, best_u = distance, g, v, u
                        on_shape[0], on_shape[1], on_shape[2] = surface[0], surface[1], surface[2]
    return best, best_shape, best_v, best_u


@njit(cache=True, nogil=True)
def changed_frames(
    xyz: Points, hidden: Bools, threshold: float, changed: NDArray[np.int32], went: NDArray[np.int32]
) -> None:
    """Count, per pixel, the frames whose point is farther than `threshold` from frame 0's; hidden ones do not count.

    `went` (H, W) counts those among `changed` (H, W) where the new point is behind the old one: the surface left.
    """
    frames, height, width = hidden.shape
    square = threshold * threshold
    for t in range(1, frames):
        for v in range(height):
            for u in range(width):
                if hidden[0, v, u] or hidden[t, v, u]:
                    continue
                dz = np.float64(xyz[t, v, u, 2]) - xyz[0, v, u, 2]
                dx = np.float64(xyz[t, v, u, 0]) - xyz[0, v, u, 0]
                dy = np.float64(xyz[t, v, u, 1]) - xyz[0, v, u, 1]
                # False for NaN: where nothing is known, nothing moves.
                if dx * dx + dy * dy + dz * dz > square:
                    changed[v, u] += 1
                    if dz > 0.0:
                        went[v, u] += 1


@njit(cache=True, nogil=True)
def flood_object(xyz: Points, allowed: Bools, hidden: Bools, gap: float, jump: float, body: Bools) -> None:
    """Grow `body` (H, W) over allowed neighbours whose points are nearer than `gap` to each other.

    Straight across hidden pixels, the next one beyond them belongs too if its point is nearer than `jump`.
    """
    height, width = body.shape
    stack = np.empty((height * width, 2), np.int64)
    top = 0
    for v in range(height):
        for u in range(width):
            if body[v, u]:
                stack[top, 0], stack[top, 1] = v, u
                top += 1
    while top > 0:
        top -= 1
        v, u = stack[top]
        for side in range(4):
            dv, du = (side == 0) - (side == 1), (side == 2) - (side == 3)
            w, x = v + dv, u + du
            limit = gap
            while 0 <= w < height and 0 <= x < width and hidden[w, x]:
                w, x, limit = w + dv, x + du, jump
            if w < 0 or x < 0 or w >= height or x >= width or body[w, x] or not allowed[w, x]:
                continue
            square = 0.0
            for c in range(3):
                square += (np.float64(xyz[w, x, c]) - xyz[v, u, c]) ** 2
            if square < limit * limit:
                body[w, x] = True
                stack[top, 0], stack[top, 1] = w, x
                top += 1
