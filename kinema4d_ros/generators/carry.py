"""The carry hypothesis: the frames if the object at the closing fingers moved with the gripper.

    static scene, grip ─ find_grasps ─> closing fingers ─ nearest standing object ─> Candidate
    Candidate ─ moves rigidly with the gripper from closing to release, then drops ─> rgb, xyz of every frame

This module does not decide whether the grasp holds: it makes the hypothesis for every object within reach of the
fingers, also for those that they would miss. A learned generator decides, with the geometry from `describe`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.pointmap import GripTrack, PointmapSequence, map_frames
from kinema4d_ros.core.rollout import Frames
from kinema4d_ros.generators._kernels import compose_frame, label_things, splat_points
from kinema4d_ros.generators.inpaint import grow_mask, remove_robot

__all__ = [
    "DESCRIPTION",
    "Candidate",
    "CarriedWorld",
    "Grasp",
    "carried_frames",
    "describe",
    "find_candidate",
    "find_grasps",
    "find_thing",
    "plane_depth",
]

MAX_RANGE_M = 3.0
"""Maximum distance of the assumed table from the camera."""
STANDS_M = 0.007
"""Points higher above the table than this belong to objects."""
GAP_M = 0.015
REACH_M = 0.03
"""Maximum distance of an object from the space between the fingers to become a candidate."""
PAST_TIPS_M = 0.0076
"""The space between the fingers extends this far past their tips, because mostly the top of an object is visible."""
LEAST_SHARE = 5e-4
"""Minimum size of an object as a share of the image's pixels."""
CLOSES_M = 0.004
OPENS_M = 0.006
STILL_M = 0.0005
BORDER = 0.012
"""Margin around an object, as a share of the image's width, that is also inpainted when it leaves (mixed pixels)."""

DESCRIPTION = (
    "offered", "x_low", "x_high", "y_low", "y_high", "z_low", "z_high", "x_mean", "y_mean", "z_mean",
    "width_open", "width_closed", "height", "to_camera_x", "to_camera_y", "to_camera_z", "distance", "between",
    "rises", "kept",
)  # fmt: skip
"""Names of the values of `describe`."""


@dataclass(frozen=True)
class Grasp:
    """Frame indices of a closing of the fingers. `release` is the first frame in which they are open again, or T."""

    start: int
    closed: int
    release: int


@dataclass(frozen=True, eq=False)
class Candidate:
    """The object that a grasp may take.

    Attributes:
        grasp: frames of the grasp.
        mask: (H, W) bool, its pixels in the first image.
        p_grip: (N, 3) float64, its points in the gripper's frame at the closing, metres.
        distance_m: of its nearest point from the space between the fingers; 0 = inside.
    """

    grasp: Grasp
    mask: NDArray[np.bool_]
    p_grip: NDArray[np.float64]
    distance_m: float


def find_grasps(grip: GripTrack) -> tuple[Grasp, ...]:
    """Find every closing of the fingers by more than a few millimetres, in order."""
    width, found = grip.width_m, []
    change = np.diff(width)
    t = 0
    while t < len(change):
        if change[t] >= -STILL_M:
            t += 1
            continue
        start = t
        while t < len(change) and change[t] < -STILL_M:
            t += 1
        if width[start] - width[t] >= CLOSES_M:
            opened = np.flatnonzero(width[t:] > width[t] + OPENS_M)
            found.append(Grasp(start, t, t + int(opened[0]) if len(opened) else len(width)))
    return tuple(found)


def find_candidate(
    world: Frames, robot: PointmapSequence, *, table_height_m: float = 0.0, reach_m: float = REACH_M
) -> Candidate | None:
    """Find the standing object nearest to the fingers of the first grasp that has one within reach; None = none.

    The world is the scene without the robot, at rest, in one frame.
    """
    if robot.grip is None:
        return None
    grasps = find_grasps(robot.grip)
    return find_thing(world.xyz[0], robot.camera, robot.grip, grasps, table_height_m=table_height_m, reach_m=reach_m)


