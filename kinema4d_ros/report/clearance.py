"""How near the robot comes to the world, frame by frame: clearance, contact, penetration.

The robot is its visual meshes, moved by its joint positions: all of the surface, not only what the camera
sees. The world is one point for each pixel: the last one seen there, or, before any was seen, the first one
that is. So what the robot hides for a while stays in the calculation.

The distance is exact for these points: no surface is sampled, no voxel rounds it. What it cannot know: a
world surface between two pixels (half a millimetre at 1 m and f = 700 px), one that the camera never sees, and
a robot that lies behind the visible surface altogether, where no point is inside of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import ArrayLike, NDArray

from kinema4d_ros.errors import RolloutError
from kinema4d_ros.kinematics.forward import forward_all
from kinema4d_ros.report._kernels import TILE, first_seen, hold_frame, nearest_point, tile_bounds
from kinema4d_ros.report.surface import RobotSurface
from kinema4d_ros.robot.model import Robot
from kinema4d_ros.rollout import Rollout
from kinema4d_ros.transforms import apply, invert

__all__ = ["SILHOUETTE_PX", "Clearance", "clearance_over_time", "hidden_pixels", "resting_links"]

SILHOUETTE_PX = 3
"""World points this near to the robot's silhouette are not trusted: there, pixels mix robot and world."""


@dataclass(frozen=True, eq=False)
class Clearance:
    """The nearest pair of points of every frame.

    Attributes:
        distance_m: (T,) float64; negative = penetration depth; NaN = no world point in view.
        link: T names; "" where there is no distance.
        robot_point: (T, 3) float64, metres, base frame; NaN where there is no distance.
        world_point: (T, 3) likewise.
        closed: every shape that took part has an inside, so penetration is always found.
    """

    distance_m: NDArray[np.float64]
    link: tuple[str, ...]
    robot_point: NDArray[np.float64]
    world_point: NDArray[np.float64]
    closed: bool


def resting_links(robot: Robot) -> tuple[str, ...]:
    """Links that no joint moves: the base, which stands on the table and always touches it."""
    resting = {robot.base_link}
    for joint in robot.joints:
        if joint.parent in resting and not joint.moves:
            resting.add(joint.child)
    return tuple(link.name for link in robot.links if link.name in resting)


def hidden_pixels(rollout: Rollout, margin_px: int = SILHOUETTE_PX) -> NDArray[np.bool_]:
    """(T, H, W) bool: pixels that show the robot, or lie within `margin_px` of its silhouette."""
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
) -> Clearance:
    """The least distance between robot and world in every frame.

    Args:
        rollout: gives the world; its camera gives the pose.
        robot: with its visual shapes.
        q: (T, J) positions in `robot.joint_names` order, one row for each frame.
        ignore_links: names that do not count; by default `resting_links(robot)`.
        hidden: (T, H, W) pixels that are not the world; by default `hidden_pixels(rollout)`.
    """
    skip = {robot.link(name).name for name in (resting_links(robot) if ignore_links is None else ignore_links)}
    poses = forward_all(robot, q)
    if len(poses) != len(rollout):
        raise RolloutError(f"{len(poses)} joint positions for {len(rollout)} frames", expected="one for each frame")
    surface = RobotSurface.of(robot)
    used = np.array([robot.links[i].name not in skip for i in surface.link], dtype=np.bool_)
    link, root, closed = surface.link[used], surface.root[used], surface.closed[used]
    base_T_shape = poses[:, link] @ surface.link_T_shape[used]
    shape_T_camera = np.ascontiguousarray((invert(base_T_shape) @ rollout.camera.base_T_camera)[..., :3, :])
    hidden = hidden_pixels(rollout) if hidden is None else hidden

    frames, height, width = rollout.robot_mask.shape
    world = np.empty((height, width, 3), np.float32)
    xyz = np.ascontiguousarray(rollout.xyz)
    first_seen(xyz, hidden, world)
    spheres = np.full((-(-height // TILE), -(-width // TILE), 4), -1.0)
    distance = np.full(frames, np.nan)
    names = [""] * frames
    robot_point, world_point = np.full((frames, 3), np.nan), np.full((frames, 3), np.nan)
    on_shape = np.empty(3)
    for t in range(frames):
        hold_frame(xyz[t], hidden[t], world, spheres, t == 0)
        tree = (surface.triangles, surface.box, surface.child, surface.span)
        least = tile_bounds(spheres, shape_T_camera[t], root, surface.box)
        order = np.argsort(least, kind="stable")
        best, shape, v, u = nearest_point(
            world, spheres, least, order, shape_T_camera[t], root, closed, *tree, on_shape
        )
        if shape < 0:
            continue
        distance[t] = best
        names[t] = robot.links[link[shape]].name
        robot_point[t] = apply(base_T_shape[t, shape], on_shape)
        world_point[t] = apply(rollout.camera.base_T_camera, world[v, u])
    return Clearance(distance, tuple(names), robot_point, world_point, bool(closed.all()))
