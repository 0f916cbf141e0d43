"""Alignment of a reconstructed mesh with the robot description: initial pose from picked pairs or a search, then ICP.

picked pairs ─> rotation, shift and scale in closed form ────┐
no pairs ─────> search_alignment(), rotations all around ────┴─> closest_points() ─> `recon_T_base`

The last step is Open3D's ICP where that is installed, our own otherwise and for an unknown scale (`engine`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.spatial import cKDTree
from scipy.spatial.transform import Rotation

from kinema4d_ros.calibration.boards import skew
from kinema4d_ros.calibration.pose_estimate import changed
from kinema4d_ros.calibration.quality import Finding, Quality, finding, sorted_findings
from kinema4d_ros.calibration.surfaces import Surface, load_open3d, robot_surface
from kinema4d_ros.core.errors import CalibrationError, ErrorCode, SetupError
from kinema4d_ros.core.transforms import apply, make, rotation_angle
from kinema4d_ros.robot.model import Robot

__all__ = [
    "ENGINES",
    "Engine",
    "Laid",
    "Reconstruction",
    "Search",
    "align_pairs",
    "align_reconstruction",
    "choose_engine",
    "closest_points",
    "search_alignment",
]

# Robust point-to-plane ICP, with a free scale if the unit is unknown.

_ALIGN_STEPS = 60


ENGINES = ("auto", "own", "open3d")
"""Who refines a pose by ICP; `auto` is Open3D where it is installed and the scale is known, otherwise our own ICP."""

_OPEN3D_REACH_M = (0.05, 0.025, 0.0125, 0.01)
_OPEN3D_TUKEY_M = 0.005
"""Residuals beyond this have no weight in the last pass; beyond half the reach in the others, for distant starts."""


class Engine(NamedTuple):
    """ICP implementation.

    Attributes:
        name: own or open3d.
        note: why `auto` did not take Open3D; empty if it did, or if the choice was explicit.
        module: Open3D, or None.
    """

    name: str
    note: str = ""
    module: Any = None

    @property
    def text(self) -> str:
        """Words for a report: whose ICP it was, and why."""
        whose = "our own ICP" if self.module is None else "Open3D's ICP"
        return f"{whose} ({self.note})" if self.note else whose


OWN = Engine("own")


def choose_engine(engine: str, *, similarity: bool = False) -> Engine:
    """Resolve one of ENGINES; `open3d` raises a SetupError where it is not installed."""
    if engine not in ENGINES:
        raise CalibrationError(
            f"the engine is '{engine}'", expected=f"one of {', '.join(ENGINES)}", code=ErrorCode.ARGUMENT_INVALID
        )
    if engine == "own":
        return OWN
    if similarity:
        why = "Open3D's point-to-plane ICP estimates no scale"
        if engine == "open3d":
            raise CalibrationError(
                why, expected="--engine own or auto with --similarity", code=ErrorCode.ARGUMENT_INVALID
            )
        return Engine("own", why)
    try:
        return Engine("open3d", module=load_open3d("--engine open3d", "--engine own"))
    except SetupError as error:
        if engine == "open3d":
            raise
        return Engine("own", error.what)


class Laid(NamedTuple):
    """Surface aligned with a target.

    Attributes:
        pose: (4, 4) of `p_target = pose (scale * p)`.
        scale: of the surface.
        distance: (N,) distance of its points from the target, metres.
        fits: (N,) bool, True for points within 1 cm of the target.
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
    engine: Engine = OWN,
) -> Laid:
    """Align a surface with a target by ICP, from an initial pose within some centimetres and degrees.

    Args:
        surface: in its own units.
        target: metres.
        pose, scale: initial values.
        similarity: estimate the scale too.
        tree: k-d tree of the target's points; None = build it.
        engine: from `choose_engine`; Open3D's keeps the scale.
    """
    tree = cKDTree(target.points) if tree is None else tree
    if engine.module is not None:
        return _laid(surface, target, tree, _open3d_icp(engine.module, surface, target, pose, scale), scale)
    reach = 0.05  # shrinks with every step
    for step in range(_ALIGN_STEPS):
        # While the surfaces are far apart a subset of the points is enough.
        few = surface.points[::6] if step < 12 and len(surface.points) > 3000 else surface.points
        p = apply(pose, scale * few)
        distance, nearest = tree.query(p, distance_upper_bound=reach)
        hit = np.isfinite(distance)
        if hit.sum() < 50:
            break
        n = target.normals[nearest[hit]]
        r = ((p[hit] - target.points[nearest[hit]]) * n).sum(axis=1)
        # Shift in base axes, rotation about the reconstruction's axes, scale: the last two act through the lever arm.
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
    return _laid(surface, target, tree, pose, scale)


