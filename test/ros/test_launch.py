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
from support.killed_graph import MARK, marked
from support.motions import wait_until_ready
from support.ros_graph import ROOT, wait_for
from support.sim_graph import client, kinema4d, process_environment, small_camera

pytest.importorskip("launch_ros", reason="needs a ROS distribution's launch and launch_ros")

from ament_index_python.packages import PackageNotFoundError, get_package_prefix
from launch import LaunchContext
from launch.actions import DeclareLaunchArgument, ExecuteProcess, OpaqueFunction, Shutdown
from launch.launch_description_sources import get_launch_description_from_python_launch_file
from launch_ros.actions import Node

from kinema4d_ros.core.errors import SetupError
from kinema4d_ros.ros import names
from kinema4d_ros.ros.graph import GENERATOR_ARGUMENTS, SIM_ARGUMENTS, Argument, NodeSpec, sim_graph
from kinema4d_ros.ros.launching import _shutdown_without
from kinema4d_ros.ros.moveit import MOVE_GROUP_PACKAGES
from kinema4d_ros.runtime.processes import FATAL_EXIT

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


@pytest.fixture
def rviz2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package of that name in an ament prefix; nothing starts it."""
    (tmp_path / "share" / "ament_index" / "resource_index" / "packages").mkdir(parents=True)
    (tmp_path / "share" / "ament_index" / "resource_index" / "packages" / "rviz2").touch()
    monkeypatch.setenv("AMENT_PREFIX_PATH", str(tmp_path), prepend=os.pathsep)


def test_without_moveit_nothing_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMENT_PREFIX_PATH", str(tmp_path))
    with pytest.raises(SetupError, match="moveit_ros_move_group"):
        started("sim.launch.py", SIM_ARGUMENTS, moveit="True")


def test_without_rviz2_nothing_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMENT_PREFIX_PATH", str(tmp_path))
    with pytest.raises(SetupError, match="rviz2 is not installed"):
        started("sim.launch.py", SIM_ARGUMENTS, rviz="True")


def test_a_needed_node_that_cannot_work_ends_the_launch() -> None:
    gate, viewer = (NodeSpec(name, "", essential=name == "gate") for name in ("gate", "viewer"))
    (shutdown,) = _shutdown_without(gate, FATAL_EXIT)
    assert isinstance(shutdown, Shutdown)
    assert _shutdown_without(gate, 1) == _shutdown_without(viewer, FATAL_EXIT) == []


@pytest.mark.usefixtures("rviz2")
def test_arguments_choose_what_is_started() -> None:
    with_all = started("sim.launch.py", SIM_ARGUMENTS, rviz="true", record="true", viewer="false")
    executables = [action.node_executable for action in with_all if isinstance(action, Node)]
    assert executables[-1] == "rviz2"
    assert "kinema4d_viewer" not in executables
    records = "kinema4d_recorder" in executables
    rosbag2 = any(isinstance(a, ExecuteProcess) and not isinstance(a, Node) for a in with_all)
    assert records != rosbag2


@pytest.mark.usefixtures("rviz2")
def test_moveit_starts_a_move_group_and_gives_rviz_its_panel(tmp_path: Path) -> None:
    for package in MOVE_GROUP_PACKAGES:
        (tmp_path / "share" / "ament_index" / "resource_index" / "packages" / package).touch()
    actions = started("sim.launch.py", SIM_ARGUMENTS, rviz="true", moveit="true")
    assert "kinema4d_scene" in [action.node_executable for action in actions if isinstance(action, Node)]
    (move_group,) = [a for a in actions if type(a) is ExecuteProcess and "move_group" in command_of(a)[-1]]
    assert str(tmp_path / "lib" / "moveit_ros_move_group" / "move_group") in command_of(move_group)
    arguments = command_of(next(a for a in actions if isinstance(a, Node) and a.node_executable == "rviz2"))
    assert "moveit_rviz_plugin/MotionPlanning" in Path(arguments[arguments.index("-d") + 1]).read_text()
    assert "robot_description_kinematics" in Path(arguments[arguments.index("--params-file") + 1]).read_text()


def command_of(action: Any) -> list[str]:
    """The words of a process that are known before it starts."""
    words = [[part.text for part in word if hasattr(part, "text")] for word in action.cmd]
    return ["".join(parts) for parts in words]


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
    options = [f"namespace:={space}", f"params_file:={params}", f"calibration:={small_camera(tmp_path)}"]
    log = tmp_path / "launch.txt"
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
    for word in ("Traceback", "has died"):
        assert word not in log.read_text(), log.read_text()


LAUNCH = """
import sys
from launch import LaunchDescription, LaunchService
from launch.actions import IncludeLaunchDescription
from launch.launch_description_sources import PythonLaunchDescriptionSource
given = [argument.split(":=") for argument in sys.argv[2:]]
service = LaunchService()
included = IncludeLaunchDescription(PythonLaunchDescriptionSource(sys.argv[1]), launch_arguments=given)
service.include_launch_description(LaunchDescription([included]))
sys.exit(service.run())
"""


@pytest.mark.skipif(not installed(), reason="needs a colcon install of this package")
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, None], ids=["SIGKILL", "SIGTERM", "a node refuses"])
def test_no_node_outlives_its_launch(tmp_path: Path, end: signal.Signals | None) -> None:
    mark, log, params = f"{os.getpid()}-{time.monotonic_ns()}", tmp_path / "log.txt", tmp_path / "params.yaml"
    params.write_text(f"generator:\n  ros__parameters: {{queue: {1 if end else -1}}}\n")
    arguments = ["preset:=composite", f"params_file:={params}"]
    with log.open("wb") as out:
        launch = subprocess.Popen(
            [sys.executable, "-c", LAUNCH, str(ROOT / "launch" / "generator.launch.py"), *arguments],
            stdout=out,
            stderr=subprocess.STDOUT,
            env=process_environment({MARK: mark}),
        )
    try:
        if end is not None:
            wait_for(lambda: "]: ready" in log.read_text() or launch.poll() is not None, WAIT_S, "a node")
            launch.send_signal(end)
        launch.wait(timeout=WAIT_S)
        wait_for(lambda: not marked(mark), WAIT_S, f"the end of {marked(mark)}")
    finally:
        for pid in marked(mark, pids=True):
            os.kill(int(pid), signal.SIGKILL)
        launch.wait()
    assert end is not None or "was required: shutting down" in log.read_text(), log.read_text()
