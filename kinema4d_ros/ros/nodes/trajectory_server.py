"""A trajectory controller's topic and FollowJointTrajectory action, as in ros2_control, for the lab and a real arm."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol

from rclpy.action import CancelResponse, GoalResponse
from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.task import Future

from kinema4d_ros.core.errors import KinemaError
from kinema4d_ros.core.trajectory import JointTrajectory
from kinema4d_ros.ros import names
from kinema4d_ros.ros.calls import GoalServer
from kinema4d_ros.ros.messages.trajectories import trajectory_from_msg
from kinema4d_ros.ros.nodes.common import KinemaNode

__all__ = ["Follower", "TrajectoryServer"]


class Follower(Protocol):
    """An arm that follows one trajectory at a time. Thread-safe."""

    @property
    def moving(self) -> bool:
        """Whether a motion has not ended yet."""
        ...

    def follow(self, plan: JointTrajectory, /) -> None:
        """Start a motion; raise a KinemaError when the plan is refused."""
        ...


class TrajectoryServer:
    """Server of the arm controller's topic and action; the arm follows the newest trajectory from either.

    Args:
        node: owner of the topic and the action.
        arm: what follows.
        stop: makes the arm brake and hold; by default the arm's own `stop`.
        permit: raises a KinemaError when a trajectory must not be followed.
    """

    def __init__(
        self,
        node: KinemaNode,
        arm: Any,
        stop: Callable[[], None] | None = None,
        permit: Callable[[JointTrajectory], None] = lambda plan: None,
    ) -> None:
        self._node = node
        self._arm: Follower = arm
        self._stop = stop or (lambda: arm.stop())
        self._permit = permit
        self.followed = 0
        self._lock = threading.RLock()
        """Held while motion and goal change together: a motion that was stopped or reset is not one that completed."""
        self._motion: Future | None = None
        """Future of the current goal; its result is why the motion ended early, "" for a completed motion."""
        self._motions: dict[bytes, Future] = {}
        node.subscription(names.ARM_TRAJECTORY, self._take)
        try:
            self._interface = names.FOLLOW_TRAJECTORY.interface()
        except ImportError:
            node.get_logger().info("control_msgs is not installed: the arm accepts plans on its topic only")
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
        self._permit(plan)
        with self._lock:
            self._arm.follow(plan)
            self.interrupt("superseded by another trajectory")
            self.followed += 1
        self._node.get_logger().info(f"the arm follows a plan of {plan.duration_s:.1f} s")

    def _admit(self, goal: Any) -> Any:
        try:
            with self._lock:
                self._follow(goal.trajectory)
                self._motion = Future()
        except KinemaError as error:
            self._node.complain(error, "arm: ")
            return GoalResponse.REJECT
        return GoalResponse.ACCEPT

    def _accept(self, handle: Any) -> None:
        if self._motion is not None:
            self._motions[bytes(handle.goal_id.uuid)] = self._motion
        handle.execute()

    def _cancel(self, handle: Any) -> Any:
        with self._lock:
            self._stop()
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
        """End the goal whose motion has completed; call after each step of the arm."""
        with self._lock:
            if self._motion is not None and not self._arm.moving:
                self._end(self._motion, "")

    def interrupt(self, why: str) -> None:
        """End the current goal before its motion has completed."""
        with self._lock:
            if self._motion is not None:
                self._end(self._motion, why)

    def _end(self, motion: Future, why: str) -> None:
        if not motion.done():
            motion.set_result(why)
