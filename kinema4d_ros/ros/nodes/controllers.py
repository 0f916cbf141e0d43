"""The gate's ways to the arm's controllers: their topics, and the FollowJointTrajectory actions that answer.

One controller moves the whole arm, or two share it: the arm's and the gripper's. Each gets the points of the approved
plan unchanged, for its own joints. What happens to one of them happens to both: where one refuses, gives up or is
lost, the other is told to stop.
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
from rclpy.node import NodeNameNonExistentError
from rclpy.task import Future
from rclpy.validate_topic_name import validate_topic_name

from kinema4d_ros.core.errors import ErrorCode, KinemaError, SetupError
from kinema4d_ros.core.trajectory import JointTrajectory
from kinema4d_ros.previews.arm import ArmState
from kinema4d_ros.robot import Robot
from kinema4d_ros.ros import names
from kinema4d_ros.ros.calls import ActionCaller, Question, new_uuid
from kinema4d_ros.ros.messages.stamps import header
from kinema4d_ros.ros.messages.trajectories import trajectory_to_msg
from kinema4d_ros.ros.names import Endpoint
from kinema4d_ros.ros.nodes.common import KinemaNode
from kinema4d_ros.ros.params import ParameterError
from kinema4d_ros.ros.qos import profile

__all__ = ["WAYS", "ActionWay", "ArmWay", "Controller", "TopicWay", "controllers", "require_covered"]

ANSWER_S = 2.0
"""How long a controller may take to accept or reject a plan, and to answer that it stops."""

LOOK_S = 0.005
"""How often to look whether it has."""

RESULT_GRACE_S = 10.0
"""How long after a plan's end its controller may take to say how it went."""

BRAKE_S = 0.2
"""How long a stop takes that is sent to a controller's topic."""

RECORDERS = ("recorder", "rosbag2_recorder")
"""Nodes that listen on a controller's topic and move nothing."""

UNNAMED = "_NODE_NAME_UNKNOWN_"
"""What rmw calls the node of an endpoint while it knows no other name."""

Ended = Callable[[str, "KinemaError | None", bool], None]
"""Told a plan's hash when its motion has ended, what went wrong with it, and whether the arm is known to stand."""


@dataclass(frozen=True)
class Controller:
    """One controller, and the joints that it moves.

    Attributes:
        label: "arm" or "gripper", for messages.
        joints: names of its joints.
        topic: where it takes trajectories.
        action: its FollowJointTrajectory.
    """

    label: str
    joints: tuple[str, ...]
    topic: Endpoint
    action: Endpoint


def controllers(
    robot: Robot, arm_joints: Sequence[str] = (), gripper: str = "", gripper_joints: Sequence[str] = ()
) -> tuple[Controller, ...]:
    """The arm's controller, and the gripper's where one of that name has its joints.

    Without names of joints the gripper's controller has the joint of the robot's gripper, and the arm's all others.

    Raises:
        ParameterError: a joint that the robot does not have or that two controllers have, or a bad name.
    """
    if gripper:
        if not gripper_joints and robot.gripper is not None:
            gripper_joints = (robot.gripper.joint,)
        _require_name(gripper)
    if bool(gripper) != bool(gripper_joints):
        raise ParameterError(
            f"the gripper's controller is '{gripper}' and its joints are: {', '.join(gripper_joints) or 'none'}",
            expected="a name and joints, or neither",
        )
    arm = tuple(arm_joints) or tuple(name for name in robot.joint_names if name not in gripper_joints)
    every = (*arm, *gripper_joints)
    for name in every:
        if name not in robot.joint_names or every.count(name) > 1:
            raise ParameterError(
                f"the controllers' joints are {', '.join(every)}: '{name}' is "
                + ("twice among them" if name in robot.joint_names else f"not a joint of '{robot.name}' that is moved"),
                expected=f"some of {', '.join(robot.joint_names)}, each once",
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
        raise ParameterError(f"gripper_controller is '{gripper}'", expected="a ROS name") from error
    if gripper == taken:
        raise ParameterError(f"gripper_controller is '{gripper}', as the arm's", expected="a controller of its own")


def require_covered(robot: Robot, controllers: Sequence[Controller], plan: JointTrajectory) -> None:
    """UNKNOWN_JOINT when the plan moves a joint that no controller has; one that stays where it is needs none."""
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
            f"the arm stays where it is: no controller has {', '.join(missing or plan.names)}",
            expected=f"a plan that moves only {', '.join(sorted(covered))}",
            hint="plan without these joints, or give the gate the controller that moves them",
            code=ErrorCode.UNKNOWN_JOINT,
        )


