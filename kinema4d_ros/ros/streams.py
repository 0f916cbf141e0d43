"""Fast topics beside the executor: one thread looks for news now and then and takes all that has come.

An rclpy executor builds its wait set anew for every message, which costs more than a millisecond in a node
with thirty entities. At a hundred joint states a second that is a fifth of a core in every node that listens.
Here a message costs its own conversion only, and arrives at most `PERIOD_S` later.
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
    """Keeps a subscription out of every executor's wait set."""

    def can_execute(self, entity: Any) -> bool:
        return False

    def beginning_execution(self, entity: Any) -> bool:
        return False

    def ending_execution(self, entity: Any) -> None:
        pass


class Streams:
    """The topics of a node that are looked at, not waited for; callbacks run in one thread, in order."""

    def __init__(self, node: Node, complain: Complain) -> None:
        self._node = node
        self._complain = complain
        self._group = _Never()
        self._taken: list[tuple[Any, str, Take]] = []
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def listen(self, endpoint: Endpoint, callback: Take) -> Any:
        """Call `callback` with every message of a topic that is still there when its turn comes."""
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
        """End the thread; to be called before the node is destroyed."""
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
                except Exception as error:  # whatever one message does, the next one is looked at
                    self._complain(error, f"{name}: ")

    def _drain(self, subscription: Any, callback: Take) -> None:
        # As many as the topic may keep: a source that never rests cannot hold up the others.
        for _ in range(subscription.qos_profile.depth or 1):
            with subscription.handle:
                found = subscription.handle.take_message(subscription.msg_type, False)
            if found is None or self._ending.is_set():
                return
            callback(found[0])
