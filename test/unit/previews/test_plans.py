"""Checks of plans against the robot and the arm's state before the preview."""

from __future__ import annotations

import numpy as np
import pytest

from kinema4d_ros.core.errors import ErrorCode, KinemaError
from kinema4d_ros.core.trajectory import JointTrajectory, hash_trajectory
from kinema4d_ros.kinematics import choose_kinematics
from kinema4d_ros.kinematics.forward import forward_all
from kinema4d_ros.previews.arm import ArmState
from kinema4d_ros.previews.checks import STRETCH, check_plan, plan_from_poses, start_gap
from kinema4d_ros.robot import Robot


def arm_at(q: np.ndarray) -> ArmState:
    return ArmState(q, np.zeros_like(q), 0.0, 0.0)


def test_a_partial_plan_keeps_the_other_joints(yam: Robot) -> None:
    q = yam.home_position() + 0.001
    plan = JointTrajectory.from_positions(["joint1"], [[q[0]], [q[0] + 0.3]], times=[0.0, 2.0])
    checked = check_plan(yam, plan, arm_at(q))
    assert len(checked.frames) == 49
    assert checked.frames.names == yam.joint_names
    np.testing.assert_allclose(checked.frames.positions[:, 1:], np.tile(q[1:], (49, 1)))
    assert checked.plan_hash == hash_trajectory(plan)


def test_the_preview_uses_the_spline_that_would_be_executed(yam: Robot) -> None:
    q = yam.home_position()
    straight = JointTrajectory.from_positions(["joint1"], [[q[0]], [q[0] + 0.3]], times=[0.0, 2.0])
    eased = JointTrajectory(straight.names, straight.times, straight.positions, np.zeros((2, 1)))
    checked = check_plan(yam, eased, arm_at(q))
    s = np.linspace(0.0, 1.0, 49)
    np.testing.assert_allclose(checked.frames.positions[:, 0], q[0] + 0.3 * s**2 * (3 - 2 * s), atol=1e-12)
    np.testing.assert_allclose(check_plan(yam, straight, arm_at(q)).frames.positions[:, 0], q[0] + 0.3 * s, atol=1e-12)
    assert checked.plan_hash != hash_trajectory(straight)
    hasty = JointTrajectory(straight.names, straight.times, straight.positions, [[0.0], [2.0]])
    with pytest.raises(KinemaError, match="ends with joint 'joint1'") as caught:
        check_plan(yam, hasty, arm_at(q))
    assert caught.value.code == ErrorCode.TRAJECTORY_TOO_FAST


def test_a_wrong_start_names_the_joint_and_the_distance(yam: Robot) -> None:
    q = yam.home_position()
    plan = JointTrajectory.from_positions(["joint2"], [[q[1] + 0.06], [q[1]]], times=[0.0, 2.0])
    with pytest.raises(KinemaError, match="joint2") as caught:
        check_plan(yam, plan, arm_at(q))
    assert caught.value.code == ErrorCode.PLAN_START_MISMATCH
    check_plan(yam, plan, arm_at(q), start_tolerance_rad=0.1)


def test_poses_without_times_get_a_slow_speed_and_start_at_the_arm(yam: Robot) -> None:
    kinematics = choose_kinematics(yam, "pinocchio")
    q = yam.home_position()
    tool = [link.name for link in yam.links].index(yam.tool_link)
    pose = forward_all(yam, q[None])[0, tool]
    poses = np.tile(pose, (8, 1, 1))
    poses[:, 2, 3] -= np.linspace(0.01, 0.08, 8)
    plan = plan_from_poses(kinematics, poses, None, arm_at(q))
    checked = check_plan(yam, plan, arm_at(q))
    reached = forward_all(yam, yam.positions(plan.names, plan.positions, fill=q))[:, tool]
    np.testing.assert_allclose(reached[0], pose, atol=1e-9)
    np.testing.assert_allclose(reached[-1], poses[-1], atol=1e-3)
    speed = np.linalg.norm(np.diff(reached[:, :3, 3], axis=0), axis=1) / np.diff(plan.times)
    assert speed.max() <= 0.151
    assert checked.frames.duration_s == pytest.approx(plan.duration_s)


def test_poses_with_times_keep_them(yam: Robot) -> None:
    kinematics = choose_kinematics(yam, "pinocchio")
    q = yam.home_position()
    tool = [link.name for link in yam.links].index(yam.tool_link)
    poses = np.tile(forward_all(yam, q[None])[0, tool], (4, 1, 1))
    poses[:, 2, 3] -= np.array([0.0, 0.01, 0.03, 0.04])
    times = np.array([0.0, 1.0, 1.5, 4.0])
    plan = plan_from_poses(kinematics, poses, times, arm_at(q))
    np.testing.assert_allclose(np.diff(plan.times)[1:], np.diff(times))


def test_a_long_path_can_be_cancelled_and_names_the_unreachable_pose(yam: Robot) -> None:
    kinematics = choose_kinematics(yam, "pinocchio")
    q = yam.home_position()
    tool = [link.name for link in yam.links].index(yam.tool_link)
    poses = np.tile(forward_all(yam, q[None])[0, tool], (2 * STRETCH + 10, 1, 1))
    calls: list[int] = []
    assert len(plan_from_poses(kinematics, poses, None, arm_at(q), lambda: calls.append(1))) == len(poses) + 1
    assert len(calls) == 3

    def give_up() -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        plan_from_poses(kinematics, poses, None, arm_at(q), give_up)
    poses[STRETCH + 5, 0, 3] += 3.0
    with pytest.raises(KinemaError, match=f"pose {STRETCH + 5} of the tool"):
        plan_from_poses(kinematics, poses, None, arm_at(q))


def test_an_unreachable_pose_is_refused_with_the_closest_one(yam: Robot) -> None:
    far = np.eye(4)
    far[:3, 3] = [3.0, 0.0, 0.2]
    with pytest.raises(KinemaError) as caught:
        plan_from_poses(choose_kinematics(yam, "pinocchio"), far[None], None, arm_at(yam.home_position()))
    assert caught.value.code == ErrorCode.IK_NO_SOLUTION


def test_start_gap_names_the_joint_that_is_furthest_away(yam: Robot) -> None:
    start = yam.home_position()
    there = start.copy()
    assert start_gap(yam, start, there, 0.05, 0.005) is None
    there[[2, 6]] += 0.06, 0.006
    assert f"'{yam.joint_names[6]}'" in str(start_gap(yam, start, there, 0.05, 0.004))
    assert f"'{yam.joint_names[2]}'" in str(start_gap(yam, start, there, 0.05, 0.1))
    assert start_gap(yam, start, there, 0.1, 0.1) is None