def _laid(surface: Surface, target: Surface, tree: cKDTree, pose: Array, scale: float) -> Laid:
    p = apply(pose, scale * surface.points)
    distance, nearest = tree.query(p)
    across = np.abs(((p - target.points[nearest]) * target.normals[nearest]).sum(axis=1))
    # Beyond a centimetre the nearest sample is not the corresponding point, so its plane is meaningless.
    result = np.where(distance < 0.01, across, distance)
    return Laid(pose, scale, result, result < 0.01)


def _open3d_icp(o3d: Any, surface: Surface, target: Surface, pose: Array, scale: float) -> Array:
    """Refine a pose (4, 4) at a fixed scale with Open3D's robust point-to-plane ICP."""
    registration = o3d.pipelines.registration
    clouds = []
    for points, normals in ((scale * surface.points, surface.normals), (target.points, target.normals)):
        cloud = o3d.geometry.PointCloud(o3d.utility.Vector3dVector(points))
        cloud.normals = o3d.utility.Vector3dVector(normals)
        clouds.append(cloud)
    for reach in _OPEN3D_REACH_M:
        loss = registration.TukeyLoss(max(reach / 2, _OPEN3D_TUKEY_M))
        method = registration.TransformationEstimationPointToPlane(loss)
        stop = registration.ICPConvergenceCriteria(1e-9, 1e-9, 30)
        pose = np.array(registration.registration_icp(*clouds, reach, pose, method, stop).transformation)
    return pose


# Global search for the initial pose.
#
# rotations all around ─> a few steps of all in parallel ─> best quarter, more steps ─> full ICP of a few ─> best

STARTS = 400
"""Number of random initial rotations; any rotation is within about 30 degrees of one of them."""

SIZES = (0.8, 1.0, 1.25)
"""Initial scales of a mesh without a unit, relative to the scale that gives it the spread of the robot."""

GOOD_M = 0.005
"""The mirror image of a mesh with a smaller distance than this is not checked."""

_STEPS, _POINTS, _REFINED = 4, 300, 12
_CAP_M = 0.03
"""Cap of a point's distance, so that missing or extra parts do not dominate the cost."""

_SAME_M, _SAME_DEG = 0.03, 10.0


class Search(NamedTuple):
    """Result of the global search.

    Attributes:
        base_T_recon: (4, 4).
        scale: metres per unit of the reconstruction.
        cost_m: mean distance between the two surfaces, both ways, capped.
        next_m: cost of the best distinct alternative; infinite if all starts converged to one pose.
        mirror_m: cost of the mesh's mirror image; infinite if not checked because the mesh itself fits.
    """

    base_T_recon: Array
    scale: float
    cost_m: float
    next_m: float
    mirror_m: float


