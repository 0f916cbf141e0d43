"""`build_episode`: make an episode of a recording: uniform in time, resized, robot segmented, gaps in `missing`.

images ───> rectified, resized ─┬─────────────> rgb
joints ───> robot rendered ─────┼─> segmenter ─> ids (pixels that show the robot)
                                └─> lifter ────> depth, unless the source has it
commands ─> robot rendered ───────────────────> condition; else from measured joints or masks, noted in `details`
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from kinema4d_model.data.episode import (
    Episode,
    Outcome,
    StoredCondition,
    pack_depth,
    point_bounds,
    points_from_depth,
    unpack_depth,
    versions,
)
from kinema4d_model.data.importers.lifter import RobotSeen, VideoLifter
from kinema4d_model.data.importers.masks import MaskSource, Pictures
from kinema4d_model.data.importers.recording import Recording, ToolTrack, Unusable, stand_in_camera
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import DataError, ErrorCode
from kinema4d_ros.core.pointmap import PointmapSequence
from kinema4d_ros.core.trajectory import JointTrajectory
from kinema4d_ros.core.transforms import slerp, to_quaternion
from kinema4d_ros.render import render_pointmaps
from kinema4d_ros.robot import Robot

__all__ = ["build_episode", "commanded", "measured", "pictured", "plain_tracks"]

# Joints, commands and tool poses of a recording, resampled at the frame times of the episode.

Array = NDArray[np.float64]


def pictured(recording: Recording, frames: int) -> tuple[Array, NDArray[np.int64]]:
    """Return (frames,) times evenly spaced over the overlap of images and joints, and the nearest image of each.

    Raises:
        Unusable: the overlap is too short or has too few images.
    """
    first, last = float(recording.image_times[0]), float(recording.image_times[-1])
    for track in (recording.joints, recording.actions):
        if track is not None and len(track) > 1:
            first, last = max(first, float(track.times[0])), min(last, float(track.times[-1]))
    if not last - first > 0.1:
        raise Unusable(
            f"recording '{recording.key}': images and joints overlap for {max(last - first, 0):.2f} s",
            expected="more than 0.1 s",
        )
    times = np.linspace(first, last, frames)
    nearest = np.array([int(np.argmin(np.abs(recording.image_times - t))) for t in times])
    if len(np.unique(nearest)) < max(2, frames // 2):
        raise Unusable(
            f"recording '{recording.key}' has {len(np.unique(nearest))} different images for {frames} frames",
            expected=f"at least {max(2, frames // 2)}",
        )
    return times, nearest


def measured(recording: Recording, times: Array) -> Array | None:
    """Return (T, J) measured joints in the robot's order; None if missing."""
    return _at(recording.joints, None if recording.robot is None else recording.robot[1], times)


def commanded(recording: Recording, times: Array, joints: Array | None, details: dict[str, Any]) -> Array | None:
    """Return (T, J) commanded joints; None if missing.

    A joint without commands (such as a gripper without a controller) holds its position in the first frame, since its
    later motion is not known in advance; `details` names it.

    Raises:
        DataError: a joint of the arm is neither commanded nor measured.
    """
    robot = None if recording.robot is None else recording.robot[1]
    q = _at(recording.actions, robot, times)
    if q is None or robot is None or recording.actions is None:
        return q
    told = set(recording.actions.names)
    if robot.gripper is not None and told & {vendor.name for vendor in robot.gripper.vendor}:
        told.add(robot.gripper.joint)
    quiet = [i for i, name in enumerate(robot.joint_names) if name not in told]
    if not quiet:
        return q
    names = [robot.joint_names[i] for i in quiet]
    if joints is not None:
        q[:, quiet] = joints[0, quiet]
        details["uncommanded"] = names
        note = f"not commanded: {', '.join(names)}; held where they were in the first frame"
        details["notes"] = [*details.get("notes", ()), note]
    elif unknown := [joint.name for joint in robot.arm if joint.name in names]:
        raise DataError(
            f"'{recording.key}': {', '.join(unknown)} of robot '{robot.name}' is neither commanded nor measured",
            expected=f"commands for {', '.join(joint.name for joint in robot.arm)}, or joint states",
            hint="record joint states, or map the recorded joint names with --joint-map",
            code=ErrorCode.UNKNOWN_JOINT,
        )
    return q


def _at(track: JointTrajectory | None, robot: Robot | None, times: Array) -> Array | None:
    if track is None:
        return None
    sampled = JointTrajectory(track.names, times, track.at(times))
    return sampled.positions.copy() if robot is None else np.array(sampled.for_robot(robot))


