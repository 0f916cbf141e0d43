"""What MoveIt needs to know about a robot beyond its URDF, as ROS parameters.

yam             config/moveit/: yam.srdf, kinematics.yaml, joint_limits.yaml, ompl_planning.yaml
any other one   beside its URDF: ROBOT.srdf, and optionally ROBOT.kinematics.yaml, ROBOT.joint_limits.yaml and
                ROBOT.ompl_planning.yaml; without them KDL, the URDF's limits and RRTConnect are used

The parameter names are those of MoveIt for ROS 2 Jazzy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

from kinema4d_ros.core.errors import ErrorCode, RobotError
from kinema4d_ros.io.documents import parse_yaml
from kinema4d_ros.io.files import read_bytes
from kinema4d_ros.io.resources import share_directory, share_path
from kinema4d_ros.robot.description import robot_description
from kinema4d_ros.robot.model import Robot
from kinema4d_ros.robot.robot_file import sidecar_path
from kinema4d_ros.robot.xml_screen import screen_xml

__all__ = ["CONFIG", "PIPELINE", "MoveItFiles", "find_group"]

CONFIG = "config/moveit"
"""Folder of our own robot's files; setup.py installs them in `config/` too, where MoveItConfigsBuilder looks."""

PIPELINE = "ompl"

SOLVER = {"kinematics_solver": "kdl_kinematics_plugin/KDLKinematicsPlugin", "kinematics_solver_timeout": 0.05}
PLANNER = "RRTConnect"

_MAX_BYTES = 4_000_000


@dataclass(frozen=True, eq=False)
class MoveItFiles:
    """MoveIt's description of one robot.

    Attributes:
        robot: the robot.
        srdf: text of the SRDF.
        path: the SRDF's file.
        group: name of the SRDF's group with exactly the arm's joints.
        kinematics, joint_limits, ompl: contents of the YAML files.
    """

    robot: Robot
    srdf: str
    path: Path
    group: str
    kinematics: Mapping[str, Any]
    joint_limits: Mapping[str, Any]
    ompl: Mapping[str, Any]

    @classmethod
    def find(cls, robot: Robot) -> MoveItFiles:
        """Find and read the files of a robot; raise FILE_MISSING or FILE_MALFORMED with what is lacking."""
        path = _srdf_path(robot)
        srdf = read_bytes(path, _MAX_BYTES).decode("utf-8", errors="replace")
        group = find_group(robot, screen_xml(srdf, str(path)), path)
        own = path.parent == share_directory() / CONFIG

        def document(name: str) -> dict[str, Any] | None:
            file = path.with_name(f"{name}.yaml" if own else f"{path.name.removesuffix('.srdf')}.{name}.yaml")
            return _mapping(file) if file.is_file() else None

        ompl = document("ompl_planning")
        if ompl is None:  # our pipeline with our planners, without our groups
            ours = _mapping(share_path(f"{CONFIG}/ompl_planning.yaml"))
            ompl = {name: value for name, value in ours.items() if not _is_group(value)}
            ompl[group] = {"default_planner_config": PLANNER, "planner_configs": list(ompl["planner_configs"])}
        kinematics = document("kinematics") or {group: dict(SOLVER)}
        if group not in kinematics:
            raise RobotError(
                f"the kinematics file beside {path} has no group '{group}'; it has {', '.join(kinematics)}",
                expected=f"a solver for '{group}', the group of the arm's joints in the SRDF",
                code=ErrorCode.FILE_MALFORMED,
            )
        return cls(robot, srdf, path, group, kinematics, document("joint_limits") or {}, ompl)

    def description(self) -> dict[str, Any]:
        """Return the parameters that every part of MoveIt reads: robot, groups, solvers and limits.

        Mesh URIs are `file://`: the packages of the URDF need not be ROS packages.
        """
        parameters: dict[str, Any] = {
            "robot_description": robot_description(self.robot),
            "robot_description_semantic": self.srdf,
            "robot_description_kinematics": dict(self.kinematics),
        }
        if self.joint_limits:
            parameters["robot_description_planning"] = dict(self.joint_limits)
        return parameters

    def move_group(self) -> dict[str, Any]:
        """Return the parameters of a move_group that plans and cannot execute."""
        return {
            **self.description(),
            "planning_pipelines": [PIPELINE],
            "default_planning_pipeline": PIPELINE,
            PIPELINE: dict(self.ompl),
            **_mapping(share_path(f"{CONFIG}/moveit_controllers.yaml")),
            "publish_planning_scene": True,
            "publish_geometry_updates": True,
            "publish_state_updates": True,
            "publish_transforms_updates": True,
            "publish_robot_description_semantic": True,
            "monitor_dynamics": False,
        }

    def rviz(self) -> dict[str, Any]:
        """Return the parameters of an RViz with MoveIt's MotionPlanning display."""
        return {**self.description(), "planning_pipelines": [PIPELINE], "default_planning_pipeline": PIPELINE}

    def moveit_py(self) -> dict[str, Any]:
        """Return the parameters of a `moveit.planning.MoveItPy`, which nests the names of its pipelines."""
        return {**self.description(), "planning_pipelines": {"pipeline_names": [PIPELINE]}, PIPELINE: dict(self.ompl)}


