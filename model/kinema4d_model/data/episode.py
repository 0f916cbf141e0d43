"""`Episode`: one recorded or simulated motion with all data for training and evaluation.

    rgb, depth, ids       camera data: colour, metres, link or object per pixel
    joints, actions       measured and commanded joint positions
    condition             the robot alone, rendered from the ACTIONS: input of a generator
    outcome               success and object poses in every frame

If the robot model is available, the condition is not stored but rendered from robot, actions and camera: 0.03 s
for 25 frames instead of a second video, and always consistent with the actions. The link ids of every frame are
stored (12 kB) so that training can mask without rendering and the checker can detect changes of the renderer.
Without a robot model the rendered sequence itself is stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros import __version__
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import DataError, ErrorCode, EvaluationError
from kinema4d_ros.core.pointmap import PointmapSequence
from kinema4d_ros.core.task import TASKS, Task, make_task
from kinema4d_ros.render import render_pointmaps
from kinema4d_ros.robot import Robot

__all__ = [
    "DEPTH_UNIT_M",
    "RENDERER",
    "Episode",
    "ObjectTrack",
    "Outcome",
    "StoredCondition",
    "load_robot",
    "pack_depth",
    "point_bounds",
    "points_from_depth",
    "recorded_task",
    "unpack_depth",
    "versions",
]

# Conversion between metric depth, uint16 steps of 0.1 mm and point clouds.

DEPTH_UNIT_M = 1e-4
_MAX_STEPS = 65535


def pack_depth(depth_m: NDArray[np.float32], unit_m: float = DEPTH_UNIT_M) -> NDArray[np.uint16]:
    """Return (T, H, W) uint16 steps of `unit_m`, 0 = nothing (NaN); raise DataError for depth out of range."""
    known = np.isfinite(depth_m)
    steps = np.zeros(depth_m.shape, np.float64)
    np.divide(depth_m, unit_m, out=steps, where=known)
    steps = np.rint(steps)
    if np.any(known & ((steps < 1) | (steps > _MAX_STEPS))):
        worst = depth_m[known]
        raise DataError(
            f"depth ranges from {worst.min():g} to {worst.max():g} m",
            expected=f"{unit_m:g} to {unit_m * _MAX_STEPS:g} m, NaN for empty pixels",
            hint="use a larger unit_m",
        )
    return steps.astype(np.uint16)


def unpack_depth(steps: NDArray[np.uint16], unit_m: float = DEPTH_UNIT_M) -> NDArray[np.float32]:
    """Return (T, H, W) float32 metres along the optical axis, NaN = nothing."""
    return np.where(steps > 0, steps * np.float32(unit_m), np.float32(np.nan)).astype(np.float32)


def points_from_depth(depth_m: NDArray[np.float32], camera: PinholeCamera) -> NDArray[np.float32]:
    """Return (T, H, W, 3) float32 metres, camera optical frame, NaN = nothing, for depth (T, H, W) at pixel centres."""
    if depth_m.shape[-2:] != (camera.height, camera.width):
        raise DataError(f"depth is {depth_m.shape[-2:]}", expected=f"({camera.height}, {camera.width}), as the camera")
    return np.asarray(camera.rays().astype(np.float32) * depth_m[..., None], np.float32)


def point_bounds(*clouds: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return (2, 3) float64: minimum and maximum x, y, z in metres of all finite points of arrays (..., 3)."""
    low, high = np.full(3, np.inf), np.full(3, -np.inf)
    for cloud in clouds:
        points = cloud.reshape(-1, 3)
        points = points[np.isfinite(points[:, 2])]
        if len(points):
            low, high = np.minimum(low, points.min(axis=0)), np.maximum(high, points.max(axis=0))
    if not np.all(np.isfinite(low)):
        raise DataError("no finite point to compute bounds from", expected="at least one pixel with depth")
    return np.stack([low, high])


Floats = NDArray[np.float64]


@lru_cache(maxsize=4)
def load_robot(name: str) -> Robot:
    """Load a robot by name, cached per process."""
    return Robot.load(name)