def plain_tracks(recording: Recording, times: Array, nearest: NDArray[np.int64]) -> dict[str, Any]:
    """Return data without a field in `Episode`, as plain JSON: `tool` poses, `commands` in the source's units."""
    found: dict[str, Any] = {}
    if recording.tool is not None:
        found["tool"] = _tool(recording.tool, times)
    if recording.commands:
        found["commands"] = {name: rows[nearest].tolist() for name, rows in recording.commands.items()}
    return found


def _tool(track: ToolTrack, times: Array) -> dict[str, Any]:
    place = np.clip(np.interp(times, track.times, np.arange(len(track.times))), 0, len(track.times) - 1)
    low = np.minimum(place.astype(int), max(len(track.times) - 2, 0))
    high = np.minimum(low + 1, len(track.times) - 1)
    poses = np.stack([
        slerp(track.base_T_tool[a], track.base_T_tool[b], s)[0] for a, b, s in zip(low, high, place - low, strict=True)
    ])  # fmt: skip
    tool: dict[str, Any] = {"base_T_tool_xyz_xyzw": [[*p[:3, 3].tolist(), *to_quaternion(p).tolist()] for p in poses]}
    if track.opening is not None:
        tool["opening"] = np.interp(times, track.times, track.opening).tolist()
    return tool


MOVES_RAD = 0.02
"""A recording in which no joint moves more than this is rejected."""
_FARTHEST_M = 6.5


def build_episode(
    recording: Recording,
    *,
    frames: int,
    width: int,
    height: int,
    lifter: VideoLifter | None = None,
    masks: MaskSource | None = None,
) -> Episode:
    """Make an episode of `frames` frames of the given size.

    Depth comes from the recording, else from the lifter, else it is missing. The robot's pixels come from the mask
    source, else from rendering the measured joints. The condition is rendered from the commanded joints;
    `details.condition` is "commanded", or names the substitute: "measured" joints, or the robot "masked" in the images.

    Raises:
        Unusable: the recording is too short, shows a flat colour or does not move.
    """
    times, nearest = pictured(recording, frames)
    lens = recording.camera
    rgb = np.stack([_fit(recording.images[i], lens, width, height, cv2.INTER_AREA) for i in nearest])
    if int(rgb.max()) - int(rgb.min()) < 8:
        raise Unusable(f"recording '{recording.key}' shows one flat colour", expected="images")
    camera = stand_in_camera(width, height) if lens is None else lens.rectified().scaled(width, height)
    details = {**recording.details, **plain_tracks(recording, times, nearest)}
    joints = measured(recording, times)
    if joints is not None and float(np.ptp(joints, axis=0).max()) < MOVES_RAD:
        raise Unusable(f"recording '{recording.key}' does not move", expected=f"a joint that moves {MOVES_RAD} rad")
    actions = commanded(recording, times, joints, details)
    missing = [name for name, value in (("joints", joints), ("actions", actions)) if value is None]
    missing += [name for name, value in (("camera", lens), ("outcome", recording.success)) if value is None]
    if actions is None and joints is not None:
        # Best estimate of the commands, but fingers that stop at an object reveal the outcome: note it in `details`.
        actions, details["actions"] = joints.copy(), "measured: the source has no commands"
        details["condition"] = "measured"
    elif actions is not None:
        details["condition"] = "commanded"
    name, robot = recording.robot or ("", None)
    condition = seen = None
    if robot is not None and lens is not None and actions is not None:
        condition = render_pointmaps(robot, actions, camera, threads=1)
        seen = condition if joints is None else render_pointmaps(robot, joints, camera, threads=1)
    ids = None if seen is None else seen.link_ids
    if masks is not None:
        ids = _segmented(recording, rgb, nearest, (width, height), masks, seen, details)
    depth, camera = _depth(recording, nearest, rgb, camera, lifter, _robot_seen(ids, seen))
    missing += [name for name, value in (("depth", depth), ("ids", ids)) if value is None]
    if ids is not None and depth is not None:
        ids = np.where(np.isfinite(depth), ids, 0).astype(np.uint8)
    condition_ids, stored = None, None
    if condition is not None:
        condition_ids = condition.link_ids
    elif ids is not None:
        condition_ids, stored = ids, _cut_out(rgb, depth, ids > 0)
        details["condition"] = "masked"
    else:
        missing.append("condition")
        details.pop("condition", None)
    names = () if robot is None else tuple(link.name for link in robot.links)
    if stored is not None:
        names = ("robot",)  # without a rendering the link of a pixel is unknown
    points = None if depth is None else points_from_depth(depth, camera)
    drawn_xyz = [] if condition is None else [condition.xyz]
    return Episode(
        key=recording.key,
        rgb=rgb,
        depth_m=depth,
        ids=ids,
        names=names,
        link_count=len(names),
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
        condition=stored,
        captions={"instruction": recording.instruction} if recording.instruction else {},
        versions=versions(),
        details=details,
        missing=tuple(dict.fromkeys(missing)),
    )


