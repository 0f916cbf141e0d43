"""Compiled kernels of the plan report: triangle trees, the scene seen so far, nearest points, moved objects."""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

__all__ = [
    "TILE",
    "box_distance",
    "build_tree",
    "changed_frames",
    "first_seen",
    "flood_object",
    "hold_frame",
    "is_inside",
    "nearest",
    "nearest_point",
    "tile_bounds",
]

# Bounding-box trees over triangles for exact nearest-point and inside tests.
#
# Several meshes share the arrays; a mesh is identified by its root node. Node i has the box `box[i]` (2, 3); inner
# nodes have children `child[i]` and `child[i] + 1`; leaves have `child[i] < 0` and the triangles
# `span[i, 0] : span[i, 1]`.

_LEAF = 8
_DEPTH = 64
# Directions that are not aligned with the usual axes of robots, so that a ray does not run along a face; three of
# them, because one may still hit an edge.
_RAYS = np.array([[0.3713907, 0.7427814, 0.5570860], [-0.6396021, 0.4264014, 0.6396021], [0.5234, -0.6811, -0.5121]])


def build_tree(triangles: Floats) -> tuple[Ints, Floats, Ints, Ints]:
    """Build a tree: order (F,) of the triangles (F, 3, 3), and box (N, 2, 3), child (N,), span (N, 2) of the nodes.

    The root is node 0. The triangles are sorted along a space-filling curve and split in halves: a complete binary
    tree, built in numpy, because compiling a builder would take longer than running it.
    """
    count = len(triangles)
    order = np.argsort(_along_curve(triangles.mean(axis=1)), kind="stable")
    levels = max(0, int(np.ceil(np.log2(count / _LEAF)))) if count > _LEAF else 0
    leaves = 2**levels
    edges = np.arange(leaves + 1) * count // leaves
    first = leaves - 1
    box = np.empty((2 * leaves - 1, 2, 3))
    low, high = triangles[order].min(axis=1), triangles[order].max(axis=1)
    box[first:, 0] = np.minimum.reduceat(low, edges[:-1])
    box[first:, 1] = np.maximum.reduceat(high, edges[:-1])
    for start in (2**level - 1 for level in reversed(range(levels))):
        pairs = box[2 * start + 1 : 4 * start + 3].reshape(-1, 2, 2, 3)
        box[start : 2 * start + 1, 0] = pairs[:, :, 0].min(axis=1)
        box[start : 2 * start + 1, 1] = pairs[:, :, 1].max(axis=1)
    child = np.where(np.arange(len(box)) < first, 2 * np.arange(len(box)) + 1, -1)
    span = np.zeros((len(box), 2), np.int64)
    span[first:, 0], span[first:, 1] = edges[:-1], edges[1:]
    return order, box, child, span


def _along_curve(points: Floats) -> Ints:
    """Compute the position (N,) of points (N, 3) on a Z-order curve with 1024 steps per axis."""
    low = points.min(axis=0)
    cell = np.ptp(points, axis=0).max() or 1.0
    steps = np.minimum((points - low) / cell * 1024, 1023).astype(np.int64)
    code = np.zeros(len(points), np.int64)
    for bit in range(10):
        for axis in range(3):
            code |= ((steps[:, axis] >> bit) & 1) << (3 * bit + axis)
    return code


@njit(cache=True, nogil=True, inline="always")
def box_distance(x: float, y: float, z: float, box: Floats) -> float:
    """Compute the distance from a point to a box (2, 3); 0 inside."""
    dx = max(box[0, 0] - x, 0.0, x - box[1, 0])
    dy = max(box[0, 1] - y, 0.0, y - box[1, 1])
    dz = max(box[0, 2] - z, 0.0, z - box[1, 2])
    return math.sqrt(dx * dx + dy * dy + dz * dz)


