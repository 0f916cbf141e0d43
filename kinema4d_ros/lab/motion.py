"""Smooth joint motions piece by piece: free moves, straight lines of the tool, gripper, pauses."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kinema4d_ros.core.errors import ErrorCode, RobotError
from kinema4d_ros.core.trajectory import JointTrajectory
from kinema4d_ros.core.transforms import rotation_angle, slerp
from kinema4d_ros.kinematics.protocol import Kinematics

__all__ = ["Motion"]

Array = NDArray[np.float64]

RATE_HZ = 50.0
SPEED_FRACTION = 0.35
"""Of each joint's velocity limit, at most; demonstrations look calm."""
MAX_JOINT_SPEED = 1.6
"""rad/s, however fast the motors may be."""
TOOL_SPEED_M = 0.22
TOOL_TURN_RAD = 1.5
MIN_PIECE_S = 0.2

_PEAK = 1.875
"""Largest speed of a minimum-jerk move, relative to its mean."""


class Motion:
    """Builds a trajectory from where the arm is; every piece starts and ends at rest (minimum jerk in time).

    Attributes:
        q: (J,) where the motion has come to.
    """

    def __init__(self, kinematics: Kinematics, start: ArrayLike) -> None:
        """Begin at positions (J,) in `robot.joint_names` order."""
        self.kinematics = kinematics
        self.q: Array = np.array(start, dtype=np.float64)
        self._samples = [self.q.copy()]
        self._times = [0.0]
        self._mark = 1
        robot = kinematics.robot
        self._tool = [link.name for link in robot.links].index(robot.tool_link)
        limits = np.array([j.limits.velocity for j in robot.actuated])
        cap = np.array([np.inf if j.kind == "prismatic" else MAX_JOINT_SPEED for j in robot.actuated])
        self._speed = np.minimum(SPEED_FRACTION * limits, cap)

    def tool_pose(self) -> Array:
        """(4, 4) `base_T_tool` where the motion has come to."""
        return np.asarray(self.kinematics.forward(self.q)[self._tool])

    def mark(self) -> None:
        """Remember this point for `rewind`."""
        self._mark = len(self._times)

    def rewind(self) -> None:
        """Forget everything since the last `mark`."""
        del self._times[self._mark :], self._samples[self._mark :]
        self.q = self._samples[-1].copy()

    def to_joints(self, goal: ArrayLike) -> Motion:
        """Move all joints to positions (J,), each along the same clock."""
        end = np.asarray(goal, dtype=np.float64)
        self._piece(np.stack([self.q, end]), 0.0)
        return self

    def to_pose(self, base_T_tool: ArrayLike) -> Motion:
        """Move freely so that the tool comes to a pose (4, 4); the gripper stays as it is."""
        return self.to_joints(self.kinematics.inverse(base_T_tool, seed=self.q))

    def line_to(self, base_T_tool: ArrayLike, speed: float = 1.0) -> Motion:
        """Move the tool in a straight line to a pose (4, 4); `speed` scales how fast."""
        start, end = self.tool_pose(), np.asarray(base_T_tool, dtype=np.float64)
        length = float(np.linalg.norm(end[:3, 3] - start[:3, 3]))
        turn = float(rotation_angle(start, end))
        count = max(2, int(np.ceil(max(length / 0.005, turn / 0.05))) + 1)
        path = self.kinematics.solve_path(slerp(start, end, np.linspace(0.0, 1.0, count)), seed=self.q)
        path.require_reached()
        q = path.q.copy()
        q[0] = self.q
        self._piece(q, _PEAK * max(length / TOOL_SPEED_M, turn / TOOL_TURN_RAD) / speed)
        return self

    def grip(self, width_m: float) -> Motion:
        """Open or close the fingers to a width in metres; less than 0 squeezes what a closed gripper would touch."""
        gripper = self.kinematics.robot.gripper
        if gripper is None:
            raise RobotError(
                f"robot '{self.kinematics.robot.name}' has no gripper",
                expected="a robot with a gripper",
                code=ErrorCode.NO_GRIPPER,
            )
        goal = self.q.copy()
        column = self.kinematics.robot.joint_names.index(gripper.joint)
        goal[column] = gripper.position_from_width(np.clip(width_m, gripper.width_closed_m, gripper.width_open_m))
        return self.to_joints(goal)

    def wait(self, duration_s: float) -> Motion:
        """Stay for a while."""
        self._piece(np.stack([self.q, self.q]), duration_s)
        return self

    def trajectory(self) -> JointTrajectory:
        """All pieces as one trajectory from time 0."""
        return JointTrajectory.from_positions(
            self.kinematics.robot.joint_names, np.array(self._samples), times=np.array(self._times)
        )

    def _piece(self, q: Array, least_s: float) -> None:
        """Append a path (N, J), evenly spaced in its own parameter, at minimum jerk."""
        steps = np.abs(np.diff(q, axis=0)) * (len(q) - 1)
        duration = max(least_s, _PEAK * float(np.max(steps / self._speed)), MIN_PIECE_S)
        count = max(2, int(np.ceil(duration * RATE_HZ)))
        clock = np.arange(1, count + 1) / count
        s = clock**3 * (10 - 15 * clock + 6 * clock**2)
        where = np.linspace(0.0, 1.0, len(q))
        rows = np.stack([np.interp(s, where, column) for column in q.T], axis=1)
        start = self._times[-1]
        self._times.extend((start + duration * clock).tolist())
        self._samples.extend(rows)
        self.q = q[-1].copy()
