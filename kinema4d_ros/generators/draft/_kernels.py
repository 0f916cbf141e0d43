"""Compiled kernels of the scene fit: ray casting of shapes, robust depth loss, simplex search, slice walk, regions.

A shape is a kind and seven numbers (`CX` to `Z0`): centre x and y, yaw, three sizes, height of its underside, in metres
and radians, in a frame whose z is the shape's up. Rays have unit depth (z = 1 in the camera), so that a hit is a depth.

All kernels are in this file, because numba's cache detects changes only in the file of the called function.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

__all__ = [
    "BIN",
    "BOX",
    "CUP",
    "CYLINDER",
    "LYING",
    "OTHER",
    "OWN",
    "SPHERE",
    "UNKNOWN",
    "cast_hull",
    "cast_shape",
    "depth_loss",
    "energy",
    "label_regions",
    "search",
    "walk",
]

Array = NDArray[np.float64]

BOX, CYLINDER, SPHERE, LYING, BIN, CUP = 0, 1, 2, 3, 4, 5
"""Kinds: a bin is an open box, a cup an open cylinder, and LYING is a cylinder whose axis is horizontal, along its yaw.

Sizes: box, bin: x, y, z; cylinder, cup: diameter, -, height; sphere: diameter; lying: diameter, length.
"""
CX, CY, YAW, SX, SY, SZ, Z0 = 0, 1, 2, 3, 4, 5, 6

UNKNOWN, OWN, OTHER = 0, 1, 2
"""Classes of pixels: nothing is known (robot, no depth); the object's own; something else was measured there."""

MISS = 1.5
"""Loss of an own pixel that the shape misses, in units of `cap`: a miss is worse than the largest error of depth."""
SIZE_M, SIZE_SPREAD, SMALLEST_M, LARGEST_M = 0.05, 0.8, 0.006, 0.35
"""Prior of sizes: log-normal around `SIZE_M` within the bounds."""
ASPECT_SPREAD = 0.4
"""Prior of compactness: spread of the logarithm of the footprint's aspect."""
HEIGHT_SPREAD = 0.8
"""Prior of compactness: spread of the logarithm of height / footprint."""


@njit(cache=True, nogil=True, inline="always")
def _slab(o: float, v: float, low: float, high: float, near: float, far: float) -> tuple[float, float]:
    if abs(v) < 1e-12:
        return (near, far) if low <= o <= high else (1.0, 0.0)
    a, b = (low - o) / v, (high - o) / v
    if a > b:
        a, b = b, a
    return max(near, a), min(far, b)


@njit(cache=True, nogil=True)
def _cast(
    kind: int, p: Array, wall: float, ex: float, ey: float, ez: float, dx: float, dy: float, dz: float,
    c: float, s: float,
) -> float:  # fmt: skip
    """Return the depth at which a ray enters the shape, -1 = misses; c and s are cosine and sine of its yaw."""
    ox, oy, oz = ex - p[CX], ey - p[CY], ez - p[Z0]
    if kind == SPHERE:
        r = p[SX] / 2
        oz -= r
        a = dx * dx + dy * dy + dz * dz
        b = ox * dx + oy * dy + oz * dz
        q = b * b - a * (ox * ox + oy * oy + oz * oz - r * r)
        if q <= 0:
            return -1.0
        t = (-b - math.sqrt(q)) / a
        return t if t > 0 else -1.0
    if kind in (CYLINDER, CUP):
        near, far = _slab(oz, dz, 0.0, p[SZ], 0.0, 1e9)
        r = p[SX] / 2
        a = dx * dx + dy * dy
        b = ox * dx + oy * dy
        q = b * b - a * (ox * ox + oy * oy - r * r)
        if q <= 0 or a < 1e-18:
            return -1.0
        q = math.sqrt(q)
        near, far = max(near, (-b - q) / a), min(far, (-b + q) / a)
        if near >= far:
            return -1.0
        if kind == CUP and dz < 0 and r > wall:
            t = (p[SZ] - oz) / dz
            inner = (r - wall) * (r - wall)
            if t >= near - 1e-9 and (ox + t * dx) ** 2 + (oy + t * dy) ** 2 < inner:
                q = math.sqrt(max(b * b - a * (ox * ox + oy * oy - inner), 0.0))
                return float(min((-b + q) / a, (min(wall, p[SZ]) - oz) / dz))
        return float(near)
    lx, ly = c * ox + s * oy, c * oy - s * ox
    vx, vy = c * dx + s * dy, c * dy - s * dx
    if kind == LYING:
        near, far = _slab(lx, vx, -p[SY] / 2, p[SY] / 2, 0.0, 1e9)
        r = p[SX] / 2
        oz -= r
        a = vy * vy + dz * dz
        b = ly * vy + oz * dz
        q = b * b - a * (ly * ly + oz * oz - r * r)
        if q <= 0 or a < 1e-18:
            return -1.0
        q = math.sqrt(q)
        near, far = max(near, (-b - q) / a), min(far, (-b + q) / a)
        return near if near < far else -1.0
    hx, hy = p[SX] / 2, p[SY] / 2
    near, far = _slab(lx, vx, -hx, hx, 0.0, 1e9)
    near, far = _slab(ly, vy, -hy, hy, near, far)
    near, far = _slab(oz, dz, 0.0, p[SZ], near, far)
    if near >= far:
        return -1.0
    if kind == BIN and dz < 0:
        # A ray that enters through the opening goes on to an inner wall or the floor.
        t = (p[SZ] - oz) / dz
        if t >= near - 1e-9 and abs(lx + t * vx) < hx - wall and abs(ly + t * vy) < hy - wall:
            near, far = t, 1e9
            near, far = _slab(lx, vx, wall - hx, hx - wall, near, far)
            near, far = _slab(ly, vy, wall - hy, hy - wall, near, far)
            near, far = _slab(oz, dz, min(wall, p[SZ]), 1e9, near, far)
            return float(far)
    return float(near)


