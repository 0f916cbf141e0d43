"""A recording of any source and the episode made of it: uniform in time, one size, gaps listed by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from kinema4d_model.data.depth import pack_depth, point_bounds, points_from_depth, unpack_depth
from kinema4d_model.data.episode import Episode, Outcome
from kinema4d_model.data.errors import DataError
from kinema4d_model.data.importers.lifter import Lifter
from kinema4d_model.data.versions import versions
from kinema4d_ros.camera import PinholeCamera
from kinema4d_ros.render import render_pointmaps
from kinema4d_ros.robot import Robot
from kinema4d_ros.trajectory import JointTrajectory

__all__ = ["Recording", "Unusable", "build_episode", "stand_in_camera", "uniform_times"]

MOVES_RAD = 0.02
"""A recording in which no joint moves more than this shows nothing."""


class Unusable(DataError):  # noqa: N818 - an ordinary event: it is counted with its reason
    """A recording that a quality filter refuses; the text says why."""


@dataclass(frozen=True, eq=False)
class Recording:
    """What a source has of one motion; whatever it lacks is None.

    Attributes:
        key: unique in the source.
        images: N pictures (h, w, 3) uint8, RGB, with lens distortion if the camera has it.
        image_times: (N,) seconds, increasing.
        joints, actions: measured and commanded, same clock.
        depth: N pictures (h, w) float32 metres, NaN = nothing, aligned with the images.
        camera: of the images, with its pose.
        robot: name or URDF, and the loaded model.
        task, instruction, source: words.
        success: if known.
        details: anything else.
    """

    key: str
    images: Sequence[NDArray[np.uint8]]
    image_times: NDArray[np.float64]
    source: str
    joints: JointTrajectory | None = None
    actions: JointTrajectory | None = None
    depth: Sequence[NDArray[np.float32]] | None = None
    camera: PinholeCamera | None = None
    robot: tuple[str, Robot] | None = None
    task: str = "unknown"
    instruction: str = ""
    success: bool | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


def uniform_times(first_s: float, last_s: float, frames: int) -> NDArray[np.float64]:
    """(frames,) seconds from first to last, evenly spaced."""
    return np.linspace(first_s, last_s, frames)


def stand_in_camera(width: int, height: int) -> PinholeCamera:
    """A camera for pictures whose own is unknown: 53 degrees wide, at the origin; listed as missing with them."""
    return PinholeCamera(
        width, height, np.array([[width, 0, width / 2], [0, width, height / 2], [0, 0, 1]], np.float64)
    )


def build_episode(
    recording: Recording, *, frames: int, width: int, height: int, lifter: Lifter | None = None
) -> Episode:
    """The recording at so many frames of that size.

    Depth comes from the recording, else from the lifter, else it is missing. The robot's pixels are drawn from
    the measured joints, the condition from the commanded ones; both need a robot and a camera with its pose.

    Raises:
        Unusable: it is too short, shows nothing or does not move.
    """
    times = _window(recording, frames)
    nearest = np.array([int(np.argmin(np.abs(recording.image_times - t))) for t in times])
    if len(np.unique(nearest)) < max(2, frames // 2):
        raise Unusable(
            f"recording '{recording.key}' has {len(np.unique(nearest))} different pictures for {frames} frames",
            expected=f"at least {max(2, frames // 2)}",
        )
    missing: list[str] = []
    lens = recording.camera
    rgb = np.stack([_fit(recording.images[i], lens, width, height, cv2.INTER_AREA) for i in nearest])
    if int(rgb.max()) - int(rgb.min()) < 8:
        raise Unusable(f"recording '{recording.key}' shows one flat colour", expected="pictures")
    depth, camera = _depth(recording, nearest, rgb, width, height, lifter, missing)
    joints, actions = (_at(track, recording.robot, times) for track in (recording.joints, recording.actions))
    if joints is not None and float(np.ptp(joints, axis=0).max()) < MOVES_RAD:
        raise Unusable(f"recording '{recording.key}' does not move", expected=f"a joint that moves {MOVES_RAD} rad")
    details = dict(recording.details)
    if actions is None and joints is not None:
        # What was measured is the best guess of what was commanded; whoever trains on it should know.
        actions, details["actions"] = joints.copy(), "measured: the source has no commands"
    missing += [name for name, value in (("joints", joints), ("actions", actions)) if value is None]
    missing += [name for name, value in (("camera", lens), ("outcome", recording.success)) if value is None]
    ids = condition_ids = None
    drawn_xyz: list[NDArray[np.float32]] = []
    name, robot = recording.robot or ("", None)
    if robot is not None and lens is not None and actions is not None:
        condition = render_pointmaps(robot, actions, camera, threads=1)
        condition_ids = condition.link_ids
        drawn_xyz.append(condition.xyz)
        ids = render_pointmaps(robot, actions if joints is None else joints, camera, threads=1).link_ids
        if depth is not None:
            ids = np.where(np.isfinite(depth), ids, 0).astype(np.uint8)
    else:
        missing.append("condition")
    points = None if depth is None else points_from_depth(depth, camera)
    return Episode(
        key=recording.key,
        rgb=rgb,
        depth_m=depth,
        ids=ids,
        names=() if robot is None else tuple(link.name for link in robot.links),
        link_count=0 if robot is None else len(robot.links),
        times=times - times[0],
        camera=camera,
        robot=name,
        joint_names=() if robot is None else robot.joint_names,
        joints=None if robot is None else joints,
        actions=None if robot is None else actions,
        condition_ids=condition_ids,
        bounds=None if points is None else point_bounds(points),
        known_bounds=None if points is None else point_bounds(points[:1], *drawn_xyz),
        task=recording.task,
        outcome=Outcome(recording.success),
        source=recording.source,
        captions={"instruction": recording.instruction} if recording.instruction else {},
        versions=versions(),
        details=details,
        missing=tuple(dict.fromkeys(missing)),
    )


def _window(recording: Recording, frames: int) -> NDArray[np.float64]:
    first, last = float(recording.image_times[0]), float(recording.image_times[-1])
    for track in (recording.joints, recording.actions):
        if track is not None and len(track) > 1:
            first, last = max(first, float(track.times[0])), min(last, float(track.times[-1]))
    if not last - first > 0.1:
        raise Unusable(
            f"recording '{recording.key}': pictures and joints have {max(last - first, 0):.2f} s in common",
            expected="more than 0.1 s",
        )
    return uniform_times(first, last, frames)


def _at(
    track: JointTrajectory | None, robot: tuple[str, Robot] | None, times: NDArray[np.float64]
) -> NDArray[np.float64] | None:
    if track is None:
        return None
    sampled = JointTrajectory(track.names, times, track.at(times))
    return sampled.positions.copy() if robot is None else np.array(sampled.for_robot(robot[1]))


def _fit(image: NDArray[Any], lens: PinholeCamera | None, width: int, height: int, how: int) -> NDArray[Any]:
    straight = image
    if lens is not None and lens.has_distortion:
        straight = lens.rectify(image, "nearest" if how == cv2.INTER_NEAREST else "linear")
    return np.asarray(cv2.resize(np.ascontiguousarray(straight), (width, height), interpolation=how))


def _depth(
    recording: Recording,
    nearest: NDArray[np.int64],
    rgb: NDArray[np.uint8],
    width: int,
    height: int,
    lifter: Lifter | None,
    missing: list[str],
) -> tuple[NDArray[np.float32] | None, PinholeCamera]:
    if recording.camera is not None:
        camera = recording.camera.rectified().scaled(width, height)
    else:
        camera = stand_in_camera(width, height)
    if recording.depth is not None:
        raw = np.stack([_fit(recording.depth[i], recording.camera, width, height, cv2.INTER_NEAREST) for i in nearest])
        depth = np.where(raw > 0, raw, np.float32(np.nan)).astype(np.float32)
    elif lifter is not None:
        lifted = lifter.lift(rgb, None if recording.camera is None else camera)
        depth = lifted.depth_m
        if lifted.K is not None and recording.camera is None:
            camera = replace(camera, K=lifted.K)
    else:
        missing.append("depth")
        return None, camera
    return unpack_depth(pack_depth(np.where(depth < 6.5, depth, np.float32(np.nan)))), camera
