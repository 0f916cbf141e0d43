"""Joint states and plans of messages: sensor_msgs/JointState and trajectory_msgs/JointTrajectory."""

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
    """A joint state that must not be believed."""

    default_code = ErrorCode.JOINT_STATES_INVALID


@dataclass(frozen=True, eq=False)
class JointSample:
    """Where some joints are at one moment.

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
        """Position by joint name."""
        return dict(zip(self.names, self.positions.tolist(), strict=True))


def joint_sample_from_msg(message: Any) -> JointSample:
    """The positions of a sensor_msgs/JointState, or a JointStateError that says why they cannot be used."""
    names = tuple(message.name)
    positions = np.array(message.position, dtype=np.float64)
    if not names or len(positions) != len(names):
        raise JointStateError(
            f"a joint state has {len(names)} names and {len(positions)} positions",
            expected="one position for each name",
        )
    repeated = sorted(name for name, count in Counter(names).items() if count > 1)
    if repeated:
        raise JointStateError(f"a joint state names {', '.join(repeated)} twice", expected="every joint once")
    if not np.all(np.isfinite(positions)):
        worst = int(np.argmin(np.isfinite(positions)))
        raise JointStateError(f"joint '{names[worst]}' is at {positions[worst]}", expected="finite positions")
    velocities = np.array(message.velocity, dtype=np.float64)
    if len(velocities) not in (0, len(names)):
        raise JointStateError(
            f"a joint state has {len(names)} names and {len(velocities)} velocities",
            expected="one for each name, or none",
        )
    stamp = message.header.stamp
    if not is_time(stamp):
        raise JointStateError(
            f"a joint state is stamped {stamp.sec} s and {stamp.nanosec} ns",
            expected="a time since 1970, with less than a billion nanoseconds",
        )
    return JointSample(names, positions, velocities if len(velocities) else None, nanoseconds(stamp))


def trajectory_from_msg(message: Any) -> JointTrajectory:
    """The plan of a trajectory_msgs/JointTrajectory; times are `time_from_start`, the first may be above 0.

    Velocities, accelerations and efforts are kept as they are: every point has them for every joint, or none has.
    """
    names = tuple(message.joint_names)
    if not names or not message.points:
        raise TrajectoryError(
            f"the plan has {len(names)} joints and {len(message.points)} points",
            expected="at least one of each",
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
    """(T, N) values of one field of all points."""
    count = len(message.joint_names)
    for index, point in enumerate(message.points):
        if len(getattr(point, what)) != count:
            raise TrajectoryError(
                f"point {index} of the plan has {len(getattr(point, what))} {what} for {count} joints",
                expected=f"{what} for each joint in every point" + (", or in none" if what in DERIVATIVES else ""),
            )
    return np.array([getattr(point, what) for point in message.points], dtype=np.float64)


def trajectory_to_msg(trajectory: JointTrajectory, header: Any) -> Any:
    """trajectory_msgs/JointTrajectory with times rounded to nanoseconds; `trajectory_hash` is unchanged by it."""
    message = JointTrajectoryMsg(header=header, joint_names=list(trajectory.names))
    times_ns = seconds_to_ns(trajectory.times)
    if len(times_ns) > 1 and np.any(np.diff(times_ns) <= 0):
        raise TrajectoryError(
            "two samples of the plan lie within the same nanosecond",
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


# MoveIt's display plans as one trajectory: segments joined in time, joints at rest filled in from the start state.

_JUMP = 1e-3
"""How far, in rad or m, a segment may start from the end of the one before it."""


def start_from_display(message: Any) -> dict[str, float]:
    """Joint positions before the plan, from `trajectory_start`; empty when the planner left them out."""
    state = message.trajectory_start.joint_state
    return joint_sample_from_msg(state).as_dict() if state.name else {}


def trajectory_from_display(message: Any) -> JointTrajectory:
    """The plan of a moveit_msgs/DisplayTrajectory.

    Every segment counts its time from its own start, so it is shifted to the end of the one before it.
    A joint that a segment does not name keeps its position; before its first segment it has the one of
    `trajectory_start`. When the first sample is later than 0, the start state becomes the sample at 0.
    `_kept` says what becomes of velocities and accelerations.
    """
    segments = [trajectory_from_msg(part.joint_trajectory) for part in message.trajectory if _has_motion(part)]
    if not segments:
        raise TrajectoryError(
            f"the displayed plan has {len(message.trajectory)} segments without any point",
            expected="at least one joint trajectory",
            code=ErrorCode.TRAJECTORY_EMPTY,
        )
    names = tuple(dict.fromkeys(name for segment in segments for name in segment.names))
    start = start_from_display(message)
    now = {name: start[name] for name in names if name in start}
    for name in names:
        # Only a joint of the first segment can do without a start: its first sample is one.
        if name not in now and name not in segments[0].names:
            raise TrajectoryError(
                f"joint '{name}' moves in a later segment only, and trajectory_start does not say where it is before",
                expected="its position in trajectory_start",
            )
    kept = _kept(segments)
    times: list[float] = []
    rows: dict[str, list[list[float]]] = {what: [] for what in ("positions", *kept)}

    def add(time: float, segment: JointTrajectory | None = None, sample: int = 0) -> None:
        times.append(time)
        for what, table in rows.items():
            # A joint that the segment does not name rests where it is.
            values = dict(now) if what == "positions" else dict.fromkeys(names, 0.0)
            if segment is not None:
                values.update(zip(segment.names, getattr(segment, what)[sample].tolist(), strict=True))
            table.append([values[name] for name in names])
        if segment is not None:
            now.update(zip(segment.names, segment.positions[sample].tolist(), strict=True))

    if segments[0].times[0] > 0 and len(now) == len(names):
        add(0.0)
        if "effort" in rows:
            # What holds the arm at its first sample holds it before, too; 0 would let it sag.
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
    """Which of velocities, accelerations and effort the whole plan has.

    Of one segment all; of several the velocities, where each rests at both ends: the point at which two meet has
    one acceleration, not two. Without them the plan is straight between its points, previewed and executed.
    """
    if len(segments) == 1:
        return [what for what in DERIVATIVES if getattr(segments[0], what) is not None]
    ends = [None if s.velocities is None else s.velocities[[0, -1]] for s in segments]
    return ["velocities"] if all(v is not None and np.all(np.abs(v) <= AT_REST) for v in ends) else []


def _has_motion(part: Any) -> bool:
    if part.multi_dof_joint_trajectory.points:
        raise TrajectoryError(
            f"the plan moves joints with several degrees of freedom: "
            f"{', '.join(part.multi_dof_joint_trajectory.joint_names)}",
            expected="revolute and prismatic joints only",
        )
    return bool(part.joint_trajectory.points)


def _require_joined(index: int, segment: JointTrajectory, now: dict[str, float]) -> None:
    for name, position in zip(segment.names, segment.positions[0].tolist(), strict=True):
        if abs(position - now[name]) > _JUMP:
            raise TrajectoryError(
                f"segment {index} of the plan starts with joint '{name}' at {position:.6g}, the one before left it at "
                f"{now[name]:.6g}",
                expected=f"segments that meet within {_JUMP} rad or m",
            )
