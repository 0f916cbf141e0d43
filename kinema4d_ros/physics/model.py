"""MuJoCo models of any `Robot` with table and objects: frames, inertias, limits and efforts from the URDF.

    Robot, Room, objects, Materials ─> build_model() ─> mujoco.MjModel with position servos on every actuated joint

The world frame is the robot's base frame. Friction and servo constants are the caller's `Materials`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import mujoco
import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.core.transforms import to_quaternion
from kinema4d_ros.kinematics.gripping import finger_links
from kinema4d_ros.physics.objects import LabObject, Part, PlacedObject, part_masses, parts_of
from kinema4d_ros.robot.model import Geometry, Joint, Link, Robot, TriangleMesh

__all__ = ["TIMESTEP_S", "Materials", "Room", "build_model", "build_spec", "tune_servos"]

DIRECTIONS = 128
"""Directions that `outer_points` samples, besides the axes."""

_POINTS: WeakKeyDictionary[TriangleMesh, NDArray[np.float64]] = WeakKeyDictionary()


def outer_points(mesh: TriangleMesh) -> NDArray[np.float64]:
    """Return the extreme vertices (P, 3) of a mesh in `DIRECTIONS` + 6 directions, metres; their hull is its shape."""
    if mesh not in _POINTS:
        i = np.arange(DIRECTIONS) + 0.5
        polar, turn = np.arccos(1 - 2 * i / DIRECTIONS), np.pi * (1 + 5**0.5) * i
        directions = np.stack([np.cos(turn) * np.sin(polar), np.sin(turn) * np.sin(polar), np.cos(polar)])
        # Include the axes, so that the points have the same bounding box as the mesh.
        directions = np.concatenate([directions, np.eye(3), -np.eye(3)], axis=1)
        _POINTS[mesh] = mesh.vertices[np.unique(np.argmax(mesh.vertices @ directions, axis=0))]
    return _POINTS[mesh]


TIMESTEP_S = 0.002

# Robot and world collide with each other and the world with itself, but not the robot with itself:
# hulls of adjacent links overlap by construction, and self-collision of plans is checked elsewhere.
_ROBOT_BIT, _WORLD_BIT = 1, 2

_FALLBACK_DENSITY = 800.0


@dataclass(frozen=True)
class Materials:
    """Physics constants that a URDF does not contain: friction and servos. The caller of `build_model` sets them.

    Attributes:
        friction: sliding, spinning and rolling friction of table, walls and links; objects have their own sliding
            friction.
        finger_friction: sliding friction of the fingers, used in every contact with them.
        servo_span_rad, servo_span_m: position error at which a servo reaches its full effort, by kind of joint.
        rotor_inertia: kg m^2 of reflected rotor inertia for each N m of effort.
        rotor_mass: kg for each N of effort of sliding joints.
    """

    friction: tuple[float, float, float]
    finger_friction: float
    servo_span_rad: float
    servo_span_m: float
    rotor_inertia: float
    rotor_mass: float


@dataclass(frozen=True)
class Room:
    """The lab around the arm, in the robot's base frame, metres.

    Attributes:
        table: (x0, x1, y0, y1) of the table top; the arm stands on it.
        table_z: height of the top.
        table_thickness: of the board.
        back_wall_x: the wall behind the arm.
        side_wall_y: the wall to its left.
        floor_z: height of the floor, where fallen objects stop.
        wall_height: above the table.
    """

    table: tuple[float, float, float, float] = (-0.42, 0.75, -0.62, 0.58)
    table_z: float = 0.0
    table_thickness: float = 0.03
    back_wall_x: float = -0.5
    side_wall_y: float = 0.68
    floor_z: float = -0.74
    wall_height: float = 2.0


def build_model(
    robot: Robot,
    objects: Sequence[PlacedObject],
    materials: Materials,
    room: Room | None = None,
    timestep_s: float = TIMESTEP_S,
) -> mujoco.MjModel:
    """Build the compiled model; bodies, joints, actuators and objects keep their names."""
    model = build_spec(robot, objects, materials, room, timestep_s).compile()
    tune_servos(model, robot, materials)
    return model


def build_spec(
    robot: Robot,
    objects: Sequence[PlacedObject],
    materials: Materials,
    room: Room | None = None,
    timestep_s: float = TIMESTEP_S,
) -> Any:
    """Build the `mujoco.MjSpec`, to add cameras or bodies before compiling; then call `tune_servos`."""
    spec = mujoco.MjSpec()
    spec.modelname = robot.name
    spec.compiler.degree = False
    spec.option.timestep = timestep_s
    spec.option.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    spec.option.cone = mujoco.mjtCone.mjCONE_ELLIPTIC
    # Friction much stiffer than normal contact, so that a held object does not creep out of the fingers.
    spec.option.impratio = 10.0
    spec.option.noslip_iterations = 2
    # Resting objects sleep and cost no time: ten times faster with nine objects on the table.
    spec.option.enableflags |= int(mujoco.mjtEnableBit.mjENBL_SLEEP)
    _add_room(spec, room or Room(), materials)
    _add_robot(spec, robot, materials)
    for placed in objects:
        _add_object(spec, placed, materials)
    return spec


def _add_room(spec: Any, room: Room, materials: Materials) -> None:
    x0, x1, y0, y1 = room.table
    top, thick = room.table_z, room.table_thickness
    world = spec.worldbody
    _world_geom(
        world.add_geom(
            name="table",
            type=mujoco.mjtGeom.mjGEOM_BOX,
            size=[(x1 - x0) / 2, (y1 - y0) / 2, thick / 2],
            pos=[(x0 + x1) / 2, (y0 + y1) / 2, top - thick / 2],
            rgba=[0.72, 0.56, 0.40, 1.0],
        ),
        materials,
    )
    quarter = float(np.sqrt(0.5))
    # Rotated so that a plane's normal, its z axis, points into the room: along z, x and -y.
    for name, pos, quat in (
        ("floor", [0.0, 0.0, room.floor_z], [1.0, 0.0, 0.0, 0.0]),
        ("back_wall", [room.back_wall_x, 0.0, 0.0], [quarter, 0.0, quarter, 0.0]),
        ("side_wall", [0.0, room.side_wall_y, 0.0], [quarter, quarter, 0.0, 0.0]),
    ):
        plane = world.add_geom(name=name, type=mujoco.mjtGeom.mjGEOM_PLANE, size=[3.0, 3.0, 0.1], pos=pos, quat=quat)
        plane.rgba = [0.85, 0.86, 0.88, 1.0]
        _world_geom(plane, materials)
    world.add_light(pos=[0.55, -0.85, 1.55], dir=[-0.2, 0.5, -0.9], diffuse=[0.6, 0.6, 0.6], specular=[0.1, 0.1, 0.1])


def _world_geom(geom: Any, materials: Materials, sliding: float | None = None) -> None:
    geom.contype, geom.conaffinity = _WORLD_BIT, _ROBOT_BIT | _WORLD_BIT
    geom.condim = 6
    own, spinning, rolling = materials.friction
    geom.friction = [own if sliding is None else sliding, spinning, rolling]


def _add_robot(spec: Any, robot: Robot, materials: Materials) -> None:
    bodies = {robot.base_link: spec.worldbody.add_body(name=robot.base_link)}
    fingers = finger_links(robot)
    _add_shapes(spec, bodies[robot.base_link], robot.links[0], fingers, materials)
    for joint in robot.joints:
        link = robot.link(joint.child)
        body = bodies[joint.parent].add_body(name=link.name, gravcomp=1.0)
        bodies[link.name] = body
        _place(body, joint.parent_T_joint)
        if joint.moves:
            _add_joint(spec, body, joint, materials)
        _add_inertia(body, link, needed=joint.moves)
        _add_shapes(spec, body, link, fingers, materials)


def _place(element: Any, parent_T_child: NDArray[np.float64]) -> None:
    x, y, z, w = to_quaternion(parent_T_child)
    element.pos = parent_T_child[:3, 3]
    element.quat = [w, x, y, z]


def _add_joint(spec: Any, body: Any, joint: Joint, materials: Materials) -> None:
    slides = joint.kind == "prismatic"
    limits = joint.limits
    bounded = bool(np.isfinite(limits.lower) and np.isfinite(limits.upper))
    element = body.add_joint(
        name=joint.name,
        type=mujoco.mjtJoint.mjJNT_SLIDE if slides else mujoco.mjtJoint.mjJNT_HINGE,
        axis=joint.axis,
        armature=limits.effort * (materials.rotor_mass if slides else materials.rotor_inertia),
        limited=mujoco.mjtLimited.mjLIMITED_TRUE if bounded else mujoco.mjtLimited.mjLIMITED_FALSE,
    )
    if bounded:
        element.range = [limits.lower, limits.upper]
    if joint.mimic is None:
        element.actgravcomp = 1
        actuator = spec.add_actuator(name=joint.name, target=joint.name, trntype=mujoco.mjtTrn.mjTRN_JOINT)
        actuator.gaintype = mujoco.mjtGain.mjGAIN_FIXED
        actuator.biastype = mujoco.mjtBias.mjBIAS_AFFINE
        actuator.forcelimited = mujoco.mjtLimited.mjLIMITED_TRUE
        actuator.forcerange = [-limits.effort, limits.effort]
    else:
        equality = spec.add_equality(
            name=joint.name,
            type=mujoco.mjtEq.mjEQ_JOINT,
            name1=joint.name,
            name2=joint.mimic.joint,
            objtype=mujoco.mjtObj.mjOBJ_JOINT,
            solref=[2 * TIMESTEP_S, 1.0],
            solimp=[0.99, 0.999, 0.0001, 0.5, 2.0],
        )
        equality.data[:5] = [joint.mimic.offset, joint.mimic.multiplier, 0.0, 0.0, 0.0]


def _add_inertia(body: Any, link: Link, needed: bool) -> None:
    if link.inertial is not None:
        mass, center, inertia = link.inertial.mass, link.inertial.center, link.inertial.inertia
    elif needed:
        # Without inertia in the URDF, use a solid block around the link, or a small mass if it has no shape.
        shapes = [*link.visuals, *link.collisions]
        points = np.concatenate(
            [s.mesh.vertices @ s.link_T_geometry[:3, :3].T + s.link_T_geometry[:3, 3] for s in shapes]
            or [np.array([[-0.02] * 3, [0.02] * 3])]
        )
        size, center = np.ptp(points, axis=0), (points.min(axis=0) + points.max(axis=0)) / 2
        mass = max(float(np.prod(size)) * _FALLBACK_DENSITY, 0.02)
        inertia = np.diag(mass / 12 * (np.sum(size**2) - size**2))
    else:
        return
    body.explicitinertial = True
    body.mass = mass
    body.ipos = center
    body.fullinertia = [inertia[i, j] for i, j in ((0, 0), (1, 1), (2, 2), (0, 1), (0, 2), (1, 2))]


def _add_shapes(spec: Any, body: Any, link: Link, fingers: tuple[str, ...], materials: Materials) -> None:
    sliding, spinning, rolling = materials.friction
    friction = [materials.finger_friction if link.name in fingers else sliding, spinning, rolling]
    for i, shape in enumerate(link.collisions or link.visuals):
        _robot_geom(_add_shape(spec, body, f"{link.name}_{i}", shape), friction)


def _robot_geom(geom: Any, friction: list[float]) -> None:
    geom.contype, geom.conaffinity = _ROBOT_BIT, _WORLD_BIT
    geom.condim = 4
    geom.friction = friction
    geom.rgba = [0.25, 0.26, 0.28, 1.0]
    geom.priority = 1
    geom.group = 3


def _add_shape(spec: Any, body: Any, name: str, shape: Geometry) -> Any:
    if shape.kind == "mesh":
        spec.add_mesh(name=name, uservert=outer_points(shape.mesh).ravel())
        geom = body.add_geom(name=name, type=mujoco.mjtGeom.mjGEOM_MESH, meshname=name)
    else:
        kind, size = _primitive(shape)
        geom = body.add_geom(name=name, type=kind, size=size)
    _place(geom, shape.link_T_geometry)
    return geom


def _primitive(shape: Geometry) -> tuple[Any, list[float]]:
    if shape.kind == "box":
        return mujoco.mjtGeom.mjGEOM_BOX, [s / 2 for s in shape.size]
    if shape.kind == "cylinder":
        return mujoco.mjtGeom.mjGEOM_CYLINDER, [shape.size[0], shape.size[1] / 2, 0.0]
    return mujoco.mjtGeom.mjGEOM_SPHERE, [shape.size[0], 0.0, 0.0]


def _add_object(spec: Any, placed: PlacedObject, materials: Materials) -> None:
    thing = placed.object
    body = spec.worldbody.add_body(name=thing.name)
    _place(body, placed.base_T_object)
    body.add_freejoint(name=thing.name)
    for geom, mass in zip(_object_geoms(spec, body, thing), part_masses(thing), strict=True):
        geom.rgba = [*thing.rgb, 1.0]
        geom.mass = mass
        _world_geom(geom, materials, thing.friction)


def _object_geoms(spec: Any, body: Any, thing: LabObject) -> list[Any]:
    """Add one geom for each convex part; the first one has the object's name."""
    names = [thing.name if i == 0 else f"{thing.name}_{i}" for i in range(len(parts_of(thing)))]
    return [_add_part(spec, body, name, part) for name, part in zip(names, parts_of(thing), strict=True)]