@dataclass(eq=False)
class _Motion:
    """A plan under way."""

    plan_hash: str
    until_s: float
    """When the plan is over."""
    open: dict[Controller, Any] = field(default_factory=dict)
    """Controllers that have not said how it went, with their goals."""
    failure: str = ""
    stop_by_s: float = np.inf
    stands: bool = True
    """Whether every controller has said that its joints stand."""


class ArmWay(ABC):
    """How plans reach the arm's controllers; what both ways share.

    Args:
        node: the gate.
        controllers: that share the arm.
        arm: where the arm is now; raises when that is not known.
        ended: told how each motion ended.
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
        # A controller is a node of its own name: arm_controller/joint_trajectory belongs to arm_controller.
        topics = [self._resolve(controller.topic) for controller in controllers]
        self._allowed = {*allowed, *(topic.rpartition("/")[0] for topic in topics)}

    @abstractmethod
    async def require_ready(self) -> None:
        """Raise ARM_UNAVAILABLE when a controller is not there to take a plan."""

    @abstractmethod
    async def send(self, plan: JointTrajectory, plan_hash: str) -> None:
        """Hand a plan over, once; ARM_REFUSED: nothing follows it, ARM_ABORTED: something may."""

    @abstractmethod
    def look(self) -> None:
        """Called once a second: notice controllers that are lost."""

    def permit(self, plan: JointTrajectory) -> None:
        """Raise when a plan cannot be sent now, whoever approves it."""
        require_covered(self._robot, self._controllers, plan)
        if self._motion is not None:
            raise KinemaError(
                "the arm stays where it is: its controllers have not said that the motion before has ended",
                expected="an arm at rest",
                hint="wait, and look at the arm",
                code=ErrorCode.ARM_BUSY,
            )
        others = self.others()
        if others:
            raise KinemaError(
                f"the arm stays where it is: {'; '.join(others)}",
                expected="no node but the gate that commands the arm",
                hint="end the other node, or name it in the gate's parameter 'commanders'",
                code=ErrorCode.ARM_UNAVAILABLE,
            )

    def others(self) -> list[str]:
        """Other nodes that could move the arm, one sentence each: publishers of its topics, users of its actions."""
        node, me = self._node, self._full(self._node.get_namespace(), self._node.get_name())
        found = []
        for controller in self._controllers:
            for info in node.get_publishers_info_by_topic(controller.topic.name):
                who = self._full(info.node_namespace, info.node_name)
                if info.node_name == UNNAMED:
                    who = "without a name yet (it starts, or was killed a moment ago)"
                if who not in self._allowed | {me}:
                    found.append(f"node {who} publishes on {self._resolve(controller.topic)}")
        for name, namespace in set(node.get_node_names_and_namespaces()):
            who = self._full(namespace, name)
            if who in self._allowed | {me}:
                continue
            try:
                services = dict(node.get_client_names_and_types_by_node(name, namespace))
            except NodeNameNonExistentError:
                continue  # it has just ended
            found += [
                f"node {who} uses {self._resolve(controller.action)}"
                for controller in self._controllers
                if f"{self._resolve(controller.action)}/_action/send_goal" in services
            ]
        return sorted(set(found))

    def twins(self) -> bool:
        """Whether another node has the gate's own name: a second gate, or one that was killed a moment ago."""
        me = (self._node.get_name(), self._node.get_namespace())
        return bool(self._node.get_node_names_and_namespaces().count(me) > 1)

    @staticmethod
    def _full(namespace: str, name: str) -> str:
        return f"{namespace.rstrip('/')}/{name}"

    def _resolve(self, endpoint: Endpoint) -> str:
        return str(self._node.resolve_topic_name(endpoint.name))

    def _shares(self, plan: JointTrajectory) -> dict[Controller, Any]:
        """The message for each controller that has joints of the plan: its points, for these joints."""
        shares = {controller: plan.only(controller.joints) for controller in self._controllers}
        # A stamp of 0 tells ros2_control to start now; any other is a start time on its clock.
        return {c: trajectory_to_msg(share, header(0)) for c, share in shares.items() if share is not None}

    def _end(self, motion: _Motion) -> None:
        self._motion = None
        self._ended(motion.plan_hash, _aborted(motion.failure) if motion.failure else None, motion.stands)


