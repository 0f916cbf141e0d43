"""The tracks of a recording at the times of an episode's frames: joints, commands, tool poses."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinema4d_model.data.errors import DataError
from kinema4d_model.data.importers.recording import Recording, ToolTrack, Unusable
from kinema4d_ros.core.errors import ErrorCode
from kinema4d_ros.core.trajectory import JointTrajectory
from kinema4d_ros.core.transforms import slerp, to_quaternion
from kinema4d_ros.robot import Robot

__all__ = ["commanded", "measured", "pictured", "plain_tracks"]

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