def find_thing(
    xyz: NDArray[np.float32],
    camera: PinholeCamera,
    grip: GripTrack,
    grasps: Sequence[Grasp],
    *,
    table_height_m: float,
    reach_m: float,
) -> Candidate | None:
    """Find the candidate in points (H, W, 3), camera optical frame, NaN = unknown, for some grasps."""
    if not grasps:
        return None
    p_base = _to_base(xyz, camera)
    with np.errstate(invalid="ignore"):
        thing = p_base[..., 2] > table_height_m + STANDS_M
    if not thing.any():
        return None
    labels = np.empty(thing.shape, np.int32)
    count = label_things(np.ascontiguousarray(xyz), thing, GAP_M, labels)
    sizes = np.bincount(labels.ravel(), minlength=count + 1)
    large = np.flatnonzero(sizes[1:] >= max(4.0, LEAST_SHARE * thing.size)) + 1
    chosen = np.isin(labels, large)
    if not chosen.any():
        return None
    owner, points = labels[chosen], p_base[chosen]
    best: Candidate | None = None
    for grasp in grasps:
        p_grip = _into(grip.base_T_grip[grasp.closed], points)
        away = _from_between(p_grip, grip, grasp)
        nearest = int(np.argmin(away))
        distance = float(away[nearest])
        if distance <= reach_m and (best is None or distance < best.distance_m - 0.005):
            mine = owner == owner[nearest]
            best = Candidate(grasp, labels == owner[nearest], p_grip[mine], distance)
    return best


def describe(
    candidate: Candidate | None, robot: PointmapSequence, *, table_height_m: float = 0.0
) -> NDArray[np.float32]:
    """Describe the geometry of object and fingers at the closing: (20,) float32, see `DESCRIPTION`; zeros without one.

    Lengths in units of 5 cm, all within -4 to 4; x, y and z of the visible points in the gripper's frame. The far side
    is not visible, so the direction to the camera is included.
    """
    numbers = np.zeros(len(DESCRIPTION), np.float32)
    if candidate is None or robot.grip is None:
        return numbers
    grasp, p, grip = candidate.grasp, candidate.p_grip, robot.grip
    pose = grip.base_T_grip[grasp.closed]
    eye = robot.camera.base_T_camera[:3, 3] - pose[:3, 3]
    low, high = np.percentile(p, [3, 97], axis=0)
    after = grip.base_T_grip[grasp.closed :, 2, 3]
    inside = _from_between(p, grip, grasp) <= 0
    lengths = [
        *np.stack([low, high], axis=1).ravel(), *p.mean(0), grip.width_m[grasp.start], grip.width_m[grasp.closed],
        pose[2, 3] - table_height_m,
    ]  # fmt: skip
    numbers[0] = 1
    numbers[1:13] = np.asarray(lengths) / 0.05
    numbers[13:16] = pose[:3, :3].T @ eye / max(float(np.linalg.norm(eye)), 1e-9)
    numbers[16] = candidate.distance_m / 0.02
    numbers[17] = inside.mean()
    numbers[18] = (after.max() - after[0]) / 0.05
    numbers[19] = float(grasp.release >= len(grip))
    return np.clip(numbers, -4, 4)


class CarriedWorld:
    """The world in which the candidate moves with the gripper; what does not depend on the frame is computed once.

    Args:
        world: the scene without the robot, at rest, in one frame.
        candidate: found in this world; it uncovers the empty table.
        robot: the exact robot, with the gripper's trajectory.
        robot_rgb: (T, H, W, 3) uint8, its colours.
        table_height_m, max_range_m: of the assumed plane.
        soft_edges: blend the robot's border pixels in the images; points and masks stay exact.
        quick_fill: inpaint smoothly, without textures: for small images.
    """

    def __init__(
        self,
        world: Frames,
        candidate: Candidate,
        robot: PointmapSequence,
        robot_rgb: NDArray[np.uint8],
        *,
        table_height_m: float = 0.0,
        max_range_m: float = MAX_RANGE_M,
        soft_edges: bool = True,
        quick_fill: bool = False,
    ) -> None:
        """Inpaint the table under the candidate."""
        if robot.grip is None:
            raise ValueError("a candidate is found by the gripper's trajectory, which this robot does not have")
        self._robot, self._colours, self._soft, self._table_m = robot, robot_rgb, soft_edges, table_height_m
        self._grip, self._grasp, camera = robot.grip, candidate.grasp, robot.camera
        hole = grow_mask(candidate.mask, max(1.0, BORDER * camera.width))
        self._background = remove_robot(world.rgb[0], hole, quick=quick_fill)
        table = (camera.rays() * plane_depth(camera, table_height_m, max_range_m)[..., None]).astype(np.float32)
        self._empty = np.where(hole[..., None], table, world.xyz[0])
        self._object_rgb = world.rgb[0][candidate.mask]
        self._p_base = _to_base(world.xyz[0][candidate.mask], camera)
        self._at_rest = np.linalg.inv(self._grip.base_T_grip[self._grasp.closed])
        dropped = self._grasp.release < len(robot)
        self._ground = _to_base(self._empty, camera) if dropped else None

    def write(self, t: int, rgb: NDArray[np.uint8], xyz: NDArray[np.float32], mask: NDArray[np.bool_]) -> None:
        """Write the arrays (H, W[, 3]) of one frame, from the closing on; frames can be written in parallel."""
        robot, grasp = self._robot, self._grasp
        moved = self._grip.base_T_grip[min(t, grasp.release - 1)] @ self._at_rest
        p = self._p_base @ moved[:3, :3].T + moved[:3, 3]
        if t >= grasp.release and self._ground is not None:
            p[:, 2] -= max(0.0, _above_ground(p, self._ground, self._table_m))
        here_rgb, here_xyz = self._background.copy(), self._empty.copy()
        p_camera = _to_camera(p, robot.camera).astype(np.float32)
        splat_points(p_camera, self._object_rgb, robot.camera.K, 0.01, here_rgb, here_xyz)
        compose_frame(
            here_rgb, here_xyz, robot.xyz[t], robot.link_ids[t], self._colours[t], self._soft, rgb, xyz, mask
        )  # fmt: skip


