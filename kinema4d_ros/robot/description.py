"""`robot_description` for RViz and robot_state_publisher: the URDF with mesh URIs that they can open."""

from __future__ import annotations

from typing import Literal
from xml.etree import ElementTree

from kinema4d_ros.core.errors import RobotError
from kinema4d_ros.robot.model import Robot
from kinema4d_ros.robot.packages import resolve_mesh
from kinema4d_ros.robot.xml_screen import screen_xml

__all__ = ["robot_description"]


def robot_description(robot: Robot, uri: Literal["file", "package"] = "file") -> str:
    """Return the URDF text with xacro expanded.

    Args:
        robot: a robot loaded from a file.
        uri: "file" converts every mesh URI to an absolute `file://` URI, which RViz opens without a ROS package of
            that name (i2rt is a Python package). "package" keeps `package://` URIs and only makes relative paths
            absolute, for machines on which the packages are ROS packages, possibly other than this one.
    """
    if uri not in ("file", "package"):
        raise RobotError(f"uri is {uri!r}", expected='"file" or "package"')
    if robot.path is None or not robot.urdf:
        raise RobotError(
            f"robot '{robot.name}' was not loaded from a file",
            expected="a robot from Robot.load",
        )
    root = screen_xml(robot.urdf, str(robot.path))
    for mesh in root.iter("mesh"):
        written = mesh.get("filename", "")
        if uri == "package" and written.startswith("package://"):
            continue
        mesh.set("filename", resolve_mesh(written, robot.path).path.resolve().as_uri())
    return ElementTree.tostring(root, encoding="unicode")
