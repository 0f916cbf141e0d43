"""Clearance between robot and scene in every frame, including contact and penetration.

The robot is its visual meshes at its joint positions: the whole surface, not only the visible part. The scene is one
point per pixel: the last one seen there, or the first one before any was seen. So points that the robot hides for a
while still count.

A held object is part of the robot (`grasped.py`): it is removed from the scene when the fingers have closed, its own
distance to the scene counts once it is lifted, and no pixel keeps its points while it moves.

The distance is exact for these points: no sampling, no voxels. Not detected: a surface between two pixels (half a
millimetre at 1 m and f = 700 px), a surface that the camera never sees, and a robot completely behind the visible
surface, where no point is inside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import cv2
import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.spatial import cKDTree

from kinema4d_ros.core.errors import RolloutError
from kinema4d_ros.core.rollout import Rollout
from kinema4d_ros.core.transforms import apply, invert
from kinema4d_ros.kinematics.forward import forward_all
from kinema4d_ros.kinematics.gripping import finger_links
from kinema4d_ros.previews.report._kernels import TILE, build_tree, first_seen, hold_frame, nearest_point, tile_bounds
from kinema4d_ros.previews.report.grasped import Grasped
from kinema4d_ros.robot.model import Robot

__all__ = [
    "HELD",
    "SILHOUETTE_PX",
    "Clearance",
    "RobotSurface",
    "clearance_over_time",
    "hidden_pixels",
    "resting_links",
]

# Bounding-box trees over all visual triangles of a robot for distance queries, built once per robot.

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
        box, child, span: the nodes, see `_kernels.build_tree`.
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
        """Return the surface of a robot; cached for the lifetime of the robot."""
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


SILHOUETTE_PX = 3
"""Margin around the robot's silhouette where scene points are ignored, because pixels mix robot and scene."""

HELD = "held object"
"""Used as the link name where the held object is nearest."""
LIFTED_M = 0.02
"""Clearance from which a held object counts as lifted; before, it stands on the table."""

Found = tuple[float, str, NDArray[np.float64], tuple[int, int]]
"""Distance in metres, link, point of the robot in the base frame, row and column of the scene point."""


@dataclass(frozen=True, eq=False)
class Clearance:
    """The nearest pair of points of every frame.

    Attributes:
        distance_m: (T,) float64; negative = penetration depth; NaN = no scene point in view.
        link: T names; "" where there is no distance, `HELD` for the held object.
        robot_point: (T, 3) float64, metres, base frame; NaN where there is no distance.
        world_point: (T, 3) likewise.
        closed: all shapes used are closed, so penetration is always detected.
        pixel: (T, 2) int64, row and column of the scene point; -1 where there is no distance.
    """

    distance_m: NDArray[np.float64]
    link: tuple[str, ...]
    robot_point: NDArray[np.float64]
    world_point: NDArray[np.float64]
    closed: bool
    pixel: NDArray[np.int64]


def resting_links(robot: Robot) -> tuple[str, ...]:
    """Return the links that no joint moves: the base, which always touches the table."""
    resting = {robot.base_link}
    for joint in robot.joints:
        if joint.parent in resting and not joint.moves:
            resting.add(joint.child)
    return tuple(link.name for link in robot.links if link.name in resting)


def hidden_pixels(rollout: Rollout, margin_px: int = SILHOUETTE_PX) -> NDArray[np.bool_]:
    """Mark pixels that show the robot or are within `margin_px` of its silhouette: (T, H, W) bool."""
    disk = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (2 * margin_px + 1, 2 * margin_px + 1))
    out = np.empty(rollout.robot_mask.shape, np.bool_)
    for t, mask in enumerate(rollout.robot_mask):
        out[t] = cv2.dilate(mask.view(np.uint8), disk) != 0
    return out