def search_alignment(surface: Surface, target: Surface, *, similarity: bool = False, seed: int = 0) -> Search:
    """Search over all rotations; needs a nearly complete mesh of the robot alone.

    Args:
        surface: of the reconstruction, in its own units.
        target: of the robot, metres.
        similarity: the unit of the reconstruction is unknown.
        seed: of the sampled points and rotations.
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
    """Refine the best starts; return pose, scale and cost of each, best first."""
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
    """Two point clouds in metres with k-d trees; evaluates many poses (K, 3, 3), (K, 3) of the first at once."""

    def __init__(self, points: Array, target: Array, tree: cKDTree, few: int = _POINTS) -> None:
        self._tree, self._back = tree, cKDTree(points)
        self._points, self._target = points[:few], target[:few]  # the points are in random order

    def step(self, R: Array, t: Array, count: int) -> tuple[Array, Array]:
        """Take `count` rigid ICP steps."""
        points = self._points
        for _ in range(count):
            p = np.einsum("kij,nj->kni", R, points) + t[:, None]
            distance, nearest = self._tree.query(p)
            partner = self._tree.data[nearest]
            # Points far away may have no counterpart: give them less weight.
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
        """Compute the cost (K,) in both directions: a mesh that is too small is near the robot, but not vice versa."""
        there = self._tree.query(np.einsum("kij,nj->kni", R, self._points) + t[:, None])[0]
        back = self._back.query(np.einsum("kji,knj->kni", R, self._target - t[:, None]))[0]
        return np.asarray((np.minimum(there, _CAP_M).mean(axis=1) + np.minimum(back, _CAP_M).mean(axis=1)) / 2)


def _spread(points: Array) -> float:
    """Compute the median distance from the median point, which is robust to a table around the robot."""
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
"""An alternative pose is ambiguous if its cost is less than this factor larger."""


@dataclass(frozen=True, eq=False)
class Reconstruction:
    """Pose of a reconstruction: `p_base = base_T_recon (scale * p_recon)`.

    Attributes:
        base_T_recon: (4, 4) float64, rigid, metres.
        scale: metres per unit of the reconstruction; 1 for a rigid alignment.
        quality: `mm` is the root mean square distance from the robot of the points within 1 cm.
        pairs_mm: root mean square distance of the picked pairs before the refinement; None without pairs.
        distance_m: (N,) distance of every point after the refinement.
        share: fraction of points within 5 mm.
        engine: the ICP that refined the pose, and why it is not Open3D's.
    """

    base_T_recon: Array
    scale: float
    quality: Quality
    pairs_mm: float | None
    distance_m: Array
    share: float
    engine: Engine = OWN

    @property
    def recon_T_base(self) -> Array:
        """Transform (4, 4) from base frame, metres, to reconstruction coordinates; not rigid if `scale` is not 1."""
        forward = self.base_T_recon @ np.diag([self.scale, self.scale, self.scale, 1.0])
        return np.asarray(np.linalg.inv(forward))


def align_pairs(p_recon: ArrayLike, p_base: ArrayLike, *, similarity: bool = False) -> tuple[Array, float]:
    """Compute `base_T_recon` (4, 4) and the scale that align point pairs (N, 3) with least squares.

    Needs three pairs that are not collinear. With `similarity` the scale is estimated, otherwise it is 1.
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
                f"the points picked on the {what} are collinear (parallel_axes)", expected="points that span a plane"
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
    engine: str = "auto",
) -> Reconstruction:
    """Align a reconstruction with the robot.

    Args:
        surface: of the reconstruction, in its own units.
        robot, q: the reconstructed robot and its joint positions (J,) at that time.
        p_recon, p_base: (N, 3) picked pairs: points of the reconstruction and the same points on the robot, metres.
            Without them the pose is searched for, which needs a mesh of the robot alone.
        similarity: the unit of the reconstruction is unknown.
        engine: one of ENGINES, for the last refinement.
    """
    chosen = choose_engine(engine, similarity=similarity)
    target = robot_surface(robot, q)
    pairs_mm, count = None, None
    if p_recon is not None and p_base is not None:
        pose, scale = align_pairs(p_recon, p_base, similarity=similarity)
        apart = np.linalg.norm(apply(pose, scale * np.asarray(p_recon)) - np.asarray(p_base), axis=1)
        pairs_mm, count = 1e3 * float(np.sqrt((apart**2).mean())), len(apart)
        found = _pair_findings(np.asarray(p_recon, np.float64), np.asarray(p_base, np.float64), similarity)
    elif p_recon is not None or p_base is not None:
        raise CalibrationError("only one of p_recon and p_base was given", expected="both, or neither")
    else:
        search = search_alignment(surface, target, similarity=similarity)
        pose, scale = search.base_T_recon, search.scale
        found = _search_findings(search.cost_m, search.next_m, search.mirror_m)
    laid = closest_points(surface, target, pose, scale, similarity=similarity, engine=chosen)
    rms = 1e3 * float(np.sqrt((laid.distance[laid.fits] ** 2).mean())) if laid.fits.any() else float("inf")
    share = float((laid.distance < 0.005).mean())
    quality = Quality(mm=rms, poses=count, findings=sorted_findings([*found, *_fit_findings(rms, share)]))
    return Reconstruction(laid.pose, laid.scale, quality, pairs_mm, laid.distance, share, chosen)


def _mirrored(a: Array, b: Array, similarity: bool) -> bool:
    """Check whether the pairs fit much better after a reflection."""
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
        found.append(finding("too_few_poses", f"{len(p_recon)} pairs: a wrong one cannot be detected"))
    return found


def _search_findings(cost_m: float, next_m: float, mirror_m: float) -> list[Finding]:
    if mirror_m * AMBIGUOUS < cost_m:
        text = f"the mirror image is {1e3 * mirror_m:.1f} mm from the robot, the mesh itself {1e3 * cost_m:.1f} mm"
        return [finding("mirrored_model", text, "error")]
    if next_m < AMBIGUOUS * cost_m:
        text = f"two poses fit equally well, at distances of {1e3 * cost_m:.1f} and {1e3 * next_m:.1f} mm"
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
