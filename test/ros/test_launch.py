"""The launch files with the real launch and launch_ros; run in full where colcon has installed this package."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.motions import wait_until_ready
from support.ros_graph import ROOT, Graph
from support.sim_clock import SimClock
from support.sim_graph import client, kinema4d, small_camera

pytest.importorskip("launch_ros", reason="needs a ROS distribution's launch and launch_ros")

from ament_index_python.packages import PackageNotFoundError, get_package_prefix
from launch import LaunchContext
from launch.actions import DeclareLaunchArgument, ExecuteProcess, OpaqueFunction
from launch.launch_description_sources import get_launch_description_from_python_launch_file
from launch_ros.actions import Node

from kinema4d_ros.bridge import names
from kinema4d_ros.graph import GENERATOR_ARGUMENTS, SIM_ARGUMENTS, Argument, sim_graph

FILES = {"sim.launch.py": SIM_ARGUMENTS, "generator.launch.py": GENERATOR_ARGUMENTS}
WAIT_S = 240.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def described(name: str) -> Any:
    return get_launch_description_from_python_launch_file(str(ROOT / "launch" / name))


def started(name: str, arguments: tuple[Argument, ...], **given: str) -> list[Any]:
    """The actions that a launch with these arguments starts."""
    context = LaunchContext()
    context.launch_configurations.update({a.name: a.default for a in arguments} | given)
    (function,) = [e for e in described(name).entities if isinstance(e, OpaqueFunction)]
    return list(function.execute(context) or [])


@pytest.mark.parametrize("name", sorted(FILES))
def test_the_arguments_are_the_graph_s_and_described(name: str) -> None:
    declared = [e for e in described(name).entities if isinstance(e, DeclareLaunchArgument)]
    assert [d.name for d in declared] == [a.name for a in FILES[name]]
    assert all(len(d.description) > 5 for d in declared)


def test_every_node_of_the_graph_is_started() -> None:
    values = {a.name: a.default for a in SIM_ARGUMENTS}
    executables = [a.node_executable for a in started("sim.launch.py", SIM_ARGUMENTS) if isinstance(a, Node)]
    assert executables == [spec.executable for spec in sim_graph(values)]


def test_arguments_choose_what_is_started() -> None:
    with_all = started("sim.launch.py", SIM_ARGUMENTS, rviz="true", record="true", viewer="false")
    executables = [action.node_executable for action in with_all if isinstance(action, Node)]
    assert executables[-1] == "rviz2"
    assert "kinema4d_viewer" not in executables
    records = "kinema4d_recorder" in executables
    rosbag2 = any(isinstance(a, ExecuteProcess) and not isinstance(a, Node) for a in with_all)
    assert records != rosbag2


def installed() -> bool:
    """Whether `ros2 launch kinema4d_ros` would find our executables: colcon puts them there, pip does not."""
    try:
        return (Path(get_package_prefix("kinema4d_ros")) / "lib" / "kinema4d_ros" / "kinema4d_lab").is_file()
    except PackageNotFoundError:
        return False


def members(session: int) -> list[str]:
    """Command lines of all processes of a session."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and os.getsid(int(folder.name)) == session:
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                if command:
                    found.append(command)
        except (OSError, ProcessLookupError):
            continue
    return found


@contextmanager
def launched(log: Path, *arguments: str) -> Iterator[Any]:
    """`ros2 launch kinema4d_ros sim.launch.py` in a session of its own, ended by Ctrl-C."""
    code = "import sys; from ros2cli.cli import main; sys.exit(main(argv=sys.argv[1:]))"
    command = [sys.executable, "-c", code, "launch", "kinema4d_ros", "sim.launch.py", *arguments]
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, start_new_session=True, cwd=log.parent
        )
    try:
        yield process
        os.killpg(process.pid, signal.SIGINT)
        process.wait(timeout=60)
        deadline = time.monotonic() + 30
        while members(process.pid) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not members(process.pid), "Ctrl-C left processes behind"
    finally:
        if members(process.pid):
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.skipif(not installed(), reason="needs a colcon install of this package")
@pytest.mark.parametrize("sim_time", [False, True], ids=["wall clock", "simulation clock"])
def test_a_launched_graph_previews_a_plan_and_ends_on_ctrl_c(tmp_path: Path, sim_time: bool) -> None:
    pytest.importorskip("ros2launch", reason="needs ros2cli")
    params = tmp_path / "params.yaml"
    params.write_text("/**/viewer:\n  ros__parameters:\n    port: 0\n/**/preview:\n  ros__parameters:\n    frames: 9\n")
    space = "launched_sim" if sim_time else "launched"
    graph = Graph(threads=1)
    if sim_time:
        SimClock(graph)
    options = [f"namespace:={space}", f"params_file:={params}", f"calibration:={small_camera(tmp_path)}"]
    log = tmp_path / "launch.txt"
    try:
        with launched(log, *options, "rviz:=false", f"use_sim_time:={str(sim_time).lower()}") as process:
            deadline = time.monotonic() + WAIT_S
            while log.read_text().count("]: ready") < 7:
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.2)
            assert "the page is at http://127.0.0.1:" in log.read_text()
            with client(space) as heard:  # a fresh install compiles its kernels before the first picture
                heard.wait_for(lambda: heard.newest(names.ROBOT_OVERLAY) is not None, WAIT_S, "the live twin")
                wait_until_ready(heard)
            plan = ROOT / "config" / "demo" / "pick_and_place.csv"
            done = kinema4d("preview", "--trajectory", str(plan), "--namespace", space, "--timeout", str(WAIT_S))
            assert done.returncode == 0, done.stdout + done.stderr + log.read_text()
            assert "least clearance" in done.stdout
    finally:
        graph.close()
    for word in ("Traceback", "has died"):
        assert word not in log.read_text(), log.read_text()
