"""The gate and controllers that are missing, slow or silent: the test is the controller, the gate is the real one."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from rclpy.action import ActionClient, ActionServer, CancelResponse, GoalResponse
from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.parameter import Parameter
from support.drivers import Drivers
from support.health import ERROR, OK, HealthWatch
from support.motions import WAIT_S, code_of, swing, wait_until_ready
from support.ros_graph import Graph, wait_for
from support.sim_graph import client, running

from kinema4d_msgs.msg import ExecutionStatus, PreviewedPlan
from kinema4d_ros.calibration import read_camera
from kinema4d_ros.core.errors import ErrorCode
from kinema4d_ros.core.trajectory import JointTrajectory, hash_trajectory
from kinema4d_ros.io.resources import share_path
from kinema4d_ros.robot import Robot
from kinema4d_ros.ros import names
from kinema4d_ros.ros.client import PreviewClient
from kinema4d_ros.ros.commanders import EXECUTE_TRAJECTORY, EXECUTION_ALLOWED
from kinema4d_ros.ros.messages.stamps import header
from kinema4d_ros.ros.messages.trajectories import trajectory_to_msg

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


class Controller:
    """Takes every goal, after a while, and never says that it is done unless it is told to or cancelled."""

    def __init__(self, graph: Graph, name: str = "arm_controller") -> None:
        self.answer_after_s = 0.0
        self.rejects = False
        self.result: tuple[int, str] | None = None
        """How the next motion ends, at once: error code and text; None: it goes on."""
        self.cancelled = threading.Event()
        self.goals: list[Any] = []
        self._ended = threading.Event()
        self._interface = names.FOLLOW_TRAJECTORY.interface()
        self._server = ActionServer(
            graph.node(name),
            self._interface,
            names.of_controller(names.FOLLOW_TRAJECTORY, name).name,
            execute_callback=self._execute,
            goal_callback=self._admit,
            cancel_callback=lambda _: CancelResponse.ACCEPT,
            callback_group=ReentrantCallbackGroup(),
        )

    def _admit(self, goal: Any) -> Any:
        time.sleep(self.answer_after_s)
        self.goals.append(goal.trajectory)
        return GoalResponse.REJECT if self.rejects else GoalResponse.ACCEPT

    def _execute(self, handle: Any) -> Any:
        while not self._ended.wait(0.02):
            if handle.is_cancel_requested:
                self.cancelled.set()
                handle.canceled()
                break
            if self.result is not None:
                code, text = self.result
                (handle.succeed if code == 0 else handle.abort)()
                return self._interface.Result(error_code=code, error_string=text)
        return self._interface.Result()

    def end(self) -> None:
        self._ended.set()

    def vanish(self) -> None:
        """End without a word about the motion under way."""
        self._server.destroy()
        self.end()


@pytest.fixture
def drivers(yam: Robot) -> Iterator[Drivers]:
    graph = Graph(threads=1)
    made = Drivers(graph, yam, read_camera(share_path("calibration/demo_lab.yaml")))
    made.pictures = False
    yield made
    graph.close()


@pytest.fixture
def arm_graph() -> Iterator[Graph]:
    graph = Graph(threads=4)
    yield graph
    graph.close()


def offer(drivers: Drivers, graph: PreviewClient, plan: JointTrajectory | float) -> str:
    """Tell the gate of a plan as the preview does, and have it ready to be approved."""
    plan = swing(graph, plan, duration_s=1.0) if isinstance(plan, float) else plan
    stamp = drivers.now()
    message = PreviewedPlan(header=header(stamp), plan_hash=hash_trajectory(plan), world_stamp=stamp)
    message.trajectory = trajectory_to_msg(plan, header(stamp))
    publisher = drivers.publisher(names.PREVIEWED_PLAN)
    wait_for(lambda: publisher.get_subscription_count() > 0, WAIT_S, "the gate")
    publisher.publish(message)
    return message.plan_hash


def approved(graph: PreviewClient, plan_hash: str) -> str:
    """The token, once the gate has heard of the plan."""
    tokens: list[str] = []

    def heard() -> bool:
        answer = graph.call(names.APPROVE, names.APPROVE.interface().Request(plan_hash=plan_hash), WAIT_S)
        assert answer.error.code in (ErrorCode.NONE, ErrorCode.PLAN_UNKNOWN), answer.error.message
        tokens.append(answer.token)
        return bool(answer.token)

    graph.wait_for(heard, WAIT_S, "the gate to hear of the plan")
    return tokens[-1]


@pytest.mark.full
def test_missing_slow_and_silent_controllers(drivers: Drivers, arm_graph: Graph) -> None:
    with running(("gate",), {"gate": {"controller": "action"}}), client() as graph:
        graph.listen(names.EXECUTION_STATUS)
        graph.wait_for(lambda: graph.newest(names.JOINT_STATES) is not None, WAIT_S, "the arm")
        wait_until_ready(graph, "gate")
        first = offer(drivers, graph, 0.1)
        assert code_of(graph.execute, first, approved(graph, first)) == ErrorCode.ARM_UNAVAILABLE

        controller = Controller(arm_graph)
        graph.wait_for(
            lambda: code_of(graph.execute, first, "f" * 32) == ErrorCode.APPROVAL_INVALID, WAIT_S, "the controller"
        )
        controller.answer_after_s = 4.0
        assert code_of(graph.execute, first, approved(graph, first)) == ErrorCode.ARM_REFUSED
        wait_for(controller.cancelled.is_set, WAIT_S, "the late motion to be cancelled")

        controller.answer_after_s = 0.0
        second = offer(drivers, graph, 0.2)
        graph.execute(second, approved(graph, second))

        def given_up() -> bool:
            newest = graph.newest(names.EXECUTION_STATUS)
            return newest is not None and newest.phase == ExecutionStatus.ABORTED

        graph.wait_for(given_up, WAIT_S, "the gate to give the motion up")
        aborted = graph.newest(names.EXECUTION_STATUS)
        assert aborted.plan_hash == second
        assert aborted.error.code == ErrorCode.ARM_ABORTED
        assert "sent no result" in aborted.error.message
        controller.end()


ARM = ("joint1", "joint2", "joint3", "joint4", "joint5")
SHARED = {"gripper_controller": "gripper_controller", "arm_joints": f"[{', '.join(ARM)}]"}
"""Joint 6 belongs to no controller."""


def eased(robot: Robot, duration_s: float = 30.0, **by: float) -> JointTrajectory:
    """From home, joints by so much: points with velocities, accelerations and efforts of their own."""
    start = robot.home_position()
    goal = start + np.array([by.get(name, 0.0) for name in robot.joint_names])
    clock = np.array([0.0, 1.0 / 3.0, 0.7, 1.0])
    s = (clock**2 * (3 - 2 * clock))[:, None]
    v = (6 * clock * (1 - clock))[:, None] / duration_s
    a = (6 - 12 * clock)[:, None] / duration_s**2
    rise = goal - start
    return JointTrajectory(
        robot.joint_names, clock * duration_s, start + s * rise, v * rise, a * rise, 0.01 * s * np.ones_like(rise)
    )


def newest(graph: PreviewClient, plan_hash: str, phase: int) -> Any:
    def there() -> bool:
        status = graph.newest(names.EXECUTION_STATUS)
        return status is not None and (status.plan_hash, status.phase) == (plan_hash, phase)

    graph.wait_for(there, WAIT_S, f"status {phase}")
    return graph.newest(names.EXECUTION_STATUS)


def sent(controller: Controller, joints: tuple[str, ...], plan: JointTrajectory) -> None:
    """Its newest goal has the plan's points for these joints, bit by bit, and nothing else."""
    message = controller.goals[-1]
    assert tuple(message.joint_names) == joints
    assert message.header.stamp.sec == message.header.stamp.nanosec == 0
    columns = [plan.names.index(name) for name in joints]
    times = [point.time_from_start.sec + point.time_from_start.nanosec * 1e-9 for point in message.points]
    np.testing.assert_allclose(times, plan.times, atol=1e-9)
    for what in ("positions", "velocities", "accelerations", "effort"):
        np.testing.assert_array_equal([getattr(p, what) for p in message.points], getattr(plan, what)[:, columns])


