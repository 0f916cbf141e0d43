"""Closed form: all solutions for any arm of its family, None for other arms."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from kinema4d_ros.core.transforms import from_rpy, rotation_angle
from kinema4d_ros.kinematics.closed_form import ParallelAxesArm
from kinema4d_ros.kinematics.pinocchio_backend import ArmModel
from kinema4d_ros.robot import Robot
from kinema4d_ros.robot.model import Joint, JointLimits, Link


def serial_arm(frames: list[tuple[list[float], list[float], list[float]]], limit: float = np.pi) -> Robot:
    """Build revolute joints in series: (xyz, rpy, axis) each, and a tool 0.1 m further."""
    links = [Link(f"l{i}") for i in range(len(frames) + 2)]
    limits = JointLimits(-limit, limit, 3.0, 10.0)
    joints = [
        Joint(f"j{i}", "revolute", f"l{i}", f"l{i + 1}", from_rpy(rpy, xyz), np.array(axis, dtype=float), limits)
        for i, (xyz, rpy, axis) in enumerate(frames)
    ]
    last = len(frames)
    tool = from_rpy([0.3, -0.2, 0.1], [0.02, 0.01, 0.1])
    joints.append(Joint("t", "fixed", f"l{last}", f"l{last + 1}", tool, np.array([1.0, 0, 0]), limits))
    return Robot("serial", tuple(links), tuple(joints), f"l{last + 1}")


def ur_like(limit: float = np.pi) -> Robot:
    """Build an arm with UR5's proportions: offsets, axes 2 to 4 parallel (one reversed), 5 and 6 intersecting."""
    return serial_arm(
        [
            ([0, 0, 0.089], [0, 0, 0], [0, 0, 1]),
            ([0, 0.136, 0], [0, 1.2, 0], [0, 1, 0]),
            ([0, -0.12, 0.425], [0, 0.3, 0], [0, -1, 0]),
            ([0, 0, 0.392], [0, 1.1, 0], [0, 1, 0]),
            ([0, 0.093, 0], [0, 0, 0], [0, 0, 1]),
            ([0, 0, 0.095], [0, 0, 0], [0, 1, 0]),
        ],
        limit,
    )


@pytest.mark.parametrize("which", ["yam", "ur"])
def test_the_configuration_a_pose_was_made_from_is_among_the_solutions(yam: Robot, which: str) -> None:
    robot = yam if which == "yam" else ur_like()
    arm, solver = ArmModel(robot), ParallelAxesArm.of(robot)
    assert solver is not None
    rng = np.random.default_rng(0)
    for _ in range(200):
        # Away from the singularities, where solutions merge and are ill-conditioned.
        q = rng.uniform(0.97 * arm.lower + 0.03 * arm.upper, 0.03 * arm.lower + 0.97 * arm.upper)
        if which == "yam" and abs(q[2] - 2.9014) < 0.05:
            continue
        pose = arm.tool_pose(q)
        found = solver.solve(pose, q)
        assert np.min(np.max(np.abs(found - q), axis=1)) < 5e-3
        for solution in found:
            there = arm.tool_pose(solution)
            # Solutions slightly past a limit are clipped to it.
            on_limit = bool(np.any((solution == arm.lower) | (solution == arm.upper)))
            assert np.linalg.norm(there[:3, 3] - pose[:3, 3]) < (2e-3 if on_limit else 2e-5)
            assert rotation_angle(there, pose) < (2e-3 if on_limit else 2e-5)


def test_an_exact_geometry_gives_exact_answers_on_all_branches() -> None:
    robot = ur_like()
    arm, solver = ArmModel(robot), ParallelAxesArm.of(robot)
    assert solver is not None
    rng = np.random.default_rng(1)
    counts = []
    for _ in range(100):
        pose = arm.tool_pose(rng.uniform(-3, 3, 6))
        found = solver.solve(pose, np.zeros(6))
        counts.append(len(found))
        for solution in found:
            np.testing.assert_allclose(arm.tool_pose(solution), pose, atol=1e-7)
    assert max(counts) == 8


def test_solutions_are_inside_the_limits_and_closest_first(yam: Robot) -> None:
    arm, solver = ArmModel(yam), ParallelAxesArm.of(yam)
    assert solver is not None
    rng = np.random.default_rng(2)
    several = 0
    for _ in range(100):
        q = rng.uniform(arm.lower, arm.upper)
        near = rng.uniform(arm.lower, arm.upper)
        found = solver.solve(arm.tool_pose(q), near)
        assert np.all((found >= arm.lower) & (found <= arm.upper))
        distances = np.linalg.norm(found - near, axis=1)
        assert np.all(np.diff(distances) >= 0)
        several += len(found) > 1
    assert several > 10


def test_whole_turns_follow_the_reference() -> None:
    robot = ur_like(limit=2 * np.pi)
    arm, solver = ArmModel(robot), ParallelAxesArm.of(robot)
    assert solver is not None
    q = np.array([4.0, -0.5, 1.0, 0.3, 0.8, -5.0])
    found = solver.solve(arm.tool_pose(q), q)
    np.testing.assert_allclose(found[0], q, atol=1e-6)


def test_a_batch_equals_its_poses(yam: Robot) -> None:
    arm, solver = ArmModel(yam), ParallelAxesArm.of(yam)
    assert solver is not None
    rng = np.random.default_rng(3)
    poses = np.array([arm.tool_pose(rng.uniform(arm.lower, arm.upper)) for _ in range(10)])
    home = np.zeros(6)
    batch = solver.solve_all(poses, home)
    for pose, rows in zip(poses, batch, strict=True):
        rows = rows[np.isfinite(rows[:, 0])]
        one = solver.solve(pose, home)
        assert sorted(map(tuple, np.round(rows, 9))) == sorted(map(tuple, np.round(one, 9)))


def test_poses_out_of_reach_have_no_solution_but_a_direction_to_stretch(yam: Robot) -> None:
    arm, solver = ArmModel(yam), ParallelAxesArm.of(yam)
    assert solver is not None
    pose = arm.tool_pose(np.array([0.3, 1.5, 2.0, 0.0, 0.0, 0.0]))
    pose[:3, 3] *= 10
    assert len(solver.solve(pose, np.zeros(6))) == 0
    seeds = solver.solve(pose, np.zeros(6), stretch=True)
    assert len(seeds) > 0
    assert np.all((seeds >= arm.lower) & (seeds <= arm.upper))


def test_other_geometries_have_no_closed_form() -> None:
    arm = ur_like()
    tilted = list(arm.joints)
    tilted[2] = dataclasses.replace(tilted[2], axis=np.array([0.02, -1.0, 0.0]) / np.hypot(0.02, 1))
    apart = list(arm.joints)
    apart[5] = dataclasses.replace(apart[5], parent_T_joint=from_rpy([0, 0, 0], [0.01, 0, 0.095]))
    slides = list(arm.joints)
    slides[3] = dataclasses.replace(slides[3], kind="prismatic")
    for joints in (tilted, apart, slides):
        assert ParallelAxesArm.of(dataclasses.replace(arm, joints=tuple(joints))) is None
    five = [(list(j.parent_T_joint[:3, 3]), [0, 0, 0], list(j.axis)) for j in arm.joints[:5]]
    assert ParallelAxesArm.of(serial_arm(five)) is None