@dataclass(frozen=True, eq=False)
class ObjectTrack:
    """One object and its pose in every frame.

    Attributes:
        name: as in `Episode.names`.
        shape: of `physics.objects.LabObject`, or "" when unknown.
        size: (x, y, z) metres of its bounding box.
        rgb: 0 to 1, sRGB.
        base_T_object: (T, 4, 4) float64, metres.
    """

    name: str
    shape: str
    size: tuple[float, float, float]
    rgb: tuple[float, float, float]
    base_T_object: Floats


@dataclass(frozen=True, eq=False)
class Outcome:
    """Outcome of an episode, from physics or from a judge.

    Attributes:
        success: whether the task succeeded; None if unknown.
        target: name of the task's target object, or "".
        facts: plain values behind `success`, such as {"lifted_m": 0.09}.
        objects: tracks of all objects; empty if unknown.
    """

    success: bool | None
    target: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    objects: tuple[ObjectTrack, ...] = ()


def recorded_task(kind: str, target: str, details: Mapping[str, Any], where: str, called: str = "") -> Task:
    """Make the task of a recording from its metadata; a kind that is not in `TASKS` is treated as a pick.

    Args:
        kind: kind of task.
        target: name of the target object.
        details: "goal_xy" of a place or stack, metres, base frame; "support_height_m" of a stack.
        where: name of the recording in errors.
        called: name of the object in the instruction.

    Raises:
        DataError: a place or stack without a goal position.
    """
    support_m = details.get("support_height_m", 0.0) if kind == "stack" else 0.0
    try:
        return make_task(
            kind if kind in TASKS else "pick",
            target,
            goal_xy=details.get("goal_xy"),
            support_m=float(support_m),
            called=called,
        )
    except (EvaluationError, TypeError, ValueError) as error:
        raise DataError(
            f"{where} ({kind}) has no goal position: {getattr(error, 'what', error)}"[:300],
            expected="details.goal_xy: [x, y] in metres, base frame",
        ) from None


@dataclass(frozen=True, eq=False)
class StoredCondition:
    """The stored rendering of the robot alone, where it cannot be rendered again.

    Attributes:
        rgb: (T, H, W, 3) uint8, 0 = no robot.
        depth_m: (T, H, W) float32, NaN = no robot; None if unknown.
        pointmap01: (T, H, W, 3) uint8, normalised x, y, z where metres are unknown, 0 = no robot; None otherwise.
    """

    rgb: NDArray[np.uint8]
    depth_m: NDArray[np.float32] | None
    pointmap01: NDArray[np.uint8] | None = None


