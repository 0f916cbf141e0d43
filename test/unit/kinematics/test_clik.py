"""Local solver: same model as forward kinematics, steps inside the limits, closest pose out of reach."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from scipy.optimize import minimize

from kinema4d_ros.core.errors import ErrorCode, KinematicsError
from kinema4d_ros.core.transforms import axis_angle, make
from kinema4d_ros.kinematics import forward_all
from kinema4d_ros.kinematics._kernels import damped_step
from kinema4d_ros.kinematics.path import pose_distance
from kinema4d_ros.kinematics.pinocchio_backend import ArmModel
from kinema4d_ros.robot import Robot
from kinema4d_ros.robot.model import Mimic


@pytest.mark.parametrize("name", ["yam", "primitive_arm"])
def test_the_tool_is_where_forward_kinematics_puts_it(name: str, request: pytest.FixtureRequest) -> None:
    robot: Robot = request.getfixturevalue(name)
    arm = ArmModel(robot)
    q = np.tile(robot.home_position(), (50, 1))
    q[:, :6] = np.random.default_rng(0).uniform(np.maximum(arm.lower, -3), np.minimum(arm.upper, 3), (50, 6))
    tool = [link.name for link in robot.links].index(robot.tool_link)
    expected = forward_all(robot, q)[:, tool]
    np.testing.assert_allclose(np.array([arm.tool_pose(row[:6]) for row in q]), expected, atol=1e-12)


def test_a_near_target_is_reached_to_the_goal(yam: Robot) -> None:
    arm, rng = ArmModel(yam), np.random.default_rng(1)
    for _ in range(100):
        q = rng.uniform(arm.lower, arm.upper)
        target = arm.tool_pose(q)
        solution = arm.solve(target, np.clip(q + rng.uniform(-0.05, 0.05, 6), arm.lower, arm.upper))
        assert solution.reached
        assert pose_distance(arm.tool_pose(solution.q), target) == pytest.approx(solution.cost, abs=1e-5)


def test_out_of_reach_no_nearby_configuration_is_closer(yam: Robot) -> None:
    arm, rng = ArmModel(yam), np.random.default_rng(2)
    for _ in range(5):
        q = rng.uniform(arm.lower, arm.upper)
        target = make(axis_angle([0, 0, 1], 0.1)[:3, :3], [0.4, 0.1, 0.1]) @ arm.tool_pose(q)
        target[:3, 3] *= 3
        solution = arm.solve(target, q)

        def cost(x: np.ndarray, target: np.ndarray = target) -> float:
            return pose_distance(arm.tool_pose(np.clip(x, arm.lower, arm.upper)), target)

        polished = minimize(cost, solution.q, method="Nelder-Mead", options={"maxiter": 4000, "xatol": 1e-7})
        assert solution.cost <= polished.fun + 0.01
        assert np.all((solution.q >= arm.lower) & (solution.q <= arm.upper))


def test_a_seed_outside_the_limits_is_brought_inside(yam: Robot) -> None:
    arm = ArmModel(yam)
    solution = arm.solve(arm.tool_pose(np.array([0.0, 0.1, 0.1, 0.0, 0.0, 0.0])), np.full(6, -9.0))
    assert np.all((solution.q >= arm.lower) & (solution.q <= arm.upper))


def test_the_step_is_the_damped_least_squares_one() -> None:
    rng = np.random.default_rng(3)
    for _ in range(50):
        J, e, w, q = rng.normal(size=(6, 6)), rng.normal(size=6) * 0.01, rng.uniform(0.1, 1, 6), rng.normal(size=6)
        drift = rng.normal(size=6) * 0.01
        bounds = np.full(6, 1e9)
        got = damped_step(q, J, e, w, 1e-2, 1e9, -bounds, bounds, drift)
        A = w[:, None] * J
        normal = A.T @ A + 1e-2 * np.eye(6)
        np.testing.assert_allclose(got - q, np.linalg.solve(normal, A.T @ (w * e) + 1e-2 * drift), atol=1e-10)


def test_joints_at_a_limit_stay_and_the_others_compensate() -> None:
    rng = np.random.default_rng(4)
    held = 0
    for _ in range(100):
        J, e = rng.normal(size=(6, 6)), rng.normal(size=6) * 0.05
        lower, upper = np.full(6, -0.01), np.full(6, 1.0)
        got = damped_step(np.zeros(6), J, e, np.ones(6), 1e-3, 0.3, lower, upper, np.zeros(6))
        assert np.all((got >= lower) & (got <= upper))
        clipped = np.linalg.solve(J.T @ J + 1e-3 * np.eye(6), J.T @ e).clip(lower, upper)
        held += bool(np.any(got == lower))
        assert np.linalg.norm(J @ got - e) <= np.linalg.norm(J @ clipped - e) + 0.02
    assert held > 50


def test_no_joint_moves_further_than_the_longest_step() -> None:
    bounds = np.full(6, 10.0)
    got = damped_step(np.zeros(6), np.eye(6), np.full(6, 5.0), np.ones(6), 1e-6, 0.3, -bounds, bounds, np.zeros(6))
    assert np.max(np.abs(got)) == pytest.approx(0.3)


def test_a_mimic_joint_on_the_arm_is_refused(yam: Robot) -> None:
    joints = tuple(
        dataclasses.replace(joint, mimic=Mimic("joint2")) if joint.name == "joint4" else joint for joint in yam.joints
    )
    with pytest.raises(KinematicsError, match="'joint4'") as caught:
        ArmModel(dataclasses.replace(yam, joints=joints))
    assert caught.value.code == ErrorCode.URDF_UNSUPPORTED