@njit(cache=True, nogil=True)
def _closest_on_triangle(p: Floats, triangle: Floats, out: Floats) -> float:
    """Write the triangle's point nearest to p; return the squared distance."""
    a, b, c = triangle[0], triangle[1], triangle[2]
    abx, aby, abz = b[0] - a[0], b[1] - a[1], b[2] - a[2]
    acx, acy, acz = c[0] - a[0], c[1] - a[1], c[2] - a[2]
    apx, apy, apz = p[0] - a[0], p[1] - a[1], p[2] - a[2]
    # Position along the two edges from a, where the plane's nearest point lies: a + s ab + t ac.
    d1 = abx * apx + aby * apy + abz * apz
    d2 = acx * apx + acy * apy + acz * apz
    bb = abx * abx + aby * aby + abz * abz
    bc = abx * acx + aby * acy + abz * acz
    cc = acx * acx + acy * acy + acz * acz
    area = bb * cc - bc * bc
    s = t = -1.0
    if area > 0.0:
        s = (cc * d1 - bc * d2) / area
        t = (bb * d2 - bc * d1) / area
    if not (area > 0.0 and s >= 0.0 and t >= 0.0 and s + t <= 1.0):
        # Outside, or a triangle without area: the nearest point lies on one of the three edges.
        best = np.inf
        for edge in range(3):
            if edge == 0:
                u = min(max(d1 / bb, 0.0), 1.0) if bb > 0.0 else 0.0
                es, et = u, 0.0
            elif edge == 1:
                u = min(max(d2 / cc, 0.0), 1.0) if cc > 0.0 else 0.0
                es, et = 0.0, u
            else:
                length = bb + cc - 2.0 * bc
                u = min(max((d2 - d1 + bb - bc) / length, 0.0), 1.0) if length > 0.0 else 0.0
                es, et = 1.0 - u, u
            dx, dy, dz = apx - es * abx - et * acx, apy - es * aby - et * acy, apz - es * abz - et * acz
            distance = dx * dx + dy * dy + dz * dz
            if distance < best:
                best, s, t = distance, es, et
    out[0], out[1], out[2] = a[0] + s * abx + t * acx, a[1] + s * aby + t * acy, a[2] + s * abz + t * acz
    dx, dy, dz = p[0] - out[0], p[1] - out[1], p[2] - out[2]
    return float(dx * dx + dy * dy + dz * dz)


@njit(cache=True, nogil=True)
def nearest(
    p: Floats, root: int, bound: float, triangles: Floats, box: Floats, child: Ints, span: Ints, out: Floats
) -> float:
    """Compute the distance from p (3,) to the mesh's surface; infinite, with `out` unchanged, if not below `bound`."""
    stack = np.empty(_DEPTH, np.int64)
    stack[0] = root
    top = 1
    best = bound * bound
    found = False
    point = np.empty(3)
    while top > 0:
        top -= 1
        node = stack[top]
        distance = box_distance(p[0], p[1], p[2], box[node])
        if distance * distance >= best:
            continue
        if child[node] < 0:
            for i in range(span[node, 0], span[node, 1]):
                square = _closest_on_triangle(p, triangles[i], point)
                if square < best:
                    best, found = square, True
                    out[0], out[1], out[2] = point[0], point[1], point[2]
            continue
        left = child[node]
        near, far = left, left + 1
        if box_distance(p[0], p[1], p[2], box[far]) < box_distance(p[0], p[1], p[2], box[near]):
            near, far = far, near
        stack[top], stack[top + 1] = far, near
        top += 2
    return float(math.sqrt(best)) if found else math.inf


