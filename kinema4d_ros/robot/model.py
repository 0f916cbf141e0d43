"""Robot model: links, joints, limits, shapes and gripper.

Plain frozen data. `kinema4d_ros.robot.urdf` builds it from a file, `kinema4d_ros.kinematics`
computes its poses, `kinema4d_ros.render` renders it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kinema4d_ros.core.errors import ErrorCode, RobotError

if TYPE_CHECKING:
    from kinema4d_ros.robot.gripper import Gripper

__all__ = ["Geometry", "Inertial", "Joint", "JointLimits", "Link", "Mimic", "Robot", "TriangleMesh"]

JointKind = Literal["revolute", "continuous", "prismatic", "fixed"]
GeometryKind = Literal["mesh", "box", "cylinder", "sphere"]


@dataclass(frozen=True, eq=False)
class TriangleMesh:
    """Triangles of one shape, welded, in the shape's own frame.

    Attributes:
        vertices: (V, 3) float64, metres.
        faces: (F, 3) int32, counter-clockwise seen from outside.
        face_rgb: (F, 3) uint8 colours of the file, or None.
        closed: every edge is shared by exactly two faces of opposite direction and the volume
            is positive, so back faces are never visible and may be skipped.
    """

    vertices: NDArray[np.float64]
    faces: NDArray[np.int32]
    face_rgb: NDArray[np.uint8] | None = None
    closed: bool = False


@dataclass(frozen=True, eq=False)
class Geometry:
    """Visual or collision shape of a link.

    Attributes:
        kind: as in the URDF; `mesh` below has triangles for every kind.
        link_T_geometry: (4, 4) float64.
        mesh: triangles in the geometry's frame, scale already applied.
        rgba: (4,) float in [0, 1], or None if the URDF has no colour.
        size: box (x, y, z), cylinder (radius, length), sphere (radius,), mesh scale; metres.
        uri: the mesh's URI as written in the URDF, "" for primitives.
        path: the mesh file, None for primitives.
        material: the URDF material's name, "" without one.
        texture: the material's texture file as written, "" without one; it is not opened here.
    """

    kind: GeometryKind
    link_T_geometry: NDArray[np.float64]
    mesh: TriangleMesh
    rgba: tuple[float, float, float, float] | None = None
    size: tuple[float, ...] = ()
    uri: str = ""
    path: Path | None = None
    material: str = ""
    texture: str = ""


@dataclass(frozen=True, eq=False)
class Inertial:
    """Mass in kg, centre of mass in metres and inertia (3, 3) in kg m^2, both in the link frame."""

    mass: float
    center: NDArray[np.float64]
    inertia: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Link:
    """Rigid body with its shapes."""

    name: str
    visuals: tuple[Geometry, ...] = ()
    collisions: tuple[Geometry, ...] = ()
    inertial: Inertial | None = None


@dataclass(frozen=True)
class JointLimits:
    """Bounds in radians or metres (infinite for continuous joints), their rates, effort in N m or N."""

    lower: float
    upper: float
    velocity: float
    effort: float


@dataclass(frozen=True)
class Mimic:
    """Mimic relation: position of this joint = `multiplier * position of joint + offset`."""

    joint: str
    multiplier: float = 1.0
    offset: float = 0.0


@dataclass(frozen=True, eq=False)
class Joint:
    """Connection of `parent` and `child`: at position 0 the child frame is `parent_T_joint`."""

    name: str
    kind: JointKind
    parent: str
    child: str
    parent_T_joint: NDArray[np.float64]
    axis: NDArray[np.float64]
    limits: JointLimits
    mimic: Mimic | None = None

    @property
    def moves(self) -> bool:
        """True unless the joint is fixed."""
        return self.kind != "fixed"


@dataclass(frozen=True, eq=False)
class Robot:
    """Kinematic tree with shapes.

    Attributes:
        name: the URDF's robot name.
        links: root first, every parent before its children.
        joints: `joints[i]` leads to `links[i + 1]`.
        tool_link: the link that end-effector commands refer to.
        urdf: the URDF text, after xacro.
        path: the file, or None.
        gripper: mapping of the opening width to finger joints, or None.
        home: a safe position for every actuated joint, by name.
        poses: named positions, each by joint name; joints not in a pose stay at home.
    """

    name: str
    links: tuple[Link, ...]
    joints: tuple[Joint, ...]
    tool_link: str
    urdf: str = field(repr=False, default="")
    path: Path | None = None
    gripper: Gripper | None = None
    home: Mapping[str, float] = field(default_factory=dict)
    poses: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @staticmethod
    def load(source: str | Path) -> Robot:
        """Load a robot by name (`"yam"`) or by the path of any .urdf or .xacro file."""
        from kinema4d_ros.robot.urdf import load_robot

        return load_robot(source)

    @property
    def base_link(self) -> str:
        """Name of the root link, the frame of all poses."""
        return self.links[0].name

    @cached_property
    def actuated(self) -> tuple[Joint, ...]:
        """Joints with an independent position: neither fixed nor mimic; root first."""
        return tuple(j for j in self.joints if j.moves and j.mimic is None)

    @cached_property
    def joint_names(self) -> tuple[str, ...]:
        """Names of the actuated joints, in the order of `q`."""
        return tuple(j.name for j in self.actuated)

    @cached_property
    def arm(self) -> tuple[Joint, ...]:
        """Actuated joints between the base and the tool link."""
        on_chain = set(self.chain(self.tool_link))
        return tuple(j for j in self.actuated if j.name in on_chain)

    @cached_property
    def lower(self) -> NDArray[np.float64]:
        """(J,) lower position limits of the actuated joints."""
        return np.array([j.limits.lower for j in self.actuated])

    @cached_property
    def upper(self) -> NDArray[np.float64]:
        """(J,) upper position limits of the actuated joints."""
        return np.array([j.limits.upper for j in self.actuated])

    @cached_property
    def _links_by_name(self) -> dict[str, Link]:
        return {link.name: link for link in self.links}

    @cached_property
    def _joints_by_name(self) -> dict[str, Joint]:
        return {joint.name: joint for joint in self.joints}

    def link(self, name: str) -> Link:
        """Return the link of that name, or raise an error that lists the known names."""
        try:
            return self._links_by_name[name]
        except KeyError:
            raise self._unknown("link", name, self._links_by_name, ErrorCode.UNKNOWN_LINK) from None

    def joint(self, name: str) -> Joint:
        """Return the joint of that name, or raise an error that lists the known names."""
        try:
            return self._joints_by_name[name]
        except KeyError:
            raise self._unknown("joint", name, self._joints_by_name, ErrorCode.UNKNOWN_JOINT) from None

    def chain(self, link: str) -> tuple[str, ...]:
        """Return the names of the joints from the base to a link, base first."""
        self.link(link)
        parent_joint = {joint.child: joint for joint in self.joints}
        names: list[str] = []
        while link in parent_joint:
            joint = parent_joint[link]
            names.append(joint.name)
            link = joint.parent
        return tuple(reversed(names))

    def home_position(self) -> NDArray[np.float64]:
        """Return (J,) the home position; joints without one are at 0 or at the limit nearest to it."""
        return np.array(
            [self.home.get(j.name, float(np.clip(0.0, j.limits.lower, j.limits.upper))) for j in self.actuated]
        )

    def positions(self, names: Sequence[str], values: ArrayLike, fill: ArrayLike | None = None) -> NDArray[np.float64]:
        """Return (T, J) positions in `joint_names` order from (T, N) values of joints `names`.

        Actuated joints that are not named get `fill` (J,), by default the home position. Values of a mimic joint are
        ignored if its leader is named; otherwise they determine the leader's position.
        """
        table = self._table(names, values)
        base = self.home_position() if fill is None else np.asarray(fill, dtype=np.float64)
        if base.shape != (len(self.actuated),):
            raise RobotError(
                f"fill has shape {base.shape}",
                expected=f"({len(self.actuated)},) in the order {', '.join(self.joint_names)}",
                code=ErrorCode.TRAJECTORY_BAD_SHAPE,
            )
        out = np.tile(base, (table.shape[0], 1))
        index = {name: i for i, name in enumerate(self.joint_names)}
        for column, name in enumerate(names):
            mimic = self.joint(name).mimic
            if name in index:
                out[:, index[name]] = table[:, column]
            elif mimic is None:
                raise RobotError(
                    f"joint '{name}' of robot '{self.name}' is fixed and has no position",
                    expected=f"some of {', '.join(self.joint_names)}",
                    code=ErrorCode.UNKNOWN_JOINT,
                )
            elif mimic.joint not in names and mimic.multiplier != 0.0:
                out[:, index[mimic.joint]] = (table[:, column] - mimic.offset) / mimic.multiplier
        return out

    def pose(self, name: str) -> NDArray[np.float64]:
        """Return (J,) a named pose; joints that it does not set are at home."""
        if name not in self.poses:
            raise RobotError(
                f"pose '{name}' is not in robot '{self.name}'",
                expected=f"one of {', '.join(self.poses) or '(none: the robot has no .robot.yaml)'}",
            )
        pose = self.poses[name]
        return self.positions(list(pose), list(pose.values())).ravel()

    def from_vendor(self, names: Sequence[str], values: ArrayLike) -> tuple[tuple[str, ...], NDArray[np.float64]]:
        """Convert the vendor's names and (T, N) values to those of this robot.

        Joints other than the gripper's vendor joints are unchanged. The vendor's finger joints, which may have other
        names, signs and units, become one column of `gripper.joint`, the last.
        """
        table = self._table(names, values)
        fingers = set() if self.gripper is None else {v.name for v in self.gripper.vendor}
        theirs = [i for i, name in enumerate(names) if name in fingers]
        if self.gripper is None or not theirs:
            return tuple(names), table
        if self.gripper.joint in names:
            raise RobotError(
                f"values hold both '{self.gripper.joint}' and the vendor's {', '.join(names[i] for i in theirs)}",
                expected="the gripper in one convention",
            )
        ours = [i for i in range(len(names)) if i not in theirs]
        converted = self.gripper.from_vendor([names[i] for i in theirs], table[:, theirs])
        return (*(names[i] for i in ours), self.gripper.joint), np.column_stack([table[:, ours], converted])

    @staticmethod
    def _table(names: Sequence[str], values: ArrayLike) -> NDArray[np.float64]:
        """Return (T, N) float64, one column for each of N different names."""
        table = np.atleast_2d(np.asarray(values, dtype=np.float64))
        if table.ndim != 2 or table.shape[1] != len(names):
            raise RobotError(
                f"values have shape {table.shape} for {len(names)} names",
                expected="(T, N) with one column per name",
                code=ErrorCode.TRAJECTORY_BAD_SHAPE,
            )
        repeated = sorted(name for name, count in Counter(names).items() if count > 1)
        if repeated:
            raise RobotError(
                f"joints {', '.join(repeated)} are named more than once",
                expected="one column per joint",
                code=ErrorCode.TRAJECTORY_BAD_SHAPE,
            )
        return table

    def _unknown(self, kind: str, name: str, known: Mapping[str, object], code: ErrorCode) -> RobotError:
        hint = "check the spelling, and that this is the URDF of the robot that sent it"
        if self.gripper is not None and name in {v.name for v in self.gripper.vendor}:
            hint = "this is the vendor's name, in the vendor's convention: convert it by Robot.from_vendor"
        return RobotError(
            f"{kind} '{name}' is not in robot '{self.name}'",
            expected=f"one of {', '.join(known)}",
            hint=hint,
            code=code,
        )
