"""Scene node: the table and the lab's objects as collision objects of MoveIt's planning scene.

lab's objects ─┐
joint states ──┴─> changed, new or gone? ──> collision_object ──> move_group

An object at the gripper is left out: MoveIt would call the grasp a collision and refuse to plan from it. It comes
back when the gripper has moved away.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from geometry_msgs.msg import Pose
from numpy.typing import NDArray
from rclpy.clock import Clock, ClockType
from shape_msgs.msg import SolidPrimitive

from kinema4d_ros.core.errors import KinemaError, SetupError
from kinema4d_ros.core.transforms import make, rotation_angle
from kinema4d_ros.kinematics.forward import forward_all
from kinema4d_ros.physics.objects import PlacedObject, parts_of
from kinema4d_ros.robot import Robot
from kinema4d_ros.ros import names
from kinema4d_ros.ros.messages.page import objects_from_markers
from kinema4d_ros.ros.messages.poses import matrix_to_pose
from kinema4d_ros.ros.messages.stamps import header
from kinema4d_ros.ros.nodes.common import Health, KinemaNode, run_node
from kinema4d_ros.ros.nodes.inputs import ArmInput
from kinema4d_ros.ros.params import declare, parameter

__all__ = ["Scene", "Solid", "main", "table_of"]

TABLE = "table"
TABLE_THICKNESS_M = 0.05
BASE_GAP_M = 0.002
"""Distance of the table's top from the base that stands on it: touching counts as a collision."""

PERIOD_S = 0.2
REPEAT_S = 5.0
"""Everything is published again after this time, for a move_group that has just started."""

BATCH = 8
"""Objects a turn: `qos.EVENT` and MoveIt's subscription keep ten."""

MOVED_M, TURNED_RAD = 0.002, 0.02
"""An object that has moved less is not published again."""

AT_GRIPPER_M, AWAY_M = 0.03, 0.05
"""An object this close to the grasp point is left out, until it is this far away; from its bounding box."""

_PRIMITIVES = {"box": SolidPrimitive.BOX, "cylinder": SolidPrimitive.CYLINDER, "sphere": SolidPrimitive.SPHERE}


@dataclass(frozen=True)
class Settings:
    """Parameters of the scene node."""

    robot: str = parameter("yam", "A robot's name, or the path of a .urdf or .xacro file.", read_only=True)
    table: bool = parameter(True, "Whether a table is part of the scene.", read_only=True)
    table_height_m: float = parameter(
        0.0, "Height of the table's top above the robot's base frame.", low=-2.0, high=2.0, read_only=True
    )
    table_size_m: float = parameter(
        2.0, "Side of the square table, with the robot's base in the middle.", low=0.1, high=10.0, read_only=True
    )
    max_age_s: float = parameter(0.5, "Joint states older than this are stale.", low=0.05, high=5.0, read_only=True)


@dataclass(frozen=True, eq=False)
class Solid:
    """A rigid body of the planning scene.

    Attributes:
        base_T_solid: (4, 4) float64, metres.
        parts: `geometry_msgs/Pose` in the body's frame and `shape_msgs/SolidPrimitive` of every part.
    """

    base_T_solid: NDArray[np.float64]
    parts: tuple[tuple[Pose, SolidPrimitive], ...]

    def is_at(self, other: Solid) -> bool:
        """Return whether another body has the same shape at the same place."""
        apart = float(np.linalg.norm(self.base_T_solid[:3, 3] - other.base_T_solid[:3, 3]))
        turned = float(rotation_angle(self.base_T_solid, other.base_T_solid))
        return apart < MOVED_M and turned < TURNED_RAD and self.parts == other.parts


def table_of(robot: Robot, height_m: float, size_m: float) -> Solid:
    """Return the table, with its top below the shapes that are fixed to the robot's base."""
    top = min([height_m, *(lowest - BASE_GAP_M for lowest in _base_lowest(robot))])
    middle = make(None, [0.0, 0.0, top - TABLE_THICKNESS_M / 2])
    box = SolidPrimitive(type=SolidPrimitive.BOX, dimensions=[size_m, size_m, TABLE_THICKNESS_M])
    return Solid(middle, ((Pose(), box),))


def _base_lowest(robot: Robot) -> list[float]:
    """Return the lowest point of each collision shape that no joint moves, base frame."""
    base_T_link = forward_all(robot, robot.home_position()[None])[0]
    found = []
    for link, pose in zip(robot.links, base_T_link, strict=True):
        if any(robot.joint(name).moves for name in robot.chain(link.name)):
            continue
        for shape in link.collisions:
            base_T_shape = pose @ shape.link_T_geometry
            found.append(float((shape.mesh.vertices @ base_T_shape[2, :3] + base_T_shape[2, 3]).min()))
    return found


