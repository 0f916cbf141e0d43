"""Grasped objects: their pixels, their path, and when they count as part of the robot.

    joint positions ─> closings of the fingers ─┐
    scene seen until then ──────────────────────┴─> object between the fingers ─> Grasped

Fingers that close on an object grasp it: touching it is not a contact. If the rollout shows that the object moves with
the gripper, it is part of the robot from closing to release; its points must then neither stay in the scene as a trail
nor appear early at places that it reaches later.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.pointmap import GripTrack
from kinema4d_ros.core.rollout import Rollout
from kinema4d_ros.core.transforms import apply, invert
from kinema4d_ros.generators.carry import STANDS_M, Grasp, find_grasps, find_thing
from kinema4d_ros.generators.inpaint import grow_mask
from kinema4d_ros.kinematics.gripping import grip_track
from kinema4d_ros.previews.report.plane import fit_plane
from kinema4d_ros.robot.model import Robot

__all__ = ["Grasped", "find_grasped"]

BETWEEN_M = 0.003
"""Maximum distance of a grasped object from the space between the fingers."""
LEFT_M = 0.03
"""Distance of the gripper from where it closed or opened beyond which it has left the object."""
SAME_M = 0.008
"""Maximum distance of a point from the object's expected position to count as the object."""
STILL_M = 0.004
"""Maximum change of a point at rest."""
EDGE_PX = 3.0
"""Margin around a moving object, where pixels mix it with the background."""
_AROUND_M = 0.25
_MOST_POINTS = 3000
_MARGIN_PX = 16

Mask = NDArray[np.bool_]
Points = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Grasped:
    """An object that the fingers close on.

    Attributes:
        grasp: frames of the closing and the release.
        mask: (H, W) bool, its pixels when the fingers begin to close.
        carried: the rollout shows it moving with the gripper.
        left: first frame in which the fingers are away from it again, or T.
        points: (N, 3) float64, metres, base frame at the closing; extended down to its support.
        base_T_closing: (T, 4, 4) float64: motion of these points in each frame from the closing to the release.
        shown: (T, H, W) bool, pixels that show it, or mix it with the background, after the closing; only if carried.
    """

    grasp: Grasp
    mask: Mask
    carried: bool
    left: int
    points: Points
    base_T_closing: Points
    shown: Mask

    def held(self, t: int) -> bool:
        """Return whether it is part of the robot in a frame."""
        return self.carried and self.grasp.closed <= t < self.grasp.release

    def touchable(self, t: int) -> Mask | None:
        """Return the pixels (H, W) of the scene that the fingers may touch in a frame; None = none."""
        if self.grasp.start <= t < (self.grasp.closed if self.carried else self.left):
            return self.mask
        if self.carried and self.grasp.release <= t < self.left:
            return np.asarray(self.shown[t])
        return None


def find_grasped(rollout: Rollout, robot: Robot, q: NDArray[np.float64], hidden: Mask) -> tuple[Grasped, ...]:
    """Find every object that the fingers close on, in order; hidden (T, H, W) are pixels that do not show the scene."""
    grip = grip_track(robot, q)
    found: list[Grasped] = []
    if grip is None:
        return ()
    seen = np.full(rollout.xyz.shape[1:], np.nan, np.float32)
    upto = 0
    for grasp in find_grasps(grip):
        for t in range(upto, grasp.start + 1):
            now = ~hidden[t]
            for earlier in found:
                if earlier.held(t):
                    now &= ~earlier.shown[t]
            np.copyto(seen, rollout.xyz[t], where=now[..., None])
        upto = grasp.start + 1
        table = _table_height(rollout, seen, grip.base_T_grip[grasp.closed, :3, 3])
        thing = find_thing(seen, rollout.camera, grip, [grasp], table_height_m=table, reach_m=BETWEEN_M)
        if thing is not None:
            found.append(_follow(rollout, grip, grasp, thing.mask, thing.p_grip, seen.copy(), hidden, table))
    return tuple(found)


def _table_height(rollout: Rollout, seen: NDArray[np.float32], around: Points) -> float:
    """Estimate the height of the support near a place, metres above the base; 0 where no plane is found."""
    points = apply(rollout.camera.base_T_camera, seen[::2, ::2][np.isfinite(seen[::2, ::2, 2])])
    points = points[np.linalg.norm(points[:, :2] - around[:2], axis=1) < _AROUND_M]
    plane = fit_plane(points)
    if plane is None or abs(plane[2]) < 0.95:
        return 0.0
    return float(-(plane[:2] @ around[:2] + plane[3]) / plane[2])