@dataclass(frozen=True, eq=False)
class Episode:
    """One motion of T frames, uniform in time.

    Attributes:
        key: unique in its dataset: letters, digits, "-" and "_".
        rgb: (T, H, W, 3) uint8, sRGB.
        depth_m: (T, H, W) float32, metres along the optical axis, NaN = nothing; None if unknown.
        ids: (T, H, W) uint8, 0 = nothing, i + 1 = `names[i]`; None if unknown.
        names: links of the robot first (`link_count` of them), then furniture and objects.
        link_count: number of robot links in `names`.
        times: (T,) float64, seconds from the first frame.
        camera: without distortion; its `base_T_camera` may be the identity if unknown (then listed in `missing`).
        robot: name or URDF of the robot, "" if there is no model.
        joint_names: J names in the robot's order.
        joints: (T, J) float64 measured; None if unknown.
        actions: (T, J) float64 commanded at the frame times; None if unknown.
        condition_ids: (T, H, W) uint8, links of the robot rendered from `actions`, 0 = none, i + 1 = `names[i]`.
        condition: the stored rendering, only where `robot` or `actions` are missing.
        bounds: (2, 3) metres, camera frame: minimum and maximum x, y, z of the whole sequence; None without depth.
        known_bounds: (2, 3) the same for data known before the motion: first frame and condition.
        task: such as "pick".
        outcome: result of the task.
        source: origin, such as "lab".
        captions: "instruction" (the task) and "description" (the scene), both optional.
        seeds: all seeds used.
        versions: packages that generated the episode.
        details: other metadata, plain JSON.
        missing: names of fields that the source does not have.
        pointmap01: (T, H, W, 3) uint8, normalised x, y, z where the source has no metres; None otherwise.
    """

    key: str
    rgb: NDArray[np.uint8]
    depth_m: NDArray[np.float32] | None
    ids: NDArray[np.uint8] | None
    names: tuple[str, ...]
    link_count: int
    times: Floats
    camera: PinholeCamera
    robot: str
    joint_names: tuple[str, ...]
    joints: Floats | None
    actions: Floats | None
    condition_ids: NDArray[np.uint8] | None
    bounds: Floats | None
    known_bounds: Floats | None
    task: str
    outcome: Outcome
    source: str
    condition: StoredCondition | None = None
    captions: Mapping[str, str] = field(default_factory=dict)
    seeds: Mapping[str, int] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    pointmap01: NDArray[np.uint8] | None = None

    def __len__(self) -> int:
        """Number of frames."""
        return len(self.times)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(T, H, W)."""
        return len(self.times), self.camera.height, self.camera.width

    @property
    def robot_mask(self) -> NDArray[np.bool_]:
        """(T, H, W) bool, pixels that show the robot."""
        if self.ids is None:
            raise DataError(f"episode '{self.key}' has no segmentation", expected="ids")
        return np.asarray((self.ids > 0) & (self.ids <= self.link_count))

    def object_mask(self, name: str) -> NDArray[np.bool_]:
        """Return (T, H, W) bool, pixels that show the link or object `name`."""
        if self.ids is None or name not in self.names:
            raise DataError(f"episode '{self.key}' does not show '{name}'", expected=f"one of {', '.join(self.names)}")
        return np.asarray(self.ids == self.names.index(name) + 1)

    def points(self) -> NDArray[np.float32]:
        """Return (T, H, W, 3) float32 metres, camera frame, NaN = nothing."""
        if self.depth_m is None:
            raise DataError(f"episode '{self.key}' has no depth", expected="depth, or a lifter that estimates it")
        return points_from_depth(self.depth_m, self.camera)

    def robot_condition(self, robot: Robot | None = None, *, threads: int = 1) -> PointmapSequence:
        """Return the robot alone, rendered from the actions; pass `robot` to avoid loading it by name.

        Raises:
            DataError: no camera, or neither a robot with actions nor a stored sequence with depth.
        """
        if self.condition is not None:
            if self.condition.depth_m is None or self.condition_ids is None:
                raise DataError(
                    f"episode '{self.key}' has a robot sequence without depth",
                    expected="a robot model and actions, or depth",
                    code=ErrorCode.FILE_UNSUPPORTED,
                )
            xyz = points_from_depth(self.condition.depth_m, self.camera)
            return PointmapSequence(xyz, self.condition_ids, self.camera, self.times, self.condition.rgb)
        if self.actions is None or not self.robot:
            raise DataError(
                f"episode '{self.key}' has neither actions with a robot nor a robot sequence",
                expected="one of the two",
                code=ErrorCode.FILE_UNSUPPORTED,
            )
        if "camera" in self.missing:
            raise DataError(
                f"episode '{self.key}' has no camera: the robot cannot be rendered into its images",
                expected="a calibration (--camera when importing)",
                code=ErrorCode.FILE_UNSUPPORTED,
            )
        model = robot or load_robot(self.robot)
        drawn = render_pointmaps(model, self.actions, self.camera, rgb=True, threads=threads)
        return replace(drawn, camera=self.camera, times=self.times)


# Versions of the packages that determine the pixels and numbers of an episode.

RENDERER = "numba-1"
"""Version of the rasteriser; increase it when the same robot, joints and camera give different pixels."""


@lru_cache(maxsize=1)
def _versions() -> dict[str, str]:
    found = {"kinema4d_ros": __version__, "renderer": RENDERER}
    for package in ("numpy", "numba", "mujoco", "av"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "missing"
    return found


def versions() -> dict[str, str]:
    """Return the version of each package by name."""
    return dict(_versions())
