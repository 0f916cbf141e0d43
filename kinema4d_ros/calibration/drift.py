"""Camera drift check: compare robot masks or image edges with the robot rendered at the calibrated pose."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit

from kinema4d_ros.calibration.edge_fit import FOUND, ON_EDGE_PX, fit_edges, outline_way
from kinema4d_ros.calibration.markerless import calibrate_markerless, distinct_poses, refine_pose
from kinema4d_ros.calibration.pose_estimate import difference, region_threshold
from kinema4d_ros.calibration.silhouette import Masks, Silhouettes, image_motion
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import CalibrationError
from kinema4d_ros.kinematics.forward import forward_all
from kinema4d_ros.robot.model import Robot

__all__ = ["USELESS_PX", "Drift", "DriftState", "DriftWatch", "check_drift", "check_drift_by_edges"]

Array = NDArray[np.float64]

MIN_PIXELS = 400
"""Masks with fewer robot pixels than this are ignored, at any image size."""

SURE = 0.999
LEAST_FREEDOM = 20.0
"""Lower limit of the degrees of freedom. With few masks of few links the error scale is nearly unknown, and its 99.9 %
quantile is so large that no bump would be detected; the typical quality of masks is known better than that."""

NEAR_IOU = 0.75
"""Above this overlap the pose is close enough for the fine fit alone."""

USELESS_PX = 6.0
"""A larger offset of the robot invalidates predictions; a check that cannot exclude it returns "unknown"."""


@dataclass(frozen=True, eq=False)
class Drift:
    """Result of one drift check.

    Attributes:
        verdict: "still" (the calibration fits), "moved", or "unknown": no robot in view, masks of something else, or
            an uncertainty so large that an unusable calibration would go undetected.
        iou: of the robot rendered at the calibrated pose with the masks, before any fit; NaN without masks.
        px: root mean square distance between the outlines after the best fit, pixels.
        shift_mm, turn_deg: difference between the best-fit and the calibrated pose.
        distance: squared Mahalanobis distance between the two; significant above `threshold`.
        threshold: limit of `distance`.
        base_T_camera: (4, 4) best-fit pose, metres; the initial guess for a new calibration.
        text: one-line summary.
        seen_px, seen_mm: offset of the robot in the image, root mean square over its outline, in pixels and at the
            robot's distance. One image determines this well, but not how it splits into shift and rotation.
        sigma_px: standard deviation of `seen_px` in this check.
        allowed_px: 99.9 % limit of `seen_px` for a camera that did not move: the combined uncertainty of calibration
            and check, at least the tolerance.
    """

    verdict: Literal["still", "moved", "unknown"]
    iou: float
    px: float
    shift_mm: float
    turn_deg: float
    distance: float
    threshold: float
    base_T_camera: Array
    text: str
    seen_px: float = float("nan")
    seen_mm: float = float("nan")
    sigma_px: float = float("nan")
    allowed_px: float = float("nan")


class _Found(NamedTuple):
    """Best-fit pose (4, 4) of a check, its covariance (6, 6) and the residual of the fit."""

    base_T_camera: Array
    covariance: Array
    freedom: float
    px: float
    iou: float


class _Known(NamedTuple):
    """Uncertainty and residual that the calibration states."""

    covariance: Array | None
    freedom: float
    residual_px: float


def check_drift(
    robot: Robot,
    q: ArrayLike,
    masks: Sequence[Masks] | Masks,
    camera: PinholeCamera,
    *,
    covariance: ArrayLike | None = None,
    freedom: float = np.inf,
    residual_px: float = 0.0,
    tolerance_mm: float = 2.0,
    tolerance_deg: float = 0.15,
) -> Drift:
    """Compare one or several robot masks with the calibration.

    Args:
        robot: the robot in the masks.
        q: (C, J) joint positions, one row for each mask.
        masks: (C, H, W) bool, as seen by the camera; three to five are better than one.
        camera: intrinsics and calibrated pose.
        covariance: (6, 6) of the calibration, `PoseEstimate.covariance`; offsets within it are not reported as drift.
        freedom: degrees of freedom of that covariance.
        residual_px: residual of the calibration: the offset of outlines expected in one image without any drift.
        tolerance_mm, tolerance_deg: smaller moves are not reported as drift.
    """
    if not (tolerance_mm >= 0 and tolerance_deg >= 0):
        raise CalibrationError(f"tolerances are {tolerance_mm} mm, {tolerance_deg} degrees", expected="0 or more")
    known = _Known(None if covariance is None else np.asarray(covariance, dtype=np.float64), freedom, residual_px)
    here = camera.base_T_camera
    positions = np.atleast_2d(np.asarray(q, dtype=np.float64))
    if len(positions) != len(masks):
        raise CalibrationError(
            f"{len(positions)} joint configurations and {len(masks)} masks",
            expected="one joint configuration for each mask",
        )
    telling = [i for i, mask in enumerate(masks) if np.count_nonzero(mask) >= MIN_PIXELS]
    if not telling:
        return _unknown(here, 0.0, "the masks contain almost no robot", "use masks of images that show the robot")
    positions, masks = positions[telling], [masks[i] for i in telling]
    silhouettes = Silhouettes(robot, positions, masks, camera)
    iou = silhouettes.overlap(here)
    try:
        found = (
            refine_pose(silhouettes, here) if iou > NEAR_IOU else calibrate_markerless(robot, positions, masks, camera)
        )
    except CalibrationError as error:
        return _unknown(here, iou, error.what, _ELSEWHERE)
    # One arm pose is enough here: the calibrated pose is a strong prior.
    wrong = [f.name for f in found.quality.findings if f.severity == "error" and f.name != "too_similar"]
    if wrong:
        return _unknown(here, iou, f"no pose explains the masks ({', '.join(wrong)})", _ELSEWHERE)
    dof = max(found.degrees_of_freedom, LEAST_FREEDOM)
    fit = _Found(found.base_T_camera, found.covariance, dof, found.quality.px or 0.0, iou)
    outline = silhouettes.edges(here, 1.0)[0].p_camera
    images = len(distinct_poses(silhouettes.base_T_link))
    drift = _judge(silhouettes.camera.posed(here), outline, fit, known, images, 0.0)
    if drift.verdict != "moved":
        return drift
    if drift.shift_mm <= tolerance_mm and drift.turn_deg <= tolerance_deg and drift.seen_px <= USELESS_PX:
        small = replace(drift, verdict="still", allowed_px=max(drift.allowed_px, drift.seen_px))
        ignored = f"moves up to {tolerance_mm:g} mm and {tolerance_deg:g} degrees are ignored"
        return replace(small, text=f"{_says('still', small, images)}; {ignored}")
    by = f"the camera moved by {drift.shift_mm:.1f} mm and {drift.turn_deg:.2f} degrees"
    return replace(drift, text=f"{by}: {drift.text}")


def check_drift_by_edges(
    robot: Robot,
    q: ArrayLike,
    image: NDArray[np.uint8],
    camera: PinholeCamera,
    *,
    covariance: ArrayLike | None = None,
    freedom: float = np.inf,
    residual_px: float = 0.0,
    tolerance_px: float = 0.75,
) -> Drift:
    """Compare images with the calibration without masks: fit the rendered outline to the image edges.

    Args:
        robot: the robot in the images, at rest.
        q: (J,) joint positions at the time of the image, or (C, J) for several images.
        image: (H, W, 3) uint8, rectified, or (C, H, W, 3).
        camera: rectified, with its calibrated pose.
        covariance, freedom, residual_px: of the calibration, as in `check_drift`.
        tolerance_px: smaller offsets of the robot in the image are not reported as drift.
    """
    if not tolerance_px >= 0:
        raise CalibrationError(f"the tolerance is {tolerance_px} px", expected="0 or more")
    known = _Known(None if covariance is None else np.asarray(covariance, dtype=np.float64), freedom, residual_px)
    here = camera.base_T_camera
    fit = fit_edges(robot, q, image, camera, near_px=max(ON_EDGE_PX, 2 * residual_px))
    if fit is None:
        return _unknown(here, float("nan"), "almost none of the robot's outline is in the image", _ELSEWHERE)
    if fit.after < FOUND:
        why = f"only {fit.after:.0%} of the robot's outline lies on image edges"
        return _unknown(here, float("nan"), why, _ELSEWHERE)
    images = len(distinct_poses(forward_all(robot, np.atleast_2d(np.asarray(q, dtype=np.float64)))))
    found = _Found(fit.base_T_camera, fit.covariance, fit.freedom, fit.rms_px, float("nan"))
    return _judge(camera, fit.p_camera, found, known, images, tolerance_px)


def _judge(
    camera: PinholeCamera, p_camera: Array, fit: _Found, known: _Known, images: int, tolerance_px: float
) -> Drift:
    """Compare the fitted pose with the calibrated one, given the outline (N, 3) in the camera frame, metres."""
    here = camera.base_T_camera
    d = difference(here, fit.base_T_camera)
    both = fit.covariance if known.covariance is None else fit.covariance + known.covariance
    freedom = min(fit.freedom, known.freedom)
    distance, threshold = float(d @ np.linalg.solve(both, d)), region_threshold(freedom, SURE)
    # Project the pose uncertainties to pixels at the outline.
    J = image_motion(camera, here, p_camera)
    M = np.einsum("nki,nkj->ij", J, J) / len(J)
    chance, any_chance = (float(np.sqrt(np.trace(M @ covariance))) for covariance in (fit.covariance, both))
    # Without any drift the outline is still off by the residual of the calibration.
    misfit = known.residual_px / np.sqrt(images)
    reach = float(stdtrit(freedom, (1 + SURE) / 2))
    told, allowed = misfit + reach * chance, max(tolerance_px, misfit + reach * any_chance)
    px, mm = outline_way(camera, p_camera, fit.base_T_camera)
    shift, turn = 1e3 * float(np.linalg.norm(d[:3])), float(np.degrees(np.linalg.norm(d[3:])))
    drift = Drift(
        "still", fit.iou, fit.px, shift, turn, distance, threshold, fit.base_T_camera, "", px, mm,
        float(np.hypot(chance, misfit)), allowed,
    )  # fmt: skip
    if distance > threshold and px > allowed:
        return replace(drift, verdict="moved", text=_says("moved", drift, images))
    if told > USELESS_PX:
        why = f"the accuracy of this check is only {told:.1f} px"
        return replace(drift, verdict="unknown", text=f"cannot tell: {why}; {_MORE_IMAGES}")
    if px > USELESS_PX:
        why = f"the robot is {px:.1f} px off, and the uncertainty of the calibration allows {allowed:.1f} px"
        return replace(drift, verdict="unknown", text=f"cannot tell: {why}; calibrate again with more arm poses")
    return replace(drift, text=_says("still", drift, images))


_MORE_IMAGES = "add images of other arm poses, or masks"
_ELSEWHERE = (
    "check that the joint positions, the robot and the images match; if they do, the camera has moved: calibrate again"
)


def _says(verdict: Literal["still", "moved"], drift: Drift, images: int) -> str:
    off = f"{drift.seen_px:.1f} ± {drift.sigma_px:.1f} px ({drift.seen_mm:.1f} mm)"
    poses = f"{images} arm pose{'s' if images > 1 else ''}"
    if verdict == "moved":
        return (
            f"the robot is {off} from its calibrated position, in {poses}; "
            f"the uncertainty explains up to {drift.allowed_px:.1f} px"
        )
    return (
        f"the robot is at its calibrated position within {off}, in {poses}; "
        f"drift is reported above {drift.allowed_px:.1f} px"
    )


def _unknown(here: Array, iou: float, why: str, do: str) -> Drift:
    text = f"cannot tell: {why}; {do}"
    return Drift("unknown", iou, 0.0, 0.0, 0.0, 0.0, region_threshold(1e9, SURE), here, text)


# Filter over single drift checks: one bad image does not change the state.


@dataclass(frozen=True)
class DriftState:
    """Filtered result of the drift checks so far.

    Attributes:
        verdict: "still", "moved", or "unknown": no recent check gave a result, or none was made.
        sure: False while fewer checks than needed agree; the next check should follow soon.
        checks: number of checks made.
        text: one-line summary of the newest check with this verdict.
        seen_px, seen_mm: of that check; NaN where unknown.
        shift_mm, turn_deg: of that check; NaN where unknown.
    """

    verdict: Literal["still", "moved", "unknown"] = "unknown"
    sure: bool = False
    checks: int = 0
    text: str = "not checked yet"
    seen_px: float = float("nan")
    seen_mm: float = float("nan")
    shift_mm: float = float("nan")
    turn_deg: float = float("nan")


class DriftWatch:
    """Filter that changes its verdict after enough consecutive checks agree. Thread-safe.

    Args:
        agree: consecutive checks needed to set or clear "moved".
        blind: consecutive "unknown" checks after which the state is "unknown".
    """

    def __init__(self, agree: int = 3, blind: int = 5) -> None:
        self._agree, self._blind = agree, blind
        self._lock = threading.Lock()
        self._state = DriftState()
        self._run: tuple[str, int] = ("", 0)

    @property
    def state(self) -> DriftState:
        """State after the newest check."""
        with self._lock:
            return self._state

    def take(self, check: Drift) -> DriftState:
        """Add a check and return the new state."""
        with self._lock:
            verdict, count = self._run
            count = count + 1 if check.verdict == verdict else 1
            self._run = (check.verdict, count)
            needed = self._blind if check.verdict == "unknown" else self._agree
            checks = self._state.checks + 1
            if count >= needed or check.verdict == self._state.verdict:
                self._state = DriftState(
                    check.verdict,
                    count >= needed,
                    checks,
                    check.text,
                    check.seen_px,
                    check.seen_mm,
                    check.shift_mm,
                    check.turn_deg,
                )
            else:
                old = self._state
                self._state = DriftState(
                    old.verdict, False, checks, old.text, old.seen_px, old.seen_mm, old.shift_mm, old.turn_deg
                )
            return self._state
