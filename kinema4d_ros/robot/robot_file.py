"""Robot data that URDF lacks: tool link, gripper, home and named poses, from `<robot>.robot.yaml` beside it.

All keys are optional; unknown ones are rejected.

    tool_link: tool                 # the link that end-effector commands refer to
    home: ready                     # the name of one of `poses`
    poses:                          # named positions, radians or metres, by actuated joint
      ready: {joint1: 0.0, joint2: 1.2}
    gripper:
      joint: left_finger_joint      # the actuated finger joint; the other fingers mimic it
      closed: 0.0                   # its position when closed
      open: 0.04695                 # its position when open
      width_closed_m: 0.0           # distance between the pads
      width_open_m: 0.0939
      vendor:                       # the joints used in the vendor's data instead
        - {name: joint7, joint: left_finger_joint, multiplier: -1.0, offset: 0.0}
      fingers:                      # one finger; the other is its mirror image
        pad_width_m: 0.022          # across the closing direction, at the grasp point
        width_m: 0.044              # the same of the whole finger
        thickness_m: 0.022          # along the closing direction, behind the pad
        length_m: 0.045             # from the grasp point back against the approach
        tip_m: 0.0024               # from the grasp point to the finger tip
        grasp_point_m: [0, 0, 0]    # in the tool link's frame; by default its origin
        closing_axis: [-1, 0, 0]    # opening direction of the leading finger, same frame; default: from the joints

Without such a file the tool link is the last link of the longest chain of moving joints (the first
of equals in the file's order; fixed joints count only between equals), there is no gripper, and
home is 0 or the limit nearest to it. Without `fingers` their sizes are derived from the collision
shapes of the finger links (`kinematics.gripping.finger_shape`, whose `source` says so).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from kinema4d_ros.core.errors import ErrorCode, RobotError
from kinema4d_ros.io.documents import parse_yaml
from kinema4d_ros.io.files import read_bytes
from kinema4d_ros.robot.gripper import Fingers, Gripper, VendorJoint
from kinema4d_ros.robot.model import Joint, Link

__all__ = ["Semantics", "load_semantics", "sidecar_path"]

_MAX_BYTES = 1_000_000

LIMIT_TOLERANCE = 1e-9
"""Accepted distance of a named pose from the joint limits, for rounding only."""


@dataclass(frozen=True)
class Semantics:
    """Contents of a sidecar file, checked against the robot."""

    tool_link: str
    gripper: Gripper | None = None
    home: Mapping[str, float] = field(default_factory=dict)
    poses: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


def sidecar_path(urdf: Path) -> Path:
    """Return `yam.robot.yaml` for `yam.urdf`, `yam.xacro` or `yam.urdf.xacro`."""
    stem = urdf.name.removesuffix(".xacro").removesuffix(".urdf")
    return urdf.with_name(f"{stem}.robot.yaml")


def load_semantics(path: Path, links: tuple[Link, ...], joints: tuple[Joint, ...]) -> Semantics:
    """Load the sidecar file, or return the documented defaults if there is none."""
    if not path.is_file():
        return Semantics(tool_link=_deepest_link(links, joints))
    reader = _Reader(path, links, joints)
    data = reader.mapping(reader.parse(), "the file", {"tool_link", "home", "poses", "gripper"})
    tool_link = data.get("tool_link", None)
    if tool_link is None:
        tool_link = _deepest_link(links, joints)
    elif not isinstance(tool_link, str) or tool_link not in {link.name for link in links}:
        raise reader.refuse(f"tool_link is {tool_link!r}", "a link of the URDF", ErrorCode.UNKNOWN_LINK)
    poses = {
        str(name): reader.pose(pose, f"poses.{name}")
        for name, pose in reader.mapping(data.get("poses", {}), "poses").items()
    }
    home: Mapping[str, float] = {}
    if "home" in data:
        if not isinstance(data["home"], str) or data["home"] not in poses:
            raise reader.refuse(f"home is {data['home']!r}", f"one of the poses {', '.join(poses)}")
        home = poses[data["home"]]
    gripper = reader.gripper(data["gripper"]) if "gripper" in data else None
    return Semantics(tool_link=tool_link, gripper=gripper, home=home, poses=poses)


def _deepest_link(links: tuple[Link, ...], joints: tuple[Joint, ...]) -> str:
    depth = {links[0].name: (0, 0)}
    for joint in joints:
        moving, total = depth[joint.parent]
        depth[joint.child] = (moving + joint.moves, total + 1)
    return max(depth, key=lambda name: depth[name])


class _Reader:
    """Parser of one sidecar file that checks its parts and builds the errors."""

    def __init__(self, path: Path, links: tuple[Link, ...], joints: tuple[Joint, ...]) -> None:
        self.path = path
        self.joints = {joint.name: joint for joint in joints}
        self.links = links

    def refuse(self, what: str, expected: str, code: ErrorCode = ErrorCode.FILE_MALFORMED) -> RobotError:
        return RobotError(f"{self.path}: {what}", expected=expected, code=code)

    def parse(self) -> Any:
        return parse_yaml(read_bytes(self.path, _MAX_BYTES), self.path) or {}

    def mapping(self, value: Any, where: str, allowed: set[str] | None = None) -> dict[Any, Any]:
        if not isinstance(value, dict):
            raise self.refuse(f"{where} is {type(value).__name__}", "a mapping")
        unknown = set(value) - allowed if allowed is not None else set()
        if unknown:
            raise self.refuse(
                f"{where} has unknown keys {', '.join(sorted(map(str, unknown)))}",
                f"some of {', '.join(sorted(allowed or ()))}",
            )
        return value

    def number(self, value: Any, where: str) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not np.isfinite(value):
            raise self.refuse(f"{where} is {value!r}", "a finite number")
        return float(value)

    def moving_joint(self, name: Any, where: str) -> Joint:
        joint = self.joints.get(name) if isinstance(name, str) else None
        if joint is None or not joint.moves:
            raise self.refuse(f"{where} names joint {name!r}", "a moving joint of the URDF", ErrorCode.UNKNOWN_JOINT)
        return joint

    def within(self, joint: Joint, value: float, where: str) -> float:
        if not joint.limits.lower - LIMIT_TOLERANCE <= value <= joint.limits.upper + LIMIT_TOLERANCE:
            raise self.refuse(
                f"{where} puts '{joint.name}' at {value}",
                f"a position within [{joint.limits.lower}, {joint.limits.upper}]",
                ErrorCode.TRAJECTORY_OUT_OF_LIMITS,
            )
        return value

    def pose(self, value: Any, where: str) -> dict[str, float]:
        out = {}
        for name, position in self.mapping(value, where).items():
            joint = self.moving_joint(name, where)
            if joint.mimic is not None:
                raise self.refuse(f"{where} sets the mimic joint '{name}'", f"its leader '{joint.mimic.joint}'")
            out[str(name)] = self.within(joint, self.number(position, f"{where}.{name}"), where)
        return out

    def gripper(self, value: Any) -> Gripper:
        numbers = ["closed", "open", "width_closed_m", "width_open_m"]
        data = self.mapping(value, "gripper", {"joint", "vendor", "fingers", *numbers})
        missing = [key for key in ["joint", *numbers] if key not in data]
        if missing:
            raise self.refuse(f"gripper lacks {', '.join(missing)}", "all of joint, closed, open and the two widths")
        joint = self.moving_joint(data["joint"], "gripper.joint")
        if joint.mimic is not None:
            raise self.refuse(f"gripper.joint '{joint.name}' is a mimic joint", f"its leader '{joint.mimic.joint}'")
        values = {key: self.number(data[key], f"gripper.{key}") for key in numbers}
        for key in ("closed", "open"):
            self.within(joint, values[key], f"gripper.{key}")
        if not isinstance(data.get("vendor", []), list):
            raise self.refuse("gripper.vendor is not a list", "a list of {name, joint, multiplier, offset}")
        vendor = tuple(self.vendor_joint(entry, joint) for entry in data.get("vendor", []))
        fingers = self.fingers(data["fingers"]) if "fingers" in data else None
        return Gripper(joint=joint.name, vendor=vendor, fingers=fingers, **values)

    def fingers(self, value: Any) -> Fingers:
        sizes = ["pad_width_m", "width_m", "thickness_m", "length_m", "tip_m"]
        data = self.mapping(value, "gripper.fingers", {"grasp_point_m", "closing_axis", *sizes})
        missing = [key for key in sizes if key not in data]
        if missing:
            raise self.refuse(
                f"gripper.fingers lacks {', '.join(missing)}",
                f"all of {', '.join(sizes)}; or no 'fingers', to derive them from the collision shapes",
            )
        numbers = {key: self.number(data[key], f"gripper.fingers.{key}") for key in sizes}
        for key in sizes[:4]:
            if numbers[key] <= 0:
                raise self.refuse(f"gripper.fingers.{key} is {numbers[key]}", "a positive number of metres")
        point = self.triple(data.get("grasp_point_m", [0, 0, 0]), "gripper.fingers.grasp_point_m")
        axis = self.triple(data["closing_axis"], "gripper.fingers.closing_axis") if "closing_axis" in data else None
        try:
            return Fingers(**numbers, grasp_point_m=point, closing_axis=axis, source="description")
        except RobotError as error:
            raise self.refuse(f"gripper.fingers: {error.what}", error.expected) from None

    def triple(self, value: Any, where: str) -> tuple[float, float, float]:
        if not isinstance(value, list) or len(value) != 3:
            raise self.refuse(f"{where} is {value!r}", "a list of three numbers")
        x, y, z = (self.number(v, where) for v in value)
        return x, y, z

    def vendor_joint(self, value: Any, leader: Joint) -> VendorJoint:
        data = self.mapping(value, "gripper.vendor", {"name", "joint", "multiplier", "offset"})
        if not {"name", "joint", "multiplier"} <= set(data):
            raise self.refuse("a gripper.vendor entry is incomplete", "name, joint and multiplier")
        joint = self.moving_joint(data["joint"], "gripper.vendor")
        multiplier = self.number(data["multiplier"], "gripper.vendor.multiplier")
        offset = self.number(data.get("offset", 0.0), "gripper.vendor.offset")
        if multiplier == 0.0:
            raise self.refuse("gripper.vendor.multiplier is 0", "a factor other than 0")
        mimic = joint.mimic
        if joint.name != leader.name and (mimic is None or mimic.joint != leader.name or mimic.multiplier == 0.0):
            raise self.refuse(f"gripper.vendor names '{joint.name}'", f"'{leader.name}' or a joint that mimics it")
        if mimic is not None:
            # Values are converted directly to the leader's position, so the mimic relation is inverted here.
            multiplier, offset = multiplier / mimic.multiplier, (offset - mimic.offset) / mimic.multiplier
        return VendorJoint(name=str(data["name"]), joint=joint.name, multiplier=multiplier, offset=offset)
