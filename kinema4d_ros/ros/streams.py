"""High-rate subscriptions polled by one thread instead of the executor.

An rclpy executor rebuilds its wait set for every message, which takes more than a millisecond in a node with thirty
entities. At 100 joint states per second that is a fifth of a core in every subscribing node. Polling costs only the
conversion of each message and delays it by at most `PERIOD_S`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from rclpy.callback_groups import CallbackGroup
from rclpy.node import Node

from kinema4d_ros.ros.names import Endpoint
from kinema4d_ros.ros.qos import profile

__all__ = ["PERIOD_S", "Streams"]

PERIOD_S = 0.02

Take = Callable[[Any], None]
Complain = Callable[[BaseException, str], None]


class _Never(CallbackGroup):  # type: ignore[misc]
    """A callback group that keeps a subscription out of every executor's wait set."""

    def can_execute(self, entity: Any) -> bool:
        return False

    def beginning_execution(self, entity: Any) -> bool:
        return False

    def ending_execution(self, entity: Any) -> None:
        pass


class Streams:
    """Polled subscriptions of a node; all callbacks run in one thread, in order."""

    def __init__(self, node: Node, complain: Complain) -> None:
        self._node = node
        self._complain = complain
        self._group = _Never()
        self._taken: list[tuple[Any, str, Take]] = []
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def listen(self, endpoint: Endpoint, callback: Take) -> Any:
        """Call `callback` with every message of a topic that is still in the queue when it is polled."""
        subscription = self._node.create_subscription(
            endpoint.interface(), endpoint.name, callback, profile(endpoint), callback_group=self._group
        )
        with self._lock:
            self._taken.append((subscription, endpoint.name, callback))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="streams", daemon=True)
                self._thread.start()
        return subscription

    def close(self, timeout_s: float = 5.0) -> None:
        """Stop the thread; call before the node is destroyed."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join(timeout=timeout_s)

    def _run(self) -> None:
        while not self._ending.wait(PERIOD_S):
            with self._lock:
                taken = list(self._taken)
            for subscription, name, callback in taken:
                try:
                    self._drain(subscription, callback)
                except Exception as error:  # one bad message must not stop the polling
                    self._complain(error, f"{name}: ")

    def _drain(self, subscription: Any, callback: Take) -> None:
        # At most the queue depth: a fast publisher cannot starve the other topics.
        for _ in range(subscription.qos_profile.depth or 1):
            with subscription.handle:
                found = subscription.handle.take_message(subscription.msg_type, False)
            if found is None or self._ending.is_set():
                return
            callback(found[0])
