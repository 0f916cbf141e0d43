"""The hand's own frame along a motion: between the finger tips, x along the fingers' closing, z the way it reaches."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.kinematics.forward import forward_all
from kinema4d_ros.pointmap.grip import GripTrack
from kinema4d_ros.robot.gripper import Gripper
from kinema4d_ros.robot.model import Robot

__all__ = ["grip_track"]

_TOOL_T_GRIP: WeakKeyDictionary[Robot, NDArray[np.float64]] = WeakKeyDictionary()
LEAST_STROKE_M = 1e-4


def grip_track(
    robot: Robot, positions: NDArray[np.float64], base_T_link: NDArray[np.float64] | None = None
) -> GripTrack | None:
    """The hand along joint positions (T, J); None for a robot without a gripper.

    Args:
        robot: with its gripper and tool link.
        positions: in `robot.joint_names` order.
        base_T_link: (T, L, 4, 4) if they are known already.
    """
    if robot.gripper is None:
        return None
    if robot not in _TOOL_T_GRIP:
        _TOOL_T_GRIP[robot] = _tool_T_grip(robot, robot.gripper)
    poses = forward_all(robot, positions) if base_T_link is None else base_T_link
    tool = poses[:, _link_index(robot, robot.tool_link)]
    gripper = robot.gripper
    low, high = sorted((gripper.closed, gripper.open))
    commanded = np.clip(positions[:, robot.joint_names.index(gripper.joint)], low, high)
    return GripTrack(tool @ _TOOL_T_GRIP[robot], np.asarray(gripper.width_from_position(commanded), np.float64))


def _link_index(robot: Robot, name: str) -> int:
    return [link.name for link in robot.links].index(name)


def _tool_T_grip(robot: Robot, gripper: Gripper) -> NDArray[np.float64]:
    """(4, 4) at the tool's own point; x where the leading finger goes when it opens, z as near the tool's as can be."""
    leader = _link_index(robot, robot.joint(gripper.joint).child)
    tool = _link_index(robot, robot.tool_link)
    q = np.stack([robot.home_position()] * 2)
    q[:, robot.joint_names.index(gripper.joint)] = gripper.closed, gripper.open
    poses = forward_all(robot, q)
    opened = [np.linalg.inv(p[tool]) @ p[leader] for p in poses]
    way = opened[1][:3, 3] - opened[0][:3, 3]
    grip = np.eye(4)
    if np.linalg.norm(way) < LEAST_STROKE_M:
        return grip
    x = way / np.linalg.norm(way)
    z = np.array([0.0, 0.0, 1.0])
    z = z - x * (x @ z)
    if np.linalg.norm(z) < 0.1:
        z = np.cross(x, [0.0, 1.0, 0.0])
    z = z / np.linalg.norm(z)
    grip[:3, :3] = np.stack([x, np.cross(z, x), z], axis=1)
    return grip
