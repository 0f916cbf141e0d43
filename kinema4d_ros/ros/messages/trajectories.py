"""Conversion of JointState, JointTrajectory and DisplayTrajectory (MoveIt) messages to the core's types."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from trajectory_msgs.msg import JointTrajectory as JointTrajectoryMsg
from trajectory_msgs.msg import JointTrajectoryPoint

from kinema4d_ros.core.errors import ErrorCode, KinemaError, TrajectoryError
from kinema4d_ros.core.trajectory import AT_REST, DERIVATIVES, JointTrajectory
from kinema4d_ros.ros.messages.stamps import duration_from_ns, is_time, nanoseconds, seconds_to_ns

__all__ = [
    "JointSample",
    "JointStateError",
    "joint_sample_from_msg",
    "start_from_display",
    "trajectory_from_display",
    "trajectory_from_msg",
    "trajectory_to_msg",
]


class JointStateError(KinemaError):
    """An invalid joint state message."""

    default_code = ErrorCode.JOINT_STATES_INVALID


@dataclass(frozen=True, eq=False)
class JointSample:
    """Joint positions at one stamp.

    Attributes:
        names: N distinct joint names, in the message's order.
        positions: (N,) float64, radians or metres, finite.
        velocities: (N,) float64, rad/s or m/s, or None when the message has none.
        stamp_ns: nanoseconds of the message's stamp.
    """

    names: tuple[str, ...]
    positions: NDArray[np.float64]
    velocities: NDArray[np.float64] | None
    stamp_ns: int

    def as_dict(self) -> dict[str, float]:
        """Return the positions by joint name."""
        return dict(zip(self.names, self.positions.tolist(), strict=True))


def joint_sample_from_msg(message: Any) -> JointSample:
    """Convert a sensor_msgs/JointState; raise JointStateError when it is invalid."""
    names = tuple(message.name)
    positions = np.array(message.position, dtype=np.float64)
    if not names or len(positions) != len(names):
        raise JointStateError(
            f"a joint state has {len(names)} names and {len(positions)} positions",
            expected="one position per name",
        )
    repeated = sorted(name for name, count in Counter(names).items() if count > 1)
    if repeated:
        raise JointStateError(f"a joint state contains {', '.join(repeated)} twice", expected="each joint once")
    if not np.all(np.isfinite(positions)):
        worst = int(np.argmin(np.isfinite(positions)))
        raise JointStateError(f"joint '{names[worst]}' is at {positions[worst]}", expected="finite positions")
    velocities = np.array(message.velocity, dtype=np.float64)
    if len(velocities) not in (0, len(names)):
        raise JointStateError(
            f"a joint state has {len(names)} names and {len(velocities)} velocities",
            expected="one velocity per name, or none",
        )
    stamp = message.header.stamp
    if not is_time(stamp):
        raise JointStateError(
            f"a joint state is stamped {stamp.sec} s and {stamp.nanosec} ns",
            expected="a time since 1970 with nanoseconds below 1e9",
        )
    return JointSample(names, positions, velocities if len(velocities) else None, nanoseconds(stamp))


def trajectory_from_msg(message: Any) -> JointTrajectory:
    """Convert a trajectory_msgs/JointTrajectory; times are `time_from_start`, and the first may be above 0.

    Velocities, accelerations and efforts are kept unchanged: every point must have them for every joint, or none.
    """
    names = tuple(message.joint_names)
    if not names or not message.points:
        raise TrajectoryError(
            f"the plan has {len(names)} joints and {len(message.points)} points",
            expected="at least one joint and one point",
            code=ErrorCode.TRAJECTORY_EMPTY,
        )
    tables = {"positions": _table(message, "positions")}
    for what in DERIVATIVES:
        if any(len(getattr(point, what)) for point in message.points):
            tables[what] = _table(message, what)
    times_ns = np.array([nanoseconds(point.time_from_start) for point in message.points], dtype=np.int64)
    if times_ns[0] < 0:
        raise TrajectoryError(
            f"point 0 of the plan is {-times_ns[0] * 1e-9:g} s before its start",
            expected="time_from_start of 0 or more",
            code=ErrorCode.TRAJECTORY_NOT_MONOTONIC,
        )
    return JointTrajectory(names, times_ns / 1e9, **tables)


def _table(message: Any, what: str) -> NDArray[np.float64]:
    """Return the (T, N) values of one field of all points."""
    count = len(message.joint_names)
    for index, point in enumerate(message.points):
        if len(getattr(point, what)) != count:
            raise TrajectoryError(
                f"point {index} of the plan has {len(getattr(point, what))} {what} for {count} joints",
                expected=f"{what} of each joint in every point" + (", or in none" if what in DERIVATIVES else ""),
            )
    return np.array([getattr(point, what) for point in message.points], dtype=np.float64)


def trajectory_to_msg(trajectory: JointTrajectory, header: Any) -> Any:
    """Convert to trajectory_msgs/JointTrajectory with times rounded to nanoseconds, which keeps the plan's hash."""
    message = JointTrajectoryMsg(header=header, joint_names=list(trajectory.names))
    times_ns = seconds_to_ns(trajectory.times)
    if len(times_ns) > 1 and np.any(np.diff(times_ns) <= 0):
        raise TrajectoryError(
            "two samples of the plan are within the same nanosecond",
            expected="samples at least 1 ns apart",
            code=ErrorCode.TRAJECTORY_NOT_MONOTONIC,
        )
    for index, time_ns in enumerate(times_ns.tolist()):
        point = JointTrajectoryPoint(time_from_start=duration_from_ns(time_ns))
        for what in ("positions", *DERIVATIVES):
            if (table := getattr(trajectory, what)) is not None:
                setattr(point, what, table[index].tolist())
        message.points.append(point)
    return message


