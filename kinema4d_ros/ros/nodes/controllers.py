"""Interfaces from the gate to the arm's controllers: their topics, or their FollowJointTrajectory actions.

One controller moves the whole arm, or the arm's and the gripper's controller share it. Each receives the points of
the approved plan for its joints, unchanged. When one controller rejects or aborts the plan or is lost, the other one
is stopped.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from action_msgs.msg import GoalStatus
from action_msgs.srv import CancelGoal
from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.clock import Clock, ClockType
from rclpy.exceptions import InvalidTopicNameException
from rclpy.task import Future
from rclpy.validate_topic_name import validate_topic_name

from kinema4d_ros.core.errors import ErrorCode, KinemaError, SetupError
from kinema4d_ros.core.trajectory import JointTrajectory
from kinema4d_ros.previews.arm import ArmState
from kinema4d_ros.robot import Robot
from kinema4d_ros.ros import names
from kinema4d_ros.ros.calls import ActionCaller, Question, new_uuid
from kinema4d_ros.ros.commanders import RECORDERS, Commanders
from kinema4d_ros.ros.messages.stamps import header
from kinema4d_ros.ros.messages.trajectories import trajectory_to_msg
from kinema4d_ros.ros.names import Endpoint
from kinema4d_ros.ros.nodes.common import KinemaNode
from kinema4d_ros.ros.params import ParameterError
from kinema4d_ros.ros.qos import profile

__all__ = ["WAYS", "ActionWay", "ArmWay", "Controller", "TopicWay", "controllers", "require_covered"]

ANSWER_S = 2.0
"""Timeout for a controller to accept or reject a plan, and to confirm a cancellation."""

LOOK_S = 0.005
"""Poll period while waiting for a controller."""

RESULT_GRACE_S = 10.0
"""Timeout for a controller's result after the end of a plan."""

BRAKE_S = 0.2
"""Duration of a stop trajectory that is sent to a controller's topic."""

Ended = Callable[[str, "KinemaError | None", bool], None]
"""Called when a motion has ended: hash of the plan, its error or None, and whether the arm is known to be at rest."""


@dataclass(frozen=True)
class Controller:
    """One controller and its joints.

    Attributes:
        label: "arm" or "gripper", for messages.
        joints: names of its joints.
        topic: its trajectory topic.
        action: its FollowJointTrajectory action.
    """

    label: str
    joints: tuple[str, ...]
    topic: Endpoint
    action: Endpoint


def controllers(
    robot: Robot, arm_joints: Sequence[str] = (), gripper: str = "", gripper_joints: Sequence[str] = ()
) -> tuple[Controller, ...]:
    """Return the arm's controller and, if `gripper` names one, the gripper's.

    By default the gripper's controller has the joint of the robot's gripper, and the arm's has all other joints.

    Raises:
        ParameterError: a joint is unknown or assigned twice, or a name is invalid.
    """
    if gripper:
        if not gripper_joints and robot.gripper is not None:
            gripper_joints = (robot.gripper.joint,)
        _require_name(gripper)
    if bool(gripper) != bool(gripper_joints):
        raise ParameterError(
            f"the gripper's controller is '{gripper}' and its joints are: {', '.join(gripper_joints) or 'none'}",
            expected="both a name and joints, or neither",
        )
    arm = tuple(arm_joints) or tuple(name for name in robot.joint_names if name not in gripper_joints)
    every = (*arm, *gripper_joints)
    for name in every:
        if name not in robot.joint_names or every.count(name) > 1:
            raise ParameterError(
                f"the controllers' joints are {', '.join(every)}: '{name}' is "
                + ("assigned twice" if name in robot.joint_names else f"not an actuated joint of '{robot.name}'"),
                expected=f"a subset of {', '.join(robot.joint_names)}, each at most once",
            )
    made = [Controller("arm", arm, names.ARM_TRAJECTORY, names.FOLLOW_TRAJECTORY)]
    if gripper:
        ends = (names.of_controller(e, gripper) for e in (names.ARM_TRAJECTORY, names.FOLLOW_TRAJECTORY))
        made.append(Controller("gripper", tuple(gripper_joints), *ends))
    return tuple(made)


