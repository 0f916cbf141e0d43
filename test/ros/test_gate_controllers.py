"""The gate and controllers that are missing, slow or silent: the test is the controller, the gate is the real one."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from rclpy.action import ActionServer, CancelResponse, GoalResponse
from rclpy.callback_groups import ReentrantCallbackGroup
from support.drivers import Drivers
from support.motions import WAIT_S, code_of, swing, wait_until_ready
from support.ros_graph import Graph, wait_for
from support.sim_graph import client, running

from kinema4d_msgs.msg import ExecutionStatus, PreviewedPlan
from kinema4d_ros.bridge import names
from kinema4d_ros.bridge.client import PreviewClient
from kinema4d_ros.bridge.joints import trajectory_to_msg
from kinema4d_ros.bridge.stamps import header
from kinema4d_ros.calibration import read_camera
from kinema4d_ros.errors import ErrorCode
from kinema4d_ros.resources import share_path
from kinema4d_ros.robot import Robot
from kinema4d_ros.trajectory_hash import hash_trajectory

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


class Controller:
    """Takes every goal, after a while, and never says that it is done unless it is cancelled."""

    def __init__(self, graph: Graph) -> None:
        self.answer_after_s = 0.0
        self.cancelled = threading.Event()
        self._ended = threading.Event()
        self._server = ActionServer(
            graph.node("controller"),
            names.FOLLOW_TRAJECTORY.interface(),
            names.FOLLOW_TRAJECTORY.name,
            execute_callback=self._execute,
            goal_callback=self._admit,
            cancel_callback=lambda _: CancelResponse.ACCEPT,
            callback_group=ReentrantCallbackGroup(),
        )

    def _admit(self, _goal: Any) -> Any:
        time.sleep(self.answer_after_s)
        return GoalResponse.ACCEPT

    def _execute(self, handle: Any) -> Any:
        while not self._ended.wait(0.02):
            if handle.is_cancel_requested:
                self.cancelled.set()
                handle.canceled()
                break
        return names.FOLLOW_TRAJECTORY.interface().Result()

    def end(self) -> None:
        self._ended.set()


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


def offer(drivers: Drivers, graph: PreviewClient, angle: float) -> str:
    """Tell the gate of a plan as the preview does, and have it ready to be approved."""
    plan = swing(graph, angle, duration_s=1.0)
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
        assert "never said" in aborted.error.message
        controller.end()
