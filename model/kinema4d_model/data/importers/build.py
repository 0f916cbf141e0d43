"""The episode of a recording: uniform in time, one size, the robot found in the pictures, gaps listed by name.

pictures ─> rectified, resized ─┬─────────────> rgb
joints ───> the robot drawn ────┼─> segmenter ─> ids (where the camera sees the robot)
                                └─> lifter ────> depth, unless the source has it
commands ─> the robot drawn ──────────────────> condition; else from measured joints or cut out, and marked so
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from kinema4d_model.data.depth import pack_depth, point_bounds, points_from_depth, unpack_depth
from kinema4d_model.data.episode import Episode, Outcome, StoredCondition
from kinema4d_model.data.importers.lifter import RobotSeen, VideoLifter
from kinema4d_model.data.importers.masks import MaskSource, Pictures
from kinema4d_model.data.importers.recording import Recording, ToolTrack, Unusable, stand_in_camera
from kinema4d_model.data.versions import versions
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import DataError, ErrorCode
from kinema4d_ros.core.pointmap import PointmapSequence
from kinema4d_ros.core.trajectory import JointTrajectory
from kinema4d_ros.core.transforms import slerp, to_quaternion
from kinema4d_ros.render import render_pointmaps
from kinema4d_ros.robot import Robot

__all__ = ["build_episode", "commanded", "measured", "pictured", "plain_tracks"]

# The tracks of a recording at the times of an episode's frames: joints, commands, tool poses.

Array = NDArray[np.float64]


def pictured(recording: Recording, frames: int) -> tuple[Array, NDArray[np.int64]]:
    """(frames,) times evenly spaced over what pictures and joints have in common, and the picture nearest to each.

    Raises:
        Unusable: there is too little of it.
    """
    first, last = float(recording.image_times[0]), float(recording.image_times[-1])
    for track in (recording.joints, recording.actions):
        if track is not None and len(track) > 1:
            first, last = max(first, float(track.times[0])), min(last, float(track.times[-1]))
    if not last - first > 0.1:
        raise Unusable(
            f"recording '{recording.key}': pictures and joints have {max(last - first, 0):.2f} s in common",
            expected="more than 0.1 s",
        )
    times = np.linspace(first, last, frames)
    nearest = np.array([int(np.argmin(np.abs(recording.image_times - t))) for t in times])
    if len(np.unique(nearest)) < max(2, frames // 2):
        raise Unusable(
            f"recording '{recording.key}' has {len(np.unique(nearest))} different pictures for {frames} frames",
            expected=f"at least {max(2, frames // 2)}",
        )
    return times, nearest


def measured(recording: Recording, times: Array) -> Array | None:
    """(T, J) measured joints in the robot's order; None if there are none."""
    return _at(recording.joints, None if recording.robot is None else recording.robot[1], times)


def commanded(recording: Recording, times: Array, joints: Array | None, details: dict[str, Any]) -> Array | None:
    """(T, J) commanded joints; None if there are none.

    A joint that nobody commanded (a gripper without a controller of its own) stays where it was in the first frame,
    and `details` names it: what it did later is not known before.

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
            hint="record joint states, or name the recorded joints by --joint-map",
            code=ErrorCode.UNKNOWN_JOINT,
        )
    return q


def _at(track: JointTrajectory | None, robot: Robot | None, times: Array) -> Array | None:
    if track is None:
        return None
    sampled = JointTrajectory(track.names, times, track.at(times))
    return sampled.positions.copy() if robot is None else np.array(sampled.for_robot(robot))


def plain_tracks(recording: Recording, times: Array, nearest: NDArray[np.int64]) -> dict[str, Any]:
    """What has no field of its own in an episode, as plain JSON: `tool` poses, `commands` in the source's terms."""
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
"""A recording in which no joint moves more than this shows nothing."""
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
    """The recording at so many frames of that size.

    Depth comes from the recording, else from the lifter, else it is missing. The robot's pixels come from the mask
    source, else they are drawn from the measured joints. The condition is drawn from the commanded joints;
    `details.condition` says "commanded", or what had to take their place: "measured" joints, or the "masked" robot of
    the pictures themselves.

    Raises:
        Unusable: it is too short, shows nothing or does not move.
    """
    times, nearest = pictured(recording, frames)
    lens = recording.camera
    rgb = np.stack([_fit(recording.images[i], lens, width, height, cv2.INTER_AREA) for i in nearest])
    if int(rgb.max()) - int(rgb.min()) < 8:
        raise Unusable(f"recording '{recording.key}' shows one flat colour", expected="pictures")
    camera = stand_in_camera(width, height) if lens is None else lens.rectified().scaled(width, height)
    details = {**recording.details, **plain_tracks(recording, times, nearest)}
    joints = measured(recording, times)
    if joints is not None and float(np.ptp(joints, axis=0).max()) < MOVES_RAD:
        raise Unusable(f"recording '{recording.key}' does not move", expected=f"a joint that moves {MOVES_RAD} rad")
    actions = commanded(recording, times, joints, details)
    missing = [name for name, value in (("joints", joints), ("actions", actions)) if value is None]
    missing += [name for name, value in (("camera", lens), ("outcome", recording.success)) if value is None]
    if actions is None and joints is not None:
        # The best guess of what was commanded. Fingers that stop at an object show in it: whoever trains must know.
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
        names = ("robot",)  # without a drawing nobody knows which link a pixel shows
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
    """(T, H, W) uint8: what the mask source found; each pixel is of the link that is drawn nearest to it."""
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
    """The robot as the pictures show it: not what it was told to do, but all that plain video has."""
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