def _require_name(gripper: str) -> None:
    taken = names.ARM_TRAJECTORY.name.partition("/")[0]
    try:
        validate_topic_name(names.of_controller(names.ARM_TRAJECTORY, gripper).name)
    except InvalidTopicNameException as error:
        raise ParameterError(f"gripper_controller is '{gripper}'", expected="a valid ROS name") from error
    if gripper == taken:
        raise ParameterError(
            f"gripper_controller is '{gripper}', the arm's controller", expected="a separate controller"
        )


def require_covered(robot: Robot, controllers: Sequence[Controller], plan: JointTrajectory) -> None:
    """Raise UNKNOWN_JOINT when the plan moves a joint without a controller; joints at rest need none."""
    covered = {name for controller in controllers for name in controller.joints}
    missing = []
    for column, name in enumerate(plan.names):
        mimic = robot.joint(name).mimic
        if name in covered or (mimic is not None and mimic.joint in plan.names):
            continue
        derivatives = [table[:, column] for table in (plan.velocities, plan.accelerations) if table is not None]
        if np.ptp(plan.positions[:, column]) > 0.0 or np.any(derivatives):
            missing.append(name)
    if missing or not covered.intersection(plan.names):
        raise KinemaError(
            f"the arm stays where it is: no controller for {', '.join(missing or plan.names)}",
            expected=f"a plan that moves only {', '.join(sorted(covered))}",
            hint="plan without these joints, or configure the gate with a controller for them",
            code=ErrorCode.UNKNOWN_JOINT,
        )


@dataclass(eq=False)
class _Motion:
    """A plan in execution."""

    plan_hash: str
    until_s: float
    """Monotonic time of the plan's end."""
    open: dict[Controller, Any] = field(default_factory=dict)
    """Controllers without a result yet, with their goals."""
    failure: str = ""
    stop_by_s: float = np.inf
    stands: bool = True
    """Whether every controller confirmed that its joints are at rest."""


class ArmWay(ABC):
    """Base class of the interfaces to the arm's controllers.

    Args:
        node: the gate.
        robot: the robot.
        controllers: controllers of the arm.
        arm: returns the current state of the arm; raises when it is stale.
        ended: called with the outcome of each motion.
        allowed: full names of other nodes that may command the arm.
    """

    def __init__(
        self,
        node: KinemaNode,
        robot: Robot,
        controllers: Sequence[Controller],
        arm: Callable[[], ArmState],
        ended: Ended,
        allowed: Sequence[str] = (),
    ) -> None:
        self._node = node
        self._robot = robot
        self._controllers = tuple(controllers)
        self._arm = arm
        self._ended = ended
        self._motion: _Motion | None = None
        self.commanders = Commanders(node, [(c.topic.name, c.action.name) for c in controllers], allowed)

    @abstractmethod
    async def require_ready(self) -> None:
        """Raise ARM_UNAVAILABLE when a controller is not ready for a plan."""

    @abstractmethod
    async def send(self, plan: JointTrajectory, plan_hash: str) -> None:
        """Send a plan once; raise ARM_REFUSED when no controller follows it, ARM_ABORTED when one may follow it."""

    @abstractmethod
    def look(self) -> None:
        """Detect lost controllers; called once a second."""

    def permit(self, plan: JointTrajectory) -> None:
        """Raise when a plan cannot be sent now, regardless of its approval."""
        require_covered(self._robot, self._controllers, plan)
        if self._motion is not None:
            raise KinemaError(
                "the arm stays where it is: its controllers have not reported the end of the previous motion",
                expected="an arm at rest",
                hint="wait, and check the arm",
                code=ErrorCode.ARM_BUSY,
            )
        others = self.commanders.others()
        if others:
            raise KinemaError(
                f"the arm stays where it is: {'; '.join(others)}",
                expected="no node except the gate that commands the arm",
                hint="stop the other node (moveit:=true starts a MoveIt without execution), or add it to the gate's "
                "parameter 'commanders'",
                code=ErrorCode.ARM_UNAVAILABLE,
            )

    def _resolve(self, endpoint: Endpoint) -> str:
        return str(self._node.resolve_topic_name(endpoint.name))

    def _shares(self, plan: JointTrajectory) -> dict[Controller, Any]:
        """Return the message for each controller that has joints of the plan: the plan's points for these joints."""
        shares = {controller: plan.only(controller.joints) for controller in self._controllers}
        # ros2_control starts a trajectory with stamp 0 immediately; any other stamp is a start time on its clock.
        return {c: trajectory_to_msg(share, header(0)) for c, share in shares.items() if share is not None}

    def _end(self, motion: _Motion) -> None:
        self._motion = None
        self._ended(motion.plan_hash, _aborted(motion.failure) if motion.failure else None, motion.stands)