def clearance_over_time(
    rollout: Rollout,
    robot: Robot,
    q: ArrayLike,
    *,
    ignore_links: Sequence[str] | None = None,
    hidden: NDArray[np.bool_] | None = None,
    grasped: Sequence[Grasped] = (),
) -> Clearance:
    """Compute the minimum distance between robot and scene in every frame.

    Args:
        rollout: with the scene's points and the camera's pose.
        robot: with its visual shapes.
        q: (T, J) positions in `robot.joint_names` order, one row for each frame.
        ignore_links: names of links to ignore; by default `resting_links(robot)`.
        hidden: (T, H, W) pixels that do not show the scene; by default `hidden_pixels(rollout)`.
        grasped: grasped objects; by default none, and every touch counts.
    """
    skip = {robot.link(name).name for name in (resting_links(robot) if ignore_links is None else ignore_links)}
    poses = forward_all(robot, q)
    if len(poses) != len(rollout):
        raise RolloutError(f"{len(poses)} joint positions for {len(rollout)} frames", expected="one per frame")
    hidden = hidden_pixels(rollout) if hidden is None else hidden
    body = _Body(rollout, robot, poses, skip)
    world = _World(rollout, hidden, grasped)
    frames = len(rollout)
    distance, pixel = np.full(frames, np.nan), np.full((frames, 2), -1)
    names = [""] * frames
    robot_point, world_point = np.full((frames, 3), np.nan), np.full((frames, 3), np.nan)
    lifted = [False] * len(grasped)
    for t in range(frames):
        world.advance(t)
        touchable = [mask for one in grasped if (mask := one.touchable(t)) is not None]
        if touchable:
            best = _nearer(
                body.nearest(t, world.points, world.spheres, fingers=False),
                body.nearest(t, *world.without(np.logical_or.reduce(touchable))),
            )
        else:
            best = body.nearest(t, world.points, world.spheres)
        for k, one in enumerate(grasped):
            if one.held(t):
                least = _held_distance(one, t, world, LIFTED_M if best is None else max(best[0], LIFTED_M))
                lifted[k] = lifted[k] or least is None or least[0] > LIFTED_M
                best = _nearer(best, least) if lifted[k] else best
        if best is None:
            continue
        distance[t], names[t], robot_point[t], pixel[t] = best
        world_point[t] = apply(rollout.camera.base_T_camera, world.points[best[3]])
    return Clearance(distance, tuple(names), robot_point, world_point, bool(body.closed.all()), pixel)


def _nearer(one: Found | None, other: Found | None) -> Found | None:
    if one is None or other is None:
        return other if one is None else one
    return other if other[0] < one[0] else one


def _held_distance(one: Grasped, t: int, world: _World, reach_m: float) -> Found | None:
    """Compute the minimum distance between a held object and the scene; None if it is above `reach_m`."""
    base_T_camera = world.camera.base_T_camera
    points = apply(one.base_T_closing[t], one.points)
    p_camera = apply(invert(base_T_camera), points)
    low, high = p_camera.min(axis=0) - reach_m, p_camera.max(axis=0) + reach_m
    inside = np.ones(world.points.shape[:2], np.bool_)
    for c in range(3):
        with np.errstate(invalid="ignore"):
            inside &= (world.points[..., c] > low[c]) & (world.points[..., c] < high[c])
    if not inside.any():
        return None
    away, index = cKDTree(p_camera).query(world.points[inside], distance_upper_bound=reach_m)
    k = int(np.argmin(away))
    if not np.isfinite(away[k]):
        return None
    v, u = np.argwhere(inside)[k]
    return float(away[k]), HELD, points[index[k]], (int(v), int(u))


