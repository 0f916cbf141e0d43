"""`paced`: limit learned joint targets to the arm's position and velocity limits."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.robot.model import Robot

__all__ = ["paced"]

SPEED_SHARE = 0.9


def paced(
    robot: Robot, joints: NDArray[np.float64], start: NDArray[np.float64], period_s: float
) -> NDArray[np.float64]:
    """Return (N, J) targets, each within one period's maximum motion of the one before, beginning at `start` (J,)."""
    # The controller's cubic interpolation can be 1.5 times as fast as the mean between two samples.
    reach = SPEED_SHARE * np.array([joint.limits.velocity for joint in robot.actuated]) * period_s
    out = np.empty_like(joints)
    last = start
    for i, wanted in enumerate(np.clip(joints, robot.lower, robot.upper)):
        last = last + np.clip(wanted - last, -reach, reach)
        out[i] = last
    return out