def _segmented(
    recording: Recording,
    rgb: NDArray[np.uint8],
    nearest: NDArray[np.int64],
    size: tuple[int, int],
    masks: MaskSource,
    seen: PointmapSequence | None,
    details: dict[str, Any],
) -> NDArray[np.uint8]:
    """Return (T, H, W) uint8 ids of the mask source; each pixel gets the nearest rendered link."""
    pictures = Pictures(
        recording.key,
        rgb,
        nearest,
        len(recording.images),
        lambda mask: _fit(mask, recording.camera, *size, cv2.INTER_NEAREST),
        None if seen is None else np.asarray(seen.mask),
    )
    found = masks.find(pictures)
    if not found.masks.any():
        raise Unusable(f"recording '{recording.key}': no robot was found by '{found.method}'", expected="a robot")
    details["masks"] = {"method": found.method, "mean_score": round(float(found.scores.mean()), 4)}
    if seen is None:
        return found.masks.astype(np.uint8)
    return np.stack([_named(mask, ids) for mask, ids in zip(found.masks, seen.link_ids, strict=True)])


def _named(mask: NDArray[np.bool_], drawn: NDArray[np.uint8]) -> NDArray[np.uint8]:
    if not drawn.any():
        return mask.astype(np.uint8)
    outside = (drawn == 0).astype(np.uint8)
    _, labels = cv2.distanceTransformWithLabels(outside, cv2.DIST_L2, 5, labelType=cv2.DIST_LABEL_PIXEL)
    link_of_label = np.zeros(int(labels.max()) + 1, np.uint8)
    link_of_label[labels[drawn > 0]] = drawn[drawn > 0]
    return np.where(mask, link_of_label[labels], 0).astype(np.uint8)


def _robot_seen(ids: NDArray[np.uint8] | None, seen: PointmapSequence | None) -> RobotSeen | None:
    if ids is None:
        return None
    return RobotSeen(ids > 0, None if seen is None else np.asarray(seen.xyz[..., 2], np.float32))


def _cut_out(rgb: NDArray[np.uint8], depth: NDArray[np.float32] | None, mask: NDArray[np.bool_]) -> StoredCondition:
    """Cut the robot out of the images: it shows the actual motion, not the commands, but video has nothing else."""
    robot = np.where(mask[..., None], rgb, 0).astype(np.uint8)
    return StoredCondition(robot, None if depth is None else np.where(mask, depth, np.float32(np.nan)))


def _fit(image: NDArray[Any], lens: PinholeCamera | None, width: int, height: int, how: int) -> NDArray[Any]:
    straight = image
    if lens is not None and lens.has_distortion:
        straight = lens.rectify(image, "nearest" if how == cv2.INTER_NEAREST else "linear")
    return np.asarray(cv2.resize(np.ascontiguousarray(straight), (width, height), interpolation=how))


def _depth(
    recording: Recording,
    nearest: NDArray[np.int64],
    rgb: NDArray[np.uint8],
    camera: PinholeCamera,
    lifter: VideoLifter | None,
    robot: RobotSeen | None,
) -> tuple[NDArray[np.float32] | None, PinholeCamera]:
    height, width = rgb.shape[1:3]
    if recording.depth is not None:
        raw = np.stack([_fit(recording.depth[i], recording.camera, width, height, cv2.INTER_NEAREST) for i in nearest])
        depth = np.where(raw > 0, raw, np.float32(np.nan)).astype(np.float32)
    elif lifter is not None:
        lifted = lifter.lift(rgb, None if recording.camera is None else camera, robot)
        depth = lifted.depth_m
        if lifted.K is not None and recording.camera is None:
            camera = replace(camera, K=lifted.K)
    else:
        return None, camera
    return unpack_depth(pack_depth(np.where(depth < _FARTHEST_M, depth, np.float32(np.nan)))), camera