@njit(cache=True, nogil=True)
def cast_shape(kind: int, p: Array, wall: float, eye: Array, rays: Array) -> Array:
    """Return depths (N,) at which rays (N, 3) from an eye (3,) enter a shape, inf = misses; shape frame, metres.

    `wall` is the thickness of walls and floor of a bin or cup.
    """
    out = np.empty(rays.shape[0])
    c, s = math.cos(p[YAW]), math.sin(p[YAW])
    for i in range(rays.shape[0]):
        t = _cast(kind, p, wall, eye[0], eye[1], eye[2], rays[i, 0], rays[i, 1], rays[i, 2], c, s)
        out[i] = t if t > 0 else np.inf
    return out


@njit(cache=True, nogil=True)
def cast_hull(planes: Array, eye: Array, rays: Array) -> Array:
    """Return depths (N,) at which rays enter the convex set n x <= d of planes (F, 4) = (n, d), inf = misses."""
    out = np.empty(rays.shape[0])
    for i in range(rays.shape[0]):
        near, far = 0.0, 1e9
        for f in range(planes.shape[0]):
            slope = planes[f, 0] * rays[i, 0] + planes[f, 1] * rays[i, 1] + planes[f, 2] * rays[i, 2]
            room = planes[f, 3] - (planes[f, 0] * eye[0] + planes[f, 1] * eye[1] + planes[f, 2] * eye[2])
            if abs(slope) < 1e-12:
                if room < 0:
                    far = -1.0
                    break
            elif slope < 0:
                near = max(near, room / slope)
            else:
                far = min(far, room / slope)
            if near >= far:
                break
        out[i] = near if near < far else np.inf
    return out


@njit(cache=True, nogil=True, inline="always")
def _pixel_loss(t: float, depth: float, sigma: float, kind: int, cap: float) -> float:
    """Loss of one pixel: t is the hit, not positive or infinite = none; Geman-McClure, at most `cap`."""
    hit = 0.0 < t < 1e8
    if kind == OWN:
        if not hit:
            return MISS * cap
        e = (t - depth) / sigma
    else:
        e = (depth - t) / sigma
        if not hit or e <= 0:
            return 0.0
    e *= e
    return cap * e / (e + 2 * cap)


@njit(cache=True, nogil=True)
def depth_loss(hits: Array, depth: Array, sigma: Array, kinds: NDArray[np.uint8], weight: Array, cap: float) -> float:
    """Sum the weighted losses of pixels (N,): own ones must be hit at their depth, others must stay visible."""
    total = 0.0
    for i in range(hits.shape[0]):
        if kinds[i] != UNKNOWN:
            total += weight[i] * _pixel_loss(hits[i], depth[i], sigma[i], kinds[i], cap)
    return total


@njit(cache=True, nogil=True)
def _prior(kind: int, p: Array, floor: float) -> float:
    """Negative logarithm of the prior of sizes and compactness; 1e9 = impossible."""
    if p[Z0] < floor - 1e-9:
        return 1e9
    sizes = (p[SX], p[SX] if kind in (CYLINDER, SPHERE, CUP) else p[SY], p[SZ])
    count = 1 if kind == SPHERE else 2 if kind == LYING else 3
    total = 0.0
    for k in range(count):
        if not SMALLEST_M <= sizes[k] <= LARGEST_M:
            return 1e9
        total += 0.5 * (math.log(sizes[k] / SIZE_M) / SIZE_SPREAD) ** 2
    if kind in (BOX, BIN):
        total += 0.5 * (math.log(p[SX] / p[SY]) / ASPECT_SPREAD) ** 2
    if kind in (BOX, CYLINDER, CUP):
        total += 0.5 * (math.log(p[SZ] / math.sqrt(sizes[0] * sizes[1])) / HEIGHT_SPREAD) ** 2
    return total