class TopicWay(ArmWay):
    """Interface by the controllers' topics, which report no result."""

    def __init__(self, node: KinemaNode, *arguments: Any, **options: Any) -> None:
        super().__init__(node, *arguments, **options)
        self._commands = {
            c: node.create_publisher(c.topic.interface(), c.topic.name, profile(c.topic)) for c in self._controllers
        }

    async def require_ready(self) -> None:
        """Raise ARM_UNAVAILABLE when a controller does not subscribe to its topic."""
        if lost := self._lost():
            raise _unavailable("; ".join(f"no controller subscribes to {self._resolve(c.topic)}" for c in lost))

    def _lost(self) -> list[Controller]:
        return [c for c, command in self._commands.items() if not command.get_subscription_count() or self._taped(c)]

    def _taped(self, controller: Controller) -> bool:
        """Return whether only recorders subscribe to a controller's topic."""
        heard = self._node.get_subscriptions_info_by_topic(controller.topic.name)
        return bool(heard) and all(info.node_name in RECORDERS for info in heard)

    async def send(self, plan: JointTrajectory, plan_hash: str) -> None:
        """Publish the plan."""
        shares = self._shares(plan)
        self._motion = _Motion(plan_hash, time.monotonic() + float(plan.times[-1]), dict(shares))
        for controller, share in shares.items():
            self._commands[controller].publish(share)

    def permit(self, plan: JointTrajectory) -> None:
        """Raise when a plan cannot be sent now; a motion counts as ended after the plan's duration."""
        if self._motion is not None and time.monotonic() > self._motion.until_s:
            self._motion = None
        super().permit(plan)

    def look(self) -> None:
        """Stop the other controller when one unsubscribes during a motion."""
        motion = self._motion
        if motion is None:
            return
        if time.monotonic() > motion.until_s:
            self._motion = None
            return
        lost = [controller for controller in self._lost() if controller in motion.open]
        if lost:
            motion.failure = "; ".join(f"the {c.label}'s controller no longer subscribes to its topic" for c in lost)
            for controller in motion.open:
                if controller not in lost:
                    motion.failure += f"; {self._brake(controller)}"
            motion.stands = False
            self._end(motion)

    def _brake(self, controller: Controller) -> str:
        """Send a controller a stop at the position reached by constant deceleration; return a text for the error."""
        try:
            arm = self._arm()
        except KinemaError as error:
            return f"the {controller.label}'s controller could not be stopped: {error.what}"
        ahead = arm.positions + np.nan_to_num(arm.velocities) * BRAKE_S / 2
        columns = [self._robot.joint_names.index(name) for name in controller.joints]
        q = np.clip(ahead, self._robot.lower, self._robot.upper)[None, columns]
        stop = JointTrajectory(controller.joints, np.array([BRAKE_S]), q, np.zeros_like(q))
        self._commands[controller].publish(trajectory_to_msg(stop, header(0)))
        return f"the {controller.label}'s controller was sent a stop"


