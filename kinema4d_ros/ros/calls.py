"""Services and actions over DDS: found, asked, and asked again only where that is safe.

A server is ready for a client before its answers reach that client: DDS tells each side of the other at its own time,
and rmw_fastrtps drops an answer whose reader it has not found yet. The client cannot see that. So it asks something
harmless, again and again, until an answer has come: from then on answers arrive, and what matters is sent.

- Services that may be asked twice (`REPEATED`) are asked again until they answer.
- `approve` and `execute` are sent once, after an empty request has been answered. Nobody repeats them: after silence
  the gate's `execution_status` tells whether the plan was forwarded.
- A goal is sent after the result of an unknown goal has been asked for. Sent again, it keeps its UUID: our servers
  take a UUID once, so it runs once.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from typing import Any

from action_msgs.msg import GoalInfo, GoalStatus
from rclpy.action import ActionClient, ActionServer
from rclpy.action.client import ClientGoalHandle
from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.executors import await_or_execute
from rclpy.impl.implementation_singleton import rclpy_implementation
from rclpy.node import Node

from kinema4d_msgs.msg import ExecutionStatus
from kinema4d_ros.core.errors import ErrorCode, KinemaError
from kinema4d_ros.ros import names
from kinema4d_ros.ros.messages.errors import raise_from_msg
from kinema4d_ros.ros.names import Endpoint

__all__ = ["ActionCaller", "GoalServer", "Question", "ServiceCalls", "execute_once", "missing"]

SERVICE_S, ANSWER_S = 2.0, 5.0
"""Seconds to look for a service, and to wait for its answer."""

REPEAT_S = 1.0
"""After how long something harmless is asked again."""

POLL_S = 0.005

REPEATED = {names.PLAYBACK: REPEAT_S, names.LAB_RESET: 10.0}
"""Services that do the same when they are asked twice, and after how many seconds they are: longer than they take."""

ONCE = (names.APPROVE, names.EXECUTE)
"""Services that must not be asked twice; they refuse an empty request and do nothing."""


class Question:
    """A request, sent now and again every `every_s` until one of its answers is here."""

    def __init__(self, ask: Callable[[], Any], every_s: float = math.inf) -> None:
        self._ask = ask
        self._every_s = every_s
        self.futures = [ask()]
        self._again_s = time.monotonic() + every_s

    def done(self) -> bool:
        """Whether an answer is here; asks again when it is time. Of one thread only."""
        if any(future.done() for future in self.futures):
            return True
        if time.monotonic() >= self._again_s:
            self.futures.append(self._ask())
            self._again_s = time.monotonic() + self._every_s
        return False

    def result(self) -> Any:
        """The first answer."""
        return next(future for future in self.futures if future.done()).result()


class ServiceCalls:
    """Clients of services of the table. Not for callbacks: a call waits, while the node spins elsewhere.

    Args:
        node: that asks.
        closing: set when the node is about to end.
        endpoints: services that are looked for from now on; others when they are first called.
    """

    def __init__(self, node: Node, closing: threading.Event, endpoints: Iterable[Endpoint] = ()) -> None:
        self._node = node
        self._closing = closing
        self._group = ReentrantCallbackGroup()
        self._lock = threading.Lock()
        self._clients: dict[str, Any] = {}
        for endpoint in endpoints:
            self._client(endpoint)

    def _client(self, endpoint: Endpoint) -> Any:
        with self._lock:
            if endpoint.name not in self._clients:
                self._clients[endpoint.name] = self._node.create_client(
                    endpoint.interface(), endpoint.name, callback_group=self._group
                )
            return self._clients[endpoint.name]

    def call(self, endpoint: Endpoint, request: Any, answer_s: float = ANSWER_S, find_s: float = SERVICE_S) -> Any:
        """The answer, or GRAPH_UNAVAILABLE."""
        self.find(endpoint, answer_s, find_s)
        return self.ask(endpoint, request, answer_s, REPEATED.get(endpoint, math.inf))

    def find(self, endpoint: Endpoint, answer_s: float = ANSWER_S, find_s: float = SERVICE_S) -> None:
        """Wait until the service is there and, if it is one of `ONCE`, until its answers arrive here."""
        if not self._wait(self._client(endpoint).service_is_ready, find_s):
            raise missing(endpoint, "nobody answers")
        if endpoint in ONCE:
            self.ask(endpoint, endpoint.interface().Request(), answer_s, REPEAT_S)

    def ask(self, endpoint: Endpoint, request: Any, answer_s: float, every_s: float = math.inf) -> Any:
        """The answer to a request that is sent now, and again every `every_s`."""
        client = self._client(endpoint)
        question = Question(lambda: client.call_async(request), every_s)
        try:
            if not self._wait(question.done, answer_s):
                raise missing(endpoint, f"no answer within {answer_s:g} s")
            return question.result()
        finally:
            for future in question.futures:
                client.remove_pending_request(future)

    def _wait(self, done: Callable[[], bool], timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while not done():
            if time.monotonic() > deadline or self._closing.wait(POLL_S):
                return done()
        return True


def execute_once(calls: ServiceCalls, newest: Callable[[], Any], plan_hash: str, token: str, answer_s: float) -> float:
    """Let the gate forward an approved plan; the motion's seconds. Never asked twice, whatever becomes of the answer.

    Args:
        calls: to the gate.
        newest: the last message of `execution_status`, or None: consulted when no answer comes.
        plan_hash: of the plan.
        token: of its approval.
        answer_s: longest time for an answer.

    Raises:
        KinemaError: the gate's refusal; GRAPH_UNAVAILABLE when neither an answer nor a status came.
    """
    request = names.EXECUTE.interface().Request(plan_hash=plan_hash, token=token)
    calls.find(names.EXECUTE, answer_s)
    before = newest()  # not earlier: statuses of earlier motions are latched, and arrive while the gate is found
    try:
        answer = calls.ask(names.EXECUTE, request, answer_s)
    except KinemaError as silence:
        status = newest()
        if status is None or status == before or status.plan_hash != plan_hash:
            raise KinemaError(
                f"{silence.what}; whether the arm moves is not known",
                expected="the gate's answer, or its execution_status",
                hint="look at the arm before anything else; then preview and approve again",
                code=silence.code,
            ) from None
        if status.phase == ExecutionStatus.ABORTED:
            raise_from_msg(status.error)
        return float(status.duration_s)
    raise_from_msg(answer.error)
    return float(answer.duration_s)


def missing(endpoint: Endpoint, what: str) -> KinemaError:
    """GRAPH_UNAVAILABLE for an endpoint that nobody serves."""
    return KinemaError(
        f"{what} on {endpoint.name}",
        expected="the node that offers it",
        hint="is the whole graph running?",
        code=ErrorCode.GRAPH_UNAVAILABLE,
    )


class _Client(ActionClient):  # type: ignore[misc]
    """An action client that may ask from any thread.

    rclpy's notes that an answer is awaited only after it has asked. In another thread than the executor's the answer
    can be quicker, and is then dropped as unexpected: here it is read only after that note was made.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._asking = threading.Lock()
        super().__init__(*arguments, **options)

    def send_goal_async(self, *arguments: Any, **options: Any) -> Any:
        with self._asking:
            return super().send_goal_async(*arguments, **options)

    def _get_result_async(self, goal_handle: Any) -> Any:
        with self._asking:
            return super()._get_result_async(goal_handle)

    def _cancel_goal_async(self, goal_handle: Any) -> Any:
        with self._asking:
            return super()._cancel_goal_async(goal_handle)

    async def execute(self, taken_data: Any) -> None:
        with self._asking:
            pass
        await super().execute(taken_data)


