"""What the physics needs to know of a robot's shapes: which links grip, and few points for each mesh."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.robot.model import Robot, TriangleMesh

__all__ = ["finger_links", "outer_points"]

DIRECTIONS = 128

_POINTS: WeakKeyDictionary[TriangleMesh, NDArray[np.float64]] = WeakKeyDictionary()


def finger_links(robot: Robot) -> tuple[str, ...]:
    """Links that the gripper's joint moves, itself or by mimic joints."""
    if robot.gripper is None:
        return ()
    leader = robot.gripper.joint
    return tuple(j.child for j in robot.joints if j.name == leader or (j.mimic and j.mimic.joint == leader))


def outer_points(mesh: TriangleMesh) -> NDArray[np.float64]:
    """(P, 3) the farthest vertices in `DIRECTIONS` + 6 directions all around, metres; their hull is the shape."""
    if mesh not in _POINTS:
        i = np.arange(DIRECTIONS) + 0.5
        polar, turn = np.arccos(1 - 2 * i / DIRECTIONS), np.pi * (1 + 5**0.5) * i
        directions = np.stack([np.cos(turn) * np.sin(polar), np.sin(turn) * np.sin(polar), np.cos(polar)])
        # The axes too, so that the box around the points is that of the mesh.
        directions = np.concatenate([directions, np.eye(3), -np.eye(3)], axis=1)
        _POINTS[mesh] = mesh.vertices[np.unique(np.argmax(mesh.vertices @ directions, axis=0))]
    return _POINTS[mesh]
