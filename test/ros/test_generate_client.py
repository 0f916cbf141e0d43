"""The caller of the generate action, against a server that is slow at each step: told in time, nothing left behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from rclpy.action import ActionServer, CancelResponse, GoalResponse
from rclpy.callback_groups import ReentrantCallbackGroup
from support.ros_graph import Graph, own_domain, wait_for

from kinema4d_msgs.action import GenerateRollout
from kinema4d_ros.core.errors import Cancelled, ErrorCode, GeneratorError
from kinema4d_ros.ros import names
from kinema4d_ros.ros.generate_client import GenerateClient

WAIT_S = 60.0


class SlowServer:
    """Takes goals when it is let, works until it is cancelled or let go, and answers when it is let."""

    def __init__(self, graph: Graph) -> None:
        self.accept, self.finish, self.answer = threading.Event(), threading.Event(), threading.Event()
        self.asked, self.cancelled = threading.Event(), threading.Event()
        self.cancel_requests = 0
        self._server = ActionServer(
            graph.node("slow_server"),
            GenerateRollout,
            names.GENERATE.name,
            execute_callback=self._execute,
            goal_callback=self._goal,
            cancel_callback=self._cancel,
            callback_group=ReentrantCallbackGroup(),
        )

    def _goal(self, _goal: Any) -> GoalResponse:
        self.asked.set()
        assert self.accept.wait(WAIT_S)
        return GoalResponse.ACCEPT

    def _cancel(self, _handle: Any) -> CancelResponse:
        self.cancel_requests += 1
        return CancelResponse.ACCEPT

    def _execute(self, handle: Any) -> Any:
        while not self.finish.wait(0.01):
            if handle.is_cancel_requested:
                handle.canceled()
                self.cancelled.set()
                return GenerateRollout.Result()
        handle.succeed()
        self.answer.wait(WAIT_S)
        return GenerateRollout.Result()


@pytest.fixture(scope="module", autouse=True)
def domain() -> Iterator[int]:
    """Apart: what is left of these servers for a moment must not be taken for other tests' generator."""
    with own_domain() as number:
        yield number


@pytest.fixture
def server(graph: Graph) -> Iterator[SlowServer]:
    made = SlowServer(graph)
    yield made
    for step in (made.accept, made.finish, made.answer):
        step.set()


def ask(graph: Graph, unwanted: Callable[[], None] = lambda: None, **limits: float) -> Any:
    settings = {"server_timeout_s": WAIT_S, "generate_timeout_s": WAIT_S, **limits}
    client = GenerateClient(graph.node("asker"), **settings)
    wait_for(client.ready, WAIT_S, "the server to be found")
    return client.generate(GenerateRollout.Goal(), lambda _feedback: None, unwanted)


def test_an_answer_is_waited_for(graph: Graph, server: SlowServer) -> None:
    for step in (server.accept, server.finish, server.answer):
        step.set()
    assert ask(graph).error.code == ErrorCode.NONE
    assert server.cancel_requests == 0


def test_a_goal_accepted_after_it_was_given_up_is_cancelled(graph: Graph, server: SlowServer) -> None:
    with pytest.raises(GeneratorError, match=r"no answer from the generator after 0\.5 s") as caught:
        ask(graph, server_timeout_s=0.5)
    assert caught.value.code is ErrorCode.GENERATOR_TIMEOUT
    assert "fastdds_network.xml" in caught.value.hint
    server.accept.set()
    assert server.cancelled.wait(WAIT_S), "the generator was not cancelled"


def test_a_goal_that_became_unwanted_on_its_way_is_cancelled(graph: Graph, server: SlowServer) -> None:
    def unwanted() -> None:
        if server.asked.is_set():
            raise Cancelled("a newer plan came")

    with pytest.raises(Cancelled):
        ask(graph, unwanted)
    server.accept.set()
    assert server.cancelled.wait(WAIT_S), "the generator was not cancelled"


def test_a_finished_rollout_that_does_not_come_is_given_up(graph: Graph, server: SlowServer) -> None:
    server.accept.set()
    server.finish.set()
    began = time.monotonic()
    with pytest.raises(GeneratorError, match=r"is done, its rollout did not come within 0\.5 s") as caught:
        ask(graph, result_timeout_s=0.5)
    server.answer.set()
    assert caught.value.code is ErrorCode.GENERATOR_TIMEOUT
    assert time.monotonic() - began < WAIT_S, "it waited for the whole time of a rollout"