def carried_frames(
    world: Frames,
    candidate: Candidate,
    robot: PointmapSequence,
    robot_rgb: NDArray[np.uint8],
    rgb: NDArray[np.uint8],
    xyz: NDArray[np.float32],
    mask: NDArray[np.bool_],
    **options: Any,
) -> None:
    """Write the frames from the closing on into the arrays of `Frames`: rgb, xyz and the robot's mask.

    Earlier frames are unchanged: nothing has moved before the closing. The options are those of `CarriedWorld`.
    """
    made = CarriedWorld(world, candidate, robot, robot_rgb, **options)
    map_frames(lambda t: made.write(t, rgb[t], xyz[t], mask[t]), range(candidate.grasp.closed, len(robot)))


def plane_depth(camera: PinholeCamera, height_m: float, max_range_m: float = MAX_RANGE_M) -> NDArray[np.float64]:
    """Compute z (H, W) float64, metres, optical frame, of the plane at that height above the base; NaN = not hit.

    Also NaN where the plane is farther from the camera than `max_range_m`, and everywhere if the camera is below it.
    """
    rays = camera.rays()
    drop = rays @ camera.base_T_camera[2, :3]
    above = float(camera.base_T_camera[2, 3]) - height_m
    with np.errstate(divide="ignore", invalid="ignore"):
        z = np.where(drop < 0, -above / drop, np.nan) if above > 0 else np.full(drop.shape, np.nan)
        z[~(z * np.linalg.norm(rays, axis=-1) <= max_range_m)] = np.nan
    return z


def _above_ground(p_base: NDArray[np.float64], ground: NDArray[np.float64], table: float) -> float:
    """Compute the drop height of the object onto the table or an object below it; `ground` (H, W, 3), base frame."""
    centre, bottom = p_base[:, :2].mean(0), float(np.percentile(p_base[:, 2], 2))
    with np.errstate(invalid="ignore"):
        under = (np.hypot(*(ground[..., :2] - centre).transpose(2, 0, 1)) < 0.012) & (ground[..., 2] < bottom + 0.01)
    heights = ground[..., 2][under]
    support = float(np.percentile(heights, 80)) if len(heights) else table
    return bottom - max(support, table)


def _from_between(p_grip: NDArray[np.float64], grip: GripTrack, grasp: Grasp) -> NDArray[np.float64]:
    """Compute distances (N,) in metres from the box between the open fingers, 0 inside."""
    fingers, width = grip.fingers, float(grip.width_m[grasp.start])
    low = np.array([-width / 2, -fingers.pad_width_m / 2, -fingers.length_m])
    high = np.array([width / 2, fingers.pad_width_m / 2, fingers.tip_m + PAST_TIPS_M])
    outside = np.maximum(np.maximum(low - p_grip, p_grip - high), 0.0)
    return np.asarray(np.linalg.norm(outside, axis=-1))


def _into(base_T_frame: NDArray[np.float64], p_base: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray((p_base - base_T_frame[:3, 3]) @ base_T_frame[:3, :3])


def _to_base(xyz: NDArray[np.float32], camera: PinholeCamera) -> NDArray[np.float64]:
    pose = camera.base_T_camera
    return np.asarray(xyz.astype(np.float64) @ pose[:3, :3].T + pose[:3, 3])


def _to_camera(p_base: NDArray[np.float64], camera: PinholeCamera) -> NDArray[np.float64]:
    return _into(camera.base_T_camera, p_base)
