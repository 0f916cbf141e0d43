"""Limit checks: violations are reported with joint, sample, value, limit and amount."""

from __future__ import annotations

import numpy as np
import pytest

from kinema4d_ros.core.errors import ErrorCode, TrajectoryError
from kinema4d_ros.core.limits import POSITION_TOLERANCE_M, POSITION_TOLERANCE_RAD, check_positions, check_speeds
from kinema4d_ros.robot import Robot


def test_positions_on_the_limits_are_inside(yam: Robot) -> None:
    assert check_positions(yam, np.stack([yam.lower, yam.upper]), np.arange(2.0)) == ()


@pytest.mark.parametrize("side", [-1, 1])
def test_every_joint_has_its_own_tolerance_at_both_ends(yam: Robot, side: int) -> None:
    limit = yam.upper if side > 0 else yam.lower
    for column, joint in enumerate(yam.actuated):
        tolerance = POSITION_TOLERANCE_M if joint.kind == "prismatic" else POSITION_TOLERANCE_RAD
        q = np.tile(yam.home_position(), (3, 1))
        q[1, column] = limit[column] + side * 0.9 * tolerance
        (small,) = check_positions(yam, q, np.arange(3.0))
        assert (small.joint, small.sample, small.time_s, small.limit) == (joint.name, 1, 1.0, limit[column])
        assert small.amount == pytest.approx(0.9 * tolerance)
        q[2, column] = limit[column] + side * 1.1 * tolerance
        with pytest.raises(TrajectoryError) as caught:
            check_positions(yam, q, np.arange(3.0))
        assert caught.value.code == ErrorCode.TRAJECTORY_OUT_OF_LIMITS
        assert f"'{joint.name}' at sample 2" in str(caught.value)
        assert ("above" if side > 0 else "below") in str(caught.value)


def test_all_joints_past_their_limits_are_named_at_once(yam: Robot) -> None:
    with pytest.raises(TrajectoryError) as caught:
        check_positions(yam, yam.upper[None] + 1.0, np.zeros(1))
    assert all(f"'{name}'" in str(caught.value) for name in yam.joint_names)


def test_speeds_are_checked_in_both_directions(yam: Robot) -> None:
    limit = yam.actuated[0].limits.velocity
    for sign in (-1, 1):
        q = np.tile(yam.home_position(), (3, 1))
        q[2, 0] += sign * limit * 0.1 * 1.02
        check_speeds(yam, q, np.arange(3) * 0.1)
        q[2, 0] += sign * limit * 0.1 * 0.1
        with pytest.raises(TrajectoryError, match="'joint1' at sample 2") as caught:
            check_speeds(yam, q, np.arange(3) * 0.1)
        assert caught.value.code == ErrorCode.TRAJECTORY_TOO_FAST


def test_one_sample_has_no_speed(yam: Robot) -> None:
    check_speeds(yam, yam.home_position()[None], np.zeros(1))
