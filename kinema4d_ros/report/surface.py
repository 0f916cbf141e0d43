"""A robot's surface for distance questions: every visual triangle, in trees, built once for each robot."""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.report._tree import build_tree
from kinema4d_ros.robot.model import Robot

__all__ = ["RobotSurface"]

_surfaces: WeakKeyDictionary[Robot, RobotSurface] = WeakKeyDictionary()


@dataclass(frozen=True, eq=False)
class RobotSurface:
    """The shapes of all links; shape g belongs to `robot.links[link[g]]`.

    Attributes:
        link: (G,) int64.
        root: (G,) int64, the shape's root node.
        closed: (G,) bool; only closed shapes have an inside.
        link_T_shape: (G, 4, 4) float64.
        triangles: (F, 3, 3) float64, metres, in the shape's frame, in tree order.
        box, child, span: the nodes, see `_tree`.
    """

    link: NDArray[np.int64]
    root: NDArray[np.int64]
    closed: NDArray[np.bool_]
    link_T_shape: NDArray[np.float64]
    triangles: NDArray[np.float64]
    box: NDArray[np.float64]
    child: NDArray[np.int64]
    span: NDArray[np.int64]

    @staticmethod
    def of(robot: Robot) -> RobotSurface:
        """The surface of a robot; kept as long as the robot lives."""
        if robot not in _surfaces:
            _surfaces[robot] = _build(robot)
        return _surfaces[robot]


def _build(robot: Robot) -> RobotSurface:
    links, roots, closed, poses = [], [], [], []
    triangles, boxes, children, spans = [], [], [], []
    nodes = faces = 0
    for index, link in enumerate(robot.links):
        for geometry in link.visuals:
            corners = geometry.mesh.vertices[geometry.mesh.faces]
            if not len(corners):
                continue
            order, box, child, span = build_tree(np.ascontiguousarray(corners, dtype=np.float64))
            links.append(index)
            roots.append(nodes)
            closed.append(geometry.mesh.closed)
            poses.append(geometry.link_T_geometry)
            triangles.append(corners[order])
            boxes.append(box)
            children.append(np.where(child >= 0, child + nodes, -1))
            spans.append(span + faces)
            nodes, faces = nodes + len(box), faces + len(corners)
    return RobotSurface(
        link=np.array(links, np.int64),
        root=np.array(roots, np.int64),
        closed=np.array(closed, np.bool_),
        link_T_shape=np.array(poses, np.float64).reshape(-1, 4, 4),
        triangles=np.concatenate(triangles) if triangles else np.empty((0, 3, 3)),
        box=np.concatenate(boxes) if boxes else np.empty((0, 2, 3)),
        child=np.concatenate(children) if children else np.empty(0, np.int64),
        span=np.concatenate(spans) if spans else np.empty((0, 2), np.int64),
    )
