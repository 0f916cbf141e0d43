"""Plan hash: equal for the same motion, different for any other, and pinned so that it never changes."""

from __future__ import annotations

import hashlib
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinema4d_ros.core.errors import TrajectoryError
from kinema4d_ros.core.trajectory import JointTrajectory, hash_trajectory, plan_hash

NAMES = ("joint2", "joint1")
TIMES = [0.0, 0.1, 0.3]
POSITIONS = np.array([[0.0, 1.0], [0.5, -1.0], [0.25, 2.0]])


def test_the_hashed_bytes_match_the_documentation() -> None:
    expected = hashlib.sha256(
        b"kinema4d plan 1\n"
        + struct.pack("<II", 2, 3)
        + struct.pack("<I", 6) + b"joint1"
        + struct.pack("<I", 6) + b"joint2"
        + struct.pack("<3q", 0, 100_000_000, 300_000_000)
        + struct.pack("<6d", 1.0, 0.0, -1.0, 0.5, 2.0, 0.25)
    )  # fmt: skip
    assert plan_hash(NAMES, TIMES, POSITIONS) == expected.hexdigest()


def test_the_order_of_joints_and_the_sign_of_zero_do_not_matter() -> None:
    swapped = plan_hash(NAMES[::-1], TIMES, POSITIONS[:, ::-1])
    negative_zero = np.where(POSITIONS == 0.0, -0.0, POSITIONS)
    assert swapped == plan_hash(NAMES, TIMES, POSITIONS) == plan_hash(NAMES, TIMES, negative_zero)


@given(st.integers(0, 2), st.integers(0, 1), st.sampled_from([1e-15, -1e-9, 1.0]))
def test_any_changed_position_is_another_plan(sample: int, column: int, change: float) -> None:
    other = POSITIONS.copy()
    other[sample, column] += change
    assert plan_hash(NAMES, TIMES, other) != plan_hash(NAMES, TIMES, POSITIONS)


def test_other_times_names_or_samples_are_another_plan() -> None:
    known = {plan_hash(NAMES, TIMES, POSITIONS)}
    known.add(plan_hash(NAMES, np.array(TIMES) + 1e-9, POSITIONS))
    known.add(plan_hash(("joint2", "joint3"), TIMES, POSITIONS))
    known.add(plan_hash(NAMES, TIMES[:2], POSITIONS[:2]))
    known.add(plan_hash(NAMES, [0.0, 0.2, 0.3], POSITIONS))
    assert len(known) == 5
    # Less than half a nanosecond makes no difference: messages cannot represent it.
    assert plan_hash(NAMES, np.array(TIMES) + 1e-10, POSITIONS) in known


def test_other_derivatives_are_another_plan() -> None:
    zeros, ones = np.zeros_like(POSITIONS), np.ones_like(POSITIONS)
    plans = [
        JointTrajectory(NAMES, TIMES, POSITIONS, *tables)
        for tables in ([], [zeros], [ones], [zeros, zeros], [zeros, ones], [zeros, None, zeros], [None, None, zeros])
    ]
    assert len({hash_trajectory(plan) for plan in plans}) == len(plans)
    swapped = JointTrajectory(NAMES[::-1], TIMES, POSITIONS[:, ::-1], POSITIONS[:, ::-1])
    assert hash_trajectory(swapped) == hash_trajectory(JointTrajectory(NAMES, TIMES, POSITIONS, POSITIONS))


@given(st.lists(st.integers(1, 10**12), min_size=1, max_size=20))
def test_times_through_integer_nanoseconds_keep_the_hash(steps_ns: list[int]) -> None:
    times_ns = np.cumsum(steps_ns)
    q = np.arange(len(steps_ns), dtype=float)[:, None]
    sent = JointTrajectory(("a",), times_ns * 1e-9, q)
    received = JointTrajectory(("a",), np.rint(sent.times * 1e9).astype(np.int64) / 1e9, q)
    assert hash_trajectory(sent) == hash_trajectory(received)


def test_invalid_plans_have_no_hash() -> None:
    with pytest.raises(TrajectoryError):
        plan_hash(NAMES, TIMES, [[np.nan, 0.0]] * 3)