@njit(cache=True, nogil=True)
def energy(
    kind: int, p: Array, wall: float, eye: Array, rays: Array, depth: Array, sigma: Array,
    kinds: NDArray[np.uint8], weight: Array, cap: float, floor: float,
) -> float:  # fmt: skip
    """Return the negative logarithm of the posterior of a shape, up to a constant; `weight` holds the temperature."""
    total = _prior(kind, p, floor)
    if total >= 1e9:
        return 1e9
    c, s = math.cos(p[YAW]), math.sin(p[YAW])
    for i in range(rays.shape[0]):
        if kinds[i] == UNKNOWN:
            continue
        t = _cast(kind, p, wall, eye[0], eye[1], eye[2], rays[i, 0], rays[i, 1], rays[i, 2], c, s)
        total += weight[i] * _pixel_loss(t, depth[i], sigma[i], kinds[i], cap)
    return float(total)


@njit(cache=True, nogil=True)
def search(
    kind: int, start: Array, free: NDArray[np.int64], step: Array, limit: int, wall: float, eye: Array, rays: Array,
    depth: Array, sigma: Array, kinds: NDArray[np.uint8], weight: Array, cap: float, floor: float,
) -> tuple[Array, float]:  # fmt: skip
    """Minimise the energy over the free numbers of a shape (Nelder-Mead); returns shape (7,) and energy."""
    n = free.shape[0]
    points = np.empty((n + 1, start.shape[0]))
    values = np.empty(n + 1)
    for k in range(n + 1):
        points[k] = start
        if k > 0:
            points[k, free[k - 1]] += step[free[k - 1]]
        values[k] = energy(kind, points[k], wall, eye, rays, depth, sigma, kinds, weight, cap, floor)
    used = n + 1
    centre, trial, other = start.copy(), start.copy(), start.copy()
    while used < limit:
        order = np.argsort(values)
        points, values = points[order], values[order]
        spread = 0.0
        for j in range(n):
            spread = max(spread, abs(points[n, free[j]] - points[0, free[j]]) / abs(step[free[j]]))
        if values[n] - values[0] < 1e-3 and spread < 0.02:
            break
        for j in range(n):
            centre[free[j]] = points[:n, free[j]].mean()
        for j in range(n):
            trial[free[j]] = 2 * centre[free[j]] - points[n, free[j]]
        value = energy(kind, trial, wall, eye, rays, depth, sigma, kinds, weight, cap, floor)
        used += 1
        if value < values[0]:
            for j in range(n):
                other[free[j]] = 3 * centre[free[j]] - 2 * points[n, free[j]]
            further = energy(kind, other, wall, eye, rays, depth, sigma, kinds, weight, cap, floor)
            used += 1
            if further < value:
                points[n], values[n] = other, further
            else:
                points[n], values[n] = trial, value
        elif value < values[n - 1]:
            points[n], values[n] = trial, value
        else:
            outside = value < values[n]
            for j in range(n):
                worst = trial[free[j]] if outside else points[n, free[j]]
                other[free[j]] = 0.5 * (centre[free[j]] + worst)
            nearer = energy(kind, other, wall, eye, rays, depth, sigma, kinds, weight, cap, floor)
            used += 1
            if nearer < min(value, values[n]):
                points[n], values[n] = other, nearer
            else:
                for k in range(1, n + 1):
                    for j in range(n):
                        points[k, free[j]] = 0.5 * (points[k, free[j]] + points[0, free[j]])
                    values[k] = energy(kind, points[k], wall, eye, rays, depth, sigma, kinds, weight, cap, floor)
                used += n
    best = np.argmin(values)
    return points[best].copy(), values[best]


@njit(cache=True, nogil=True)
def _move(kind: int, p: Array, move: int, by: float, view: Array, out: Array) -> None:
    """Move one face of a shape: 0 to 3 sides, 4 top, 5 underside, 6 turn; `view` (2,) points away from the camera."""
    out[:] = p
    if move == 5:
        out[Z0] -= by
        if kind in (BOX, CYLINDER, BIN, CUP):
            out[SZ] += by
        return
    if move == 6:
        out[YAW] += by
        return
    if move == 4:
        out[SZ] += by
        return
    if kind in (CYLINDER, SPHERE, CUP):
        if move == 0:  # the far side; the near side stays
            out[SX] += by
            out[CX] += view[0] * by / 2
            out[CY] += view[1] * by / 2
        elif move == 1:  # both sides across the view; the near side moves too
            out[SX] += by
        elif move == 2:
            out[CX] += view[0] * by
            out[CY] += view[1] * by
        else:
            out[CX] -= view[1] * by
            out[CY] += view[0] * by
        return
    c, s = math.cos(p[YAW]), math.sin(p[YAW])
    ax, ay = (c, s) if move < 2 else (-s, c)
    sign = 1.0 if move % 2 == 0 else -1.0
    if kind == LYING:
        if move < 2:
            out[SY] += by
            out[CX] += sign * ax * by / 2
            out[CY] += sign * ay * by / 2
        elif move == 2:
            out[CX] += ax * by
            out[CY] += ay * by
        else:
            out[SX] += by
        return
    out[SX if move < 2 else SY] += by
    out[CX] += sign * ax * by / 2
    out[CY] += sign * ay * by / 2


