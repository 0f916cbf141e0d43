"""Has the camera been bumped? Compares masks of the robot, or edges of one picture, with what the calibration says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kinema4d_ros.calibration.edge_fit import FOUND, fit_edges, outline_way
from kinema4d_ros.calibration.markerless import calibrate_markerless, refine_pose
from kinema4d_ros.calibration.pose_estimate import difference, region_threshold
from kinema4d_ros.calibration.silhouette import Masks, Silhouettes
from kinema4d_ros.camera import PinholeCamera
from kinema4d_ros.errors import CalibrationError
from kinema4d_ros.robot.model import Robot

__all__ = ["Drift", "check_drift", "check_drift_by_edges"]

Array = NDArray[np.float64]

MIN_PIXELS = 400
"""Fewer pixels of robot than this in an image of any size say nothing."""

SURE = 0.999
LEAST_FREEDOM = 20.0
"""Few masks of few links leave the size of their errors nearly open, and 99.9 % of that is boundless: no bump would
ever be seen. What masks are like is known better than that."""

NEAR_IOU = 0.75
"""Above this overlap the camera is near enough for the fine fit alone."""


@dataclass(frozen=True, eq=False)
class Drift:
    """The answer.

    Attributes:
        verdict: "still", "moved", or "unknown": no robot in view, or masks of something else.
        iou: of the robot drawn at the calibrated pose with the masks, before any fit; NaN without masks.
        px: root mean square distance of the outlines after the best fit, pixels.
        shift_mm, turn_deg: how far the best pose is from the calibrated one.
        distance: the same in units of its uncertainty, squared; above `threshold` it is not chance.
        threshold: of the distance.
        base_T_camera: (4, 4) the best pose: a new calibration's guess.
        text: one line for people.
        seen_px, seen_mm: how far the robot is off in the image, root mean square over its outline, in pixels and at
            the robot's distance. One picture tells this well; how much of it is shift and how much turn, it does not.
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


def check_drift(
    robot: Robot,
    q: ArrayLike,
    masks: Sequence[Masks] | Masks,
    camera: PinholeCamera,
    *,
    covariance: ArrayLike | None = None,
    tolerance_mm: float = 2.0,
    tolerance_deg: float = 0.15,
) -> Drift:
    """Compare one mask or several with the calibration.

    Args:
        robot: that the masks show.
        q: (C, J) joint positions, one row for each mask.
        masks: (C, H, W) bool, as the camera saw the robot; three to five tell more than one.
        camera: calibrated, with its pose.
        covariance: (6, 6) of the calibration itself, `PoseEstimate.covariance`; it is not held against the camera.
        tolerance_mm, tolerance_deg: smaller moves are not worth a warning.
    """
    if not (tolerance_mm >= 0 and tolerance_deg >= 0):
        raise CalibrationError(f"tolerances are {tolerance_mm} mm, {tolerance_deg} degrees", expected="0 or more")
    own = np.zeros((6, 6)) if covariance is None else np.asarray(covariance, dtype=np.float64)
    here = camera.base_T_camera
    positions = np.atleast_2d(np.asarray(q, dtype=np.float64))
    if len(positions) != len(masks):
        raise CalibrationError(f"{len(positions)} joint configurations and {len(masks)} masks", expected="one of each")
    telling = [i for i, mask in enumerate(masks) if np.count_nonzero(mask) >= MIN_PIXELS]
    if not telling:
        return _unknown(here, 0.0, "the masks hold next to no robot")
    positions, masks = positions[telling], [masks[i] for i in telling]
    silhouettes = Silhouettes(robot, positions, masks, camera)
    iou = silhouettes.overlap(here)
    try:
        found = (
            refine_pose(silhouettes, here) if iou > NEAR_IOU else calibrate_markerless(robot, positions, masks, camera)
        )
    except CalibrationError as error:
        return _unknown(here, iou, error.what)
    # One picture will do here: a camera that stands where it was calibrated is the expectation, not the question.
    wrong = [f.name for f in found.quality.findings if f.severity == "error" and f.name != "too_similar"]
    if wrong:
        return _unknown(here, iou, f"no pose explains the masks ({', '.join(wrong)})")
    d = difference(here, found.base_T_camera)
    distance = float(d @ np.linalg.solve(found.covariance + own, d))
    threshold = region_threshold(max(found.degrees_of_freedom, LEAST_FREEDOM), SURE)
    shift, turn = 1e3 * float(np.linalg.norm(d[:3])), float(np.degrees(np.linalg.norm(d[3:])))
    moved = distance > threshold and (shift > tolerance_mm or turn > tolerance_deg)
    text = (
        f"the camera {'moved by' if moved else 'is where it was calibrated, within'} {shift:.1f} mm and {turn:.2f} "
        f"degrees (IoU {iou:.3f}, {distance:.0f} of {threshold:.0f})"
    )
    px = found.quality.px or 0.0
    verdict: Literal["still", "moved"] = "moved" if moved else "still"
    outline = silhouettes.edges(here, 1.0)[0].p_camera
    way = outline_way(silhouettes.camera.posed(here), outline, found.base_T_camera)
    return Drift(verdict, iou, px, shift, turn, distance, threshold, found.base_T_camera, text, *way)


def check_drift_by_edges(
    robot: Robot, q: ArrayLike, image: NDArray[np.uint8], camera: PinholeCamera, *, tolerance_px: float = 0.75
) -> Drift:
    """Compare one picture with the calibration, without a mask: the drawn outline is laid on the picture's edges.

    Args:
        robot: that the picture shows, at rest.
        q: (J,) joint positions of the picture's moment.
        image: (H, W, 3) uint8, rectified.
        camera: rectified, with its calibrated pose.
        tolerance_px: a robot that is off by less in the image is not worth a warning.
    """
    if not tolerance_px >= 0:
        raise CalibrationError(f"the tolerance is {tolerance_px} px", expected="0 or more")
    here = camera.base_T_camera
    fit = fit_edges(robot, q, image, camera)
    if fit is None:
        return _unknown(here, float("nan"), "next to no outline of the robot is in the picture")
    if fit.after < FOUND:
        return _unknown(here, float("nan"), f"only {fit.after:.0%} of the robot's outline lies on edges of the picture")
    d = difference(here, fit.base_T_camera)
    distance = float(d @ np.linalg.solve(fit.covariance, d))
    threshold = region_threshold(fit.freedom, SURE)
    shift, turn = 1e3 * float(np.linalg.norm(d[:3])), float(np.degrees(np.linalg.norm(d[3:])))
    moved = distance > threshold and fit.seen_px > tolerance_px
    text = (
        f"the robot is {fit.seen_px:.1f} px ({fit.seen_mm:.1f} mm) from where the calibration draws it"
        if moved
        else f"the robot is where the calibration draws it, within {fit.seen_px:.1f} px ({fit.seen_mm:.1f} mm)"
    )
    return Drift(
        "moved" if moved else "still",
        float("nan"),
        fit.rms_px,
        shift,
        turn,
        distance,
        threshold,
        fit.base_T_camera,
        text,
        fit.seen_px,
        fit.seen_mm,
    )


def _unknown(here: Array, iou: float, why: str) -> Drift:
    return Drift("unknown", iou, 0.0, 0.0, 0.0, 0.0, region_threshold(1e9, SURE), here, f"cannot tell: {why}")
