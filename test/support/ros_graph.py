"""ROS graph for tests: a separate domain on loopback, nodes that spin in a thread, peers in other processes."""

from __future__ import annotations

import gc
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PROFILE = ROOT / "config" / "fastdds_loopback.xml"
DISCOVERY_S = 60.0
"""Timeout in seconds for discovery and response between processes; no test asserts the duration."""

ANSWER_S = 360.0
"""Timeout in seconds for the response to a goal, against hangs."""

_FIRST_PORT = 23000
# Ports of higher domains overlap with Linux's ephemeral ports.
_DOMAINS = 100
_claims: list[socket.socket] = []


def claim_domain() -> int:
    """Reserve a ROS_DOMAIN_ID that no other test process on this machine uses, until this process ends."""
    for attempt in range(_DOMAINS):
        domain = 1 + (os.getpid() + attempt) % _DOMAINS
        claim = socket.socket()
        try:
            claim.bind(("127.0.0.1", _FIRST_PORT + domain))
        except OSError:
            claim.close()
            continue
        _claims.append(claim)
        return domain
    raise RuntimeError(f"all {_DOMAINS} ROS domains are taken by tests")


def isolate(log_dir: Path) -> None:
    """Set the environment of this process and its children; call before the first context is created."""
    os.environ["ROS_DOMAIN_ID"] = str(claim_domain())
    os.environ["ROS_AUTOMATIC_DISCOVERY_RANGE"] = "LOCALHOST"
    os.environ["FASTRTPS_DEFAULT_PROFILES_FILE"] = str(PROFILE)
    os.environ["ROS_LOG_DIR"] = str(log_dir)
    os.environ.pop("ROS_STATIC_PEERS", None)


@contextmanager
def own_domain() -> Iterator[int]:
    """Use a separate domain for contexts and processes created in the block; it contains no other nodes."""
    before = os.environ["ROS_DOMAIN_ID"]
    domain = claim_domain()
    os.environ["ROS_DOMAIN_ID"] = str(domain)
    try:
        yield domain
    finally:
        os.environ["ROS_DOMAIN_ID"] = before


def wait_for(predicate: Callable[[], Any], timeout_s: float, what: str = "") -> Any:
    """Return the predicate's first true value; fail with the name of the awaited event on timeout."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"{what or predicate} did not happen within {timeout_s} s")
        time.sleep(0.005)


class Graph:
    """Nodes of one test, spun by threads until the test ends."""

    def __init__(self, threads: int = 4) -> None:
        import rclpy
        from rclpy.executors import MultiThreadedExecutor, SingleThreadedExecutor

        self.context = rclpy.Context()
        rclpy.init(context=self.context)
        kind = SingleThreadedExecutor if threads == 1 else partial(MultiThreadedExecutor, threads)
        self.executor = kind(context=self.context)
        self._nodes: list[Any] = []
        self._thread = threading.Thread(target=self._spin, name="test graph", daemon=True)
        self._thread.start()

    def node(self, name: str, **options: Any) -> Any:
        """Create a node that is already spinning."""
        from rclpy.node import Node

        return self.add(Node(name, context=self.context, **options))

    def add(self, node: Any) -> Any:
        """Spin a node that the test created on `graph.context`."""
        self._nodes.append(node)
        self.executor.add_node(node)
        self.executor.wake()
        return node

    def close(self) -> None:
        """Stop spinning, join the thread and destroy all nodes."""
        self.executor.shutdown(timeout_sec=5.0)
        self.context.try_shutdown()
        self._thread.join(timeout=10.0)
        assert not self._thread.is_alive(), "the spinning thread did not end"
        for node in self._nodes:
            node.destroy_node()
        # Action clients outlive their node in reference cycles: other graphs would still see them.
        self._nodes.clear()
        gc.collect()

    def _spin(self) -> None:
        from rclpy.executors import ExternalShutdownException, ShutdownException

        try:
            while self.context.ok():
                self.executor.spin_once(timeout_sec=0.2)
        except (ExternalShutdownException, ShutdownException):
            pass


class Asker:
    """Action client for tests; sends goals only after responses of the server arrive."""

    def __init__(self, node: Any, interface: Any, name: str) -> None:
        from kinema4d_ros.ros.calls import ActionCaller

        self._caller, self._name = ActionCaller(node, interface, name), name
        self._find()

    def _find(self) -> None:
        wait_for(self._caller.ready, ANSWER_S, f"a server of {self._name}")
        wait_for(self._caller.heard().done, ANSWER_S, f"any answer of {self._name}")

    def send(self, goal: Any, feedback: Callable[[Any], None] | None = None) -> Any:
        """Send a goal and return its handle, accepted or not."""
        self._find()  # the server may have been restarted
        return self._answer(self._caller.send(goal, feedback))

    def response(self, handle: Any) -> Any:
        """Return status and result of a goal once it has ended."""
        return self._answer(handle.get_result_async())

    def result(self, handle: Any) -> Any:
        """Return the result of a goal."""
        return self.response(handle).result

    def cancel(self, handle: Any) -> Any:
        """Cancel a goal."""
        return self._answer(handle.cancel_goal_async())

    def _answer(self, future: Any) -> Any:
        wait_for(future.done, ANSWER_S, f"an answer of {self._name}")
        return future.result()


@contextmanager
def peer(script: str | Path, *arguments: str, timeout_s: float = 120.0) -> Iterator[subprocess.Popen[str]]:
    """A Python script in another process; ready when it prints "ready", stopped by closing its stdin."""
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "test"), environment.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        [sys.executable, str(script), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    timer = threading.Timer(timeout_s, process.kill)
    timer.start()
    try:
        assert process.stdout is not None
        first = process.stdout.readline()
        assert first.strip() == "ready", f"the peer said {first!r}"
        timer.cancel()
        yield process
    finally:
        timer.cancel()
        try:
            process.communicate(timeout=10.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
