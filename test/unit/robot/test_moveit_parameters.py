"""Parameters of move_group, RViz and MoveItPy: names and types of MoveIt, execution off, files where MoveIt looks.

The names were read in the sources of moveit2, branch jazzy (2.12.4); MoveIt itself is not installed here.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.panda_like import panda_like

from kinema4d_ros.core.errors import RobotError, SetupError
from kinema4d_ros.core.limits import POSITION_TOLERANCE_RAD
from kinema4d_ros.io.resources import share_path
from kinema4d_ros.robot import Robot
from kinema4d_ros.robot.moveit_files import MoveItFiles
from kinema4d_ros.ros.graph import SIM_ARGUMENTS, read_arguments, rviz_arguments
from kinema4d_ros.ros.moveit import MOVE_GROUP_PACKAGES, moveit_run, rviz_config, write_parameters

ROOT = Path(__file__).resolve().parents[3]
JOINT = r"robot_description_planning\.joint_limits\.\w+\."
READ = {
    "rdf_loader.cpp": r"robot_description|robot_description_semantic|publish_robot_description_semantic",
    "robot_model_loader.cpp": JOINT
    + r"(min_position|max_position|has_velocity_limits|max_velocity|has_acceleration_limits|max_acceleration)",
    "kinematics_parameters.yaml": r"robot_description_kinematics\.\w+\.(kinematics_solver"
    r"|kinematics_solver_search_resolution|kinematics_solver_timeout)",
    "move_group_interface.cpp": r"robot_description_planning\.default_(velocity|acceleration)_scaling_factor",
    "move_group.cpp": r"planning_pipelines|default_planning_pipeline|allow_trajectory_execution|monitor_dynamics",
    "moveit_cpp.hpp": r"planning_pipelines\.pipeline_names",
    "planning_pipeline_parameters.yaml": r"ompl\.(planning_plugins|request_adapters|response_adapters)",
    "ompl_interface.cpp": r"ompl\.(planner_configs\.\w+\.\w+|\w+\.(default_planner_config|planner_configs"
    r"|projection_evaluator|longest_valid_segment_fraction))",
    "planning_scene_monitor.cpp": r"publish_(planning_scene|geometry_updates|state_updates|transforms_updates)",
    "trajectory_execution_manager.cpp": r"moveit_manage_controllers|moveit_controller_manager",
}
"""Which source reads which parameter."""

PANEL = {
    "": {
        "Class", "Name", "Enabled", "Value", "Move Group Namespace", "Robot Description", "Planning Scene Topic",
        "Velocity_Scaling_Factor", "Acceleration_Scaling_Factor", "MoveIt_Planning_Time", "MoveIt_Planning_Attempts",
        "MoveIt_Allow_Replanning", "MoveIt_Allow_Sensor_Positioning", "MoveIt_Use_Constraint_Aware_IK",
        "MoveIt_Use_Cartesian_Path", "Planning Request", "Planned Path", "Scene Geometry", "Scene Robot",
    },
    "Planning Request": {
        "Planning Group", "Show Workspace", "Query Start State", "Query Goal State", "Interactive Marker Size",
        "Goal State Alpha",
    },
    "Planned Path": {"Trajectory Topic", "Robot Alpha", "Loop Animation", "Show Trail"},
    "Scene Geometry": {"Show Scene Geometry", "Scene Alpha"},
    "Scene Robot": {"Show Robot Visual", "Show Robot Collision"},
}  # fmt: skip
"""Properties of motion_planning_display.cpp, planning_scene_display.cpp and trajectory_visualization.cpp."""


@pytest.fixture(scope="module")
def files(yam: Robot) -> MoveItFiles:
    return MoveItFiles.find(yam)


def flat(parameters: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in parameters.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return found


@pytest.mark.parametrize("part", ["move_group", "rviz", "moveit_py"])
def test_moveit_reads_every_parameter(files: MoveItFiles, part: str) -> None:
    names = flat(getattr(files, part)())
    known = re.compile("|".join(READ.values()))
    assert [name for name in names if not known.fullmatch(name)] == []
    for name in ("robot_description", "robot_description_semantic"):
        assert names[name].lstrip().startswith("<")
    assert names["robot_description_kinematics.arm.kinematics_solver"]
    assert all(type(value) is float for name, value in names.items() if re.search(r"\.(max|min)_\w+$", name))


def test_move_group_cannot_execute_and_knows_no_controller(files: MoveItFiles) -> None:
    parameters = flat(files.move_group())
    assert parameters["allow_trajectory_execution"] is False
    # The manager is named, so that MoveIt does not take another; without names it has no controllers.
    assert parameters["moveit_controller_manager"] == "moveit_simple_controller_manager/MoveItSimpleControllerManager"
    assert not [name for name in parameters if "controller_names" in name or "action_ns" in name]
    for path in sorted((ROOT / "config" / "moveit").iterdir()):
        text = "\n".join(line.partition("#")[0] for line in path.read_text().splitlines())
        assert "arm_controller" not in text, path


def test_the_folded_arm_may_be_noisy_and_the_preview_accepts_it(files: MoveItFiles, yam: Robot) -> None:
    """MoveIt for Jazzy refuses a start state out of bounds; the folded arm rests on two limits."""
    limits = files.joint_limits["joint_limits"]
    folded = yam.pose("folded")
    for joint, q in zip(yam.actuated, folded, strict=True):
        at_limit = min(q - joint.limits.lower, joint.limits.upper - q) <= 0.0
        if joint.kind == "revolute" and at_limit:
            margin = joint.limits.lower - limits[joint.name]["min_position"]
            assert 0.004 < margin < POSITION_TOLERANCE_RAD, joint.name
    assert {name for name, limit in limits.items() if "min_position" in limit} == {"joint2", "joint3"}


def test_rcl_reads_the_parameter_files(files: MoveItFiles, tmp_path: Path) -> None:
    """With rcl's own parser: what YAML calls a float or a list may be refused there."""
    rclpy = pytest.importorskip("rclpy", reason="needs ROS 2")
    expected = flat(files.move_group())
    path = tmp_path / "move_group.yaml"
    write_parameters(path, files.move_group())
    context = rclpy.Context()
    rclpy.init(context=context, args=["--ros-args", "--params-file", str(path)], domain_id=77)
    try:
        node = rclpy.create_node(
            "move_group",
            context=context,
            allow_undeclared_parameters=True,
            automatically_declare_parameters_from_overrides=True,
        )
        read = {name: node.get_parameter(name).value for name in expected}
        node.destroy_node()
    finally:
        rclpy.shutdown(context=context)
    assert {k: list(v) if isinstance(v, (list, tuple)) else v for k, v in read.items()} == expected
    assert {name: type(value) for name, value in read.items() if not isinstance(expected[name], list)} == {
        name: type(value) for name, value in expected.items() if not isinstance(value, list)
    }


