"""Every way a plan comes in: joint trajectories, MoveIt's display plans, tool poses with and without times."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kinema4d_ros.bridge import names
from kinema4d_ros.bridge.display import trajectory_from_display
from kinema4d_ros.bridge.joints import trajectory_from_msg
from kinema4d_ros.bridge.poses import path_to_matrices, pose_array_to_matrices
from kinema4d_ros.bridge.stamps import nanoseconds
from kinema4d_ros.core.errors import ErrorCode, TrajectoryError
from kinema4d_ros.core.trajectory import JointTrajectory
from kinema4d_ros.kinematics.protocol import Kinematics
from kinema4d_ros.nodes.common import KinemaNode
from kinema4d_ros.preview.arm import ArmState
from kinema4d_ros.preview.checks import plan_from_poses

__all__ = ["PlanInputs", "ReadPlan"]

ReadPlan = Callable[[ArmState, Callable[[], None]], JointTrajectory]
"""Reads a plan that has arrived, for an arm that is there: the work of a worker, not of a callback.
It calls its second argument now and then, which raises once nobody wants the plan any more."""


class PlanInputs:
    """Subscribes to plans. Its callbacks only stamp and hand on.

    Args:
        node: the node that listens.
        kinematics: for plans of tool poses.
        take: gets each plan's moment (builtin_interfaces/Time) and the way to read it.
    """

    def __init__(self, node: KinemaNode, kinematics: Kinematics, take: Callable[[Any, ReadPlan], None]) -> None:
        self._node = node
        self._kinematics = kinematics
        self._take = take
        node.subscription(names.PLAN, self._take_plan)
        node.subscription(names.EE_PATH, self._take_poses)
        node.subscription(names.EE_TIMED_PATH, self._take_timed)
        try:
            node.subscription(names.DISPLAY_PLAN, self._take_display)
        except ImportError:
            node.get_logger().info("moveit_msgs is not installed: plans on display_planned_path are not taken")

    def _take_plan(self, message: Any) -> None:
        self._hand_on(message.header.stamp, lambda _arm, _go_on: trajectory_from_msg(message))

    def _take_display(self, message: Any) -> None:
        first = message.trajectory[0].joint_trajectory.header.stamp if message.trajectory else None
        self._hand_on(first, lambda _arm, _go_on: trajectory_from_display(message))

    def _take_poses(self, message: Any) -> None:
        def read(arm: ArmState, go_on: Callable[[], None]) -> JointTrajectory:
            self._require_base(message.header.frame_id)
            return plan_from_poses(self._kinematics, pose_array_to_matrices(message), None, arm, go_on)

        self._hand_on(message.header.stamp, read)

    def _take_timed(self, message: Any) -> None:
        def read(arm: ArmState, go_on: Callable[[], None]) -> JointTrajectory:
            self._require_base(message.header.frame_id)
            poses, times = path_to_matrices(message)
            return plan_from_poses(self._kinematics, poses, times, arm, go_on)

        self._hand_on(message.header.stamp, read)

    def _require_base(self, frame: str) -> None:
        base = self._kinematics.robot.base_link
        if frame not in ("", base):
            raise TrajectoryError(
                f"the path is in frame '{frame}'",
                expected=f"'{base}'",
                hint="transform it before sending it",
                code=ErrorCode.CALIBRATION_FRAME_MISMATCH,
            )

    def _hand_on(self, stamp: Any, read: ReadPlan) -> None:
        # Planners often leave the stamp empty; then the plan's moment is that of its arrival.
        moment = stamp if stamp is not None and nanoseconds(stamp) else self._node.get_clock().now().to_msg()
        self._take(moment, read)
