"""What a rollout's last frame shows in the hand: the plainest reading of a grasp's outcome, without a tracker."""

from __future__ import annotations

import numpy as np

from kinema4d_ros.core.pointmap import GripTrack
from kinema4d_ros.core.rollout import Rollout
from kinema4d_ros.core.task import make_task
from kinema4d_ros.generators.carry import find_grasps

__all__ = ["held_pixels", "holds"]

NEAR_M = 0.035
LEAST_SHARE = 8e-4
"""Of the picture's pixels that a held thing shows at least; half of the smallest thing of the data."""


def held_pixels(rollout: Rollout, grip: GripTrack, frame: int = -1) -> int:
    """Pixels of a frame that are not robot and lie within 3.5 cm of the grip point."""
    pose = rollout.camera.base_T_camera
    points = rollout.xyz[frame][~rollout.robot_mask[frame]].astype(np.float64)
    points = points[np.isfinite(points).all(-1)] @ pose[:3, :3].T + pose[:3, 3]
    return int((np.linalg.norm(points - grip.base_T_grip[frame, :3, 3], axis=1) < NEAR_M).sum())


def holds(rollout: Rollout, grip: GripTrack) -> bool:
    """Whether a pick succeeded, if what is in the hand at the end went with it since the fingers closed."""
    if held_pixels(rollout, grip) < LEAST_SHARE * rollout.robot_mask[0].size:
        return False
    grasps = [grasp for grasp in find_grasps(grip) if grasp.release >= len(grip)]
    if not grasps:
        return False
    hand = grip.base_T_grip[:, :3, 3]
    closing = hand[grasps[-1].start : grasps[-1].closed + 1]
    # Frames are far apart: the lowest of those while the fingers close is nearest to where the thing was taken.
    taken = closing[int(closing[:, 2].argmin())]
    return bool(make_task("pick").outcome([taken, hand[-1]]).success)