class TopicWay(ArmWay):
    """Publishes on the controllers' topics; nobody says what becomes of it."""

    def __init__(self, node: KinemaNode, *arguments: Any, **options: Any) -> None:
        super().__init__(node, *arguments, **options)
        self._commands = {
            c: node.create_publisher(c.topic.interface(), c.topic.name, profile(c.topic)) for c in self._controllers
        }

    async def require_ready(self) -> None:
        """Raise ARM_UNAVAILABLE without controllers that listen."""
        if lost := self._lost():
            raise _unavailable("; ".join(f"nobody listens on {self._resolve(c.topic)}" for c in lost))

    def _lost(self) -> list[Controller]:
        return [c for c, command in self._commands.items() if not command.get_subscription_count() or self._taped(c)]

    def _taped(self, controller: Controller) -> bool:
        """Whether only recorders listen on a controller's topic."""
        heard = self._node.get_subscriptions_info_by_topic(controller.topic.name)
        return bool(heard) and all(info.node_name in RECORDERS for info in heard)

    async def send(self, plan: JointTrajectory, plan_hash: str) -> None:
        """Publish the plan."""
        shares = self._shares(plan)
        self._motion = _Motion(plan_hash, time.monotonic() + float(plan.times[-1]), dict(shares))
        for controller, share in shares.items():
            self._commands[controller].publish(share)

    def permit(self, plan: JointTrajectory) -> None:
        """Raise when a plan cannot be sent now; a motion is over when its time is."""
        if self._motion is not None and time.monotonic() > self._motion.until_s:
            self._motion = None
        super().permit(plan)

    def look(self) -> None:
        """Stop the other controller when one listens no more while a motion is under way."""
        motion = self._motion
        if motion is None:
            return
        if time.monotonic() > motion.until_s:
            self._motion = None
            return
        lost = [controller for controller in self._lost() if controller in motion.open]
        if lost:
            motion.failure = "; ".join(f"the {c.label}'s controller listens no more" for c in lost)
            for controller in motion.open:
                if controller not in lost:
                    motion.failure += f"; {self._brake(controller)}"
            motion.stands = False
            self._end(motion)

    def _brake(self, controller: Controller) -> str:
        """Tell a controller to stop where the arm comes to rest if it slows down evenly; what came of it, in words."""
        try:
            arm = self._arm()
        except KinemaError as error:
            return f"the {controller.label}'s could not be stopped: {error.what}"
        ahead = arm.positions + np.nan_to_num(arm.velocities) * BRAKE_S / 2
        columns = [self._robot.joint_names.index(name) for name in controller.joints]
        q = np.clip(ahead, self._robot.lower, self._robot.upper)[None, columns]
        stop = JointTrajectory(controller.joints, np.array([BRAKE_S]), q, np.zeros_like(q))
        self._commands[controller].publish(trajectory_to_msg(stop, header(0)))
        return f"the {controller.label}'s was told to stop"


