"""Demonstration plan: the committed file matches its module, and an arm can follow it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from kinema4d_ros.core.errors import ErrorCode, RobotError
from kinema4d_ros.io.resources import share_path
from kinema4d_ros.io.trajectories import read_trajectory
from kinema4d_ros.kinematics import forward_all
from kinema4d_ros.kinematics.demo import DIGITS, PICK, PLACE, main, pick_and_place
from kinema4d_ros.robot import Robot


def test_the_file_matches_the_module(yam: Robot) -> None:
    made, shipped = pick_and_place(yam), read_trajectory(share_path("config/demo/pick_and_place.csv"))
    assert made.names == shipped.names
    np.testing.assert_array_equal(made.times, shipped.times)
    # Another processor may round the last decimal differently.
    np.testing.assert_allclose(made.positions, shipped.positions, rtol=0, atol=1.5 * 10**-DIGITS)


def test_making_it_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    files = [tmp_path / "a.csv", tmp_path / "b.csv"]
    for file in files:
        main([str(file)])
    assert files[0].read_bytes() == files[1].read_bytes()


def test_it_is_smooth_and_within_the_limits_with_margin(yam: Robot) -> None:
    plan = read_trajectory(share_path("config/demo/pick_and_place.csv"), yam)
    assert plan.validate(yam, tolerance_rad=0.0, tolerance_m=0.0, check_velocity=True) == ()
    assert plan.duration_s == 10.0
    q = plan.for_robot(yam)
    arm = slice(0, 6)
    assert np.min(q[:, arm] - yam.lower[arm]) > 0.05
    assert np.min(yam.upper[arm] - q[:, arm]) > 0.05
    acceleration = np.diff(q[:, arm], 2, axis=0) * 20.0**2
    assert np.max(np.abs(acceleration)) < 5.0
    np.testing.assert_allclose(q[0], q[-1], atol=1e-4)


def test_the_gripper_closes_on_the_object_and_opens_where_it_puts_it(yam: Robot) -> None:
    plan = read_trajectory(share_path("config/demo/pick_and_place.csv"), yam)
    assert yam.gripper is not None
    q = plan.for_robot(yam)
    widths = yam.gripper.width_from_position(q[:, yam.joint_names.index(yam.gripper.joint)])
    tool = [link.name for link in yam.links].index(yam.tool_link)
    tools = forward_all(yam, q)[:, tool, :3, 3]
    held = np.flatnonzero(widths < 0.041)
    assert held.size > 40
    np.testing.assert_allclose(tools[held[0]], PICK, atol=2e-3)
    np.testing.assert_allclose(tools[held[-1]], PLACE, atol=2e-3)
    assert np.max(tools[held, 2]) > 0.1
    assert np.min(tools[:, 2]) > 0.025


def test_it_needs_a_gripper(yam: Robot) -> None:
    with pytest.raises(RobotError) as caught:
        pick_and_place(dataclasses.replace(yam, gripper=None))
    assert caught.value.code == ErrorCode.NO_GRIPPER
