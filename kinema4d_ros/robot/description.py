"""`robot_description` for RViz and robot_state_publisher, and the hash that identifies a robot across machines."""

from __future__ import annotations

import hashlib
from pathlib import PurePosixPath
from typing import Literal
from xml.etree import ElementTree

import numpy as np

from kinema4d_ros.core.errors import RobotError
from kinema4d_ros.robot.model import Geometry, Robot
from kinema4d_ros.robot.packages import resolve_mesh
from kinema4d_ros.robot.xml_screen import screen_xml

__all__ = ["description_sha256", "robot_description"]


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


_DIGITS = 9
"""Decimals that are hashed: machines differ in the last bits of a rotation."""


def description_sha256(robot: Robot) -> str:
    """Hash what determines a robot's motion and contacts to 64 hex digits.

    Links with their masses and collision shapes, joints with their limits, and the gripper: the same on machines that
    keep the files in other folders. Meshes count by their file's name and scale, not by their triangles.
    """
    lines = [f"kinema4d robot 1 {robot.name} {robot.tool_link}"]
    for link in robot.links:
        mass = "" if link.inertial is None else _text(link.inertial.mass, link.inertial.center, link.inertial.inertia)
        lines += [f"link {link.name} {mass}", *(f"shape {_shape(shape)}" for shape in link.collisions)]
    for joint in robot.joints:
        limits = joint.limits
        lines.append(
            f"joint {joint.name} {joint.kind} {joint.parent} {joint.child} {joint.mimic} "
            + _text(joint.parent_T_joint, joint.axis, limits.lower, limits.upper, limits.velocity, limits.effort)
        )
    lines.append(f"gripper {robot.gripper}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _shape(shape: Geometry) -> str:
    mesh = PurePosixPath(shape.uri).name if shape.uri else ""
    return f"{shape.kind} {mesh} {_text(shape.link_T_geometry, shape.size)}"


def _text(*values: object) -> str:
    # Adding 0.0 turns -0.0 into 0.0.
    numbers = [np.round(np.asarray(value, dtype=np.float64), _DIGITS).ravel() + 0.0 for value in values]
    return " ".join(repr(number) for number in np.concatenate(numbers).tolist())
