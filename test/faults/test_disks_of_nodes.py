"""Nodes on full and read-only disks: the recorder stops and says so while the graph goes on; logs are no need."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.drivers import Drivers
from support.figures import Figures
from support.health import ERROR, OK, HealthWatch
from support.ros_graph import Graph, own_domain, wait_for
from support.sim_graph import START_S, NodeProcess
from support.small_disks import READ_ONLY_TEXT, ROOM_TEXT, SmallDisk, small_disk

from kinema4d_ros.calibration import read_camera
from kinema4d_ros.core.errors import ErrorCode
from kinema4d_ros.io.bags import opened_bag
from kinema4d_ros.io.resources import share_path
from kinema4d_ros.robot import Robot
from kinema4d_ros.ros import names

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk", megabytes=8.0) as made:
        yield made


@pytest.fixture
def graph() -> Iterator[Graph]:
    with own_domain():
        made = Graph()
        yield made
        made.close()


def test_the_disk_fills_while_the_recorder_writes(disk: SmallDisk, graph: Graph, figures: Figures) -> None:
    drivers = Drivers(graph, Robot.load("yam"), read_camera(share_path("calibration/demo_lab.yaml")).scaled(180, 120))
    health = HealthWatch(graph)
    recorder = NodeProcess("recorder", {"folder": str(disk.path / "runs")})
    try:
        recorder.wait_for_line("ready")
        health.wait("recorder", OK, "recording", START_S)
        time.sleep(2.0)
        disk.fill(leave_bytes=100_000)
        began = time.monotonic()
        health.wait("recorder", ERROR, ROOM_TEXT)
        told_s = time.monotonic() - began
        # It lives on and goes on saying so; the arm's messages reach everybody else.
        health.wait("recorder", ERROR, ROOM_TEXT)
        assert drivers.node.count_subscribers(names.JOINT_STATES.name) > 0
        assert recorder.process.poll() is None
    finally:
        code = recorder.stop()
    assert code == 0, recorder.text
    assert "Traceback" not in recorder.text
    (bag,) = (disk.path / "runs").iterdir()
    with opened_bag(bag) as (reader, notice):
        whole = sum(1 for _ in reader.messages())
    assert whole > 50
    assert "never finished" in notice
    fault = "disk full while the recorder writes"
    figures.note(fault, "diagnostics at ERROR after", round(told_s, 2), "s")
    figures.note(fault, "messages before that, readable", whole)


def test_a_recorder_on_a_read_only_disk_says_why_it_ends(disk: SmallDisk, figures: Figures) -> None:
    disk.read_only()
    recorder = NodeProcess("recorder", {"folder": str(disk.path / "runs")})
    try:
        wait_for(lambda: recorder.process.poll() is not None, START_S, "the recorder's end")
    finally:
        code = recorder.stop()
    assert code == 2, recorder.text
    assert "Traceback" not in recorder.text
    assert ErrorCode.FILE_NOT_WRITABLE.name in recorder.text
    assert str(disk.path) in recorder.text
    assert READ_ONLY_TEXT in recorder.text
    figures.note("recorder started on a read-only disk", "ends with code 2 and", ErrorCode.FILE_NOT_WRITABLE.name)


def test_a_recorder_started_on_a_full_disk_says_that_it_records_nothing(
    disk: SmallDisk, graph: Graph, figures: Figures
) -> None:
    """A folder and an empty file can still be made: it notices with the first messages."""
    Drivers(graph, Robot.load("yam"), read_camera(share_path("calibration/demo_lab.yaml")).scaled(180, 120))
    health = HealthWatch(graph)
    disk.fill()
    recorder = NodeProcess("recorder", {"folder": str(disk.path / "runs")})
    try:
        told_s = health.wait("recorder", ERROR, ROOM_TEXT, START_S)
        assert recorder.process.poll() is None
    finally:
        code = recorder.stop()
    assert code == 0, recorder.text
    assert "Traceback" not in recorder.text
    figures.note("recorder started on a full disk", "diagnostics at ERROR after", round(told_s, 2), "s")


@pytest.mark.parametrize("kind", ["full", "read-only"])
def test_a_node_needs_no_room_for_its_log(disk: SmallDisk, graph: Graph, kind: str, figures: Figures) -> None:
    """rcl writes every node's log to ROS_LOG_DIR."""
    logs = disk.path / "logs"
    logs.mkdir()
    if kind == "full":
        disk.fill()
    else:
        disk.read_only()
    health = HealthWatch(graph)
    gate = NodeProcess("gate", environment={"ROS_LOG_DIR": str(logs)})
    try:
        wait_for(lambda: health.of("gate")[0] >= 0 or gate.process.poll() is not None, START_S, "the gate")
        figures.note(f"{kind} disk under the log", "the node", "serves" if gate.process.poll() is None else gate.text)
        assert gate.process.poll() is None, gate.text
    finally:
        code = gate.stop()
    assert code == 0, gate.text


def test_shared_memory_is_full(figures: Figures) -> None:
    """DDS ends every process that imports it then, without a word: the graph is not even started, and says why."""
    if os.geteuid() != 0:
        pytest.skip("a /dev/shm of its own needs root")
    own = 'mount -t tmpfs -o size=64k tmpfs /dev/shm && head -c 64k /dev/zero > /dev/shm/full; exec "$@"'
    graph = ["unshare", "--mount", "sh", "-c", own, "sh", sys.executable, "-m", "kinema4d_ros.cli", "sim"]
    ended = subprocess.run([*graph, "--viewer", "false"], capture_output=True, text=True, timeout=START_S, check=False)
    assert ended.returncode != 0
    assert "shared memory (/dev/shm) is full" in ended.stderr, ended.stdout + ended.stderr
    assert "Traceback" not in ended.stderr
    figures.note("shared memory (/dev/shm) full", "kinema4d sim", "does not start, and says why")
