"""A reconstructed mesh laid onto the robot's description: a start from picked pairs or a search, then closest points.

picked pairs ─> rotation, shift and size in closed form ─┐
no pairs ─────> search_alignment(), turns all around ────┴─> closest_points() ─> `recon_T_base`
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.spatial import cKDTree
from scipy.spatial.transform import Rotation

from kinema4d_ros.calibration.boards import skew
from kinema4d_ros.calibration.pose_estimate import changed
from kinema4d_ros.calibration.quality import Finding, Quality, finding, sorted_findings
from kinema4d_ros.calibration.surfaces import Surface, robot_surface
from kinema4d_ros.core.errors import CalibrationError
from kinema4d_ros.core.transforms import apply, make, rotation_angle
from kinema4d_ros.robot.model import Robot

__all__ = [
    "Laid",
    "Reconstruction",
    "Search",
    "align_pairs",
    "align_reconstruction",
    "closest_points",
    "search_alignment",
]

# Iterative closest points, from points to planes, robust, with the size free where it is unknown.

_ALIGN_STEPS = 60


class Laid(NamedTuple):
    """A surface laid onto another.

    Attributes:
        pose: (4, 4) of `p_target = pose (scale * p)`.
        scale: of the surface.
        distance: (N,) of its points from the target, metres.
        fits: (N,) bool, which of them are near enough to be of the same thing.
    """

    pose: Array
    scale: float
    distance: Array
    fits: NDArray[np.bool_]


def closest_points(
    surface: Surface,
    target: Surface,
    pose: Array,
    scale: float = 1.0,
    *,
    similarity: bool = False,
    tree: cKDTree | None = None,
) -> Laid:
    """Lay a surface onto a target in metres, from a start some centimetres and degrees away.

    Args:
        surface: in its own units.
        target: metres.
        pose, scale: the start.
        similarity: the scale is free.
        tree: of the target's points, if there is one already.
    """
    tree = cKDTree(target.points) if tree is None else tree
    reach = 0.05  # and shrinks
    for step in range(_ALIGN_STEPS):
        # While the surfaces are far apart a few points say as much as all.
        few = surface.points[::6] if step < 12 and len(surface.points) > 3000 else surface.points
        p = apply(pose, scale * few)
        distance, nearest = tree.query(p, distance_upper_bound=reach)
        hit = np.isfinite(distance)
        if hit.sum() < 50:
            break
        n = target.normals[nearest[hit]]
        r = ((p[hit] - target.points[nearest[hit]]) * n).sum(axis=1)
        # Shift in base axes, turn about the reconstruction's, size: the last two move a point by its lever arm.
        lever = p[hit] - pose[:3, 3]
        local = lever @ pose[:3, :3]
        turn = -np.einsum("nk,nkj->nj", n @ pose[:3, :3], skew(local))
        columns = [n, turn] + ([(n * lever).sum(axis=1, keepdims=True)] if similarity else [])
        J = np.concatenate(columns, axis=1)
        sigma = max(1.48 * float(np.median(np.abs(r))), 2e-4)
        w = 1 / (1 + (r / (2 * sigma)) ** 2)
        change = -np.linalg.solve(J.T @ (w[:, None] * J) + 1e-9 * np.eye(J.shape[1]), J.T @ (w * r))
        pose = changed(pose, change[:6])
        if similarity:
            scale *= 1 + float(np.clip(change[6], -0.1, 0.1))
        reach = max(0.7 * reach, 0.01)
        if np.abs(change).max() < 1e-6 and step > 14:
            break
    p = apply(pose, scale * surface.points)
    distance, nearest = tree.query(p)
    across = np.abs(((p - target.points[nearest]) * target.normals[nearest]).sum(axis=1))
    # Beyond a centimetre the nearest sample is not the same place any more, and its plane means nothing.
    result = np.where(distance < 0.01, across, distance)
    return Laid(pose, scale, result, result < 0.01)


# Where a reconstruction lies on the robot, without a guess: many starts, a few quick steps each, the best refined.
#
# turns all around ─> quick steps of all at once ─> the nearest quarter, more steps ─> a few in full ─> the best

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


Array = NDArray[np.float64]

GOOD_MM, WORST_MM = 3.0, 15.0
AMBIGUOUS = 1.25
"""Another place whose distance is less than this much larger could be the right one as well."""


@dataclass(frozen=True, eq=False)
class Reconstruction:
    """Where the reconstruction is: `p_base = base_T_recon (scale * p_recon)`.

    Attributes:
        base_T_recon: (4, 4) float64, rigid, metres.
        scale: metres for one unit of the reconstruction; 1 for a rigid alignment.
        quality: `mm` is the root mean square distance of the reconstruction's points that fit from the robot.
        pairs_mm: root mean square distance of the picked pairs, before the refinement; None without pairs.
        distance_m: (N,) of every point used, after it.
        share: of the points nearer than 5 mm.
    """

    base_T_recon: Array
    scale: float
    quality: Quality
    pairs_mm: float | None
    distance_m: Array
    share: float

    @property
    def recon_T_base(self) -> Array:
        """(4, 4) from metres in the base frame to the reconstruction's coordinates; not rigid if `scale` is not 1."""
        forward = self.base_T_recon @ np.diag([self.scale, self.scale, self.scale, 1.0])
        return np.asarray(np.linalg.inv(forward))


