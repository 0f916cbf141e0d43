"""Compiled kernels of the fit without depth: cost of a shape's picture, and a random walk over shapes.

A picture is compared by labels, not by depth: each pixel has a cost for showing the shape's upward surface, for showing
another surface of it, and for showing what is there without it. Shapes are those of `_kernels`.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

from kinema4d_ros.generators.draft._kernels import BIN, CX, CY, CYLINDER, LYING, SPHERE, SX, SY, SZ, YAW, Z0, _cast

__all__ = ["AHEAD", "ELSE_COST", "ELSE_DEPTH", "SIDE_COST", "UP_COST", "cast_faces", "energies", "wander"]

Array = NDArray[np.float64]

UP_COST, SIDE_COST, ELSE_COST, ELSE_DEPTH = 0, 1, 2, 3
"""Columns of the pixels' table (N, 4): costs of the shape's faces, cost and depth of what is there without it."""
AHEAD = 0.001
"""A shape hides what is at least this much farther, metres."""
_STEEP = math.sqrt(0.5)
SMALLEST_M, LARGEST_M = 0.006, 0.35


@njit(cache=True, nogil=True)
def _faces_up(kind: int, p: Array, wall: float, x: float, y: float, z: float, c: float, s: float) -> bool:
    """Return whether the surface faces up at a point of it."""
    if kind == SPHERE:
        return bool(z - p[Z0] - p[SX] / 2 > _STEEP * p[SX] / 2)
    if kind == LYING:
        if abs(c * (x - p[CX]) + s * (y - p[CY])) > p[SY] / 2 - 1e-6:
            return False
        return bool(z - p[Z0] - p[SX] / 2 > _STEEP * p[SX] / 2)
    if z > p[Z0] + p[SZ] - 1e-6:
        return True
    if kind == BIN and z < p[Z0] + wall + 1e-6:
        lx, ly = c * (x - p[CX]) + s * (y - p[CY]), c * (y - p[CY]) - s * (x - p[CX])
        return bool(abs(lx) < p[SX] / 2 - wall and abs(ly) < p[SY] / 2 - wall)
    return False


@njit(cache=True, nogil=True)
def cast_faces(kind: int, p: Array, wall: float, eye: Array, rays: Array) -> tuple[Array, NDArray[np.bool_]]:
    """Return depths (N,), inf = misses, and whether the surface faces up there (N,)."""
    depth = np.empty(rays.shape[0])
    up = np.zeros(rays.shape[0], np.bool_)
    c, s = math.cos(p[YAW]), math.sin(p[YAW])
    for i in range(rays.shape[0]):
        dx, dy, dz = rays[i, 0], rays[i, 1], rays[i, 2]
        t = _cast(kind, p, wall, eye[0], eye[1], eye[2], dx, dy, dz, c, s)
        depth[i] = np.inf
        if t > 0:
            depth[i] = t
            up[i] = _faces_up(kind, p, wall, eye[0] + t * dx, eye[1] + t * dy, eye[2] + t * dz, c, s)
    return depth, up


@njit(cache=True, nogil=True)
def _prior(kind: int, p: Array, voted: Array, sigma: Array, right: Array, others: Array, floor: float) -> float:
    """Negative logarithm of the prior: what was voted, and that objects do not overlap; 1e9 = impossible."""
    x, y = p[SX], p[SX] if kind in (CYLINDER, SPHERE) else p[SY]
    tall = p[SX] if kind in (SPHERE, LYING) else p[SZ]
    if not (SMALLEST_M <= x <= LARGEST_M and SMALLEST_M <= y <= LARGEST_M and SMALLEST_M <= tall <= LARGEST_M):
        return 1e9
    if p[Z0] < floor - 1e-9:
        return 1e9
    total = 0.0
    dx, dy = p[CX] - voted[0], p[CY] - voted[1]
    e = (right[0] * dx + right[1] * dy) / sigma[0]
    total += math.log1p(0.25 * e * e)
    e = (-right[1] * dx + right[0] * dy) / sigma[1]
    total += math.log1p(0.25 * e * e)
    # The four widths are not independent: together they count as two.
    turn = p[YAW] - math.atan2(right[1], right[0])
    for k in range(4):
        if kind in (CYLINDER, SPHERE):
            width = x
        else:
            width = x * abs(math.cos(turn - k * math.pi / 4)) + y * abs(math.sin(turn - k * math.pi / 4))
        e = (width - voted[2 + k]) / sigma[2 + k]
        total += 0.5 * math.log1p(0.25 * e * e)
    e = (p[Z0] - voted[6]) / sigma[6]
    total += math.log1p(0.25 * e * e)
    e = (p[Z0] + tall - voted[7]) / sigma[7]
    total += math.log1p(0.25 * e * e)
    inner = min(x, y) / 2
    for j in range(others.shape[0]):
        if p[Z0] < others[j, 4] - 0.004 and p[Z0] + tall > others[j, 3] + 0.004:
            overlap = others[j, 2] + inner - math.hypot(p[CX] - others[j, 0], p[CY] - others[j, 1])
            if overlap > 0:
                total += 0.5 * (overlap / 0.001) ** 2
    return 2.0 * total


@njit(cache=True, nogil=True)
def _energy(
    kind: int, p: Array, wall: float, eye: Array, rays: Array, pixels: Array, heat: float, voted: Array, sigma: Array,
    right: Array, others: Array, floor: float,
) -> float:  # fmt: skip
    total = _prior(kind, p, voted, sigma, right, others, floor)
    if total >= 1e9:
        return 1e9
    c, s = math.cos(p[YAW]), math.sin(p[YAW])
    cost = 0.0
    # Rays that miss the sphere around the shape need not be cast.
    long = p[SX] if kind in (CYLINDER, SPHERE) else p[SY]
    tall = p[SX] if kind in (SPHERE, LYING) else p[SZ]
    ox, oy, oz = eye[0] - p[CX], eye[1] - p[CY], eye[2] - p[Z0] - tall / 2
    outside = ox * ox + oy * oy + oz * oz - 0.25001 * (p[SX] * p[SX] + long * long + tall * tall)
    for i in range(rays.shape[0]):
        dx, dy, dz = rays[i, 0], rays[i, 1], rays[i, 2]
        ahead = ox * dx + oy * dy + oz * dz
        if ahead * ahead < (dx * dx + dy * dy + dz * dz) * outside:
            cost += pixels[i, ELSE_COST]
            continue
        t = _cast(kind, p, wall, eye[0], eye[1], eye[2], dx, dy, dz, c, s)
        if t > 0 and t < pixels[i, ELSE_DEPTH] - AHEAD:
            up = _faces_up(kind, p, wall, eye[0] + t * dx, eye[1] + t * dy, eye[2] + t * dz, c, s)
            cost += pixels[i, UP_COST] if up else pixels[i, SIDE_COST]
        else:
            cost += pixels[i, ELSE_COST]
    return float(total + heat * cost)


@njit(cache=True, nogil=True)
def energies(
    kind: int, shapes: Array, wall: float, eye: Array, rays: Array, pixels: Array, heat: float, voted: Array,
    sigma: Array, right: Array, others: Array, floor: float,
) -> Array:  # fmt: skip
    """Return the negative log posteriors (M,) of shapes (M, 7), up to a constant.

    Args:
        kind: of the shapes.
        shapes: see `_kernels`.
        wall: thickness of a bin's walls, metres.
        eye: (3,) of the camera.
        rays: (N, 3) of unit depth.
        pixels: (N, 4) costs and depth by ray, see UP_COST.
        heat: factor on the costs: neighbouring pixels repeat each other's errors.
        voted: (8,) x, y, four widths from the camera's right on, bottom, top.
        sigma: (8,) their spreads.
        right: (2,) the camera's right.
        others: (J, 5) other objects: x, y, inscribed radius, bottom, top.
        floor: height of the table.
    """
    out = np.empty(shapes.shape[0])
    for m in range(shapes.shape[0]):
        out[m] = _energy(kind, shapes[m], wall, eye, rays, pixels, heat, voted, sigma, right, others, floor)
    return out


@njit(cache=True, nogil=True)
def wander(
    kind: int, start: Array, ways: Array, pick: NDArray[np.int64], amount: Array, chance: Array, burn: int, out: Array,
    best: Array, wall: float, eye: Array, rays: Array, pixels: Array, heat: float, voted: Array, sigma: Array,
    right: Array, others: Array, floor: float,
) -> float:  # fmt: skip
    """Draw shapes (D, 7) into `out` by a random walk (Metropolis), evenly from the steps after the first `burn`.

    Step s moves along row `pick[s]` of `ways` (W, 7) by `amount[s]` times that way's length, which adapts during the
    first `burn` until about a third of its steps is accepted; `chance` (S,) are uniform numbers. Writes the best shape
    of the walk into `best` (7,) and returns its energy.
    """
    p, q = start.copy(), start.copy()
    here = _energy(kind, p, wall, eye, rays, pixels, heat, voted, sigma, right, others, floor)
    least = here
    best[:] = p
    length = np.ones(ways.shape[0])
    steps, kept = chance.shape[0], 0
    thin = max(1, (steps - burn) // max(1, out.shape[0]))
    for step in range(steps):
        way = pick[step]
        for j in range(7):
            q[j] = p[j] + length[way] * amount[step] * ways[way, j]
        there = _energy(kind, q, wall, eye, rays, pixels, heat, voted, sigma, right, others, floor)
        taken = math.log(max(chance[step], 1e-300)) < here - there
        if taken:
            p[:] = q
            here = there
            if here < least:
                least = here
                best[:] = p
        if step < burn:
            length[way] = min(max(length[way] * (1.25 if taken else 0.88), 0.1), 4.0)
        elif (step - burn + 1) % thin == 0 and kept < out.shape[0]:
            out[kept] = p
            kept += 1
    return float(least)
