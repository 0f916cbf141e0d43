"""A reconstructed mesh laid onto the robot's description: a start from picked pairs or a search, then closest points.

picked pairs ─> rotation, shift and size in closed form ─┐
no pairs ─────> search_alignment(), turns all around ────┴─> closest_points() ─> `recon_T_base`
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kinema4d_ros.calibration.closest_points import closest_points
from kinema4d_ros.calibration.quality import Finding, Quality, finding, sorted_findings
from kinema4d_ros.calibration.recon_search import search_alignment
from kinema4d_ros.calibration.surfaces import Surface, robot_surface
from kinema4d_ros.core.errors import CalibrationError
from kinema4d_ros.core.transforms import apply, make
from kinema4d_ros.robot.model import Robot

__all__ = ["Reconstruction", "align_pairs", "align_reconstruction"]

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
