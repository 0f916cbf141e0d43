"""Learned joint targets as motion that the arm can do: inside its limits, and no faster than its motors."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.robot.model import Robot

__all__ = ["paced"]

SPEED_SHARE = 0.9


def paced(
    robot: Robot, joints: NDArray[np.float64], start: NDArray[np.float64], period_s: float
) -> NDArray[np.float64]:
    """(N, J) the targets, each at most one period's reach from the one before; the first from `start` (J,)."""
    # The arm's controller blends with a cubic that may be half as fast again as the mean between two samples.
    reach = SPEED_SHARE * np.array([joint.limits.velocity for joint in robot.actuated]) * period_s
    out = np.empty_like(joints)
    last = start
    for i, wanted in enumerate(np.clip(joints, robot.lower, robot.upper)):
        last = last + np.clip(wanted - last, -reach, reach)
        out[i] = last
    return out
