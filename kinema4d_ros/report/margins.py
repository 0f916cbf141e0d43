"""How far a plan stays from the robot's limits: positions and speeds, joint by joint."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.core.trajectory import JointTrajectory
from kinema4d_ros.robot.model import Robot

__all__ = ["Margins", "joint_margins"]


@dataclass(frozen=True, eq=False)
class Margins:
    """The tightest moment of every actuated joint.

    Attributes:
        joint_names: J names.
        position: (J,) float64, least distance to a position limit, rad or m; negative = outside, infinite for
            joints without limits.
        velocity_ratio: (J,) float64, largest speed / limit; above 1 = too fast, infinite for motion of a joint
            whose limit is 0.
    """

    joint_names: tuple[str, ...]
    position: NDArray[np.float64]
    velocity_ratio: NDArray[np.float64]


def joint_margins(robot: Robot, trajectory: JointTrajectory) -> Margins:
    """Margins along a trajectory; of a spline between its points too, otherwise from the mean speeds of samples."""
    dense = trajectory.dense()
    q = dense.for_robot(robot)
    position = np.minimum(q - robot.lower, robot.upper - q).min(axis=0)
    limit = np.array([joint.limits.velocity for joint in robot.actuated], dtype=np.float64)
    speed = np.zeros(len(limit))
    if len(q) > 1:
        speed = np.abs(np.diff(q, axis=0) / np.diff(dense.times)[:, None]).max(axis=0)
    if (rates := trajectory.rates(robot, dense.times)) is not None:
        speed = np.maximum(speed, np.abs(rates).max(axis=0))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(speed > 0, speed / limit, 0.0)
    return Margins(robot.joint_names, position, ratio)