def solid_of(placed: PlacedObject) -> Solid:
    """Return an object of the lab as a body of primitives; a part that is none becomes its bounding box."""
    parts = []
    for part in parts_of(placed.object):
        x, y, z = map(float, part.size)
        kind = part.kind if part.kind in _PRIMITIVES else "box"
        dimensions = {"box": [x, y, z], "cylinder": [z, x / 2], "sphere": [x / 2]}[kind]
        primitive = SolidPrimitive(type=_PRIMITIVES[kind], dimensions=dimensions)
        parts.append((matrix_to_pose(part.object_T_part), primitive))
    return Solid(placed.base_T_object, tuple(parts))


class Scene(KinemaNode):
    """Publisher of collision objects."""

    def __init__(self) -> None:
        super().__init__("scene")
        settings = declare(self, Settings)
        self._robot = Robot.load(settings.robot)
        self._tool = [link.name for link in self._robot.links].index(self._robot.tool_link)
        try:
            self._interface = names.COLLISION_OBJECT.interface()
        except ImportError as error:
            raise SetupError(
                "moveit_msgs is not installed", expected="the package, which moveit:=true needs"
            ) from error
        self._arm = ArmInput(self, self._robot, settings.max_age_s)
        self._fixed: dict[str, Solid] = {}
        if settings.table:
            self._fixed[TABLE] = table_of(self._robot, settings.table_height_m, settings.table_size_m)
        self._objects: dict[str, PlacedObject] = {}
        self._at_gripper: set[str] = set()
        self._known: dict[str, Solid] = {}
        """What MoveIt has been told."""
        self._listeners, self._repeat_at_s = 0, 0.0
        self._publisher = self.publisher(names.COLLISION_OBJECT)
        self.subscription(names.LAB_OBJECTS, self._take)
        self.create_timer(PERIOD_S, self._tell, clock=Clock(clock_type=ClockType.STEADY_TIME))

    def _take(self, message: Any) -> None:
        try:
            # A name of ours would replace the table.
            found = objects_from_markers(message)
            self._objects = {name: placed for name, placed in found.items() if name not in self._fixed}
        except KinemaError as error:
            self.complain(error, "objects: ")

    def _wanted(self) -> dict[str, Solid]:
        objects = dict(self._objects)
        try:
            grasp = forward_all(self._robot, self._arm.state().positions[None])[0, self._tool][:3, 3]
        except KinemaError:
            grasp = None  # the arm's state is stale: its hand is not known to be anywhere
        if grasp is not None:
            distances = {name: _distance(placed, grasp) for name, placed in objects.items()}
            self._at_gripper = {
                name
                for name, distance in distances.items()
                if distance < (AWAY_M if name in self._at_gripper else AT_GRIPPER_M)
            }
        return self._fixed | {name: solid_of(p) for name, p in objects.items() if name not in self._at_gripper}

    def _tell(self) -> None:
        wanted = self._wanted()
        listeners, now_s = self._publisher.get_subscription_count(), self.now_s()
        if listeners > self._listeners or now_s > self._repeat_at_s:
            # Not all are new to everybody, but each message replaces the object of its name.
            self._known = {name: solid for name, solid in self._known.items() if name not in wanted}
            self._repeat_at_s = now_s + REPEAT_S
        self._listeners = listeners
        known = self._known
        changed = [name for name, solid in wanted.items() if name not in known or not solid.is_at(known[name])]
        gone = [name for name in self._known if name not in wanted]
        for name in [*gone, *changed][:BATCH]:
            self._publisher.publish(self._message(name, wanted.get(name)))
            if name in wanted:
                self._known[name] = wanted[name]
            else:
                del self._known[name]

    def _message(self, name: str, solid: Solid | None) -> Any:
        kind = self._interface
        head = header(self.get_clock().now().to_msg(), self._robot.base_link)
        if solid is None:
            return kind(header=head, id=name, operation=kind.REMOVE)
        message = kind(header=head, id=name, operation=kind.ADD, pose=matrix_to_pose(solid.base_T_solid))
        message.primitive_poses = [pose for pose, _ in solid.parts]
        message.primitives = [primitive for _, primitive in solid.parts]
        return message

    def health(self) -> Health:
        """Report what is in the scene."""
        values = {
            "objects": ", ".join(self._known) or "none",
            "left out at the gripper": ", ".join(sorted(self._at_gripper)) or "none",
            "listeners": self._listeners,
        }
        return Health(message=f"{len(self._known)} collision objects", values=values)


def _distance(placed: PlacedObject, p_base: NDArray[np.float64]) -> float:
    """Return the distance of a point from an object's bounding box, 0 inside."""
    p_object = np.linalg.inv(placed.base_T_object) @ [*p_base, 1.0]
    outside = np.abs(p_object[:3]) - np.asarray(placed.object.size) / 2
    return float(np.linalg.norm(np.maximum(outside, 0.0)))


def main() -> int:
    """Run the node."""
    return run_node(Scene)


if __name__ == "__main__":
    raise SystemExit(main())
