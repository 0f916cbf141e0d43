"""Forward kinematics of a whole trajectory at once: joint positions in, every link's pose out."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kinema4d_ros.errors import ErrorCode, TrajectoryError
from kinema4d_ros.robot.model import Robot
from kinema4d_ros.transforms import axis_angle, make

__all__ = ["forward_all"]


def forward_all(robot: Robot, q: ArrayLike) -> NDArray[np.float64]:
    """`base_T_link` of every link for every configuration.

    Args:
        robot: the tree.
        q: (T, J) positions in `robot.joint_names` order, radians or metres.

    Returns:
        (T, L, 4, 4) float64, metres, in `robot.links` order.
    """
    positions = np.asarray(q, dtype=np.float64)
    if positions.ndim != 2 or positions.shape[1] != len(robot.actuated):
        raise TrajectoryError(
            f"positions have shape {positions.shape}",
            expected=f"(T, {len(robot.actuated)}) in the order {', '.join(robot.joint_names)}",
        )
    if not np.all(np.isfinite(positions)):
        raise TrajectoryError(
            "positions hold NaN or infinity",
            expected="finite radians or metres",
            code=ErrorCode.TRAJECTORY_NOT_FINITE,
        )
    column = {name: positions[:, i] for i, name in enumerate(robot.joint_names)}
    index = {link.name: i for i, link in enumerate(robot.links)}
    out = np.empty((positions.shape[0], len(robot.links), 4, 4))
    out[:, 0] = np.eye(4)
    for i, joint in enumerate(robot.joints, start=1):
        parent = out[:, index[joint.parent]]
        if not joint.moves:
            out[:, i] = parent @ joint.parent_T_joint
            continue
        if joint.mimic is None:
            value = column[joint.name]
        else:
            value = joint.mimic.multiplier * column[joint.mimic.joint] + joint.mimic.offset
        if joint.kind == "prismatic":
            motion = make(None, value[:, None] * joint.axis)
        else:
            motion = axis_angle(joint.axis, value)
        out[:, i] = parent @ (joint.parent_T_joint @ motion)
    return out