def test_two_controllers_share_a_plan_and_its_end(drivers: Drivers, arm_graph: Graph) -> None:
    robot = drivers.robot
    with running(("gate",), {"gate": {"controller": "action", **SHARED}}), client() as graph:
        graph.listen(names.EXECUTION_STATUS)
        graph.wait_for(lambda: graph.newest(names.JOINT_STATES) is not None, WAIT_S, "the arm")
        wait_until_ready(graph, "gate")
        arm = Controller(arm_graph)

        def begin(plan: JointTrajectory) -> tuple[str, str]:
            arm.cancelled.clear()
            plan_hash = offer(drivers, graph, plan)
            return plan_hash, approved(graph, plan_hash)

        def stopped(plan_hash: str, code: ErrorCode = ErrorCode.ARM_ABORTED) -> str:
            wait_for(arm.cancelled.is_set, WAIT_S, "the arm's motion to be cancelled")
            aborted = newest(graph, plan_hash, ExecutionStatus.ABORTED)
            assert aborted.error.code == code
            return str(aborted.error.message)

        # Nothing is sent before both are there.
        plan = eased(robot, joint1=0.2, left_finger_joint=0.01)
        plan_hash, token = begin(plan)
        graph.wait_for(lambda: code_of(graph.execute, plan_hash, "") == ErrorCode.ARM_UNAVAILABLE, WAIT_S, "one alone")
        time.sleep(0.5)
        assert code_of(graph.execute, plan_hash, token) == ErrorCode.ARM_UNAVAILABLE
        assert not arm.goals
        gripper = Controller(arm_graph, "gripper_controller")
        graph.wait_for(
            lambda: code_of(graph.execute, plan_hash, "f" * 32) == ErrorCode.APPROVAL_INVALID, WAIT_S, "the gripper"
        )

        # Each gets its own points; the motion is done when both are.
        assert graph.execute(*begin(plan)) == pytest.approx(30.0)
        wait_for(lambda: gripper.goals and arm.goals, WAIT_S, "both goals")
        sent(arm, ARM, plan)
        sent(gripper, ("left_finger_joint",), plan)
        gripper.result = (0, "")
        newest(graph, plan_hash, ExecutionStatus.SENT)
        assert not arm.cancelled.is_set()
        arm.result = (0, "")
        newest(graph, plan_hash, ExecutionStatus.DONE)
        arm.result = gripper.result = None

        # A joint without a controller may stay, not move; nothing is sent.
        nobodys = offer(drivers, graph, eased(robot, joint6=0.1))
        before = len(arm.goals), len(gripper.goals)

        def unknown() -> bool:
            answer = graph.call(names.APPROVE, names.APPROVE.interface().Request(plan_hash=nobodys), WAIT_S)
            return answer.error.code == ErrorCode.UNKNOWN_JOINT and "joint6" in answer.error.message

        graph.wait_for(unknown, WAIT_S, "the refusal")
        assert (len(arm.goals), len(gripper.goals)) == before

        # One rejects: the other is cancelled at once, also when it accepts only after that.
        gripper.rejects = True
        for joint1, answer_after_s in ((0.21, 0.0), (0.215, 0.7)):
            arm.answer_after_s = answer_after_s
            plan_hash, token = begin(eased(robot, joint1=joint1, left_finger_joint=0.01))
            assert code_of(graph.execute, plan_hash, token) == ErrorCode.ARM_REFUSED
            said = stopped(plan_hash, ErrorCode.ARM_REFUSED)
            assert "gripper's controller rejected the plan; the arm's accepted it and was stopped" in said
        gripper.rejects, arm.answer_after_s = False, 0.0

        # One gives up: so does the other, and its reason is told.
        plan_hash, token = begin(eased(robot, joint1=0.22, left_finger_joint=0.01))
        gripper.result = (-5, "jammed")
        graph.execute(plan_hash, token)
        said = stopped(plan_hash)
        assert "GOAL_TOLERANCE_VIOLATED: jammed" in said
        assert "the arm's was stopped" in said
        gripper.result = None

        # One is lost: the other is stopped.
        plan_hash, token = begin(eased(robot, joint1=0.23, left_finger_joint=0.01))
        graph.execute(plan_hash, token)
        gripper.vanish()
        assert "gripper's controller is lost" in stopped(plan_hash)
        arm.end()


