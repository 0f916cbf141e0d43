"""Real nodes over real DDS: each test process has a domain of its own on loopback."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.ros_graph import Graph, isolate

pytest.importorskip("rclpy", reason="needs ROS 2")
pytest.importorskip("kinema4d_msgs.msg", reason="needs the built messages")

_logs = tempfile.TemporaryDirectory(prefix="kinema4d_ros_log_")
# Here and not in a fixture: DDS reads its environment when the first context of the process is made.
isolate(Path(_logs.name))


@pytest.fixture
def graph() -> Iterator[Graph]:
    """Spinning nodes that are gone after the test."""
    graph = Graph()
    yield graph
    graph.close()
