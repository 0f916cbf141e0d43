"""Bounding-box trees over triangles: the nearest surface point and whether a point is inside, exactly and fast.

Several meshes share the arrays; a mesh is known by its root node. Node i has the box `box[i]` (2, 3); inner
nodes have children `child[i]` and `child[i] + 1`; leaves have `child[i] < 0` and the triangles
`span[i, 0] : span[i, 1]`.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

__all__ = ["box_distance", "build_tree", "is_inside", "nearest"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_LEAF = 8
_DEPTH = 64
# Directions without a relation to the axes along which robots are built, so that a ray does not run
# along a face; three of them, because one may still meet an edge.
_RAYS = np.array([[0.3713907, 0.7427814, 0.5570860], [-0.6396021, 0.4264014, 0.6396021], [0.5234, -0.6811, -0.5121]])


def build_tree(triangles: Floats) -> tuple[Ints, Floats, Ints, Ints]:
    """Order (F,) of the triangles (F, 3, 3), and box (N, 2, 3), child (N,), span (N, 2) of the nodes, root first.

    The triangles are sorted along a curve that keeps neighbours together, and halved again and again: a
    complete binary tree, built in numpy, because compiling a builder would take longer than its work.
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
    """(N,) position of points (N, 3) on a Z-order curve of 1024 steps on a side."""
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
    """Distance from a point to a box (2, 3); 0 inside."""
    dx = max(box[0, 0] - x, 0.0, x - box[1, 0])
    dy = max(box[0, 1] - y, 0.0, y - box[1, 1])
    dz = max(box[0, 2] - z, 0.0, z - box[1, 2])
    return math.sqrt(dx * dx + dy * dy + dz * dz)


@njit(cache=True, nogil=True)
def _closest_on_triangle(p: Floats, triangle: Floats, out: Floats) -> float:
    """Write the triangle's point that is nearest to p; returns the squared distance."""
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
    """Distance from p (3,) to the mesh's surface; infinite, with `out` unchanged, if it is not below `bound`."""
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
    """True when p lies inside a closed mesh: two of three rays leave it through an odd number of faces."""
    votes = 0
    for k in range(3):
        votes += _crossings(p, _RAYS[k], root, triangles, box, child, span) % 2
        if votes == 2:
            return True
        if k - votes == 1:
            return False
    return votes >= 2