def test_a_topic_that_is_lost_stops_the_other(drivers: Drivers, arm_graph: Graph) -> None:
    labels = ("arm_controller", "gripper_controller")
    endpoints = {name: names.of_controller(names.ARM_TRAJECTORY, name) for name in labels}
    got: dict[str, list[Any]] = {name: [] for name in endpoints}
    listeners = {}
    for name, endpoint in endpoints.items():
        node = arm_graph.node(name)
        listeners[name] = (node, node.create_subscription(endpoint.interface(), endpoint.name, got[name].append, 10))
    recorder = arm_graph.node("recorder")  # listens as well, and is no controller
    for endpoint in endpoints.values():
        recorder.create_subscription(endpoint.interface(), endpoint.name, lambda _: None, 10)
    with running(("gate",), {"gate": SHARED}), client() as graph:
        graph.listen(names.EXECUTION_STATUS)
        graph.wait_for(lambda: graph.newest(names.JOINT_STATES) is not None, WAIT_S, "the arm")
        wait_until_ready(graph, "gate")
        plan_hash = offer(drivers, graph, eased(drivers.robot, joint1=0.2, left_finger_joint=0.01))
        token = approved(graph, plan_hash)
        graph.wait_for(
            lambda: code_of(graph.execute, plan_hash, "f" * 32) == ErrorCode.APPROVAL_INVALID, WAIT_S, "both to listen"
        )
        graph.execute(plan_hash, token)
        wait_for(lambda: all(got.values()), WAIT_S, "both shares")
        assert [tuple(messages[0].joint_names) for messages in got.values()] == [ARM, ("left_finger_joint",)]
        node, subscription = listeners["gripper_controller"]
        node.destroy_subscription(subscription)
        aborted = newest(graph, plan_hash, ExecutionStatus.ABORTED)
        text = "gripper's controller no longer subscribes to its topic; the arm's controller was sent a stop"
        assert text in aborted.error.message
        wait_for(lambda: len(got["arm_controller"]) == 2, WAIT_S, "the stop")
        (point,) = got["arm_controller"][1].points
        np.testing.assert_allclose(point.positions, drivers.robot.home_position()[:5], atol=1e-9)
        assert list(point.velocities) == [0.0] * 5


