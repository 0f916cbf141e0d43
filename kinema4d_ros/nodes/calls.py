"""Services called from a node's own threads: found, asked, and given up on in time, in words."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import Any

from rclpy.callback_groups import ReentrantCallbackGroup

from kinema4d_ros.bridge.names import Endpoint
from kinema4d_ros.errors import ErrorCode, KinemaError
from kinema4d_ros.nodes.common import KinemaNode

__all__ = ["ServiceCalls", "missing"]

SERVICE_S, ANSWER_S = 2.0, 5.0
"""Seconds to look for a service, and to wait for its answer."""


class ServiceCalls:
    """Clients of some services of the table. Not for callbacks: a call waits, while the node spins elsewhere."""

    def __init__(self, node: KinemaNode, endpoints: Iterable[Endpoint]) -> None:
        self._node = node
        group = ReentrantCallbackGroup()
        self._clients = {
            endpoint.name: node.create_client(endpoint.interface(), endpoint.name, callback_group=group)
            for endpoint in endpoints
        }

    def call(self, endpoint: Endpoint, request: Any, answer_s: float = ANSWER_S) -> Any:
        """The answer, or GRAPH_UNAVAILABLE."""
        client = self._clients[endpoint.name]
        deadline = time.monotonic() + SERVICE_S
        while not client.service_is_ready():
            if time.monotonic() > deadline or self._node.closing.wait(0.02):
                raise missing(endpoint, "nobody answers")
        done = threading.Event()
        future = client.call_async(request)
        future.add_done_callback(lambda _: done.set())
        if not done.wait(answer_s):
            client.remove_pending_request(future)
            raise missing(endpoint, f"no answer within {answer_s:g} s")
        return future.result()


def missing(endpoint: Endpoint, what: str) -> KinemaError:
    """GRAPH_UNAVAILABLE for an endpoint that nobody serves."""
    return KinemaError(
        f"{what} on {endpoint.name}",
        expected="the node that offers it",
        hint="is the whole graph running?",
        code=ErrorCode.GRAPH_UNAVAILABLE,
    )
