"""URDF and xacro files to `Robot`: tree order, spelling checks, checked numbers, meshes, sandboxed xacro."""

from __future__ import annotations

import difflib
import json
import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import numpy as np
from numpy.typing import NDArray
from urdf_parser_py.urdf import URDF

from kinema4d_ros.core.errors import ErrorCode, FileFormatError, RobotError
from kinema4d_ros.io.files import read_bytes, reading
from kinema4d_ros.io.resources import share_directory
from kinema4d_ros.robot.geometry import Materials, finite, pose_matrix, read_geometry
from kinema4d_ros.robot.model import Inertial, Joint, JointLimits, Link, Mimic, Robot
from kinema4d_ros.robot.packages import urdf_root
from kinema4d_ros.robot.robot_file import load_semantics, sidecar_path
from kinema4d_ros.robot.xml_screen import MAX_XML_BYTES, screen_xml
from kinema4d_ros.runtime.child import how_it_ended, run_program

__all__ = [
    "TIME_LIMIT_S",
    "available_robots",
    "expand_xacro",
    "load_robot",
    "order_tree",
    "prune_urdf",
    "resolve_mimics",
]

# Joint order: one root, no loops, parents first, every mimic joint resolved to its actuated leader.


def order_tree(links: Sequence[Link], joints: Sequence[Joint]) -> tuple[tuple[Link, ...], tuple[Joint, ...]]:
    """Return links and joints depth first in file order, so that `joints[i]` leads to `links[i + 1]`."""
    if not links:
        raise RobotError("the URDF has no links", expected="at least one <link>")
    _refuse_duplicates("link", [link.name for link in links])
    _refuse_duplicates("joint", [joint.name for joint in joints])
    by_name = {link.name: link for link in links}
    for joint in joints:
        for role, name in (("parent", joint.parent), ("child", joint.child)):
            if name not in by_name:
                raise RobotError(
                    f"joint '{joint.name}' has the unknown {role} link '{name}'",
                    expected=f"one of {', '.join(by_name)}",
                )
    parent_joint: dict[str, Joint] = {}
    for joint in joints:
        if joint.child in parent_joint:
            raise RobotError(
                f"link '{joint.child}' is the child of joints '{parent_joint[joint.child].name}' and '{joint.name}'",
                expected="a tree: every link has one parent",
            )
        parent_joint[joint.child] = joint
    roots = [name for name in by_name if name not in parent_joint]
    if len(roots) != 1:
        raise RobotError(
            f"the URDF has {len(roots)} root links{': ' if roots else ''}{', '.join(roots)}",
            expected="exactly one link that is no joint's child",
            hint="join the parts with a fixed joint" if roots else "the joints form a loop",
        )
    children: dict[str, list[Joint]] = {name: [] for name in by_name}
    for joint in joints:
        children[joint.parent].append(joint)
    ordered_links = [by_name[roots[0]]]
    ordered_joints: list[Joint] = []
    stack = children[roots[0]][::-1]
    while stack:
        joint = stack.pop()
        ordered_joints.append(joint)
        ordered_links.append(by_name[joint.child])
        stack.extend(children[joint.child][::-1])
    if len(ordered_links) != len(links):
        lost = sorted(set(by_name) - {link.name for link in ordered_links})
        raise RobotError(f"links {', '.join(lost)} form a loop", expected="a tree that starts at one root")
    return tuple(ordered_links), tuple(ordered_joints)


def resolve_mimics(joints: Sequence[Joint]) -> tuple[Joint, ...]:
    """Resolve every mimic joint directly to an actuated leader; chains are multiplied out."""
    by_name = {joint.name: joint for joint in joints}
    return tuple(
        replace(joint, mimic=_leader(joint, by_name)) if joint.mimic is not None else joint for joint in joints
    )


def _leader(joint: Joint, by_name: dict[str, Joint]) -> Mimic | None:
    if not joint.moves or joint.mimic is None:
        return None
    name, multiplier, offset = joint.mimic.joint, joint.mimic.multiplier, joint.mimic.offset
    seen = [joint.name]
    while True:
        if name not in by_name:
            raise RobotError(
                f"joint '{seen[-1]}' mimics the unknown joint '{name}'",
                expected=f"one of {', '.join(by_name)}",
            )
        if name in seen:
            raise RobotError(
                f"joints {' -> '.join([*seen, name])} mimic each other in a loop",
                expected="a joint that moves by itself at the end of the chain",
            )
        leader = by_name[name]
        if not leader.moves:
            raise RobotError(f"joint '{seen[-1]}' mimics the fixed joint '{name}'", expected="a moving joint")
        if leader.mimic is None:
            return Mimic(joint=name, multiplier=multiplier, offset=offset)
        seen.append(name)
        # x = m * y + o and y = m2 * z + o2 give x = (m * m2) * z + (m * o2 + o).
        offset += multiplier * leader.mimic.offset
        multiplier *= leader.mimic.multiplier
        name = leader.mimic.joint