def test_another_node_that_commands_the_arm_is_an_error_and_closes_the_gate(drivers: Drivers, arm_graph: Graph) -> None:
    Controller(arm_graph)
    endpoint = names.ARM_TRAJECTORY
    with running(("gate",), {"gate": {"commanders": "[/friend]"}}), client() as graph:
        health = HealthWatch(arm_graph)
        graph.wait_for(lambda: graph.newest(names.JOINT_STATES) is not None, WAIT_S, "the arm")
        wait_until_ready(graph, "gate")
        arm_graph.node("friend").create_publisher(endpoint.interface(), endpoint.name, 10)
        plan_hash = offer(drivers, graph, 0.1)
        approved(graph, plan_hash)
        teleop = arm_graph.node("teleop")
        publisher = teleop.create_publisher(endpoint.interface(), endpoint.name, 10)
        health.wait("gate", ERROR, "node /teleop publishes on /arm_controller/joint_trajectory")
        answer = graph.call(names.APPROVE, names.APPROVE.interface().Request(plan_hash=plan_hash), WAIT_S)
        assert answer.error.code == ErrorCode.ARM_UNAVAILABLE
        assert "/teleop" in answer.error.message
        teleop.destroy_publisher(publisher)
        health.wait("gate", OK, "closed")
        user = ActionClient(teleop, names.FOLLOW_TRAJECTORY.interface(), names.FOLLOW_TRAJECTORY.name)
        health.wait("gate", ERROR, "node /teleop uses /arm_controller/follow_joint_trajectory")
        assert code_of(graph.approve, plan_hash, "test") == ErrorCode.ARM_UNAVAILABLE
        user.destroy()
        health.wait("gate", OK, "closed")
        graph.approve(plan_hash, "test")


def test_a_move_group_that_may_execute_is_an_error_and_closes_the_gate(drivers: Drivers, arm_graph: Graph) -> None:
    """As MoveIt's stock launch files start it; the one that `moveit:=true` starts may not execute."""
    Controller(arm_graph)
    with running(("gate",)), client() as graph:
        health = HealthWatch(arm_graph)
        graph.wait_for(lambda: graph.newest(names.JOINT_STATES) is not None, WAIT_S, "the arm")
        wait_until_ready(graph, "gate")
        plan_hash = offer(drivers, graph, 0.1)
        approved(graph, plan_hash)
        move_group = arm_graph.node("move_group")
        move_group.declare_parameter(EXECUTION_ALLOWED, True)

        def serve() -> ActionServer:
            # The type does not matter: MoveIt's own is not among the stand-ins.
            return ActionServer(
                move_group, names.FOLLOW_TRAJECTORY.interface(), EXECUTE_TRAJECTORY, lambda handle: handle.abort()
            )

        server = serve()
        health.wait("gate", ERROR, f"serves /execute_trajectory, and its {EXECUTION_ALLOWED} is not off")
        answer = graph.call(names.APPROVE, names.APPROVE.interface().Request(plan_hash=plan_hash), WAIT_S)
        assert answer.error.code == ErrorCode.ARM_UNAVAILABLE
        assert "/move_group" in answer.error.message
        server.destroy()
        health.wait("gate", OK, "closed")

        move_group.set_parameters([Parameter(EXECUTION_ALLOWED, value=False)])
        server = serve()
        wait_for(lambda: move_group.count_clients("/move_group/get_parameters") > 0, WAIT_S, "the gate's question")
        health.wait("gate", OK, "closed")
        graph.approve(plan_hash, "test")
        server.destroy()