@pytest.mark.parametrize("namespace", ["", "lab1"])
def test_rviz_gets_the_panel_beside_its_displays(namespace: str) -> None:
    before = share_path("config/rviz/sim.rviz").read_text(encoding="utf-8")
    shown = yaml.safe_load(rviz_config(before, namespace, "arm"))["Visualization Manager"]["Displays"]
    *ours, panel = shown
    assert ours == yaml.safe_load(before)["Visualization Manager"]["Displays"]
    assert panel["Class"] == "moveit_rviz_plugin/MotionPlanning"
    for category, known in PANEL.items():
        assert set(panel[category] if category else panel) <= known
    prefix = f"/{namespace}" if namespace else ""
    assert panel["Planning Scene Topic"] == f"{prefix}/monitored_planning_scene"
    assert panel["Planned Path"]["Trajectory Topic"] == f"{prefix}/display_planned_path"
    assert panel["Planning Request"]["Planning Group"] == "arm"
    assert "{" not in str([v for v in panel.values() if isinstance(v, str)])


@pytest.fixture
def moveit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An ament prefix with MoveIt's packages; its move_group writes its arguments."""
    index = tmp_path / "share" / "ament_index" / "resource_index" / "packages"
    index.mkdir(parents=True)
    for package in MOVE_GROUP_PACKAGES:
        (index / package).touch()
    program = tmp_path / "lib" / "moveit_ros_move_group" / "move_group"
    program.parent.mkdir(parents=True)
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("AMENT_PREFIX_PATH", str(tmp_path), prepend=os.pathsep)
    return index


