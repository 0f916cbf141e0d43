"""Joint states and plans of messages: sensor_msgs/JointState and trajectory_msgs/JointTrajectory."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from trajectory_msgs.msg import JointTrajectory as JointTrajectoryMsg
from trajectory_msgs.msg import JointTrajectoryPoint

from kinema4d_ros.bridge.stamps import duration_from_ns, is_time, nanoseconds, seconds_to_ns
from kinema4d_ros.core.errors import ErrorCode, KinemaError, TrajectoryError
from kinema4d_ros.core.trajectory import DERIVATIVES, JointTrajectory

__all__ = [
    "JointSample",
    "JointStateError",
    "joint_sample_from_msg",
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
