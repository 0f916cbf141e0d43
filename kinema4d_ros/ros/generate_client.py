"""Clients of the generate action: find a generator, send a goal, follow, cancel and time out with an error code."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import rclpy
from action_msgs.msg import GoalStatus
from rclpy.context import Context
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.node import Node

from kinema4d_msgs.action import GenerateRollout
from kinema4d_ros.core.errors import Cancelled, ErrorCode, GeneratorError, KinemaError
from kinema4d_ros.core.rollout import Rollout
from kinema4d_ros.generators.protocol import Cancel, GenerateRequest, Progress, ReportProgress
from kinema4d_ros.ros import names
from kinema4d_ros.ros.calls import ActionCaller, Question, new_uuid
from kinema4d_ros.ros.messages.errors import raise_from_msg
from kinema4d_ros.ros.messages.request import request_to_goal
from kinema4d_ros.ros.messages.rollout import rollout_from_msg

__all__ = ["GenerateClient", "RemoteGenerator"]

POLL_S = 0.01
LOOK_S = 0.25
"""Interval at which to check that the generator is still the same process."""

RESULT_S = 60.0
"""A rollout of 49 pictures of 480 x 720 is a quarter of a gigabyte: half a minute at 100 Mbit/s."""

_ENDED = (GoalStatus.STATUS_SUCCEEDED, GoalStatus.STATUS_CANCELED, GoalStatus.STATUS_ABORTED)

AGAIN_S = 2.0
"""Earliest retry of a goal: it may be megabytes."""

SEND_AGAIN_S = 5.0
"""Latest retry: a generator remembers the UUID of a finished goal for ten seconds only, and would run it again."""

PATIENCE_S = 10.0
"""Added to the generator's own time limit, to tell a lost machine from a slow one."""


class GenerateClient:
    """Requests one rollout at a time from the generator node; blocks, so not for callbacks.

    Args:
        node: owner of the client, spun by another thread.
        server_timeout_s: time to find the generator, and to lose it while it works.
        generate_timeout_s: limit for one rollout.
        result_timeout_s: limit for the transfer of a finished rollout.
    """

    def __init__(
        self,
        node: Node,
        server_timeout_s: float,
        generate_timeout_s: float,
        result_timeout_s: float = RESULT_S,
    ) -> None:
        self._node = node
        self._action = ActionCaller(node, GenerateRollout, names.GENERATE.name)
        self._heard: set[bytes] = set()
        """Generators whose responses are known to arrive."""
        self._server_timeout_s = server_timeout_s
        self._generate_timeout_s = generate_timeout_s
        self._result_timeout_s = result_timeout_s

    def ready(self) -> bool:
        """Whether a generator is discovered."""
        return self._action.ready()

    def generate(self, goal: Any, feedback: Callable[[Any], None], raise_if_unwanted: Callable[[], None]) -> Any:
        """Send a goal and return its result.

        Args:
            goal: kinema4d_msgs/GenerateRollout goal.
            feedback: called with every feedback message.
            raise_if_unwanted: polled; what it raises cancels the goal.

        Raises:
            GeneratorError: GENERATOR_UNAVAILABLE, GENERATOR_BUSY, GENERATOR_TIMEOUT, or the generator's own error.
        """
        servers = self._find(raise_if_unwanted)
        goal_id = new_uuid()
        unanswered = self._action.handle(goal_id)
        again_s = min(max(AGAIN_S, self._server_timeout_s / 2), SEND_AGAIN_S)
        asked = self._action.send(goal, lambda message: feedback(message.feedback), goal_id, again_s)
        handle = self._wait(asked, self._server_timeout_s, unanswered, raise_if_unwanted, servers)
        # A retried goal is rejected when its first copy is already running.
        if not handle.accepted and len(asked.futures) == 1:
            raise _busy()
        # The server that accepted is one of those seen before or now.
        servers |= self._servers()
        patience_s = self._generate_timeout_s + PATIENCE_S
        answer = self._wait(Question(handle.get_result_async), patience_s, handle, raise_if_unwanted, servers)
        if answer.status == GoalStatus.STATUS_UNKNOWN:
            if not handle.accepted:
                raise _busy()
            raise _without("the generator started again and does not know the goal", ErrorCode.GENERATOR_UNAVAILABLE)
        result = answer.result
        raise_from_msg(result.error)
        return result

    def _find(self, raise_if_unwanted: Callable[[], None]) -> set[bytes]:
        """Find generators and wait until their responses arrive."""
        began = time.monotonic()
        while not self._action.ready():
            raise_if_unwanted()
            if time.monotonic() - began > self._server_timeout_s:
                raise GeneratorError(
                    f"no generator answers on {names.GENERATE.name}",
                    expected=f"one within {self._server_timeout_s:g} s",
                    hint="start it: kinema4d generator, or ros2 launch kinema4d_ros generator.launch.py",
                    code=ErrorCode.GENERATOR_UNAVAILABLE,
                )
            time.sleep(POLL_S)
        servers = self._servers()
        if not servers <= self._heard:
            timeout_s = max(self._server_timeout_s, PATIENCE_S)
            self._wait(self._action.heard(), timeout_s, None, raise_if_unwanted, servers)
            self._heard = servers
        return servers

    def _servers(self) -> set[bytes]:
        """Return the ids of the running generators; a restarted one has a new id."""
        found = self._node.get_publishers_info_by_topic(f"{names.GENERATE.name}/_action/feedback")
        return {bytes(info.endpoint_gid) for info in found}

    def _wait(
        self,
        question: Question,
        timeout_s: float,
        handle: Any,
        raise_if_unwanted: Callable[[], None],
        servers: set[bytes],
    ) -> Any:
        """The answer; cancels the goal of `handle` when it is unwanted, gives up when all `servers` are gone."""
        deadline = time.monotonic() + timeout_s
        lost_at = ended_at = math.inf
        look_at = 0.0
        there = True
        while not question.done():
            now = time.monotonic()
            try:
                raise_if_unwanted()
            except KinemaError:
                _disown(question, handle)
                raise
            if now >= look_at:
                # A generator that was killed and started again is ready, but knows nothing of our goal.
                there = self._action.ready() and bool(servers & self._servers())
                look_at = now + LOOK_S
            lost_at = math.inf if there else min(lost_at, now)
            if handle is not None and handle.status in _ENDED:
                ended_at = min(ended_at, now)
            late = now - ended_at > self._result_timeout_s
            if late or now > deadline or now - lost_at > self._server_timeout_s:
                _disown(question, handle)
                if late:
                    raise _late(f"the generator is done, its rollout did not come within {self._result_timeout_s:g} s")
                if now <= deadline:
                    raise _without("the generator went away", ErrorCode.GENERATOR_UNAVAILABLE)
                if handle is None or not handle.accepted:
                    raise _late(f"no answer from the generator after {timeout_s:g} s")
                raise _without(f"no answer from the generator after {timeout_s:g} s", ErrorCode.GENERATOR_TIMEOUT)
            time.sleep(POLL_S)
        return question.result()


