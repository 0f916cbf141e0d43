"""Contact shapes from meshes: slices of boxes for fingers, a few outer points for everything else."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.kinematics.forward import forward_all
from kinema4d_ros.robot.model import Robot, TriangleMesh
from kinema4d_ros.transforms import apply, invert

__all__ = ["Slab", "finger_links", "finger_slabs", "outer_points"]

SLICE_M = 0.008
"""Thickness of a finger's slices along the approach direction: tapered tips become a fine staircase."""

DIRECTIONS = 128


class Slab(NamedTuple):
    """A box in a link's frame: `link_T_box` (4, 4) and full sizes (3,) in metres."""

    link_T_box: NDArray[np.float64]
    size: NDArray[np.float64]


def finger_links(robot: Robot) -> tuple[str, ...]:
    """Links that the gripper's joint moves, itself or by mimic joints."""
    if robot.gripper is None:
        return ()
    leader = robot.gripper.joint
    return tuple(j.child for j in robot.joints if j.name == leader or (j.mimic and j.mimic.joint == leader))


def finger_slabs(robot: Robot, link_name: str) -> list[Slab]:
    """A finger as boxes stacked along the tool's z, each around what the mesh has between two planes.

    Boxes have flat faces: contact with them is steady, where a mesh's many small faces would jitter.
    """
    link = robot.link(link_name)
    names = [x.name for x in robot.links]
    poses = forward_all(robot, robot.home_position()[None])[0]
    tool_T_link = invert(poses[names.index(robot.tool_link)]) @ poses[names.index(link_name)]
    link_T_tool = invert(tool_T_link)
    slabs: list[Slab] = []
    for shape in link.visuals or link.collisions:
        p = apply(tool_T_link @ shape.link_T_geometry, shape.mesh.vertices)
        low, high = float(p[:, 2].min()), float(p[:, 2].max())
        edges = np.linspace(low, high, max(2, round((high - low) / SLICE_M) + 1))
        for z0, z1 in pairwise(edges):
            inside = _between(p, shape.mesh.faces, z0, z1)
            if len(inside) < 3:
                continue
            corner, size = inside.min(axis=0), np.maximum(np.ptp(inside, axis=0), 1e-4)
            link_T_box = link_T_tool.copy()
            link_T_box[:3, 3] = apply(link_T_tool, corner + size / 2)
            slabs.append(Slab(link_T_box, size))
    return slabs


def _between(p: NDArray[np.float64], faces: NDArray[np.int32], z0: float, z1: float) -> NDArray[np.float64]:
    """Points that span the part of a surface between two heights: vertices, and edges cut at the planes."""
    found = [p[(p[:, 2] >= z0) & (p[:, 2] <= z1)]]
    a = p[faces].reshape(-1, 3)
    b = p[np.roll(faces, -1, axis=1)].reshape(-1, 3)
    for z in (z0, z1):
        cut = (a[:, 2] - z) * (b[:, 2] - z) < 0
        s = ((z - a[cut, 2]) / (b[cut, 2] - a[cut, 2]))[:, None]
        found.append(a[cut] + s * (b[cut] - a[cut]))
    return np.concatenate(found)


def outer_points(mesh: TriangleMesh) -> NDArray[np.float64]:
    """(P, 3) vertices, at most `DIRECTIONS`, whose hull is within about a millimetre of the mesh's hull."""
    i = np.arange(DIRECTIONS) + 0.5
    polar, turn = np.arccos(1 - 2 * i / DIRECTIONS), np.pi * (1 + 5**0.5) * i
    directions = np.stack([np.cos(turn) * np.sin(polar), np.sin(turn) * np.sin(polar), np.cos(polar)])
    extreme = np.unique(np.argmax(mesh.vertices @ directions, axis=0))
    points: NDArray[np.float64] = mesh.vertices[extreme]
    return points