def _add_part(spec: Any, body: Any, name: str, part: Part) -> Any:
    x, y, z = (side / 2 for side in part.size)
    if part.vertices is not None:
        # The compiler moves a mesh to its centre of mass and its principal axes, and the geom's pose with it.
        spec.add_mesh(name=name, uservert=part.vertices.ravel(), inertia=mujoco.mjtMeshInertia.mjMESH_INERTIA_CONVEX)
        geom = body.add_geom(name=name, type=mujoco.mjtGeom.mjGEOM_MESH, meshname=name)
    elif part.kind == "box":
        geom = body.add_geom(name=name, type=mujoco.mjtGeom.mjGEOM_BOX, size=[x, y, z])
    elif part.kind == "cylinder":
        geom = body.add_geom(name=name, type=mujoco.mjtGeom.mjGEOM_CYLINDER, size=[x, z, 0.0])
    else:
        geom = body.add_geom(name=name, type=mujoco.mjtGeom.mjGEOM_SPHERE, size=[x, 0.0, 0.0])
    _place(geom, part.object_T_part)
    return geom


def tune_servos(model: mujoco.MjModel, robot: Robot, materials: Materials) -> None:
    """Set servo stiffness from each joint's effort, and critical damping for the joint's inertia at home."""
    data = mujoco.MjData(model)
    home = dict(zip(robot.joint_names, robot.home_position(), strict=True))
    for name, value in home.items():
        data.qpos[model.joint(name).qposadr[0]] = value
    mujoco.mj_forward(model, data)
    mass = np.zeros((model.nv, model.nv))
    mujoco.mj_fullM(model, data, mass)
    for joint in robot.actuated:
        actuator = model.actuator(joint.name)
        stiffness = joint.limits.effort / (
            materials.servo_span_m if joint.kind == "prismatic" else materials.servo_span_rad
        )
        dof = int(model.joint(joint.name).dofadr[0])
        carried = mass[dof, dof]
        for follower in robot.joints:
            if follower.mimic and follower.mimic.joint == joint.name:
                other = int(model.joint(follower.name).dofadr[0])
                carried += follower.mimic.multiplier**2 * mass[other, other]
        actuator.gainprm[0] = stiffness
        actuator.biasprm[:3] = [0.0, -stiffness, -2.0 * np.sqrt(stiffness * carried)]