class ActionWay(ArmWay):
    """Asks the controllers' actions: they accept or reject, and say how the motion ended."""

    def __init__(self, node: KinemaNode, *arguments: Any, **options: Any) -> None:
        super().__init__(node, *arguments, **options)
        try:
            self._interface = names.FOLLOW_TRAJECTORY.interface()
        except ImportError as error:
            raise SetupError(
                "control_msgs is not installed", expected="it, to reach the arm by its action", hint="use its topic"
            ) from error
        self._actions = {c: ActionCaller(node, self._interface, c.action.name) for c in self._controllers}
        self._looking = ReentrantCallbackGroup()

    async def require_ready(self) -> None:
        """Raise ARM_UNAVAILABLE without action servers whose answers arrive here."""
        asked = {c: action.heard() for c, action in self._actions.items() if action.ready()}
        await self._in_time(asked.values())
        silent = [c for c in self._controllers if c not in asked or not asked[c].done()]
        if silent:
            raise _unavailable("; ".join(f"no controller answers on {self._resolve(c.action)}" for c in silent))

    async def send(self, plan: JointTrajectory, plan_hash: str) -> None:
        """Send each controller its goal, once, and wait until all are taken; if one is not, stop the others."""
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
        """Cancel the goals of all controllers but those that rejected theirs; what became of them.

        ARM_REFUSED: nothing follows the plan. ARM_ABORTED: something may, or did until its time-out.
        """
        silent = [c for c, question in asked.items() if not question.done()]
        rejected = [c for c in asked if c not in silent and not asked[c].result().accepted]
        why = [f"the {c.label}'s controller rejected the plan" for c in rejected]
        if not why:
            why = [f"the {c.label}'s controller did not answer within {ANSWER_S:g} s" for c in silent]
        for controller in silent:
            # An acceptance that arrives from now on is too late: the motion must not begin.
            asked[controller].futures[0].add_done_callback(_cancel_late)
        handles = {c: self._actions[c].handle(ids[c]) for c in asked if c not in rejected}
        cancelled = {c: Question(handle.cancel_goal_async) for c, handle in handles.items()}
        # A controller that was only slower than the other's rejection may still accept. Its cancellation can overtake
        # its goal: "unknown goal" alone does not say that it did not.
        slower = [asked[c] for c in silent if rejected]
        await self._in_time([*cancelled.values(), *slower])
        taken, moving = [], []
        for controller, question in cancelled.items():
            accepted = asked[controller].done() and asked[controller].result().accepted
            unknown = CancelGoal.Response.ERROR_UNKNOWN_GOAL_ID
            if accepted or (question.done() and question.result().return_code != unknown):
                taken.append(controller)
            elif not question.done():
                moving.append(f"the {controller.label}'s did not answer when it was cancelled: it may follow the plan")
        ended = {c: Question(handles[c].get_result_async) for c in taken}
        await self._in_time(ended.values())
        stopped = [f"the {c.label}'s had taken it and was stopped" for c in taken if ended[c].done()]
        moving += [
            f"the {c.label}'s had taken it, was told to stop and did not say that it has"
            for c in taken
            if not ended[c].done()
        ]
        text = "; ".join([*why, *stopped, *moving])
        if moving or (stopped and not rejected):  # without a rejection the arm had until the time-out to move
            return _aborted(text)
        return _refused(text, "was stopped" if stopped else "stays where it is")

    async def _in_time(self, questions: Any, unless: Callable[[], bool] = lambda: False) -> None:
        """Wait until all are answered, until `unless`, or for ANSWER_S; the executor goes on meanwhile."""
        either = Future()
        waiting = list(questions)
        deadline = time.monotonic() + ANSWER_S

        def look() -> None:
            # Each of them is looked at: that is when it asks again.
            silent = [question for question in waiting if not question.done()]
            if (not silent or unless() or time.monotonic() > deadline) and not either.done():
                either.set_result(None)

        # On a clock of its own: a simulation's may stand still.
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
        """Cancel what is left of a motion."""
        motion.failure, motion.stop_by_s = why, time.monotonic() + ANSWER_S
        for handle in list(motion.open.values()):  # a result may arrive meanwhile
            handle.cancel_goal_async()

    def look(self) -> None:
        """Stop a motion of which a controller is lost or does not say how it went, and report it."""
        motion = self._motion
        if motion is None:
            return
        now = time.monotonic()
        if not motion.failure:
            lost = [controller for controller in motion.open if not self._actions[controller].ready()]
            why = "; ".join(f"the {controller.label}'s controller is gone" for controller in lost)
            if not lost and now > motion.until_s + RESULT_GRACE_S:
                why = "; ".join(f"the {c.label}'s controller never said how the motion ended" for c in motion.open)
            if why:
                self._stop(motion, why)
            for controller in lost:
                del motion.open[controller]
                motion.stands = False
            if lost and not motion.open:
                self._end(motion)
        elif now > motion.stop_by_s:
            silent = ", ".join(f"the {controller.label}'s" for controller in motion.open)
            motion.failure += f"; {silent} did not say that it stopped"
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
