"""Find the target object when it is not given: the object on the table nearest to the gripper's trajectory."""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.core.errors import EvaluationError
from kinema4d_ros.core.rollout import Rollout
from kinema4d_ros.core.transforms import apply
from kinema4d_ros.previews.report.plane import fit_plane

__all__ = ["centre_behind", "find_target", "tip_path"]

_FOOT_M = 0.13
"""Radius around the base frame that belongs to the robot's foot."""
_TIP_M = 0.02
_AROUND_M = 0.2
_LOW_M, _HIGH_M = 0.008, 0.25
_GAP_M = 0.015
_LEAST_PX = 12
_BEHIND = 0.25
_WORK_M = 0.03
"""Path points at most this far above the lowest tip position count as manipulation; the rest is approach."""

Mask = NDArray[np.bool_]
Floats = NDArray[np.float64]


def tip_path(rollout: Rollout) -> Floats:
    """Compute the tip's path (T, 3), metres, base frame: lowest 2 cm of the robot without foot; NaN = not in view."""
    path = np.full((len(rollout), 3), np.nan)
    for t in range(len(rollout)):
        points = apply(rollout.camera.base_T_camera, rollout.xyz[t][rollout.robot_mask[t]].astype(np.float64))
        points = points[np.linalg.norm(points[:, :2], axis=1) > _FOOT_M]
        if len(points) >= _LEAST_PX:
            # A quantile, because the single lowest point may be an outlier.
            floor = np.quantile(points[:, 2], 0.02)
            path[t] = points[points[:, 2] < floor + _TIP_M].mean(axis=0)
    return path


def centre_behind(surface: Floats, eye: Floats) -> Floats:
    """Estimate the centre (3,) of an object from its visible surface (N, 3): its centroid moved away from the eye (3,).

    For boxes, cylinders and spheres of the lab the centre is 0.25 +- 0.05 widths behind the visible centroid, measured
    along the table. The height is unchanged.
    """
    centre = surface.mean(axis=0)
    away = centre[:2] - eye[:2]
    length = float(np.linalg.norm(away))
    if length < 1e-6:
        return np.asarray(centre)
    away /= length
    width = float(np.ptp(surface[:, :2] @ np.array([-away[1], away[0]])))
    return np.asarray(centre + np.array([*(_BEHIND * width * away), 0.0]))


def find_target(rollout: Rollout) -> Mask:
    """Find the object on the table nearest to the gripper's trajectory: its pixels in frame 0, (H, W) bool.

    Raises:
        EvaluationError: no robot in view, no table around the gripper's trajectory, or no object on the table.
    """
    path = tip_path(rollout)
    path = path[np.isfinite(path[:, 0])]
    if not len(path):
        raise EvaluationError(
            "no robot is in view in the rollout", expected="a robot, or the target's mask", hint=_HINT
        )
    points = rollout.points_base(0).astype(np.float64)
    rim = cv2.dilate(rollout.robot_mask[0].view(np.uint8), np.ones((3, 3), np.uint8)) != 0
    lowest = path[path[:, 2].argmin()]
    free = ~rim & np.isfinite(points[..., 2])
    with np.errstate(invalid="ignore"):
        around = free & (np.linalg.norm(points[..., :2] - lowest[:2], axis=-1) < _AROUND_M)
    # The plane's normal is turned upwards below, so that heights above the table are positive.
    plane = fit_plane(points[around], tolerance_m=0.006, least_share=0.3)
    if plane is None:
        raise EvaluationError(
            f"{int(around.sum())} points around the gripper's trajectory contain no plane",
            expected="a table",
            hint=_HINT,
        )
    if plane[2] < 0:
        plane = -plane
    height = points @ plane[:3] + plane[3]
    above = free & (height > _LOW_M) & (height < _HIGH_M)
    work = path[path[:, 2] < lowest[2] + _WORK_M]
    best, nearest = None, np.inf
    count, labels = _clusters(points, above)
    for label in range(1, count):
        cluster: Mask = labels == label
        if cluster.sum() < _LEAST_PX:
            continue
        middle = centre_behind(points[cluster], rollout.camera.base_T_camera[:3, 3])
        distance = float(np.linalg.norm(work[:, :2] - middle[:2], axis=1).min())
        if distance < nearest:
            best, nearest = cluster, distance
    if best is None:
        raise EvaluationError("no object is on the table", expected="an object, or the target's mask", hint=_HINT)
    grown = cv2.dilate(best.astype(np.uint8), np.ones((3, 3), np.uint8)) != 0
    return np.asarray(best | (grown & free & (height > _LOW_M / 2) & (height < _HIGH_M)))


def _clusters(points: Floats, above: Mask) -> tuple[int, NDArray[np.int32]]:
    """Label connected pieces of `above`; neighbouring pixels with a gap in space belong to two pieces."""
    linked = above.astype(np.uint8)
    with np.errstate(invalid="ignore"):
        right = np.linalg.norm(points[:, 1:] - points[:, :-1], axis=-1) > _GAP_M
        down = np.linalg.norm(points[1:] - points[:-1], axis=-1) > _GAP_M
    # One pixel at the gap is removed, so that the two pieces do not touch.
    linked[:, 1:][right & above[:, :-1]] = 0
    linked[1:][down & above[:-1]] = 0
    count, labels = cv2.connectedComponents(linked, connectivity=4)
    return count, labels


_HINT = "pass the target's mask in the first frame"
