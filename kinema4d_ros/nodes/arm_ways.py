"""The gate's two ways to the arm: its controller's topic, and the FollowJointTrajectory action that answers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

from action_msgs.msg import GoalStatus
from rclpy.action import ActionClient
from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.clock import Clock, ClockType
from rclpy.task import Future

from kinema4d_ros.bridge import names
from kinema4d_ros.bridge.joints import trajectory_to_msg
from kinema4d_ros.bridge.stamps import header
from kinema4d_ros.errors import ErrorCode, KinemaError, SetupError
from kinema4d_ros.nodes.common import KinemaNode
from kinema4d_ros.trajectory import JointTrajectory

__all__ = ["WAYS", "ActionWay", "ArmWay", "TopicWay"]

ANSWER_S = 2.0
"""How long a controller may take to accept or reject a plan."""

RESULT_GRACE_S = 10.0
"""How long after a plan's end its controller may take to say how it went."""

Ended = Callable[[str, "KinemaError | None"], None]
"""Told a plan's hash when its motion has ended, and what went wrong with it."""


class ArmWay(Protocol):
    """How a plan reaches the arm."""

    def require_ready(self) -> None:
        """Raise ARM_UNAVAILABLE when nobody is there to take a plan."""

    async def send(self, plan: JointTrajectory, plan_hash: str) -> None:
        """Hand a plan over; ARM_REFUSED when the controller does not take it."""

    def look(self) -> None:
        """Called once a second."""


class TopicWay:
    """Publishes on the controller's topic; nobody says what becomes of it."""

    def __init__(self, node: KinemaNode, _ended: Ended) -> None:
        self._command = node.publisher(names.ARM_TRAJECTORY)

    def require_ready(self) -> None:
        """Raise ARM_UNAVAILABLE without a controller that listens."""
        if self._command.get_subscription_count() == 0:
            raise _unavailable(f"nobody listens on {self._command.topic_name}")

    async def send(self, plan: JointTrajectory, plan_hash: str) -> None:
        """Publish the plan."""
        # A stamp of 0 tells ros2_control to start now; any other is a start time on its clock.
        self._command.publish(trajectory_to_msg(plan, header(0)))

    def look(self) -> None:
        """Nothing to look for."""


class ActionWay:
    """Asks the controller's action: it accepts or rejects, and says how the motion ended."""

    def __init__(self, node: KinemaNode, ended: Ended) -> None:
        try:
            self._interface = names.FOLLOW_TRAJECTORY.interface()
        except ImportError as error:
            raise SetupError(
                "control_msgs is not installed", expected="it, to reach the arm by its action", hint="use its topic"
            ) from error
        self._node = node
        self._ended = ended
        self._client = ActionClient(
            node, self._interface, names.FOLLOW_TRAJECTORY.name, callback_group=ReentrantCallbackGroup()
        )
        self._due: dict[str, float] = {}
        """Until when the result of each plan under way is awaited."""

    def require_ready(self) -> None:
        """Raise ARM_UNAVAILABLE without an action server."""
        if not self._client.server_is_ready():
            raise _unavailable(
                f"no controller answers on {self._node.resolve_topic_name(names.FOLLOW_TRAJECTORY.name)}"
            )

    async def send(self, plan: JointTrajectory, plan_hash: str) -> None:
        """Send the plan as a goal and wait until it is taken."""
        goal = self._interface.Goal(trajectory=trajectory_to_msg(plan, header(0)))
        asked = self._client.send_goal_async(goal)
        if not await self._in_time(asked):
            # Too late is refused: a motion that begins after all would be one that nobody expects.
            asked.add_done_callback(_cancel_late)
            raise _refused(f"its controller did not answer within {ANSWER_S:g} s")
        handle = asked.result()
        if not handle.accepted:
            raise _refused("its controller rejected the plan")
        self._due[plan_hash] = time.monotonic() + plan.duration_s + RESULT_GRACE_S
        handle.get_result_async().add_done_callback(lambda future: self._take_result(plan_hash, future.result()))

    async def _in_time(self, future: Any) -> bool:
        """Whether a future is done within ANSWER_S; the executor goes on meanwhile."""
        either = Future()
        future.add_done_callback(lambda _: either.set_result(True))
        # On a clock of its own: a simulation's may stand still.
        steady = Clock(clock_type=ClockType.STEADY_TIME)
        timer = self._node.create_timer(ANSWER_S, lambda: either.set_result(False), clock=steady)
        try:
            await either
        finally:
            self._node.destroy_timer(timer)
        return bool(future.done())

    def _take_result(self, plan_hash: str, response: Any) -> None:
        if self._due.pop(plan_hash, None) is None:
            return
        result = response.result
        if response.status == GoalStatus.STATUS_SUCCEEDED and result.error_code == self._interface.Result.SUCCESSFUL:
            self._ended(plan_hash, None)
            return
        word = "cancelled" if response.status == GoalStatus.STATUS_CANCELED else "aborted"
        said = f"{_meaning(self._interface.Result, result.error_code)}: {result.error_string}".rstrip(": ")
        self._ended(plan_hash, _aborted(f"its controller {word} the plan ({said})"))

    def look(self) -> None:
        """Give up on results that do not come."""
        for plan_hash, due_s in list(self._due.items()):
            if time.monotonic() > due_s:
                del self._due[plan_hash]
                self._ended(plan_hash, _aborted("its controller never said how the motion ended"))


WAYS: dict[str, Callable[[KinemaNode, Ended], ArmWay]] = {"topic": TopicWay, "action": ActionWay}


def _cancel_late(future: Any) -> None:
    handle = future.result()
    if handle is not None and handle.accepted:
        handle.cancel_goal_async()


def _meaning(result: Any, code: int) -> str:
    names_ = ("INVALID_GOAL", "INVALID_JOINTS", "OLD_HEADER_TIMESTAMP", "PATH_TOLERANCE_VIOLATED")
    known = {getattr(result, name): name for name in (*names_, "GOAL_TOLERANCE_VIOLATED")}
    return known.get(code, "" if code == result.SUCCESSFUL else f"error {code}")


def _unavailable(why: str) -> KinemaError:
    return KinemaError(
        f"the arm stays where it is: {why}",
        expected="the arm's trajectory controller",
        hint="start the arm's driver and its controller",
        code=ErrorCode.ARM_UNAVAILABLE,
    )


def _refused(why: str) -> KinemaError:
    return KinemaError(
        f"the arm stays where it is: {why}",
        expected="a controller that follows plans for these joints from where the arm is",
        hint="look at the controller's log, then preview and approve again",
        code=ErrorCode.ARM_REFUSED,
    )


def _aborted(why: str) -> KinemaError:
    return KinemaError(
        f"the arm did not follow the plan to its end: {why}",
        expected="a motion that ends where the plan does",
        hint="look at the arm before anything else",
        code=ErrorCode.ARM_ABORTED,
    )
