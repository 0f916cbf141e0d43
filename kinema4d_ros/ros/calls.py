"""Service and action clients over DDS that retry only where a repeated request is safe.

A server can be discovered before its responses reach the client: DDS discovery is not simultaneous on both ends, and
rmw_fastrtps drops a response whose reader it has not matched yet. The client cannot detect this. It therefore repeats
a harmless request until a response arrives, and only then sends the real request.

- Idempotent services (`REPEATED`) are retried until they respond.
- `approve` and `execute` are sent once, after an empty request was answered. They are never retried: after a timeout,
  the gate's `execution_status` shows whether the plan was forwarded.
- A goal is sent after a result request for an unknown goal was answered. A retried goal keeps its UUID, and our
  servers accept a UUID once, so the goal runs once.
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
"""Timeouts in seconds: to discover a service, and to wait for its response."""

REPEAT_S = 1.0
"""Retry period of requests that are safe to repeat."""

POLL_S = 0.005

REPEATED = {names.PLAYBACK: REPEAT_S, names.LAB_RESET: 10.0}
"""Idempotent services and their retry period in seconds, which is longer than one call takes."""

ONCE = (names.APPROVE, names.EXECUTE)
"""Services that must not be retried; they reject an empty request without side effects."""


class Question:
    """A request that is sent immediately and retried every `every_s` seconds until a response arrives."""

    def __init__(self, ask: Callable[[], Any], every_s: float = math.inf) -> None:
        self._ask = ask
        self._every_s = every_s
        self.futures = [ask()]
        self._again_s = time.monotonic() + every_s

    def done(self) -> bool:
        """Return whether a response arrived; retry when due. Call from one thread only."""
        if any(future.done() for future in self.futures):
            return True
        if time.monotonic() >= self._again_s:
            self.futures.append(self._ask())
            self._again_s = time.monotonic() + self._every_s
        return False

    def result(self) -> Any:
        """Return the first response."""
        return next(future for future in self.futures if future.done()).result()


class ServiceCalls:
    """Clients for the services in `names`. Calls block: never use them in a callback; spin the node in another thread.

    Args:
        node: owner of the clients.
        closing: set when the node shuts down.
        endpoints: services to discover from now on; others are discovered at their first call.
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
        """Call a service and return its response; raise GRAPH_UNAVAILABLE on a timeout."""
        self.find(endpoint, answer_s, find_s)
        return self.ask(endpoint, request, answer_s, REPEATED.get(endpoint, math.inf))

    def find(self, endpoint: Endpoint, answer_s: float = ANSWER_S, find_s: float = SERVICE_S) -> None:
        """Wait until the service is discovered and, for services in `ONCE`, until its responses arrive."""
        if not self._wait(self._client(endpoint).service_is_ready, find_s):
            raise missing(endpoint, "no server")
        if endpoint in ONCE:
            self.ask(endpoint, endpoint.interface().Request(), answer_s, REPEAT_S)

    def ask(self, endpoint: Endpoint, request: Any, answer_s: float, every_s: float = math.inf) -> Any:
        """Send a request, retry it every `every_s` seconds, and return the first response."""
        client = self._client(endpoint)
        question = Question(lambda: client.call_async(request), every_s)
        try:
            if not self._wait(question.done, answer_s):
                raise missing(endpoint, f"no response within {answer_s:g} s")
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
    """Make the gate forward an approved plan and return the motion's duration in seconds. Never retried.

    Args:
        calls: clients of the gate's services.
        newest: returns the last `execution_status` message or None; used when the response times out.
        plan_hash: hash of the plan.
        token: token of its approval.
        answer_s: timeout of the response.

    Raises:
        KinemaError: the gate's refusal; GRAPH_UNAVAILABLE when neither a response nor a status arrived.
    """
    request = names.EXECUTE.interface().Request(plan_hash=plan_hash, token=token)
    calls.find(names.EXECUTE, answer_s)
    before = newest()  # not earlier: latched statuses of earlier motions arrive during discovery of the gate
    try:
        answer = calls.ask(names.EXECUTE, request, answer_s)
    except KinemaError as silence:
        status = newest()
        if status is None or status == before or status.plan_hash != plan_hash:
            raise KinemaError(
                f"{silence.what}; it is unknown whether the arm moves",
                expected="a response of the gate, or its execution_status",
                hint="check the arm first; then preview and approve again",
                code=silence.code,
            ) from None
        if status.phase == ExecutionStatus.ABORTED:
            raise_from_msg(status.error)
        return float(status.duration_s)
    raise_from_msg(answer.error)
    return float(answer.duration_s)


