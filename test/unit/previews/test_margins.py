"""Margins to the limits of positions and speeds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.scenes import slider

from kinema4d_ros.core.errors import RobotError
from kinema4d_ros.core.trajectory import JointTrajectory
from kinema4d_ros.previews.report.plan_report import joint_margins
from kinema4d_ros.robot import Robot


def test_margins_are_minima_over_time(tmp_path: Path) -> None:
    robot = slider(tmp_path, '<sphere radius="0.05"/>')  # limits -0.5 to 1.0 m, 0.5 m/s
    plan = JointTrajectory.from_positions(["slide"], [[0.0], [0.9], [-0.45]], times=[0.0, 2.0, 6.0])
    margins = joint_margins(robot, plan)
    assert margins.joint_names == ("slide",)
    assert margins.position == pytest.approx([0.05])
    assert margins.velocity_ratio == pytest.approx([0.9])


def test_a_spline_is_checked_between_its_points(tmp_path: Path) -> None:
    robot = slider(tmp_path, '<sphere radius="0.05"/>')
    plan = JointTrajectory(("slide",), [0.0, 2.0], [[0.0], [0.4]], [[0.0], [0.0]])
    assert joint_margins(robot, plan).velocity_ratio == pytest.approx([1.5 * 0.2 / 0.5])
    there_and_back = JointTrajectory(("slide",), [0.0, 1.0], [[0.9], [0.9]], [[0.32], [-0.32]])
    assert joint_margins(robot, there_and_back).position == pytest.approx([0.1 - 0.32 / 4])


def test_outside_is_negative_and_too_fast_above_one(tmp_path: Path) -> None:
    robot = slider(tmp_path, '<sphere radius="0.05"/>')
    plan = JointTrajectory.from_positions(["slide"], [[0.0], [1.2]], times=[0.0, 1.0])
    margins = joint_margins(robot, plan)
    assert margins.position == pytest.approx([-0.2])
    assert margins.velocity_ratio == pytest.approx([2.4])


def test_joints_without_motion_or_with_one_sample(yam: Robot) -> None:
    home = yam.home_position()
    margins = joint_margins(yam, JointTrajectory.from_positions(yam.joint_names, home[None], rate_hz=1))
    assert np.array_equal(margins.velocity_ratio, np.zeros(len(home)))
    assert margins.position == pytest.approx(np.minimum(home - yam.lower, yam.upper - home))


def test_unknown_joints_are_refused(yam: Robot) -> None:
    with pytest.raises(RobotError, match="elbow"):
        joint_margins(yam, JointTrajectory.from_positions(["elbow"], [[0.0]], rate_hz=1))
