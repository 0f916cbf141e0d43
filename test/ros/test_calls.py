"""Lost answers, of services and of actions: what may be asked twice is asked again, what moves the arm never is."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from control_msgs.action import FollowJointTrajectory
from rclpy.action import CancelResponse, GoalResponse
from rclpy.callback_groups import ReentrantCallbackGroup
from support.lossy import LossyActionHandle, lose_answers
from support.ros_graph import DISCOVERY_S, Graph, own_domain, wait_for

from kinema4d_msgs.action import GenerateRollout
from kinema4d_msgs.msg import ExecutionStatus
from kinema4d_msgs.srv import Approve, Execute, Playback
from kinema4d_ros.core.errors import ErrorCode, KinemaError
from kinema4d_ros.core.trajectory import JointTrajectory
from kinema4d_ros.robot import Robot
from kinema4d_ros.ros import client as client_module
from kinema4d_ros.ros import names
from kinema4d_ros.ros.calls import GoalServer
from kinema4d_ros.ros.client import PreviewClient
from kinema4d_ros.ros.generate_client import GenerateClient
from kinema4d_ros.ros.nodes import controllers as controllers_module
from kinema4d_ros.ros.qos import profile

PLAN, TOKEN = "ab" * 32, "cd" * 16


@pytest.fixture(scope="module", autouse=True)
def domain() -> Iterator[int]:
    """Apart: these servers must not be taken for those of other tests."""
    with own_domain() as number:
        yield number


@pytest.fixture
def user(graph: Graph) -> Iterator[PreviewClient]:
    with PreviewClient() as made:
        yield made


class Gate:
    """Answers as the gate does; its first answers of each kind are lost."""

    def __init__(self, graph: Graph, lost: int) -> None:
        node = graph.node("gate")
        self.asked: list[Any] = []
        self._status = node.create_publisher(
            ExecutionStatus, names.EXECUTION_STATUS.name, profile(names.EXECUTION_STATUS)
        )
        self.tells = True
        for endpoint in (names.APPROVE, names.EXECUTE, names.PLAYBACK):
            lose_answers(node.create_service(endpoint.interface(), endpoint.name, self._answer), [], lost)

    def _answer(self, request: Any, response: Any) -> Any:
        if request == type(request)() and not isinstance(request, Playback.Request):
            response.error.code = int(ErrorCode.ARGUMENT_INVALID)
            return response
        self.asked.append(request)
        if isinstance(request, Approve.Request):
            response.token = TOKEN
        if isinstance(request, Execute.Request):
            response.duration_s = 3.0
            if self.tells:
                self._status.publish(
                    ExecutionStatus(plan_hash=request.plan_hash, phase=ExecutionStatus.SENT, duration_s=3.0)
                )
        return response


def test_a_harmless_service_is_asked_until_it_answers(graph: Graph, user: PreviewClient) -> None:
    gate = Gate(graph, lost=2)
    answer = user.call(names.PLAYBACK, Playback.Request(command=Playback.Request.STATUS), DISCOVERY_S)
    assert answer.error.code == ErrorCode.NONE
    assert len(gate.asked) >= 3


def test_approve_and_execute_are_sent_once_and_answered(graph: Graph, user: PreviewClient) -> None:
    gate = Gate(graph, lost=1)
    assert user.approve(PLAN, "test") == TOKEN
    assert user.execute(PLAN, TOKEN) == pytest.approx(3.0)
    assert gate.asked == [
        Approve.Request(plan_hash=PLAN, approver="test"),
        Execute.Request(plan_hash=PLAN, token=TOKEN),
    ]


@pytest.mark.parametrize("tells", [True, False], ids=["its status is heard", "nothing is heard"])
def test_an_execution_without_an_answer_is_not_repeated(
    graph: Graph, user: PreviewClient, monkeypatch: pytest.MonkeyPatch, tells: bool
) -> None:
    monkeypatch.setattr(client_module, "CALL_S", 2.0)
    gate = Gate(graph, lost=0)
    gate.tells = tells
    assert user.approve(PLAN, "test") == TOKEN
    wait_for(lambda: user.node.count_publishers(names.EXECUTION_STATUS.name) > 0, DISCOVERY_S, "the gate's status")
    (execute,) = [s for node in graph.executor.get_nodes() for s in node.services if s.srv_name.endswith("execute")]
    answered = execute.send_response
    # Answers to the real request are lost, those to the empty one before it arrive.
    execute.send_response = lambda response, header: response.duration_s or answered(response, header)
    if tells:
        assert user.execute(PLAN, TOKEN) == pytest.approx(3.0)
    else:
        with pytest.raises(KinemaError, match="it is unknown whether the arm moves") as caught:
            user.execute(PLAN, TOKEN)
        assert caught.value.code is ErrorCode.GRAPH_UNAVAILABLE
    assert sum(isinstance(request, Execute.Request) for request in gate.asked) == 1


class Server:
    """An action server that counts; goals run until they are cancelled, or not at all."""

    def __init__(self, graph: Graph, interface: Any, name: str, lose: dict[str, int], *, endless: bool = False) -> None:
        self.taken = self.ran = 0
        self.cancelled = threading.Event()
        self._interface, self._endless = interface, endless
        self.server = GoalServer(
            graph.node("server"),
            interface,
            name,
            execute_callback=self._execute,
            goal_callback=self._take,
            cancel_callback=lambda _handle: CancelResponse.ACCEPT,
            callback_group=ReentrantCallbackGroup(),
        )
        self.server._handle = LossyActionHandle(self.server._handle, lose)

    def _take(self, _goal: Any) -> GoalResponse:
        self.taken += 1
        return GoalResponse.ACCEPT

    def _execute(self, handle: Any) -> Any:
        self.ran += 1
        while self._endless and not self.cancelled.wait(0.01):
            if handle.is_cancel_requested:
                handle.canceled()
                self.cancelled.set()
                return self._interface.Result()
        handle.succeed()
        return self._interface.Result()


@pytest.mark.parametrize("lost", ["send_goal_response", "send_result_response"])
def test_a_rollout_whose_answers_are_lost_is_made_once(graph: Graph, lost: str) -> None:
    server = Server(graph, GenerateRollout, names.GENERATE.name, {lost: 1})
    client = GenerateClient(graph.node("asker"), server_timeout_s=6.0, generate_timeout_s=DISCOVERY_S)
    wait_for(client.ready, DISCOVERY_S, "the server")
    result = client.generate(GenerateRollout.Goal(), lambda _feedback: None, lambda: None)
    assert result.error.code == ErrorCode.NONE
    assert (server.taken, server.ran) == (1, 1)


def test_a_motion_that_began_without_an_answer_is_stopped_and_not_called_refused(
    graph: Graph, monkeypatch: pytest.MonkeyPatch, primitive_arm: Robot
) -> None:
    monkeypatch.setattr(controllers_module, "ANSWER_S", 2.0)
    server = Server(graph, FollowJointTrajectory, names.FOLLOW_TRAJECTORY.name, {"send_goal_response": 1}, endless=True)
    node, controllers = graph.node("gate"), controllers_module.controllers(primitive_arm)
    way = controllers_module.ActionWay(node, primitive_arm, controllers, lambda: None, lambda *_: None)
    wait_for(lambda: _result(graph, way.require_ready) is None, DISCOVERY_S, "the controller")
    home = primitive_arm.home_position()
    plan = JointTrajectory(primitive_arm.joint_names, np.array([0.0, 1.0]), np.array([home, home]))
    error = _result(graph, way.send, plan, PLAN)
    assert isinstance(error, KinemaError)
    assert error.code is ErrorCode.ARM_ABORTED
    assert "stays where it is" not in str(error)
    assert server.cancelled.wait(DISCOVERY_S), "the arm follows a plan that was called off"
    assert server.taken == 1


def _result(graph: Graph, what: Any, *arguments: Any) -> KinemaError | None:
    """What a coroutine raises in the executor."""

    async def caught() -> KinemaError | None:
        try:
            await what(*arguments)
        except KinemaError as error:
            return error
        return None

    task = graph.executor.create_task(caught)
    wait_for(task.done, DISCOVERY_S, "its end")
    return task.result()
