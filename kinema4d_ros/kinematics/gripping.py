"""Grip frame between the fingers along a motion, and the geometry of the fingers.

The grip frame is at the grasp point, x along the opening direction of the leading finger, z along the approach.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Literal
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.core.pointmap import GripTrack
from kinema4d_ros.core.transforms import apply, invert
from kinema4d_ros.kinematics.forward import forward_all
from kinema4d_ros.robot.gripper import Fingers, Gripper
from kinema4d_ros.robot.model import Geometry, Link, Robot

__all__ = ["finger_links", "finger_shape", "grip_track", "tool_T_grip"]

_log = logging.getLogger(__name__)
_GRIPS: WeakKeyDictionary[Robot, NDArray[np.float64]] = WeakKeyDictionary()
_SHAPES: WeakKeyDictionary[Robot, Fingers] = WeakKeyDictionary()
LEAST_STROKE_M = 1e-4


def grip_track(
    robot: Robot, positions: NDArray[np.float64], base_T_link: NDArray[np.float64] | None = None
) -> GripTrack | None:
    """Return the gripper track along joint positions (T, J); None for a robot without a gripper.

    Args:
        robot: with its gripper and tool link.
        positions: in `robot.joint_names` order.
        base_T_link: (T, L, 4, 4) if already computed.
    """
    if robot.gripper is None:
        return None
    poses = forward_all(robot, positions) if base_T_link is None else base_T_link
    tool = poses[:, _link_index(robot, robot.tool_link)]
    gripper = robot.gripper
    low, high = sorted((gripper.closed, gripper.open))
    commanded = np.clip(positions[:, robot.joint_names.index(gripper.joint)], low, high)
    width = np.asarray(gripper.width_from_position(commanded), np.float64)
    return GripTrack(tool @ tool_T_grip(robot), width, finger_shape(robot))


def finger_links(robot: Robot) -> tuple[str, ...]:
    """Return the links moved by the gripper's joint, directly or by mimics, and their children; empty without one."""
    if robot.gripper is None:
        return ()
    leader = robot.gripper.joint
    return _moved_by(robot, {j.name for j in robot.joints if j.name == leader or (j.mimic and j.mimic.joint == leader)})


def finger_shape(robot: Robot) -> Fingers:
    """Return the finger geometry from the robot's description, or derived from the URDF; `source` says which.

    It is derived from the collision shapes of the finger links, or from the visual ones without those, with the
    gripper closed. The pad is as wide as the finger at the grasp point. The length is at most half of the open width,
    because geometry farther back belongs to the gripper's body.
    """
    gripper = robot.gripper
    if gripper is None:
        return Fingers()
    if robot not in _SHAPES:
        _SHAPES[robot] = gripper.fingers or _derived(robot, gripper)
    return _SHAPES[robot]


def tool_T_grip(robot: Robot) -> NDArray[np.float64]:
    """Return (4, 4) metres: the grip frame in the tool frame; the identity without a gripper."""
    if robot.gripper is None:
        return np.eye(4)
    if robot not in _GRIPS:
        _GRIPS[robot] = _tool_T_grip(robot, robot.gripper)
    return _GRIPS[robot]


def _derived(robot: Robot, gripper: Gripper) -> Fingers:
    q = robot.home_position()[None]
    q[0, robot.joint_names.index(gripper.joint)] = gripper.closed
    base_T_link = forward_all(robot, q)[0]
    grip_T_base = invert(base_T_link[_link_index(robot, robot.tool_link)] @ tool_T_grip(robot))
    finger = _leading_finger(robot, gripper)
    source: Literal["collision", "visual"] = "collision" if any(link.collisions for link in finger) else "visual"
    shapes = [
        (shape, grip_T_base @ base_T_link[_link_index(robot, link.name)])
        for link in finger
        for shape in (link.collisions if source == "collision" else link.visuals)
    ]
    if not shapes:
        _log.warning("the fingers of '%s' have no shapes or description: the pads are treated as points", robot.name)
        return Fingers()
    tip = max(float(_bounds(*shape)[1, 2]) for shape in shapes)
    back = min(float(_bounds(*shape)[0, 2]) for shape in shapes)
    length = max(min(-back, gripper.width_open_m / 2), -tip, 0.0)
    # A finger that ends behind the grasp point is measured at its tip.
    whole, pad = (np.array([_bounds(*shape, min(above, tip - 1e-6)) for shape in shapes]) for above in (-length, 0.0))
    # Opening moves the leading finger along +x, so its pad is the side at x = 0 and its back the largest x.
    fingers = Fingers(
        pad_width_m=float(pad[:, 1, 1].max() - pad[:, 0, 1].min()),
        width_m=float(whole[:, 1, 1].max() - whole[:, 0, 1].min()),
        thickness_m=float(whole[:, 1, 0].max() - max(0.0, whole[:, 0, 0].min())),
        length_m=length,
        tip_m=tip,
        source=source,
    )
    sizes = ", ".join(f"{1000 * size:.0f}" for size in fingers.sizes_m)
    _log.info(
        "fingers of '%s' from its %s shapes (pad, width, thickness, length, tip: %s mm)", robot.name, source, sizes
    )
    return fingers


