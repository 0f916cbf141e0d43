"""Inverse kinematics on random paths; `bench/kinematics.py` runs the same checks at full count."""

from __future__ import annotations

import dataclasses
from types import ModuleType

import numpy as np
import pytest
from test_closed_form import serial_arm, ur_like

from kinema4d_ros.core.errors import KinematicsError
from kinema4d_ros.core.transforms import axis_angle
from kinema4d_ros.kinematics.closed_form import ParallelAxesArm
from kinema4d_ros.kinematics.path import count_flips
from kinema4d_ros.kinematics.pinocchio_backend import ArmModel, PinocchioKinematics
from kinema4d_ros.kinematics.protocol import IKPath
from kinema4d_ros.robot import Robot


def flips(robot: Robot, poses: np.ndarray, path: IKPath) -> int:
    columns = [robot.joint_names.index(joint.name) for joint in robot.arm]
    return count_flips(ArmModel(robot), poses, path.q[:, columns])


def violations(robot: Robot, path: IKPath) -> int:
    return int(np.sum((path.q < robot.lower) | (path.q > robot.upper)))


def test_followable_paths_have_no_flips_and_stay_within_the_limits(yam: Robot, ik_suite: ModuleType) -> None:
    kinematics = PinocchioKinematics(yam)
    kinds = set()
    for case in ik_suite.cases(yam, 18, seed=7):
        free = kinematics.solve_path(case.base_T_tool)
        for path in (free, kinematics.solve_path(case.base_T_tool, seed=free.q[0])):
            assert path.reached.all(), case.kind
            assert flips(yam, case.base_T_tool, path) == 0, case.kind
            assert violations(yam, path) == 0, case.kind
        kinds.add(case.kind)
    assert kinds == set(ik_suite.KINDS)


def test_the_arm_returns_to_its_workspace_on_the_same_branch(yam: Robot, ik_suite: ModuleType) -> None:
    kinematics = PinocchioKinematics(yam)
    for case in ik_suite.leaving(yam, 15, seed=3):
        path = kinematics.solve_path(case.base_T_tool)
        assert path.reached[0]
        assert not path.reached[ik_suite.SAMPLES // 2]
        assert ik_suite.lost_on_the_way_back(yam, case, path.reached) == 0
        assert flips(yam, case.base_T_tool, path) == 0
        assert violations(yam, path) == 0


@pytest.mark.parametrize("which", ["yam", "primitive_arm", "ur", "spherical wrist"])
def test_cold_starts_find_a_solution(which: str, yam: Robot, primitive_arm: Robot) -> None:
    robot = {"yam": yam, "primitive_arm": primitive_arm, "ur": ur_like()}.get(which) or spherical_wrist_arm()
    kinematics, arm = PinocchioKinematics(robot), ArmModel(robot)
    rng = np.random.default_rng(5)
    count = 200
    found = 0
    for _ in range(count):
        q = rng.uniform(np.maximum(arm.lower, -np.pi), np.minimum(arm.upper, np.pi))
        found += bool(kinematics.solve_path(arm.tool_pose(q)[None]).reached[0])
    assert found >= 0.995 * count


def spherical_wrist_arm() -> Robot:
    return serial_arm(
        [
            ([0, 0, 0.3], [0, 0, 0], [0, 0, 1]),
            ([0.05, 0, 0.1], [0, 0, 0], [0, 1, 0]),
            ([0, 0, 0.35], [0, 0, 0], [0, 1, 0]),
            ([0.02, 0, 0.1], [0, 0, 0], [0, 0, 1]),
            ([0, 0, 0.25], [0, 0, 0], [0, 1, 0]),
            ([0, 0, 0], [0, 0, 0], [0, 0, 1]),
        ],
        2.6,
    )


def test_that_arm_has_no_closed_form_here() -> None:
    assert ParallelAxesArm.of(spherical_wrist_arm()) is None


def test_continuous_joints_unwrap(primitive_arm: Robot) -> None:
    kinematics, arm = PinocchioKinematics(primitive_arm), ArmModel(primitive_arm)
    start = arm.tool_pose(primitive_arm.home_position()[:6])
    turns = np.linspace(0, 4 * np.pi, 81)
    path = kinematics.solve_path(start @ axis_angle([0, 0, 1], turns), seed=primitive_arm.home_position())
    assert path.reached.all()
    roll = path.q[:, primitive_arm.joint_names.index("wrist_roll")]
    assert abs(roll[-1] - roll[0]) == pytest.approx(4 * np.pi, abs=0.01)
    assert np.max(np.abs(np.diff(roll))) < 0.2


def test_without_a_seed_the_start_can_follow_the_whole_path(yam: Robot, ik_suite: ModuleType) -> None:
    """For some of these paths the start closest to home ends at a limit; another one must be used."""
    kinematics, home = PinocchioKinematics(yam), yam.home_position()
    changed = 0
    for seed in (2, 6, 8):
        for case in ik_suite.cases(yam, 6, seed=seed, kinds=("line",)):
            path = kinematics.solve_path(case.base_T_tool)
            assert path.reached.all()
            nearest = kinematics.inverse(case.base_T_tool[0])
            if np.linalg.norm(path.q[0] - home) > np.linalg.norm(nearest - home) + 0.1:
                changed += 1
                assert not kinematics.solve_path(case.base_T_tool, seed=nearest).reached.all()
    assert changed > 0


def test_a_fixed_tool_is_refused(yam: Robot) -> None:
    with pytest.raises(KinematicsError, match="no joint moves"):
        PinocchioKinematics(dataclasses.replace(yam, tool_link=yam.base_link))