class _Body:
    """The robot's shapes along the motion."""

    def __init__(self, rollout: Rollout, robot: Robot, poses: NDArray[np.float64], skip: set[str]) -> None:
        surface = self._surface = RobotSurface.of(robot)
        names = [robot.links[i].name for i in surface.link]
        used = np.array([name not in skip for name in names], dtype=np.bool_)
        self._names = [name for name, use in zip(names, used, strict=True) if use]
        grips = finger_links(robot)
        self._no_finger = np.array([name not in grips for name in self._names], dtype=np.bool_)
        self._root, self.closed = surface.root[used], surface.closed[used]
        self._base_T_shape = poses[:, surface.link[used]] @ surface.link_T_shape[used]
        self._shape_T_camera = np.ascontiguousarray(
            (invert(self._base_T_shape) @ rollout.camera.base_T_camera)[..., :3, :]
        )

    def nearest(
        self, t: int, world: NDArray[np.float32], spheres: NDArray[np.float64], fingers: bool = True
    ) -> Found | None:
        """Find the nearest pair of a frame; None without scene points. Without `fingers` their links are ignored."""
        surface = self._surface
        which = np.flatnonzero(self._no_finger | fingers)
        shape_T_camera, root, closed = self._shape_T_camera[t, which], self._root[which], self.closed[which]
        least = tile_bounds(spheres, shape_T_camera, root, surface.box)
        order = np.argsort(least, kind="stable")
        tree = (surface.triangles, surface.box, surface.child, surface.span)
        on_shape = np.empty(3)
        best, shape, v, u = nearest_point(world, spheres, least, order, shape_T_camera, root, closed, *tree, on_shape)
        if shape < 0:
            return None
        return best, self._names[which[shape]], apply(self._base_T_shape[t, which[shape]], on_shape), (v, u)


class _World:
    """The scene, one point per pixel, updated frame by frame.

    Attributes:
        points: (H, W, 3) float32, metres, camera optical frame, NaN = unknown.
        spheres: around the points of every tile, see `hold_frame`.
    """

    def __init__(self, rollout: Rollout, hidden: NDArray[np.bool_], grasped: Sequence[Grasped]) -> None:
        self.camera = rollout.camera
        self._xyz, self._hidden, self._grasped = np.ascontiguousarray(rollout.xyz), hidden, grasped
        height, width = hidden.shape[1:]
        carried = [one for one in grasped if one.carried]
        # A carried object must not appear in the scene before it arrives.
        never = np.logical_or.reduce([hidden, *(one.shown for one in carried)]) if carried else hidden
        self.points = np.empty((height, width, 3), np.float32)
        first_seen(self._xyz, never, self.points)
        self.spheres = np.full((-(-height // TILE), -(-width // TILE), 4), -1.0)
        self._behind = {id(one): _farthest(self._xyz, never, one.mask) for one in carried}

    def advance(self, t: int) -> None:
        """Update the points with frame t; frames must be in order."""
        hidden, renew = self._hidden[t], t == 0
        for one in self._grasped:
            if one.held(t):
                hidden, renew = hidden | one.shown[t], True
                if t == one.grasp.closed:
                    # Otherwise pixels that show the object or the robot now would keep the object's old points.
                    self.points[one.mask] = self._behind[id(one)]
        hold_frame(self._xyz[t], hidden, self.points, self.spheres, renew)

    def without(self, mask: NDArray[np.bool_]) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
        """Return points and spheres of the same frame without the pixels of a mask (H, W)."""
        points, spheres = self.points.copy(), np.empty_like(self.spheres)
        points[mask] = np.nan
        hold_frame(points, np.ones(mask.shape, np.bool_), points, spheres, True)
        return points, spheres


def _farthest(xyz: NDArray[np.float32], hidden: NDArray[np.bool_], mask: NDArray[np.bool_]) -> NDArray[np.float32]:
    """Return the farthest visible point (N, 3) of each pixel of the mask (background of a moved object), NaN = none."""
    views = np.where(hidden[:, mask, None], np.nan, xyz[:, mask])
    far = np.where(np.isfinite(views[..., 2]), views[..., 2], -np.inf).argmax(axis=0)
    return np.asarray(views[far, np.arange(views.shape[1])])
