"""What a rollout's last frame shows in the hand: the plainest reading of a grasp's outcome, without a tracker."""

from __future__ import annotations

import numpy as np

from kinema4d_ros.pointmap import GripTrack
from kinema4d_ros.rollout import Rollout

__all__ = ["held_pixels", "holds"]

NEAR_M = 0.035
ABOVE_M = 0.025
LEAST_SHARE = 8e-4
"""Of the picture's pixels that a held thing shows at least; half of the smallest thing of the data."""


def held_pixels(rollout: Rollout, grip: GripTrack, frame: int = -1) -> int:
    """Pixels of a frame that are not robot and lie within 3.5 cm of the grip point, well above the table."""
    pose = rollout.camera.base_T_camera
    points = rollout.xyz[frame][~rollout.robot_mask[frame]].astype(np.float64)
    points = points[np.isfinite(points).all(-1)] @ pose[:3, :3].T + pose[:3, 3]
    near = np.linalg.norm(points - grip.base_T_grip[frame, :3, 3], axis=1) < NEAR_M
    return int((near & (points[:, 2] > ABOVE_M)).sum())


def holds(rollout: Rollout, grip: GripTrack) -> bool:
    """Whether something is in the hand at the end."""
    return held_pixels(rollout, grip) >= LEAST_SHARE * rollout.robot_mask[0].size
