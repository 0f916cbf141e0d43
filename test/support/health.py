"""Listener to /diagnostics: levels and messages of the nodes of a graph."""

from __future__ import annotations

import threading
import time
from typing import Any

from support.ros_graph import Graph

from kinema4d_ros.ros import names
from kinema4d_ros.ros.qos import profile

LEVELS = (b"\x00", b"\x01", b"\x02")
OK, WARN, ERROR = range(3)


class HealthWatch:
    """Subscriber of /diagnostics."""

    def __init__(self, graph: Graph) -> None:
        self._lock = threading.Lock()
        self._heard: dict[str, tuple[float, Any]] = {}
        node = graph.node("health_watch")
        endpoint = names.DIAGNOSTICS
        node.create_subscription(endpoint.interface(), endpoint.name, self._take, profile(endpoint))

    def _take(self, message: Any) -> None:
        with self._lock:
            for status in message.status:
                self._heard[status.name.rpartition("/")[2]] = (time.monotonic(), status)

    def of(self, node: str) -> tuple[int, str]:
        """Return the newest level and message of a node; (-1, "") before the first."""
        with self._lock:
            _, status = self._heard.get(node, (0.0, None))
        return (-1, "") if status is None else (LEVELS.index(status.level), status.message)

    def value(self, node: str, key: str) -> str:
        """Return one of the key values of a node's status."""
        with self._lock:
            _, status = self._heard.get(node, (0.0, None))
        return next((v.value for v in status.values if v.key == key), "") if status is not None else ""

    def wait(self, node: str, level: int, text: str = "", timeout_s: float = 60.0) -> float:
        """Wait for a new message of a node with this text; return the seconds waited."""
        began = time.monotonic()

        def says() -> bool:
            with self._lock:
                at, status = self._heard.get(node, (0.0, None))
            return status is not None and at > began and status.level == LEVELS[level] and text in status.message

        while not says():
            assert time.monotonic() < began + timeout_s, f"{node} says {self.of(node)}, not '{text}' at level {level}"
            time.sleep(0.005)
        return time.monotonic() - began