def values(**given: str) -> dict[str, str]:
    return read_arguments(SIM_ARGUMENTS, {"moveit": "true", **given})


def test_the_command_of_move_group_and_the_arguments_of_rviz(moveit: Path) -> None:
    given = values(namespace="/lab1/", use_sim_time="true")
    run = moveit_run(given)
    said = subprocess.run(run.move_group, check=True, capture_output=True, text=True).stdout.split()
    assert said[:4] == ["--ros-args", "-r", "__ns:=/lab1", "--params-file"]
    parameters = yaml.safe_load(Path(said[4]).read_text())["/**"]["ros__parameters"]
    assert parameters["use_sim_time"] is True
    assert parameters["allow_trajectory_execution"] is False
    arguments = rviz_arguments(given, run)
    assert "/lab1/monitored_planning_scene" in Path(arguments[arguments.index("-d") + 1]).read_text()
    assert arguments[arguments.index("-r") + 1] == "__ns:=/lab1"
    file = arguments[arguments.index("--params-file") + 1]
    assert arguments.index("--params-file") > arguments.index("--ros-args")
    read = yaml.safe_load(Path(file).read_text())["/**"]["ros__parameters"]
    assert {f"robot_description{end}" for end in ("", "_semantic", "_kinematics", "_planning")} <= set(read)


def test_what_is_missing_is_said_before_anything_starts(moveit: Path, tmp_path: Path) -> None:
    robot = panda_like(tmp_path)
    with pytest.raises(RobotError, match="has no SRDF"):
        moveit_run(values(robot=str(robot.path)))
    (moveit / "moveit_planners_ompl").unlink()
    with pytest.raises(SetupError, match="needs the package moveit_planners_ompl"):
        moveit_run(values())


def test_the_installed_share_is_what_moveit_configs_builder_looks_for(tmp_path: Path) -> None:
    """MoveItConfigsBuilder("yam", package_name="kinema4d_ros") reads these files of config/."""
    tree = tmp_path / "source"
    tree.mkdir()
    for name in ("setup.py", "setup.cfg", "package.xml", "pyproject.toml"):
        shutil.copy(ROOT / name, tree)
    for name in ("config", "requirements", "resource", "urdf", "calibration", "launch"):
        shutil.copytree(ROOT / name, tree / name)
    (tree / "kinema4d_ros").mkdir()
    (tree / "model").mkdir()
    subprocess.run(
        [sys.executable, "setup.py", "-q", "install_data", "--install-dir", str(tmp_path / "prefix")],
        cwd=tree,
        check=True,
        capture_output=True,
    )
    share = tmp_path / "prefix" / "share" / "kinema4d_ros"
    needed = ("yam.srdf", "kinematics.yaml", "joint_limits.yaml", "ompl_planning.yaml", "pilz_cartesian_limits.yaml")
    for name in needed:
        assert (share / "config" / name).read_bytes() == (ROOT / "config" / "moveit" / name).read_bytes()
        assert (share / "config" / "moveit" / name).is_file()
    # The builder takes the only *_controllers.yaml, and every *_planning.yaml as a pipeline.
    assert [p.name for p in (share / "config").glob("*_controllers.yaml")] == ["moveit_controllers.yaml"]
    assert [p.name for p in (share / "config").glob("*_planning.yaml")] == ["ompl_planning.yaml"]
    on_path = tmp_path / "prefix" / "bin" / "kinema4d"
    assert on_path.stat().st_mode & 0o111, "kinema4d is on the PATH of a colcon workspace"
    inside = tmp_path / "prefix" / "lib" / "kinema4d_ros" / "kinema4d"
    inside.parent.mkdir(parents=True)
    inside.write_text('#!/bin/sh\necho "it got $*"\n')
    inside.chmod(0o755)
    said = subprocess.run([str(on_path), "doctor", "--json"], check=True, capture_output=True, text=True)
    assert said.stdout == "it got doctor --json\n"
