"""The lab's trajectory controller: a topic and a FollowJointTrajectory action, as ros2_control has them."""

from __future__ import annotations

import threading
from typing import Any

from rclpy.action import CancelResponse, GoalResponse
from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.task import Future

from kinema4d_ros.bridge import names
from kinema4d_ros.bridge.calls import GoalServer
from kinema4d_ros.bridge.joints import trajectory_from_msg
from kinema4d_ros.core.errors import KinemaError
from kinema4d_ros.lab import LabSimulation
from kinema4d_ros.nodes.common import KinemaNode

__all__ = ["LabController"]


class LabController:
    """Lets the lab's arm follow the newest trajectory, whichever way it came."""

    def __init__(self, node: KinemaNode, lab: LabSimulation) -> None:
        self._node = node
        self._lab = lab
        self.followed = 0
        self._lock = threading.Lock()
        self._motion: Future | None = None
        """Of the goal under way; its result is why the motion ended early, "" when it did not."""
        self._motions: dict[bytes, Future] = {}
        node.subscription(names.ARM_TRAJECTORY, self._take)
        try:
            self._interface = names.FOLLOW_TRAJECTORY.interface()
        except ImportError:
            node.get_logger().info("control_msgs is not installed: the arm takes plans on its topic only")
            return
        self._server = GoalServer(
            node,
            self._interface,
            names.FOLLOW_TRAJECTORY.name,
            execute_callback=self._execute,
            goal_callback=self._admit,
            handle_accepted_callback=self._accept,
            cancel_callback=self._cancel,
            callback_group=ReentrantCallbackGroup(),
            result_timeout=60,
        )

    def _take(self, message: Any) -> None:
        try:
            self._follow(message)
        except KinemaError as error:
            self._node.complain(error, "arm: ")

    def _follow(self, message: Any) -> None:
        plan = trajectory_from_msg(message)
        self._lab.follow(plan)
        self.interrupt("another trajectory took its place")
        self.followed += 1
        self._node.get_logger().info(f"the arm follows a plan of {plan.duration_s:.1f} s")

    def _admit(self, goal: Any) -> Any:
        try:
            self._follow(goal.trajectory)
        except KinemaError as error:
            self._node.complain(error, "arm: ")
            return GoalResponse.REJECT
        with self._lock:
            self._motion = Future()
        return GoalResponse.ACCEPT

    def _accept(self, handle: Any) -> None:
        if self._motion is not None:
            self._motions[bytes(handle.goal_id.uuid)] = self._motion
        handle.execute()

    def _cancel(self, handle: Any) -> Any:
        self._lab.stop()
        motion = self._motions.get(bytes(handle.goal_id.uuid))
        if motion is not None:
            self._end(motion, "cancelled")
        return CancelResponse.ACCEPT

    async def _execute(self, handle: Any) -> Any:
        result = self._interface.Result()
        result.error_string = await self._motions.pop(bytes(handle.goal_id.uuid))
        if handle.is_cancel_requested:
            handle.canceled()
        elif result.error_string:
            result.error_code = result.INVALID_GOAL
            handle.abort()
        else:
            handle.succeed()
        return result

    def tick(self) -> None:
        """To be called after each step of the physics: ends the goal whose motion is over."""
        motion = self._motion
        # In this order: a motion that begins in between is then seen to move.
        if motion is not None and not motion.done() and not self._lab.moving:
            self._end(motion, "")

    def interrupt(self, why: str) -> None:
        """End the goal under way before its motion is over."""
        motion = self._motion
        if motion is not None:
            self._end(motion, why)

    def _end(self, motion: Future, why: str) -> None:
        with self._lock:
            if not motion.done():
                motion.set_result(why)
