"""`RemoteGenerator`: a generator node of a running graph, here or on a GPU machine, as an ordinary generator."""

from __future__ import annotations

import contextlib
import threading
from functools import partial
from typing import Any

import rclpy
from rclpy.context import Context
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.node import Node

from kinema4d_ros.bridge.generate import GenerateClient
from kinema4d_ros.bridge.request import request_to_goal
from kinema4d_ros.bridge.rollout import rollout_from_msg
from kinema4d_ros.core.errors import Cancelled, GeneratorError
from kinema4d_ros.core.rollout import Rollout
from kinema4d_ros.generators.protocol import Cancel, GenerateRequest, Progress, ReportProgress

__all__ = ["RemoteGenerator"]


class RemoteGenerator:
    """Asks `kinema4d/generate` of a namespace; a context and a thread of its own, until `close`.

    Args:
        namespace: of the generator; "" = none.
        server_timeout_s: how long to look for it.
        timeout_s: longest time for one rollout.
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