@njit(cache=True, nogil=True)
def _crossings(p: Floats, ray: Floats, root: int, triangles: Floats, box: Floats, child: Ints, span: Ints) -> int:
    stack = np.empty(_DEPTH, np.int64)
    stack[0] = root
    top = 1
    count = 0
    while top > 0:
        top -= 1
        node = stack[top]
        enter, leave = 0.0, np.inf
        for axis in range(3):
            a = (box[node, 0, axis] - p[axis]) / ray[axis]
            b = (box[node, 1, axis] - p[axis]) / ray[axis]
            enter, leave = max(enter, min(a, b)), min(leave, max(a, b))
        # Rounding must not lose a box without thickness.
        if enter > leave * (1.0 + 1e-9) + 1e-12:
            continue
        if child[node] >= 0:
            stack[top], stack[top + 1] = child[node], child[node] + 1
            top += 2
            continue
        for i in range(span[node, 0], span[node, 1]):
            a, b, c = triangles[i, 0], triangles[i, 1], triangles[i, 2]
            e1x, e1y, e1z = b[0] - a[0], b[1] - a[1], b[2] - a[2]
            e2x, e2y, e2z = c[0] - a[0], c[1] - a[1], c[2] - a[2]
            hx, hy, hz = ray[1] * e2z - ray[2] * e2y, ray[2] * e2x - ray[0] * e2z, ray[0] * e2y - ray[1] * e2x
            det = e1x * hx + e1y * hy + e1z * hz
            if det == 0.0:
                continue
            sx, sy, sz = p[0] - a[0], p[1] - a[1], p[2] - a[2]
            u = (sx * hx + sy * hy + sz * hz) / det
            if u < 0.0 or u > 1.0:
                continue
            qx, qy, qz = sy * e1z - sz * e1y, sz * e1x - sx * e1z, sx * e1y - sy * e1x
            v = (ray[0] * qx + ray[1] * qy + ray[2] * qz) / det
            if v < 0.0 or u + v > 1.0:
                continue
            if (e2x * qx + e2y * qy + e2z * qz) / det > 0.0:
                count += 1
    return count


@njit(cache=True, nogil=True)
def is_inside(p: Floats, root: int, triangles: Floats, box: Floats, child: Ints, span: Ints) -> bool:
    """Return whether p is inside a closed mesh: two of three rays cross an odd number of faces."""
    votes = 0
    for k in range(3):
        votes += _crossings(p, _RAYS[k], root, triangles, box, child, span) % 2
        if votes == 2:
            return True
        if k - votes == 1:
            return False
    return votes >= 2


TILE = 8
"""Side of a tile in pixels; tiles are tested before their single points."""

Floats = NDArray[np.float64]
Points = NDArray[np.float32]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@njit(cache=True, nogil=True)
def first_seen(xyz: Points, hidden: Bools, out: Points) -> None:
    """Write each pixel's first point (H, W, 3) of xyz (T, H, W, 3) that is not hidden; NaN = none."""
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
    """Update the scene (H, W, 3) with a frame; hidden pixels keep their last point.

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
                    # NaN differs from itself; a point that stays missing is not a change.
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
    """Compute lower bounds (rows * columns,) of each tile's distance to any shape's box; infinite without points."""
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
    """Find the scene point with the minimum signed distance to any of the shapes, negative inside.

    Exact for every point: a tile is skipped only if none of its points can be nearer. `least` is the result of
    `tile_bounds`, `order` sorts it. Returns distance, shape, row and column; infinity and -1 without
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
            # Slightly enlarged, so that a distance of exactly `reach` is found.
            bound = np.inf if inside else reach * (1.0 + 1e-9) + 1e-12
            centre = nearest(p, roots[g], bound, triangles, box, child, span, surface)
            if (inside and -(centre + radius) >= best) or (not inside and centre > reach):
                continue
            # If the centre is farther from the surface than the tile's radius, all points are on the same side.
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
    """Count per pixel the frames whose point is farther than `threshold` from frame 0's, without hidden ones.

    `went` (H, W) counts those of `changed` (H, W) where the new point is behind the old one: the surface has left.
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
                # False for NaN: unknown points do not count as moved.
                if dx * dx + dy * dy + dz * dz > square:
                    changed[v, u] += 1
                    if dz > 0.0:
                        went[v, u] += 1


@njit(cache=True, nogil=True)
def flood_object(xyz: Points, allowed: Bools, hidden: Bools, gap: float, jump: float, body: Bools) -> None:
    """Grow `body` (H, W) over allowed neighbours whose points are nearer than `gap` to each other.

    Hidden pixels are crossed in a straight line if the next point beyond them is nearer than `jump`.
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