def _leading_finger(robot: Robot, gripper: Gripper) -> list[Link]:
    """Return the link moved by the gripper's joint and its descendants: a knuckle carries its finger and tip."""
    names = _moved_by(robot, {gripper.joint})
    return [link for link in robot.links if link.name in names]


def _moved_by(robot: Robot, joints: Collection[str]) -> tuple[str, ...]:
    """Return the links that these joints move, and their descendants."""
    found: dict[str, None] = {}
    for joint in robot.joints:  # parents before their children
        if joint.name in joints or joint.parent in found:
            found[joint.child] = None
    return tuple(found)


def _bounds(shape: Geometry, grip_T_link: NDArray[np.float64], above: float = -np.inf) -> NDArray[np.float64]:
    """Return (2, 3) smallest and largest coordinates of a shape where z > above, grip frame; infinite if empty."""
    corners = apply(grip_T_link @ shape.link_T_geometry, shape.mesh.vertices)[shape.mesh.faces]
    points = [corners.reshape(-1, 3)]
    if np.isfinite(above):
        start, end = corners.reshape(-1, 3), np.roll(corners, 1, axis=1).reshape(-1, 3)
        crossing = (start[:, 2] > above) != (end[:, 2] > above)
        share = (above - start[crossing, 2]) / (end[crossing, 2] - start[crossing, 2])
        points = [start[start[:, 2] > above], start[crossing] + share[:, None] * (end - start)[crossing]]
    found = np.concatenate(points)
    low, high = found.min(axis=0, initial=np.inf), found.max(axis=0, initial=-np.inf)
    return np.stack([low, high])


def _link_index(robot: Robot, name: str) -> int:
    return [link.name for link in robot.links].index(name)


def _tool_T_grip(robot: Robot, gripper: Gripper) -> NDArray[np.float64]:
    """Return (4, 4): x along the opening direction of the leading finger, z as close to the tool's as possible."""
    fingers = gripper.fingers or Fingers()
    grip = np.eye(4)
    grip[:3, 3] = fingers.grasp_point_m
    way = _opening_way(robot, gripper) if fingers.closing_axis is None else np.array(fingers.closing_axis)
    if np.linalg.norm(way) < LEAST_STROKE_M:
        return grip
    x = way / np.linalg.norm(way)
    z = np.array([0.0, 0.0, 1.0])
    z = z - x * (x @ z)
    if np.linalg.norm(z) < 0.1:
        z = np.cross(x, [0.0, 1.0, 0.0])
    z = z / np.linalg.norm(z)
    grip[:3, :3] = np.stack([x, np.cross(z, x), z], axis=1)
    return grip


def _opening_way(robot: Robot, gripper: Gripper) -> NDArray[np.float64]:
    """Return (3,) metres, tool frame: motion of the leading finger from closed to open."""
    tool = _link_index(robot, robot.tool_link)
    q = np.stack([robot.home_position()] * 2)
    q[:, robot.joint_names.index(gripper.joint)] = gripper.closed, gripper.open
    poses = forward_all(robot, q)
    ways = []
    for link in _leading_finger(robot, gripper):
        closed, opened = (np.linalg.inv(p[tool]) @ p[_link_index(robot, link.name)] for p in poses)
        ways.append(opened[:3, 3] - closed[:3, 3])
    if np.linalg.norm(ways[0]) >= LEAST_STROKE_M:
        return np.asarray(ways[0])
    # A knuckle only rotates; its tip swings outwards, the opening direction, and back along the approach.
    way = max(ways, key=lambda w: float(np.linalg.norm(w)))
    outwards = way * [1.0, 1.0, 0.0]
    return np.asarray(outwards if np.linalg.norm(outwards) > abs(way[2]) else way)
