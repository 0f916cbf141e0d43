"""URDF and xacro files as `Robot`: every number checked, every mesh loaded, clear errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray
from urdf_parser_py.urdf import URDF

from kinema4d_ros.core.errors import ErrorCode, FileFormatError, RobotError
from kinema4d_ros.io.files import read_bytes, reading
from kinema4d_ros.io.resources import share_directory
from kinema4d_ros.robot.geometry import Materials, read_geometry
from kinema4d_ros.robot.model import Inertial, Joint, JointLimits, Link, Mimic, Robot
from kinema4d_ros.robot.semantics import load_semantics, sidecar_path
from kinema4d_ros.robot.structure import prune_urdf
from kinema4d_ros.robot.tree import order_tree, resolve_mimics
from kinema4d_ros.robot.values import finite, pose_matrix
from kinema4d_ros.robot.xml_screen import MAX_XML_BYTES, screen_xml

__all__ = ["available_robots", "load_robot"]

_MOVING = {"revolute", "continuous", "prismatic"}


def load_robot(source: str | Path) -> Robot:
    """A robot by name ("yam") or by the path of a .urdf or .xacro file.

    A name is a string without a slash and without a suffix; the robots that come with the package
    are in `urdf/`. `<robot>.robot.yaml` beside the file adds tool link, gripper and poses (see
    `kinema4d_ros.robot.semantics`).
    """
    path = _find(source)
    with reading(path, "a URDF with all required elements and attributes", error=RobotError):
        return _load(path)


def _load(path: Path) -> Robot:
    text = _expand(path) if path.suffix == ".xacro" else _read_text(path)
    root = screen_xml(text, str(path))
    prune_urdf(root, str(path))
    try:
        parsed = URDF.from_xml_string(ElementTree.tostring(root, encoding="unicode"))
    except Exception as error:  # urdf_parser_py raises bare Exception, AssertionError, TypeError, ValueError
        raise RobotError(
            f"{path} is not a usable URDF: {' '.join(str(error).split())}",
            expected="a URDF with all required elements and attributes",
            hint="`check_urdf` and http://wiki.ros.org/urdf/XML describe the format",
        ) from error

    materials = Materials(parsed, path)
    links, joints = order_tree(
        [_read_link(link, materials, path) for link in parsed.links],
        [_read_joint(joint) for joint in parsed.joints],
    )
    joints = resolve_mimics(joints)
    semantics = load_semantics(sidecar_path(path), links, joints)
    return Robot(
        name=parsed.name,
        links=links,
        joints=joints,
        tool_link=semantics.tool_link,
        urdf=text,
        path=path,
        gripper=semantics.gripper,
        home=semantics.home,
        poses=semantics.poses,
    )


def available_robots() -> tuple[str, ...]:
    """Names that `load_robot` knows without a path."""
    return tuple(sorted(file.stem for file in (share_directory() / "urdf").glob("*.urdf")))


def _find(source: str | Path) -> Path:
    if isinstance(source, str) and "/" not in source and not Path(source).suffix:
        path = share_directory() / "urdf" / f"{source}.urdf"
        if not path.is_file():
            raise RobotError(
                f"there is no robot called '{source}'",
                expected=f"one of {', '.join(available_robots())}, or the path of a .urdf or .xacro file",
                code=ErrorCode.FILE_MISSING,
            )
        return path
    path = Path(source)
    if path.suffix not in {".urdf", ".xacro", ".xml"}:
        raise FileFormatError(
            f"robot file '{path}' has the suffix '{path.suffix}'",
            expected=".urdf or .xacro",
            code=ErrorCode.FILE_UNSUPPORTED,
        )
    if not path.is_file():
        raise FileFormatError(
            f"robot file '{path}' does not exist",
            expected="the path of a .urdf or .xacro file",
            code=ErrorCode.FILE_MISSING,
        )
    return path


def _read_text(path: Path) -> str:
    if path.stat().st_size > MAX_XML_BYTES:
        raise RobotError(f"{path} has {path.stat().st_size} bytes", expected="a URDF file", code=ErrorCode.URDF_UNSAFE)
    data = read_bytes(path)
    root = screen_xml(data, str(path))  # on bytes: here the XML declaration decides the encoding
    return data.decode("utf-8") if _is_utf8(data) else ElementTree.tostring(root, encoding="unicode")


def _expand(path: Path) -> str:
    from kinema4d_ros.robot.xacro_file import expand_xacro  # most robots need no xacro

    return expand_xacro(path)


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _read_link(link: Any, materials: Materials, path: Path) -> Link:
    where = f"link '{link.name}'"
    return Link(
        name=link.name,
        visuals=tuple(read_geometry(v, f"{where} visual", path, materials) for v in link.visuals),
        collisions=tuple(read_geometry(c, f"{where} collision", path, None) for c in link.collisions),
        inertial=None if link.inertial is None else _read_inertial(link.inertial, where),
    )


def _read_inertial(inertial: Any, where: str) -> Inertial:
    mass = float(finite([inertial.mass], f"{where} mass", 1)[0])
    if mass < 0:
        raise RobotError(f"{where} has mass {mass}", expected="0 or more kg")
    link_T_inertial = pose_matrix(inertial.origin, f"{where} inertial origin")
    I = np.zeros((3, 3))  # noqa: E741
    if inertial.inertia is not None:
        I = finite(inertial.inertia.to_matrix(), f"{where} inertia", 9).reshape(3, 3)  # noqa: E741
    R = link_T_inertial[:3, :3]
    return Inertial(mass=mass, center=link_T_inertial[:3, 3], inertia=R @ I @ R.T)


def _read_joint(joint: Any) -> Joint:
    where = f"joint '{joint.name}'"
    if joint.type not in _MOVING | {"fixed"}:
        raise RobotError(
            f"{where} is of type '{joint.type}'",
            expected="revolute, continuous, prismatic or fixed",
            hint="fix the base with a fixed joint; floating and planar joints have no single position",
            code=ErrorCode.URDF_UNSUPPORTED,
        )
    return Joint(
        name=joint.name,
        kind=joint.type,
        parent=joint.parent,
        child=joint.child,
        parent_T_joint=pose_matrix(joint.origin, f"{where} origin"),
        axis=_read_axis(joint, where),
        limits=_read_limits(joint, where),
        mimic=_read_mimic(joint, where),
    )


def _read_axis(joint: Any, where: str) -> NDArray[np.float64]:
    if joint.type == "fixed":
        return np.array([1.0, 0.0, 0.0])
    axis = finite([1.0, 0.0, 0.0] if joint.axis is None else joint.axis, f"{where} axis", 3)
    norm = float(np.linalg.norm(axis))
    if norm < 1e-9:
        raise RobotError(f"{where} has the axis {axis.tolist()}", expected="a direction")
    # An axis of norm 1 keeps its digits: dividing could cost the last one.
    return axis if norm == 1.0 else axis / norm


def _read_limits(joint: Any, where: str) -> JointLimits:
    if joint.type == "fixed":
        return JointLimits(0.0, 0.0, 0.0, 0.0)
    if joint.limit is None:
        if joint.type != "continuous":
            raise RobotError(
                f"{where} is {joint.type} and has no <limit>",
                expected="<limit lower upper effort velocity>",
                hint="a joint that turns without end is of type continuous",
            )
        return JointLimits(-np.inf, np.inf, np.inf, np.inf)
    numbers = [joint.limit.lower, joint.limit.upper, joint.limit.velocity, joint.limit.effort]
    lower, upper, velocity, effort = (float(x) for x in finite(numbers, f"{where} limit", 4))
    if velocity < 0 or effort < 0:
        raise RobotError(f"{where} has velocity {velocity} and effort {effort}", expected="0 or more")
    if joint.type == "continuous":
        return JointLimits(-np.inf, np.inf, velocity, effort)
    if lower > upper:
        raise RobotError(f"{where} has limits [{lower}, {upper}]", expected="lower <= upper")
    return JointLimits(lower, upper, velocity, effort)


def _read_mimic(joint: Any, where: str) -> Mimic | None:
    if joint.mimic is None:
        return None
    given = [
        1.0 if joint.mimic.multiplier is None else joint.mimic.multiplier,
        0.0 if joint.mimic.offset is None else joint.mimic.offset,
    ]
    multiplier, offset = (float(x) for x in finite(given, f"{where} mimic", 2))
    return Mimic(joint=joint.mimic.joint, multiplier=multiplier, offset=offset)