@njit(cache=True, nogil=True)
def walk(
    kind: int, start: Array, moves: NDArray[np.int64], width: Array, view: Array, burn: int, thin: int,
    rng: np.random.Generator, out: Array, wall: float, eye: Array, rays: Array, depth: Array, sigma: Array,
    kinds: NDArray[np.uint8], weight: Array, cap: float, floor: float,
) -> None:  # fmt: skip
    """Draw shapes (D, 7) into `out` from the posterior: slice sampling, one face at a time.

    `width` (7,) holds the first widths of the brackets, by move; they adapt during the first `burn` sweeps.
    """
    p, q = start.copy(), start.copy()
    width = width.copy()
    here = energy(kind, p, wall, eye, rays, depth, sigma, kinds, weight, cap, floor)
    kept, sweep = 0, 0
    while kept < out.shape[0]:
        for j in range(moves.shape[0]):
            move = moves[j]
            level = here - math.log(max(rng.random(), 1e-300))
            w = width[move]
            low = -w * rng.random()
            high = low + w
            for _ in range(4):
                _move(kind, p, move, low, view, q)
                if energy(kind, q, wall, eye, rays, depth, sigma, kinds, weight, cap, floor) >= level:
                    break
                low -= w
            for _ in range(4):
                _move(kind, p, move, high, view, q)
                if energy(kind, q, wall, eye, rays, depth, sigma, kinds, weight, cap, floor) >= level:
                    break
                high += w
            for _ in range(12):
                by = low + (high - low) * rng.random()
                _move(kind, p, move, by, view, q)
                there = energy(kind, q, wall, eye, rays, depth, sigma, kinds, weight, cap, floor)
                if there < level:
                    p[:] = q
                    here = there
                    break
                if by < 0:
                    low = by
                else:
                    high = by
            if sweep < burn:
                width[move] = max(0.5 * width[move] + 0.5 * (high - low), 1e-5)
        sweep += 1
        if sweep >= burn and (sweep - burn) % thin == 0:
            out[kept] = p
            kept += 1


@njit(cache=True, nogil=True)
def label_regions(
    stands: NDArray[np.bool_], z: NDArray[np.float32], hue: NDArray[np.float32], jump: float, tint: float,
    labels: NDArray[np.int32],
) -> int:  # fmt: skip
    """Label connected pixels without a step of depth or a change of colour between them; returns their number.

    z (H, W) depth in metres, hue (H, W, 2) any measure of colour that ignores shading, `labels` (H, W) is written,
    0 = none. A step of depth is one that neither side's slope explains, by more than `jump` metres.
    """
    height, width = stands.shape
    labels[:] = 0
    stack = np.empty((height * width, 2), np.int32)
    count = 0
    for v0 in range(height):
        for u0 in range(width):
            if not stands[v0, u0] or labels[v0, u0] != 0:
                continue
            count += 1
            labels[v0, u0] = count
            stack[0] = (v0, u0)
            size = 1
            while size > 0:
                size -= 1
                v, u = stack[size]
                for k in range(4):
                    dv, du = (0, 1) if k == 0 else (0, -1) if k == 1 else (1, 0) if k == 2 else (-1, 0)
                    b, a = v + dv, u + du
                    if not (0 <= b < height and 0 <= a < width) or not stands[b, a] or labels[b, a] != 0:
                        continue
                    step = z[b, a] - z[v, u]
                    if abs(step) > jump:
                        from_here = from_there = abs(step)
                        if 0 <= v - dv < height and 0 <= u - du < width and stands[v - dv, u - du]:
                            from_here = abs(step - (z[v, u] - z[v - dv, u - du]))
                        if 0 <= b + dv < height and 0 <= a + du < width and stands[b + dv, a + du]:
                            from_there = abs(step - (z[b + dv, a + du] - z[b, a]))
                        if min(from_here, from_there) > jump:
                            continue
                    if abs(hue[b, a, 0] - hue[v, u, 0]) + abs(hue[b, a, 1] - hue[v, u, 1]) > tint:
                        continue
                    labels[b, a] = count
                    stack[size] = (b, a)
                    size += 1
    return count
