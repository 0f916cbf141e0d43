"""MoveIt beside the graph: the command of a move_group that plans and cannot execute, and RViz's panel for it.

`moveit:=true` ─> moveit_run(values) ─> MoveItRun.move_group   command of move_group, with its parameter file
                                        MoveItRun.rviz_displays(file), rviz_parameters   for RViz, with the panel

The parameters are written to files: the same ones serve `ros2 launch` and `kinema4d sim`.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from ament_index_python.packages import PackageNotFoundError, get_package_prefix

from kinema4d_ros.core.errors import SetupError
from kinema4d_ros.io.documents import parse_yaml
from kinema4d_ros.io.resources import share_path
from kinema4d_ros.robot.model import Robot
from kinema4d_ros.robot.moveit_files import MoveItFiles

__all__ = ["MOVE_GROUP_PACKAGES", "MoveItRun", "moveit_run", "rviz_config", "write_parameters"]

MOVE_GROUP_PACKAGES = ("moveit_ros_move_group", "moveit_kinematics", "moveit_planners_ompl")
"""Packages that a move_group with our configuration needs."""


@dataclass(frozen=True)
class MoveItRun:
    """Files and commands of one start.

    Attributes:
        move_group: program and arguments.
        folder: holds the files; removed when this process exits.
        rviz_parameters: parameter file for RViz.
        namespace, group: of the graph, and of the arm in the SRDF.
    """

    move_group: tuple[str, ...]
    folder: Path
    rviz_parameters: Path
    namespace: str
    group: str

    def rviz_displays(self, config: Path) -> Path:
        """Write a display configuration with MoveIt's panel added and return its path."""
        path = self.folder / "moveit.rviz"
        path.write_text(rviz_config(config.read_text(encoding="utf-8"), self.namespace, self.group), encoding="utf-8")
        return path


def moveit_run(values: Mapping[str, str]) -> MoveItRun:
    """Write the files for the graph's arguments.

    Raises:
        SetupError: MoveIt is not installed.
        RobotError: the robot has no SRDF.
    """
    prefix, *_ = [_prefix(package) for package in MOVE_GROUP_PACKAGES]
    files = MoveItFiles.find(Robot.load(values["robot"]))
    folder = Path(tempfile.mkdtemp(prefix="kinema4d_moveit_"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    sim_time = {"use_sim_time": values["use_sim_time"].lower() == "true"}
    namespace = values["namespace"].strip("/")
    write_parameters(folder / "move_group.yaml", files.move_group() | sim_time)
    write_parameters(folder / "rviz.yaml", files.rviz() | sim_time)
    program = Path(prefix) / "lib" / MOVE_GROUP_PACKAGES[0] / "move_group"
    remap = ["-r", f"__ns:=/{namespace}"] if namespace else []
    command = (str(program), "--ros-args", *remap, "--params-file", str(folder / "move_group.yaml"))
    return MoveItRun(command, folder, folder / "rviz.yaml", namespace, files.group)


def _prefix(package: str) -> str:
    try:
        return str(get_package_prefix(package))
    except PackageNotFoundError:
        raise SetupError(
            f"moveit:=true needs the package {package}, which is not installed",
            expected="MoveIt 2 of the sourced ROS distribution",
            hint="sudo apt install ros-jazzy-moveit, or omit moveit:=true: plans can come from any other planner",
        ) from None


def write_parameters(path: Path, parameters: Mapping[str, Any]) -> None:
    """Write a ROS parameter file for every node that is given it."""
    path.write_text(yaml.safe_dump({"/**": {"ros__parameters": dict(parameters)}}, sort_keys=False), encoding="utf-8")


def rviz_config(text: str, namespace: str, group: str) -> str:
    """Return an RViz configuration with the displays of config/rviz/moveit.rviz added for a namespace and a group."""
    config = parse_yaml(text.encode(), "the RViz configuration")
    fragment = share_path("config/rviz/moveit.rviz").read_text(encoding="utf-8")
    prefix = f"/{namespace.strip('/')}" if namespace else ""
    panel = parse_yaml(fragment.replace("{prefix}", prefix).replace("{group}", group).encode(), "moveit.rviz")
    config["Visualization Manager"]["Displays"] += panel["Displays"]
    return str(yaml.safe_dump(config, sort_keys=False))