def missing(endpoint: Endpoint, what: str) -> KinemaError:
    """Return the GRAPH_UNAVAILABLE error for an endpoint without a server."""
    return KinemaError(
        f"{what} on {endpoint.name}",
        expected="a running node that provides it",
        hint="check that the whole graph is running",
        code=ErrorCode.GRAPH_UNAVAILABLE,
    )


class _Client(ActionClient):  # type: ignore[misc]
    """An action client that may send requests from any thread.

    rclpy registers a pending request only after sending it. When the sending thread is not the executor's, the
    response can arrive before the registration and is then dropped as unexpected. The lock here delays reading a
    response until the registration is complete.
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
    """Non-blocking calls of one action client. Thread-safe.

    Args:
        node: owner of the client.
        interface: the action type.
        name: the action name.
    """

    def __init__(self, node: Node, interface: Any, name: str) -> None:
        self._interface = interface
        self._client = _Client(node, interface, name, callback_group=ReentrantCallbackGroup())

    def ready(self) -> bool:
        """Return whether a server is discovered; its responses may still be lost, see `heard`."""
        return bool(self._client.server_is_ready())

    def heard(self) -> Question:
        """Request the result of a goal that was never sent; done once the server's responses arrive."""
        return Question(self.handle(new_uuid()).get_result_async, REPEAT_S)

    def handle(self, goal_id: Any) -> Any:
        """Return the handle of a goal without a response yet, to cancel it or to request its result."""
        return ClientGoalHandle(self._client, goal_id, self._interface.Impl.SendGoalService.Response())

    def send(
        self,
        goal: Any,
        feedback: Callable[[Any], None] | None = None,
        goal_id: Any = None,
        every_s: float = math.inf,
    ) -> Question:
        """Send a goal; the response is a goal handle. Retry every `every_s` with the same UUID: own servers only.

        When the first response was lost, the retried goal is rejected: then request the result, which is
        STATUS_UNKNOWN for a goal that was never accepted.
        """
        goal_id = goal_id or new_uuid()
        return Question(lambda: self._client.send_goal_async(goal, feedback, goal_id), every_s)


def new_uuid() -> Any:
    """Return a random goal id."""
    goal_id = GoalInfo().goal_id
    goal_id.uuid = list(uuid.uuid4().bytes)
    return goal_id


class GoalServer(ActionServer):  # type: ignore[misc]
    """An action server that runs an accepted goal even if sending the acceptance failed.

    rclpy's server returns in that case: the goal stays accepted, never runs and never gets a result.
    """

    async def _execute_goal_request(self, request_header_and_message: Any) -> None:
        goal_id = bytes(request_header_and_message[1].goal_id.uuid)
        sent_again = goal_id in self._goal_handles
        await super()._execute_goal_request(request_header_and_message)
        handle = None if sent_again else self._goal_handles.get(goal_id)
        if handle is not None and handle.status == GoalStatus.STATUS_ACCEPTED:
            await await_or_execute(self._handle_accepted_callback, handle)

    async def _execute_get_result_request(self, request_header_and_message: Any) -> None:
        # Failing to send a result is not an error of this node: the client retries its request.
        with contextlib.suppress(rclpy_implementation.RCLError):
            await super()._execute_get_result_request(request_header_and_message)
