"""Where a reconstruction lies on the robot, without a guess: many starts, a few quick steps each, the best refined.

turns all around ─> quick steps of all at once ─> the nearest quarter, more steps ─> a few in full ─> the best
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree
from scipy.spatial.transform import Rotation

from kinema4d_ros.calibration.closest_points import closest_points
from kinema4d_ros.calibration.surfaces import Surface
from kinema4d_ros.core.transforms import make, rotation_angle

__all__ = ["Search", "search_alignment"]

Array = NDArray[np.float64]

STARTS = 400
"""Turns that leave none further than about 30 degrees from one of them."""

SIZES = (0.8, 1.0, 1.25)
"""Of a mesh without a unit, around the size that makes it spread as the robot does."""

GOOD_M = 0.005
"""A mesh that lies this near needs no look at its mirror image."""

_STEPS, _POINTS, _REFINED = 4, 300, 12
_CAP_M = 0.03
"""A point that is further away is no worse than this: parts that are missing or too many do not decide."""

_SAME_M, _SAME_DEG = 0.03, 10.0


class Search(NamedTuple):
    """What was found.

    Attributes:
        base_T_recon: (4, 4).
        scale: metres for one unit.
        cost_m: mean distance of both surfaces from each other, capped.
        next_m: the same of the best place that is another one; infinite if all starts led to one.
        mirror_m: the same of the mesh's mirror image; infinite where nobody looked, because the mesh fits.
    """

    base_T_recon: Array
    scale: float
    cost_m: float
    next_m: float
    mirror_m: float


def search_alignment(surface: Surface, target: Surface, *, similarity: bool = False, seed: int = 0) -> Search:
    """Try turns all around; needs a mesh of the robot alone, nearly whole.

    Args:
        surface: of the reconstruction, in its own units.
        target: of the robot, metres.
        similarity: the reconstruction's unit is unknown.
        seed: of points and turns.
    """
    found = _best(surface, target, similarity, seed)
    pose, scale, cost = found[0]
    others = [c for p, _, c in found[1:] if not _same(p, pose)]
    mirror = float("inf")
    if cost > GOOD_M:
        flip = np.array([-1.0, 1.0, 1.0])
        mirror = _best(Surface(surface.points * flip, surface.normals * flip), target, similarity, seed)[0][2]
    return Search(pose, scale, cost, min(others, default=float("inf")), mirror)


def _best(surface: Surface, target: Surface, similarity: bool, seed: int) -> list[tuple[Array, float, float]]:
    """Pose, scale and cost of the refined starts, best first."""
    rng = np.random.default_rng(seed)
    some, rough = _thin(surface, 4000, rng), _thin(target, 8000, rng)
    tree = cKDTree(rough.points)
    middle, goal = (np.median(p, axis=0) for p in (surface.points, target.points))
    size = _spread(target.points) / _spread(surface.points) if similarity else 1.0
    sizes = [size * factor for factor in (SIZES if similarity else (1.0,))]
    done = []
    for scale in sizes:
        pair = _Pair(scale * some.points, rough.points, tree)
        R = Rotation.random(STARTS, rng=rng).as_matrix()
        t = goal - scale * R @ middle
        for steps, kept in ((_STEPS, STARTS // 4), (2 * _STEPS, STARTS // 4)):
            R, t = pair.step(R, t, steps)
            cost = pair.cost(R, t)
            best = np.argsort(cost)[:kept]
            R, t = R[best], t[best]
        chosen: list[Array] = []
        for pose in (make(r, shift) for r, shift in zip(R, t, strict=True)):
            if len(chosen) < max(_REFINED // len(sizes), 4) and not any(_same(pose, other) for other in chosen):
                chosen.append(pose)
        for pose in chosen:
            laid = closest_points(some, rough, pose, scale, similarity=similarity, tree=tree)
            end = _Pair(laid.scale * some.points, rough.points, tree, few=len(rough.points))
            done.append((laid.pose, laid.scale, float(end.cost(laid.pose[None, :3, :3], laid.pose[None, :3, 3])[0])))
    return sorted(done, key=lambda one: one[2])


class _Pair:
    """Two clouds in metres and their trees; many poses (K, 3, 3), (K, 3) of the first are tried at once."""

    def __init__(self, points: Array, target: Array, tree: cKDTree, few: int = _POINTS) -> None:
        self._tree, self._back = tree, cKDTree(points)
        self._points, self._target = points[:few], target[:few]  # in no order: the first are as good as any

    def step(self, R: Array, t: Array, count: int) -> tuple[Array, Array]:
        """So many rigid steps towards the nearest points."""
        points = self._points
        for _ in range(count):
            p = np.einsum("kij,nj->kni", R, points) + t[:, None]
            distance, nearest = self._tree.query(p)
            partner = self._tree.data[nearest]
            # The farther half of a start's points may be where its partner is not: it counts less.
            usual = np.median(distance, axis=1, keepdims=True) + 1e-6
            w = 1 / (1 + (distance / usual) ** 2)
            w /= w.sum(axis=1, keepdims=True)
            a, b = w @ points, np.einsum("kn,kni->ki", w, partner)
            H = np.einsum("kn,kni,knj->kij", w, partner - b[:, None], points - a[:, None])
            U, _, Vt = np.linalg.svd(H)
            U[:, :, 2] *= np.sign(np.linalg.det(U @ Vt))[:, None]
            R = U @ Vt
            t = b - np.einsum("kij,kj->ki", R, a)
        return R, t

    def cost(self, R: Array, t: Array) -> Array:
        """(K,) both ways: a mesh too small for its place is near the robot, but the robot is not near the mesh."""
        there = self._tree.query(np.einsum("kij,nj->kni", R, self._points) + t[:, None])[0]
        back = self._back.query(np.einsum("kji,knj->kni", R, self._target - t[:, None]))[0]
        return np.asarray((np.minimum(there, _CAP_M).mean(axis=1) + np.minimum(back, _CAP_M).mean(axis=1)) / 2)


def _spread(points: Array) -> float:
    """Median distance from the median: a table around the robot pulls it less than a mean."""
    return float(np.median(np.linalg.norm(points - np.median(points, axis=0), axis=1)))


def _same(a: Array, b: Array) -> bool:
    near = np.linalg.norm(a[:3, 3] - b[:3, 3]) < _SAME_M
    return bool(near and np.degrees(rotation_angle(a, b)) < _SAME_DEG)


def _thin(surface: Surface, count: int, rng: np.random.Generator) -> Surface:
    if len(surface.points) <= count:
        return surface
    pick = rng.choice(len(surface.points), count, replace=False)
    return Surface(surface.points[pick], surface.normals[pick])
