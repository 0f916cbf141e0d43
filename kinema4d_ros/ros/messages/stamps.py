"""Conversion of ROS times to numpy and back through integer nanoseconds, without loss of precision.

A float64 in seconds since 1970 resolves 0.2 us; integers keep all nine digits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from builtin_interfaces.msg import Duration, Time
from numpy.typing import ArrayLike, NDArray
from std_msgs.msg import Header

from kinema4d_ros.core.errors import ErrorCode, TrajectoryError

__all__ = [
    "duration_from_ns",
    "header",
    "is_time",
    "nanoseconds",
    "seconds",
    "seconds_to_ns",
    "time_from_ns",
]

_BILLION = 1_000_000_000
_INT32 = 2**31


def nanoseconds(stamp: Any) -> int:
    """Return the nanoseconds of a builtin_interfaces Time or Duration."""
    return int(stamp.sec) * _BILLION + int(stamp.nanosec)


def is_time(stamp: Any) -> bool:
    """Return whether a builtin_interfaces Time is valid: not before 1970, and its nanoseconds below one second."""
    return int(stamp.sec) >= 0 and int(stamp.nanosec) < _BILLION


def seconds(stamp: Any) -> float:
    """Return the seconds of a builtin_interfaces Time or Duration; for differences use `nanoseconds`."""
    return nanoseconds(stamp) / _BILLION


def seconds_to_ns(times: ArrayLike) -> NDArray[np.int64]:
    """Round finite times in seconds, any shape, to integer nanoseconds."""
    values = np.asarray(times, dtype=np.float64)
    if not np.all(np.abs(values) < _INT32):
        raise TrajectoryError(
            f"a time of {values[~(np.abs(values) < _INT32)].flat[0]} s does not fit into a ROS time",
            expected=f"finite seconds below {_INT32}",
            code=ErrorCode.TRAJECTORY_NOT_FINITE,
        )
    return np.asarray(np.rint(values * _BILLION), dtype=np.int64)


def time_from_ns(ns: int) -> Any:
    """Return a builtin_interfaces/Time."""
    sec, nanosec = divmod(int(ns), _BILLION)
    return Time(sec=sec, nanosec=nanosec)


def duration_from_ns(ns: int) -> Any:
    """Return a builtin_interfaces/Duration; negative ones have a negative sec and a positive nanosec, as in ROS."""
    sec, nanosec = divmod(int(ns), _BILLION)
    return Duration(sec=sec, nanosec=nanosec)


def header(stamp: Any = None, frame_id: str = "") -> Any:
    """Return a std_msgs/Header from a Time message, integer nanoseconds or None (0)."""
    is_number = stamp is None or isinstance(stamp, (int, np.integer))
    return Header(stamp=time_from_ns(int(stamp or 0)) if is_number else stamp, frame_id=frame_id)
