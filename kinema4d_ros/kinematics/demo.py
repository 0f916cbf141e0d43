"""Demonstration plan: a ten-second pick and place of the YAM.

`python -m kinema4d_ros.kinematics.demo FILE` writes it as a CSV; `config/demo/pick_and_place.csv` is its
output. The tool moves straight down to the object, over in one arc, straight up and home, every leg with
minimum-jerk timing; the joint positions come from inverse kinematics.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.core.errors import ErrorCode, RobotError
from kinema4d_ros.core.trajectory import JointTrajectory
from kinema4d_ros.core.transforms import axis_angle, make, slerp
from kinema4d_ros.io.tables import write_trajectory
from kinema4d_ros.kinematics.forward import forward_all
from kinema4d_ros.kinematics.pinocchio_backend import PinocchioKinematics
from kinema4d_ros.robot.model import Robot

__all__ = ["main", "pick_and_place"]

Array = NDArray[np.float64]

RATE_HZ = 20.0
DIGITS = 5
"""Decimals in the file: 0.01 mrad, about the accuracy of the inverse kinematics."""

PICK = (0.38, -0.16, 0.03)
PLACE = (0.33, 0.20, 0.03)
HOVER_M = 0.10
ARC_M = 0.16
OPEN_M, HELD_M = 0.08, 0.04


@dataclass(frozen=True)
class Leg:
    """Part of the motion: target of the tool, duration, and gripper width at its end."""

    duration_s: float
    to: Array
    width_m: float
    arc_m: float = 0.0


def pick_and_place(robot: Robot) -> JointTrajectory:
    """Build the plan for a robot of the YAM's size whose tool points down at home; rounded as in the file."""
    if robot.gripper is None:
        raise RobotError(
            f"robot '{robot.name}' has no gripper to pick with", expected="a gripper", code=ErrorCode.NO_GRIPPER
        )
    home = robot.home_position()
    tool = [link.name for link in robot.links].index(robot.tool_link)
    ready = forward_all(robot, home[None])[0, tool]
    rest_m = float(robot.gripper.width_from_position(home[robot.joint_names.index(robot.gripper.joint)]))
    pick, place = _over(ready, PICK), _over(ready, PLACE)
    legs = [
        Leg(2.0, _over(ready, PICK, HOVER_M), OPEN_M),
        Leg(1.2, pick, OPEN_M),
        Leg(0.8, pick, HELD_M),
        Leg(2.6, place, HELD_M, ARC_M),
        Leg(0.6, place, OPEN_M),
        Leg(1.0, _over(ready, PLACE, HOVER_M), OPEN_M),
        Leg(1.8, ready, rest_m),
    ]
    poses, widths = [ready[None]], [np.array([rest_m])]
    for leg in legs:
        s = _minimum_jerk(round(leg.duration_s * RATE_HZ))
        poses.append(_along(poses[-1][-1], leg.to, s, leg.arc_m))
        widths.append(widths[-1][-1] + s * (leg.width_m - widths[-1][-1]))
    plan = JointTrajectory.from_poses(
        PinocchioKinematics(robot), np.concatenate(poses), rate_hz=RATE_HZ, seed=home, gripper=np.concatenate(widths)
    )
    return JointTrajectory(plan.names, np.round(plan.times, DIGITS), np.round(plan.positions, DIGITS) + 0.0)


def _over(ready: Array, point: tuple[float, float, float], height_m: float = 0.0) -> Array:
    """Return the tool pose at a height over a point, oriented as in `ready` and rotated with the arm."""
    x, y, z = point
    turned = axis_angle([0, 0, 1], np.arctan2(y, x)) @ ready
    return make(turned[:3, :3], [x, y, z + height_m])


def _minimum_jerk(samples: int) -> Array:
    """Return (samples,) progress from just after 0 to 1 with zero speed and acceleration at both ends."""
    s = np.arange(1, samples + 1) / samples
    return s**3 * (10 - 15 * s + 6 * s**2)


def _along(start: Array, end: Array, s: Array, arc_m: float) -> Array:
    """Interpolate straight, or over an arc: a cubic Bezier that starts straight up and ends straight down."""
    if not arc_m:
        return slerp(start, end, s)
    poses = slerp(start, end, s**2 * (3 - 2 * s))
    poses[:, 2, 3] += 3 * arc_m * s * (1 - s)
    return poses


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the plan for the YAM to a file."""
    parser = argparse.ArgumentParser(description="Write the demonstration plan of the YAM.")
    parser.add_argument("file", type=Path, help="a .csv, .json or .npz file")
    write_trajectory(pick_and_place(Robot.load("yam")), parser.parse_args(arguments).file)


if __name__ == "__main__":
    main()