def _follow(
    rollout: Rollout,
    grip: GripTrack,
    grasp: Grasp,
    mask: Mask,
    p_grip: Points,
    seen: NDArray[np.float32],
    hidden: Mask,
    table: float,
) -> Grasped:
    poses = grip.base_T_grip
    base_T_closing = np.asarray(poses @ invert(poses[grasp.closed]))
    points = apply(poses[grasp.closed], p_grip)
    points = points[:: max(1, len(points) // _MOST_POINTS)]
    # Its points start a few millimetres above the table: extend it down to the table.
    foot = points[points[:, 2] < table + STANDS_M + SAME_M]
    points = np.concatenate([points, np.column_stack([foot[:, :2], np.full(len(foot), table)])])
    carried = _goes_along(rollout, grip, grasp, mask, seen, hidden)
    last = grasp.release if carried and grasp.release < len(grip) else grasp.closed
    away = np.linalg.norm(poses[last:, :3, 3] - poses[last, :3, 3], axis=1) > LEFT_M
    left = last + int(np.argmax(away)) if away.any() else len(grip)
    shown = np.zeros(hidden.shape, np.bool_)
    if carried:
        seen[mask] = np.nan
        _mark(rollout, grasp, points, base_T_closing, seen, hidden, table, shown)
    return Grasped(grasp, mask, carried, left, points, base_T_closing, shown)


def _goes_along(
    rollout: Rollout, grip: GripTrack, grasp: Grasp, mask: Mask, seen: NDArray[np.float32], hidden: Mask
) -> bool:
    """Return whether the object's pixels change once the gripper has left; True if none of them is in view."""
    way = np.linalg.norm(grip.base_T_grip[:, :3, 3] - grip.base_T_grip[grasp.closed, :3, 3], axis=1)
    frames = [t for t in range(grasp.closed, grasp.release) if way[t] > LEFT_M]
    for t in sorted(frames, key=lambda t: -way[t]):
        visible = mask & ~hidden[t]
        if 4 * visible.sum() >= mask.sum():
            change = np.linalg.norm(rollout.xyz[t][visible] - seen[visible], axis=-1)
            return bool(np.mean(~(change < SAME_M)) > 0.5)
    return bool(frames)


def _mark(
    rollout: Rollout,
    grasp: Grasp,
    points: Points,
    base_T_closing: Points,
    seen: NDArray[np.float32],
    hidden: Mask,
    table: float,
    shown: Mask,
) -> None:
    """Write the object's pixels into `shown` (T, H, W); `seen` (H, W, 3) is the scene at rest and is updated."""
    base_T_camera = rollout.camera.base_T_camera
    tree = cKDTree(points)
    released = apply(base_T_closing[grasp.release - 1], points)
    flat, top = cKDTree(released[:, :2]), float(released[:, 2].max()) + SAME_M
    fallen = np.column_stack([released[:, :2], np.full(len(released), table)])
    ways = [apply(pose, points[::10]) for pose in base_T_closing[grasp.closed : grasp.release]]
    rows, columns = _window(rollout.camera, np.concatenate([*ways, released, fallen]))
    xyz, hidden, seen = rollout.xyz[:, rows, columns], hidden[:, rows, columns], seen[rows, columns]
    for t in range(grasp.closed, len(rollout)):
        now = ~hidden[t] & np.isfinite(xyz[t, ..., 2])
        change = xyz[t] - seen
        # Where nothing was seen before, a new point may be the object.
        differs = now & ~((change * change).sum(-1) < STILL_M**2)
        p = apply(base_T_camera, xyz[t][differs].astype(np.float64))
        if t < grasp.release:
            near = _within(tree, apply(invert(base_T_closing[t]), p))
        else:
            # Where it falls is unknown: anywhere below the point of release.
            near = _within(flat, p[:, :2]) & (p[:, 2] > table + STILL_M) & (p[:, 2] < top)
        here = np.zeros(now.shape, np.bool_)
        here[differs] = near
        here = grow_mask(here, EDGE_PX) & now
        shown[t, rows, columns] = here
        np.copyto(seen, xyz[t], where=(now & ~here)[..., None])


def _window(camera: PinholeCamera, points: Points) -> tuple[slice, slice]:
    """Return rows and columns of points (N, 3), base frame, with a margin; all if one is behind the camera."""
    uv = camera.project(apply(camera.camera_T_base, points))
    if not np.isfinite(uv).all():
        return slice(0, camera.height), slice(0, camera.width)
    (u0, v0), (u1, v1) = uv.min(axis=0) - _MARGIN_PX, uv.max(axis=0) + _MARGIN_PX
    rows, columns = np.clip([v0, v1], 0, camera.height), np.clip([u0, u1], 0, camera.width)
    return slice(int(rows[0]), int(rows[1])), slice(int(columns[0]), int(columns[1]))


def _within(tree: cKDTree, points: Points) -> Mask:
    """Mark points nearer than `SAME_M` to one of the tree's: (N,) bool."""
    inside: Mask = np.all((points > tree.mins - SAME_M) & (points < tree.maxes + SAME_M), axis=1)
    inside[inside] = tree.query(points[inside], distance_upper_bound=SAME_M)[0] < SAME_M
    return inside