# MoveIt's DisplayTrajectory: segments are joined in time, joints at rest are filled in from the start state.

_JUMP = 1e-3
"""Largest gap, in rad or m, between the end of a segment and the start of the next."""


def start_from_display(message: Any) -> dict[str, float]:
    """Return the joint positions in `trajectory_start`; empty when the planner omitted them."""
    state = message.trajectory_start.joint_state
    return joint_sample_from_msg(state).as_dict() if state.name else {}


def trajectory_from_display(message: Any) -> JointTrajectory:
    """Convert a moveit_msgs/DisplayTrajectory.

    The times of a segment start at 0, so each segment is shifted to the end of the previous one.
    A joint that a segment does not contain keeps its position; before its first segment it has its position in
    `trajectory_start`. When the first sample is later than 0, the start state becomes the sample at 0.
    `_kept` decides which velocities and accelerations are kept.
    """
    segments = [trajectory_from_msg(part.joint_trajectory) for part in message.trajectory if _has_motion(part)]
    if not segments:
        raise TrajectoryError(
            f"the displayed plan has {len(message.trajectory)} segments and no points",
            expected="at least one joint trajectory",
            code=ErrorCode.TRAJECTORY_EMPTY,
        )
    names = tuple(dict.fromkeys(name for segment in segments for name in segment.names))
    start = start_from_display(message)
    now = {name: start[name] for name in names if name in start}
    for name in names:
        # Joints of the first segment need no start position: their first sample is the start.
        if name not in now and name not in segments[0].names:
            raise TrajectoryError(
                f"joint '{name}' moves only in a later segment and is missing in trajectory_start",
                expected="its position in trajectory_start",
            )
    kept = _kept(segments)
    times: list[float] = []
    rows: dict[str, list[list[float]]] = {what: [] for what in ("positions", *kept)}

    def add(time: float, segment: JointTrajectory | None = None, sample: int = 0) -> None:
        times.append(time)
        for what, table in rows.items():
            # Joints that the segment does not contain stay at rest.
            values = dict(now) if what == "positions" else dict.fromkeys(names, 0.0)
            if segment is not None:
                values.update(zip(segment.names, getattr(segment, what)[sample].tolist(), strict=True))
            table.append([values[name] for name in names])
        if segment is not None:
            now.update(zip(segment.names, segment.positions[sample].tolist(), strict=True))

    if segments[0].times[0] > 0 and len(now) == len(names):
        add(0.0)
        if "effort" in rows:
            # The effort of the first sample also holds the arm before it; 0 would let it sag.
            held = dict(zip(segments[0].names, np.asarray(segments[0].effort)[0].tolist(), strict=True))
            rows["effort"][0] = [held.get(name, 0.0) for name in names]
    offset = 0.0
    for index, segment in enumerate(segments):
        repeats_end = index > 0 and segment.times[0] == 0.0
        if repeats_end:
            _require_joined(index, segment, now)
        for sample in range(int(repeats_end), len(segment)):
            add(offset + float(segment.times[sample]), segment, sample)
        offset = times[-1]
    return JointTrajectory(names, np.array(times), **{what: np.array(table) for what, table in rows.items()})


def _kept(segments: list[JointTrajectory]) -> list[str]:
    """Return which of velocities, accelerations and effort are kept for the whole plan.

    One segment keeps all. Several segments keep only velocities, and only if each segment is at rest at both ends:
    the point where two segments meet has one acceleration, not two. Without velocities the plan is interpolated
    linearly, both in the preview and in the execution.
    """
    if len(segments) == 1:
        return [what for what in DERIVATIVES if getattr(segments[0], what) is not None]
    ends = [None if s.velocities is None else s.velocities[[0, -1]] for s in segments]
    return ["velocities"] if all(v is not None and np.all(np.abs(v) <= AT_REST) for v in ends) else []


def _has_motion(part: Any) -> bool:
    if part.multi_dof_joint_trajectory.points:
        raise TrajectoryError(
            f"the plan moves multi-DOF joints: {', '.join(part.multi_dof_joint_trajectory.joint_names)}",
            expected="revolute and prismatic joints only",
        )
    return bool(part.joint_trajectory.points)


def _require_joined(index: int, segment: JointTrajectory, now: dict[str, float]) -> None:
    for name, position in zip(segment.names, segment.positions[0].tolist(), strict=True):
        if abs(position - now[name]) > _JUMP:
            raise TrajectoryError(
                f"segment {index} of the plan starts with joint '{name}' at {position:.6g}, the previous one ends at "
                f"{now[name]:.6g}",
                expected=f"segments that meet within {_JUMP} rad or m",
            )
