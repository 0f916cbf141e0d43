"""The identity of a plan: one SHA-256 for the same motion, wherever it has travelled.

What is hashed, in this order, integers little-endian:

    b"kinema4d plan 1\\n"
    number of joints, number of samples        2 x uint32
    for each joint name, sorted: length, UTF-8 uint32, bytes
    times, nearest nanosecond                  T x int64
    positions, columns in the names' order     T x N x float64, -0.0 as 0.0
    for each of velocities, accelerations and effort that the plan has, in this order:
        its name and a newline, then as positions   bytes, T x N x float64

Times are those of the trajectory, not shifted to 0: a plan that waits before it moves is another plan.
A message's integer time stamps give the same nanoseconds back, so sending a plan keeps its hash.
The same positions with other velocities are another plan: controllers move otherwise between them. A plan of
positions alone has the hash that it always had.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kinema4d_ros.core.trajectory import DERIVATIVES, JointTrajectory

__all__ = ["hash_trajectory", "plan_hash"]

_TAG = b"kinema4d plan 1\n"


def plan_hash(names: Sequence[str], times: ArrayLike, positions: ArrayLike) -> str:
    """64 hex digits for joint names (N), times (T,) in seconds and positions (T, N) in radians or metres.

    The order in which the joints are listed does not matter. Bad input raises `TrajectoryError`.

    >>> plan_hash(["a", "b"], [0.0, 1.0], [[0, 1], [2, 3]]) == plan_hash(["b", "a"], [0.0, 1.0], [[1, 0], [3, 2]])
    True
    """
    return hash_trajectory(JointTrajectory.from_positions(names, positions, times=times))


def hash_trajectory(trajectory: JointTrajectory) -> str:
    """64 hex digits of a trajectory; see the module's docstring for what exactly is hashed."""
    order = sorted(range(len(trajectory.names)), key=lambda column: trajectory.names[column])
    times_ns = np.rint(trajectory.times * 1e9).astype("<i8")
    digest = hashlib.sha256(_TAG)
    digest.update(struct.pack("<II", len(order), len(trajectory)))
    for column in order:
        name = trajectory.names[column].encode()
        digest.update(struct.pack("<I", len(name)) + name)
    digest.update(times_ns.tobytes())
    digest.update(_table(trajectory.positions, order))
    for what in DERIVATIVES:
        if (values := getattr(trajectory, what)) is not None:
            digest.update(f"{what}\n".encode() + _table(values, order))
    return digest.hexdigest()


def _table(values: NDArray[np.float64], order: Sequence[int]) -> bytes:
    # Adding 0.0 turns -0.0 into 0.0: the two are the same place.
    return np.ascontiguousarray(values[:, order] + 0.0, dtype="<f8").tobytes()