def _disown(question: Question, handle: Any) -> None:
    """Cancel a goal now, and again when it turns out to be accepted only then."""

    def cancel(answered: Any) -> None:
        if answered.exception() is None and getattr(answered.result(), "accepted", False):
            answered.result().cancel_goal_async()

    if handle is None:
        return
    for future in question.futures:
        future.add_done_callback(cancel)
    handle.cancel_goal_async()


def _busy() -> GeneratorError:
    return GeneratorError(
        "the generator is busy",
        expected="a place in its queue",
        hint="wait, or give it a longer queue",
        code=ErrorCode.GENERATOR_BUSY,
    )


def _without(why: str, code: ErrorCode) -> GeneratorError:
    return GeneratorError(
        why, expected="a rollout", hint="look at the generator's log; preview again when it is back", code=code
    )


def _late(why: str) -> GeneratorError:
    return GeneratorError(
        why,
        expected="a network that carries it",
        hint="look at the generator's log; across a poor network set config/fastdds_network.xml on both machines",
        code=ErrorCode.GENERATOR_TIMEOUT,
    )


# A generator node, here or on a GPU machine, as an ordinary `Generator`.


class RemoteGenerator:
    """Client of `kinema4d/generate` in a namespace, with a context and a thread of its own until `close`.

    Args:
        namespace: of the generator; "" = none.
        server_timeout_s: time to find it.
        timeout_s: limit for one rollout.
    """

    def __init__(self, namespace: str = "", *, server_timeout_s: float = 30.0, timeout_s: float = 1800.0) -> None:
        self._context = Context()
        rclpy.init(context=self._context)
        space = f"/{namespace.strip('/')}" if namespace.strip("/") else "/"
        self._node = Node("kinema4d_remote_generator", namespace=space, context=self._context)
        self._namespace, self._timeout_s = space, timeout_s
        self._closing = threading.Event()
        self._executor = SingleThreadedExecutor(context=self._context)
        self._executor.add_node(self._node)
        self._client = GenerateClient(self._node, server_timeout_s, timeout_s)
        self._thread = threading.Thread(target=self._spin, name="remote generator", daemon=True)
        self._thread.start()

    @property
    def name(self) -> str:
        """With its namespace, such as "ros:/gpu1"."""
        return f"ros:{self._namespace}"

    def ready(self) -> bool:
        """Whether the node answers just now."""
        return not self._closing.is_set() and self._client.ready()

    def generate(
        self, request: GenerateRequest, progress: ReportProgress | None = None, cancel: Cancel | None = None
    ) -> Rollout:
        """The rollout that the node answers with.

        Raises:
            GeneratorError: GENERATOR_UNAVAILABLE, GENERATOR_BUSY, GENERATOR_TIMEOUT, or the generator's own error.
            Cancelled: `cancel` said so; the goal is then cancelled over there.
        """
        if self._closing.is_set():
            raise GeneratorError("the remote generator is closed", expected="an open one")
        stamp = self._node.get_clock().now().to_msg()
        goal = request_to_goal(request, stamp, stamp, timeout_s=self._timeout_s)
        result = self._client.generate(goal, partial(_tell, progress), partial(self._raise_if_unwanted, cancel))
        return rollout_from_msg(result.rollout)

    def close(self) -> None:
        """Leave the graph; may be called twice."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._executor.shutdown(timeout_sec=2.0)
        self._thread.join(timeout=5.0)
        self._node.destroy_node()
        rclpy.shutdown(context=self._context)

    def _raise_if_unwanted(self, cancel: Cancel | None) -> None:
        if self._closing.is_set() or (cancel is not None and cancel()):
            raise Cancelled("cancelled by the caller")

    def _spin(self) -> None:
        with contextlib.suppress(ExternalShutdownException):
            self._executor.spin()


def _tell(progress: ReportProgress | None, feedback: Any) -> None:
    if progress is not None:
        progress(Progress(feedback.phase, feedback.step, feedback.steps))