def _refuse_duplicates(kind: str, names: list[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise RobotError(f"{names.count(name)} {kind}s are called '{name}'", expected="unique names")


# Structure check of the URDF XML before parsing.
#
# urdf_parser_py only prints to stderr for an unknown tag, so `<orgin>` would silently put a link in the wrong
# place. Here a tag or attribute that looks like a misspelt URDF one is an error; anything else unknown
# (simulator and control extensions) is removed and logged.

_LOG = logging.getLogger(__name__)

_CHILDREN: dict[str, set[str]] = {
    "robot": {"link", "joint", "material"},
    "link": {"inertial", "visual", "collision"},
    "inertial": {"origin", "mass", "inertia"},
    "visual": {"origin", "geometry", "material"},
    "collision": {"origin", "geometry"},
    "geometry": {"box", "cylinder", "sphere", "mesh"},
    "material": {"color", "texture"},
    "joint": {"origin", "axis", "parent", "child", "limit", "dynamics", "safety_controller", "calibration", "mimic"},
}
_REPEATABLE = {"link", "joint", "material", "visual", "collision"}
_ATTRIBUTES: dict[str, set[str]] = {
    "robot": {"name", "version"},
    "link": {"name"},
    "joint": {"name", "type"},
    "visual": {"name"},
    "collision": {"name"},
    "material": {"name"},
    "origin": {"xyz", "rpy"},
    "mass": {"value"},
    "inertia": {"ixx", "ixy", "ixz", "iyy", "iyz", "izz"},
    "box": {"size"},
    "cylinder": {"radius", "length"},
    "sphere": {"radius"},
    "mesh": {"filename", "scale"},
    "color": {"rgba"},
    "texture": {"filename"},
    "axis": {"xyz"},
    "parent": {"link"},
    "child": {"link"},
    "limit": {"lower", "upper", "effort", "velocity"},
    "dynamics": {"damping", "friction"},
    "safety_controller": {"k_velocity", "k_position", "soft_lower_limit", "soft_upper_limit"},
    "calibration": {"rising", "falling"},
    "mimic": {"joint", "multiplier", "offset"},
}
_KNOWN_EXTENSIONS = {"sensor", "gazebo", "transmission", "ros2_control", "contact"}
_MISSPELT_TAG = 0.75
_MISSPELT_ATTRIBUTE = 0.6
"""Minimum similarity to a URDF word; extensions add many tags but few attributes."""


def prune_urdf(root: Element, name: str) -> None:
    """Remove elements that are not part of a robot's geometry in place; reject misspelt and repeated parts."""
    if root.tag != "robot":
        raise RobotError(f"{name} has the root element <{root.tag}>", expected="<robot name=...>")
    _prune(root, name, "robot")
    for material in root.findall("material"):
        if not len(material):
            _LOG.debug("%s: material '%s' has neither colour nor texture", name, material.get("name"))
            root.remove(material)


def _prune(element: Element, name: str, where: str) -> None:
    for attribute in list(element.attrib):
        if attribute not in _ATTRIBUTES.get(element.tag, set()):
            missing = _ATTRIBUTES.get(element.tag, set()) - set(element.attrib)
            _refuse_misspelt(attribute, missing, _MISSPELT_ATTRIBUTE, name, where)
            _LOG.debug("%s: attribute %s of %s is not used", name, attribute, where)
            del element.attrib[attribute]
    seen: set[str] = set()
    for child in list(element):
        tag = child.tag if isinstance(child.tag, str) else ""
        allowed = _CHILDREN.get(element.tag, set())
        if tag not in allowed:
            if element.tag == "geometry":
                raise RobotError(
                    f"{name}: {where} has the shape <{tag}>",
                    expected="mesh, box, cylinder or sphere",
                    hint="replace it by one of these, or by a mesh",
                    code=ErrorCode.URDF_UNSUPPORTED,
                )
            if tag not in _KNOWN_EXTENSIONS:
                _refuse_misspelt(tag, allowed, _MISSPELT_TAG, name, where)
            _LOG.debug("%s: <%s> in %s is not used", name, tag, where)
            element.remove(child)
            continue
        if tag in seen and tag not in _REPEATABLE:
            raise RobotError(f"{name}: {where} has <{tag}> twice", expected=f"at most one <{tag}>")
        seen.add(tag)
        label = f"<{tag} name='{child.get('name')}'>" if child.get("name") else f"{where}/<{tag}>"
        _prune(child, name, label)


def _refuse_misspelt(word: str, allowed: set[str], likeness: float, name: str, where: str) -> None:
    match = difflib.get_close_matches(word, sorted(allowed), n=1, cutoff=likeness)
    if match:
        raise RobotError(
            f"{name}: '{word}' in {where} is not a part of URDF",
            expected=f"'{match[0]}'",
            hint="correct the spelling; it would be ignored otherwise",
        )


_MOVING = {"revolute", "continuous", "prismatic"}


def load_robot(source: str | Path) -> Robot:
    """Load a robot by name ("yam") or by the path of a .urdf or .xacro file.

    A name is a string without a slash and without a suffix; the robots of this package are in `urdf/`.
    `<robot>.robot.yaml` beside the file adds tool link, gripper and poses (see `kinema4d_ros.robot.robot_file`).
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
    """Return the names that `load_robot` accepts without a path."""
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
    root = screen_xml(data, str(path))  # on bytes: the XML declaration sets the encoding
    return data.decode("utf-8") if _is_utf8(data) else ElementTree.tostring(root, encoding="unicode")


def _expand(path: Path) -> str:
    from kinema4d_ros.robot.urdf import expand_xacro  # most robots need no xacro

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
    # Keep an axis of norm 1 unchanged: dividing could change its last digit.
    return axis if norm == 1.0 else axis / norm


def _read_limits(joint: Any, where: str) -> JointLimits:
    if joint.type == "fixed":
        return JointLimits(0.0, 0.0, 0.0, 0.0)
    if joint.limit is None:
        if joint.type != "continuous":
            raise RobotError(
                f"{where} is {joint.type} and has no <limit>",
                expected="<limit lower upper effort velocity>",
                hint="use type continuous for a joint without limits",
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


# Xacro expansion in a child process that may only read the robot's packages.
#
# Xacro is a macro language: `${...}` evaluates Python, `$(env X)` reads the environment, includes and `load_yaml` read
# files. It therefore runs in a child process with limits on time and memory. Every file it opens must be in the URDF's
# own package (see `packages`) or in an installed one found by `$(find NAME)`; each XML file is screened for DTDs and
# entities before parsing. This stops careless and hostile files; it is not a sandbox against exploits of Python itself.

TIME_LIMIT_S = 20.0
"""Timeout; the largest robots expand in a second or two."""

_CHILD = Path(__file__).with_name("_xacro_child.py")


def expand_xacro(path: Path) -> str:
    """Return the URDF text of a .xacro file, with its default arguments."""
    roots = [str(urdf_root(path)), str(share_directory())]
    command = [sys.executable, "-B", str(_CHILD), str(path.absolute()), *roots]
    package_parent = str(Path(__file__).resolve().parents[2])
    search = os.pathsep.join(p for p in (os.environ.get("PYTHONPATH", ""), package_parent) if p)
    # Not in the working directory: modules there must not be imported.
    done = run_program(command, TIME_LIMIT_S, cwd=sys.prefix, environment={"PYTHONPATH": search})
    if done.code is None:
        raise _refuse(path, f"it takes longer than {TIME_LIMIT_S:g} s", code=ErrorCode.URDF_UNSAFE)
    said = done.stderr.decode(errors="replace").strip()[-300:]
    if len(done.stdout) > MAX_XML_BYTES:
        raise _refuse(path, f"it becomes {len(done.stdout):,} bytes", code=ErrorCode.URDF_UNSAFE)
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        raise _refuse(path, f"the expansion ended with {how_it_ended(done.code)}", said) from None
    if "unsafe" in answer:
        raise RobotError(
            f"{path} is refused: {answer['unsafe']}",
            expected=f"a xacro file that reads nothing outside {roots[0]} and installed packages",
            hint="keep included files in its package",
            code=ErrorCode.URDF_UNSAFE,
        )
    if "error" in answer:
        raise _refuse(path, f"{answer['type']}: {answer['error']}", said)
    return str(answer["text"])


def _refuse(path: Path, why: str, hint: str = "", code: ErrorCode = ErrorCode.URDF_MALFORMED) -> RobotError:
    return RobotError(
        f"{path} cannot be expanded by xacro: {why}",
        expected="a xacro file that `xacro FILE` accepts without arguments",
        hint=hint,
        code=code,
    )