def align_pairs(p_recon: ArrayLike, p_base: ArrayLike, *, similarity: bool = False) -> tuple[Array, float]:
    """`base_T_recon` (4, 4) and scale that lay points (N, 3) onto their partners with the least squared distance.

    Needs three pairs that are not on a line. With `similarity` the scale is free, otherwise it is 1.
    """
    a, b = (np.asarray(p, dtype=np.float64) for p in (p_recon, p_base))
    if a.ndim != 2 or a.shape != b.shape or a.shape[1] != 3 or not (np.isfinite(a).all() and np.isfinite(b).all()):
        raise CalibrationError(f"pairs of shapes {a.shape} and {b.shape}", expected="(N, 3) finite points each")
    if len(a) < 3:
        raise CalibrationError(f"{len(a)} picked pairs (too_few_poses)", expected="at least 3, better 6")
    ca, cb = a.mean(axis=0), b.mean(axis=0)
    da, db = a - ca, b - cb
    for what, d in (("reconstruction", da), ("robot", db)):
        strengths = np.linalg.svd(d, compute_uv=False)
        if strengths[1] < 0.02 * max(strengths[0], 1e-12):
            raise CalibrationError(
                f"the points picked on the {what} lie on a line (parallel_axes)", expected="points that span a plane"
            )
    U, s, Vt = np.linalg.svd(db.T @ da)
    sign = np.array([1.0, 1.0, np.sign(np.linalg.det(U @ Vt))])
    R = U @ np.diag(sign) @ Vt
    scale = float((s * sign).sum() / (da**2).sum()) if similarity else 1.0
    return make(R, cb - scale * R @ ca), scale


def align_reconstruction(
    surface: Surface,
    robot: Robot,
    q: ArrayLike,
    p_recon: ArrayLike | None = None,
    p_base: ArrayLike | None = None,
    *,
    similarity: bool = False,
) -> Reconstruction:
    """Lay a reconstruction onto the robot.

    Args:
        surface: of the reconstruction, in its own units.
        robot, q: what was reconstructed, and its joint positions (J,) then.
        p_recon, p_base: (N, 3) picked pairs: points of the reconstruction and the same points on the robot, metres.
            Without them the place is searched for, which needs a mesh of the robot alone.
        similarity: the reconstruction's unit is unknown.
    """
    target = robot_surface(robot, q)
    pairs_mm, count = None, None
    if p_recon is not None and p_base is not None:
        pose, scale = align_pairs(p_recon, p_base, similarity=similarity)
        apart = np.linalg.norm(apply(pose, scale * np.asarray(p_recon)) - np.asarray(p_base), axis=1)
        pairs_mm, count = 1e3 * float(np.sqrt((apart**2).mean())), len(apart)
        found = _pair_findings(np.asarray(p_recon, np.float64), np.asarray(p_base, np.float64), similarity)
    elif p_recon is not None or p_base is not None:
        raise CalibrationError("only one side of the picked pairs was given", expected="both, or none")
    else:
        search = search_alignment(surface, target, similarity=similarity)
        pose, scale = search.base_T_recon, search.scale
        found = _search_findings(search.cost_m, search.next_m, search.mirror_m)
    laid = closest_points(surface, target, pose, scale, similarity=similarity)
    rms = 1e3 * float(np.sqrt((laid.distance[laid.fits] ** 2).mean())) if laid.fits.any() else float("inf")
    share = float((laid.distance < 0.005).mean())
    quality = Quality(mm=rms, poses=count, findings=sorted_findings([*found, *_fit_findings(rms, share)]))
    return Reconstruction(laid.pose, laid.scale, quality, pairs_mm, laid.distance, share)


def _mirrored(a: Array, b: Array, similarity: bool) -> bool:
    """The pairs fit much better after a reflection."""
    if len(a) < 4:
        return False
    rest = []
    for points in (a, a * (-1, 1, 1)):
        pose, scale = align_pairs(points, b, similarity=similarity)
        rest.append(float(np.sqrt(((apply(pose, scale * points) - b) ** 2).sum(axis=1).mean())))
    return rest[1] < 0.3 * rest[0] and rest[0] > 0.01


def _pair_findings(p_recon: Array, p_base: Array, similarity: bool) -> list[Finding]:
    found = []
    if _mirrored(p_recon, p_base, similarity):
        found.append(finding("mirrored_model", "the picked pairs fit a mirror image", "error"))
    if len(p_recon) < 4:
        found.append(finding("too_few_poses", f"{len(p_recon)} pairs: a wrong one would not show"))
    return found


def _search_findings(cost_m: float, next_m: float, mirror_m: float) -> list[Finding]:
    if mirror_m * AMBIGUOUS < cost_m:
        text = f"its mirror image is {1e3 * mirror_m:.1f} mm from the robot, itself {1e3 * cost_m:.1f} mm"
        return [finding("mirrored_model", text, "error")]
    if next_m < AMBIGUOUS * cost_m:
        text = f"two places fit alike, {1e3 * cost_m:.1f} and {1e3 * next_m:.1f} mm away"
        return [finding("ambiguous_place", text, "error")]
    return []


def _fit_findings(rms_mm: float, share: float) -> list[Finding]:
    found = []
    if rms_mm > GOOD_MM or not np.isfinite(rms_mm):
        bad = not rms_mm <= WORST_MM
        found.append(finding("poor_fit", f"distance {rms_mm:.1f} mm", "error" if bad else "warning"))
    if share < 0.6:
        text = f"{share:.0%} of the reconstruction is within 5 mm of the robot"
        found.append(finding("poor_overlap", text, "error" if share < 0.25 else "warning"))
    return found
