"""Joining joint states: the order of arrival does not matter."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinema4d_ros.core.errors import ErrorCode, FileFormatError, TrajectoryError
from kinema4d_ros.io.bags import JointSeries
from kinema4d_ros.io.joint_match import MAX_JOINTS

BAG = Path("bag")


def late(order: list[int]) -> bool:
    """Return whether a message came after a later one of the same kind (the same first name)."""
    return any(a > b for kind in (0, 1) for a, b in pairwise([k for k in order if k % 2 == kind]))


@given(st.permutations(range(12)))
def test_any_order_of_arrival_gives_the_same_table(order: list[int]) -> None:
    series, notes = JointSeries(), []
    for k in order:
        names = ["a", "b"] if k % 2 else ["b", "a"]
        values = [0.1 * k, -0.2 * k] if k % 2 else [-0.2 * k, 0.1 * k]
        series.add(10**9 * k, names, np.array(values))
    names, times, positions = series.join(BAG, None, notes)
    np.testing.assert_allclose(times, np.arange(12.0))
    np.testing.assert_allclose(positions[:, names.index("a")], 0.1 * np.arange(12))
    np.testing.assert_allclose(positions[:, names.index("b")], -0.2 * np.arange(12))
    assert bool(notes) == (list(order) != sorted(order) and late(order))


def test_stamps_keep_nanoseconds_far_from_the_epoch() -> None:
    series, start = JointSeries(), 1_800_000_000 * 10**9
    for k in range(3):
        series.add(start + 1000 * k, ["a"], np.array([float(k)]))
    _, times, _ = series.join(BAG, None, [])
    np.testing.assert_allclose(times, [0, 1e-6, 2e-6], rtol=1e-12)


def test_no_positions_is_an_empty_trajectory() -> None:
    series = JointSeries()
    series.add(1, ["a"], np.empty(0))
    with pytest.raises(TrajectoryError) as caught:
        series.join(BAG, None, [])
    assert caught.value.code == ErrorCode.TRAJECTORY_EMPTY


def test_too_many_names_are_refused() -> None:
    series = JointSeries()
    for k in range(MAX_JOINTS):
        series.add(k, [f"joint{k}"], np.zeros(1))
    with pytest.raises(FileFormatError, match=f"more than {MAX_JOINTS} joints"):
        series.add(MAX_JOINTS, ["one more"], np.zeros(1))
