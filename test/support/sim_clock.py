"""Simulation clock for tests: publishes /clock with its own start time and rate."""

from __future__ import annotations

import time
from typing import Any

from rosgraph_msgs.msg import Clock
from support.ros_graph import Graph

from kinema4d_ros.ros.messages.stamps import time_from_ns


class SimClock:
    """Publishes /clock at 100 Hz until the graph is closed."""

    def __init__(self, graph: Graph, start_s: float = 1000.0, speed: float = 1.0) -> None:
        self._start_s, self._speed = start_s, speed
        self._began = time.monotonic()
        node = graph.node("sim_clock")
        self._publisher: Any = node.create_publisher(Clock, "/clock", 10)
        node.create_timer(0.01, self._tick)

    def now_s(self) -> float:
        """Return the current time of this clock, seconds."""
        return self._start_s + self._speed * (time.monotonic() - self._began)

    def _tick(self) -> None:
        self._publisher.publish(Clock(clock=time_from_ns(round(self.now_s() * 1e9))))