class ActionCaller:
    """The calls of one action's client; each is under way when it returns. From any thread.

    Args:
        node: that asks.
        interface: of the action.
        name: of the action.
    """

    def __init__(self, node: Node, interface: Any, name: str) -> None:
        self._interface = interface
        self._client = _Client(node, interface, name, callback_group=ReentrantCallbackGroup())

    def ready(self) -> bool:
        """Whether a server is there; its answers may still be lost: see `heard`."""
        return bool(self._client.server_is_ready())

    def heard(self) -> Question:
        """Done once the server's answers arrive here: asks for the result of a goal that nobody sent."""
        return Question(self.handle(new_uuid()).get_result_async, REPEAT_S)

    def handle(self, goal_id: Any) -> Any:
        """The handle of a goal whose answer has not come: to cancel it, or to ask for its result."""
        return ClientGoalHandle(self._client, goal_id, self._interface.Impl.SendGoalService.Response())

    def send(
        self,
        goal: Any,
        feedback: Callable[[Any], None] | None = None,
        goal_id: Any = None,
        every_s: float = math.inf,
    ) -> Question:
        """Send a goal; its answer is a handle. Again every `every_s`, with its UUID: of our own servers only.

        The answer to a goal that was sent again is a rejection when the first answer was lost: then ask for
        the result, which is STATUS_UNKNOWN for a goal that was never accepted.
        """
        goal_id = goal_id or new_uuid()
        return Question(lambda: self._client.send_goal_async(goal, feedback, goal_id), every_s)


def new_uuid() -> Any:
    """The id of a new goal."""
    goal_id = GoalInfo().goal_id
    goal_id.uuid = list(uuid.uuid4().bytes)
    return goal_id


class GoalServer(ActionServer):  # type: ignore[misc]
    """An action server whose accepted goals run, even if the acceptance could not be sent.

    rclpy's returns then: the goal keeps its place in the queue, never runs, and never has a result.
    """

    async def _execute_goal_request(self, request_header_and_message: Any) -> None:
        goal_id = bytes(request_header_and_message[1].goal_id.uuid)
        sent_again = goal_id in self._goal_handles
        await super()._execute_goal_request(request_header_and_message)
        handle = None if sent_again else self._goal_handles.get(goal_id)
        if handle is not None and handle.status == GoalStatus.STATUS_ACCEPTED:
            await await_or_execute(self._handle_accepted_callback, handle)

    async def _execute_get_result_request(self, request_header_and_message: Any) -> None:
        # That nobody hears of an unknown goal is no fault of this node: who wants to know asks again.
        with contextlib.suppress(rclpy_implementation.RCLError):
            await super()._execute_get_result_request(request_header_and_message)