class ActionWay(ArmWay):
    """Interface by the controllers' actions, which accept or reject plans and report the result."""

    def __init__(self, node: KinemaNode, *arguments: Any, **options: Any) -> None:
        super().__init__(node, *arguments, **options)
        try:
            self._interface = names.FOLLOW_TRAJECTORY.interface()
        except ImportError as error:
            raise SetupError(
                "control_msgs is not installed",
                expected="the package, which controller: action needs",
                hint="set controller: topic",
            ) from error
        self._actions = {c: ActionCaller(node, self._interface, c.action.name) for c in self._controllers}
        self._looking = ReentrantCallbackGroup()

    async def require_ready(self) -> None:
        """Raise ARM_UNAVAILABLE unless the responses of all action servers arrive."""
        asked = {c: action.heard() for c, action in self._actions.items() if action.ready()}
        await self._in_time(asked.values())
        silent = [c for c in self._controllers if c not in asked or not asked[c].done()]
        if silent:
            raise _unavailable("; ".join(f"no controller responds on {self._resolve(c.action)}" for c in silent))

    async def send(self, plan: JointTrajectory, plan_hash: str) -> None:
        """Send each controller its goal once, and wait until all are accepted; if one is not, cancel the others."""
        shares = self._shares(plan)
        ids = {controller: new_uuid() for controller in shares}
        asked = {
            c: self._actions[c].send(self._interface.Goal(trajectory=share), goal_id=ids[c])
            for c, share in shares.items()
        }

        def rejected() -> bool:
            return any(question.done() and not question.result().accepted for question in asked.values())

        await self._in_time(asked.values(), unless=rejected)
        handles = {c: question.result() for c, question in asked.items() if question.done()}
        if len(handles) < len(asked) or rejected():
            raise await self._withdraw(asked, ids)
        self._motion = motion = _Motion(plan_hash, time.monotonic() + float(plan.times[-1]), handles)
        for controller, handle in list(handles.items()):
            handle.get_result_async().add_done_callback(
                lambda future, controller=controller: self._take_result(motion, controller, future.result())
            )

    async def _withdraw(self, asked: dict[Controller, Question], ids: dict[Controller, Any]) -> KinemaError:
        """Cancel the goals of all controllers except those that rejected theirs, and return the error.

        ARM_REFUSED: no controller follows the plan. ARM_ABORTED: one may follow it, or did until the timeout.
        """
        silent = [c for c, question in asked.items() if not question.done()]
        rejected = [c for c in asked if c not in silent and not asked[c].result().accepted]
        why = [f"the {c.label}'s controller rejected the plan" for c in rejected]
        if not why:
            why = [f"the {c.label}'s controller did not respond within {ANSWER_S:g} s" for c in silent]
        for controller in silent:
            # An acceptance that arrives from now on is too late: the motion must not start.
            asked[controller].futures[0].add_done_callback(_cancel_late)
        handles = {c: self._actions[c].handle(ids[c]) for c in asked if c not in rejected}
        cancelled = {c: Question(handle.cancel_goal_async) for c, handle in handles.items()}
        # A controller that was only slower than the other's rejection may still accept. Its cancellation can overtake
        # its goal: the response "unknown goal" alone does not prove that the goal was not accepted.
        slower = [asked[c] for c in silent if rejected]
        await self._in_time([*cancelled.values(), *slower])
        taken, moving = [], []
        for controller, question in cancelled.items():
            accepted = asked[controller].done() and asked[controller].result().accepted
            unknown = CancelGoal.Response.ERROR_UNKNOWN_GOAL_ID
            if accepted or (question.done() and question.result().return_code != unknown):
                taken.append(controller)
            elif not question.done():
                moving.append(f"the {controller.label}'s did not confirm the cancellation: it may follow the plan")
        ended = {c: Question(handles[c].get_result_async) for c in taken}
        await self._in_time(ended.values())
        stopped = [f"the {c.label}'s accepted it and was stopped" for c in taken if ended[c].done()]
        moving += [
            f"the {c.label}'s accepted it, was cancelled and did not confirm that it stopped"
            for c in taken
            if not ended[c].done()
        ]
        text = "; ".join([*why, *stopped, *moving])
        if moving or (stopped and not rejected):  # without a rejection the arm could move until the timeout
            return _aborted(text)
        return _refused(text, "was stopped" if stopped else "stays where it is")

    async def _in_time(self, questions: Any, unless: Callable[[], bool] = lambda: False) -> None:
        """Wait, without blocking the executor, until all responses arrived, `unless` holds or ANSWER_S is over."""
        either = Future()
        waiting = list(questions)
        deadline = time.monotonic() + ANSWER_S

        def look() -> None:
            # Check every request, not only until the first pending one: `done` also retries.
            silent = [question for question in waiting if not question.done()]
            if (not silent or unless() or time.monotonic() > deadline) and not either.done():
                either.set_result(None)

        # Steady clock: simulated time may be paused.
        steady = Clock(clock_type=ClockType.STEADY_TIME)
        timer = self._node.create_timer(LOOK_S, look, callback_group=self._looking, clock=steady)
        try:
            await either
        finally:
            self._node.destroy_timer(timer)

    def _take_result(self, motion: _Motion, controller: Controller, response: Any) -> None:
        if motion.open.pop(controller, None) is None or motion is not self._motion:
            return
        result = response.result
        good = response.status == GoalStatus.STATUS_SUCCEEDED and result.error_code == self._interface.Result.SUCCESSFUL
        if not good:
            word = "cancelled" if response.status == GoalStatus.STATUS_CANCELED else "aborted"
            said = f"{_meaning(self._interface.Result, result.error_code)}: {result.error_string}".rstrip(": ")
            if motion.failure:
                motion.failure += f"; the {controller.label}'s was stopped"
            else:
                self._stop(motion, f"the {controller.label}'s controller {word} the plan ({said})")
        if not motion.open:
            self._end(motion)

    def _stop(self, motion: _Motion, why: str) -> None:
        """Cancel the goals of a motion that are still active."""
        motion.failure, motion.stop_by_s = why, time.monotonic() + ANSWER_S
        for handle in list(motion.open.values()):  # a copy: a result may arrive during the loop
            handle.cancel_goal_async()

    def look(self) -> None:
        """Stop and report a motion whose controller is lost or has not sent a result."""
        motion = self._motion
        if motion is None:
            return
        now = time.monotonic()
        if not motion.failure:
            lost = [controller for controller in motion.open if not self._actions[controller].ready()]
            why = "; ".join(f"the {controller.label}'s controller is lost" for controller in lost)
            if not lost and now > motion.until_s + RESULT_GRACE_S:
                why = "; ".join(f"the {c.label}'s controller sent no result of the motion" for c in motion.open)
            if why:
                self._stop(motion, why)
            for controller in lost:
                del motion.open[controller]
                motion.stands = False
            if lost and not motion.open:
                self._end(motion)
        elif now > motion.stop_by_s:
            silent = ", ".join(f"the {controller.label}'s" for controller in motion.open)
            motion.failure += f"; {silent} did not confirm that it stopped"
            motion.stands = False
            self._end(motion)


WAYS: dict[str, type[ArmWay]] = {"topic": TopicWay, "action": ActionWay}


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


def _refused(why: str, arm: str) -> KinemaError:
    return KinemaError(
        f"the arm {arm}: {why}",
        expected="a controller that accepts plans for these joints from the arm's current position",
        hint="check the controller's log, then preview and approve again",
        code=ErrorCode.ARM_REFUSED,
    )


def _aborted(why: str) -> KinemaError:
    return KinemaError(
        f"the arm did not follow the plan to its end: {why}",
        expected="a motion that reaches the end of the plan",
        hint="check the arm first",
        code=ErrorCode.ARM_ABORTED,
    )