def find_group(robot: Robot, srdf: Element, path: Path) -> str:
    """Return the name of the SRDF's group with exactly the joints from the base to the tool.

    Raises:
        RobotError: FILE_MALFORMED, with the groups that the SRDF has.
    """
    arm = [joint.name for joint in robot.arm]
    groups = {group.get("name", ""): _joints(robot, srdf, group) for group in srdf.findall("group")}
    for name, joints in groups.items():
        if joints == arm:
            return name
    listed = "; ".join(f"{name}: {', '.join(joints) or 'no moving joint'}" for name, joints in groups.items())
    raise RobotError(
        f"{path} has no group of the joints {', '.join(arm)}; its groups are: {listed or 'none'}",
        expected=f'<group name="arm"><chain base_link="{robot.base_link}" tip_link="{robot.tool_link}"/></group>',
        hint="or set tool_link in the robot's .robot.yaml to the tip of the SRDF's group",
        code=ErrorCode.FILE_MALFORMED,
    )


def _joints(robot: Robot, srdf: Element, group: Element, depth: int = 0) -> list[str]:
    """Return the actuated joints of a group, base first; unknown names have none."""
    links = {link.name for link in robot.links}
    found: set[str] = set()
    for element in group:
        name = element.get("name", "")
        if element.tag == "chain" and {element.get("base_link"), element.get("tip_link")} <= links:
            base = robot.chain(element.attrib["base_link"])
            found |= set(robot.chain(element.attrib["tip_link"])) - set(base)
        elif element.tag == "joint":
            found.add(name)
        elif element.tag == "link":
            found |= {joint.name for joint in robot.joints if joint.child == name}
        elif element.tag == "group" and depth < 8:
            for other in srdf.findall("group"):
                if other.get("name") == name:
                    found |= set(_joints(robot, srdf, other, depth + 1))
    return [name for name in robot.joint_names if name in found]


def _srdf_path(robot: Robot) -> Path:
    candidates = [share_directory() / CONFIG / f"{robot.name}.srdf"]
    if robot.path is not None:
        beside = sidecar_path(robot.path).name.removesuffix(".robot.yaml")
        candidates.insert(0, robot.path.with_name(f"{beside}.srdf"))
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    raise RobotError(
        f"robot '{robot.name}' has no SRDF",
        expected=" or ".join(map(str, candidates)),
        hint="MoveIt's setup assistant writes one; config/moveit/yam.srdf is an example",
        code=ErrorCode.FILE_MISSING,
    )


def _mapping(path: Path) -> dict[str, Any]:
    data = parse_yaml(read_bytes(path, _MAX_BYTES), path)
    if not isinstance(data, dict):
        raise RobotError(
            f"{path} is not a mapping", expected="parameter names with values", code=ErrorCode.FILE_MALFORMED
        )
    return data


def _is_group(value: object) -> bool:
    return isinstance(value, dict) and "default_planner_config" in value
