"""Contract of the back-ends, tested on every back-end that can be imported."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest

from kinema4d_ros.core.errors import ErrorCode, KinemaError, TrajectoryError
from kinema4d_ros.core.transforms import from_rpy, rotation_angle, slerp
from kinema4d_ros.kinematics import Kinematics, NoSolution, choose_kinematics, forward_all
from kinema4d_ros.kinematics.protocol import BACKENDS, POSITION_TOLERANCE_M, ROTATION_TOLERANCE_RAD
from kinema4d_ros.robot import Robot


@pytest.fixture(params=list(BACKENDS), scope="module")
def kinematics(request: pytest.FixtureRequest) -> Kinematics:
    module, install = BACKENDS[request.param]
    if find_spec(module) is None:
        pytest.skip(f"{request.param} is not installed on this machine: {install}")
    return choose_kinematics(Robot.load("yam"), request.param)


def tool(kinematics: Kinematics, q: np.ndarray) -> np.ndarray:
    names = [link.name for link in kinematics.robot.links]
    return kinematics.forward(q)[names.index(kinematics.robot.tool_link)]


def downward(x: float, y: float, z: float) -> np.ndarray:
    return from_rpy([np.pi, 0, np.arctan2(y, x)], [x, y, z])


def test_forward_agrees_with_the_reference(kinematics: Kinematics) -> None:
    robot = kinematics.robot
    q = np.random.default_rng(0).uniform(robot.lower, robot.upper, (20, len(robot.joint_names)))
    expected = forward_all(robot, q)
    np.testing.assert_allclose(kinematics.forward_all(q), expected, atol=1e-9)
    np.testing.assert_allclose(np.array([kinematics.forward(row) for row in q]), expected, atol=1e-9)


def test_inverse_undoes_forward(kinematics: Kinematics) -> None:
    robot, rng = kinematics.robot, np.random.default_rng(1)
    for _ in range(30):
        q = rng.uniform(robot.lower, robot.upper)
        pose = tool(kinematics, q)
        found = kinematics.inverse(pose)
        reached = tool(kinematics, found)
        assert np.linalg.norm(reached[:3, 3] - pose[:3, 3]) <= POSITION_TOLERANCE_M
        assert rotation_angle(reached, pose) <= ROTATION_TOLERANCE_RAD
        assert np.all((found >= robot.lower) & (found <= robot.upper))


def test_the_seed_selects_the_branch(kinematics: Kinematics) -> None:
    robot, rng = kinematics.robot, np.random.default_rng(2)
    for _ in range(20):
        q = rng.uniform(0.9 * robot.lower + 0.1 * robot.upper, 0.1 * robot.lower + 0.9 * robot.upper)
        q[2] = min(q[2], 2.5)
        found = kinematics.inverse(tool(kinematics, q), seed=q + 0.02)
        assert np.max(np.abs(found[:6] - q[:6])) < 0.1


def test_the_gripper_keeps_the_seeds_value(kinematics: Kinematics) -> None:
    seed = kinematics.robot.home_position()
    seed[-1] = 0.033
    path = kinematics.solve_path([downward(0.35, 0.0, 0.1), downward(0.35, 0.02, 0.1)], seed)
    np.testing.assert_array_equal(path.q[:, -1], [0.033, 0.033])


def test_an_unreachable_pose_reports_the_closest_one(kinematics: Kinematics) -> None:
    robot = kinematics.robot
    with pytest.raises(NoSolution) as caught:
        kinematics.inverse(downward(2.0, 0.0, 0.3))
    error = caught.value
    assert error.code == ErrorCode.IK_NO_SOLUTION
    assert error.reason
    reached = tool(kinematics, error.closest_q)
    np.testing.assert_allclose(error.closest_base_T_tool, reached, atol=1e-6)
    assert error.position_error_m == pytest.approx(np.linalg.norm(reached[:3, 3] - [2.0, 0.0, 0.3]), abs=1e-4)
    assert np.all((error.closest_q >= robot.lower) & (error.closest_q <= robot.upper))
    assert "mm" in str(error)


def test_a_path_continues_from_pose_to_pose(kinematics: Kinematics) -> None:
    poses = slerp(downward(0.35, -0.2, 0.1), downward(0.35, 0.2, 0.15), np.linspace(0, 1, 49))
    path = kinematics.solve_path(poses)
    assert path.reached.all()
    path.require_reached()
    assert path.reasons == ("",) * 49
    assert np.max(np.abs(np.diff(path.q, axis=0))) < 0.1
    np.testing.assert_allclose(path.base_T_tool[:, :3, 3], poses[:, :3, 3], atol=POSITION_TOLERANCE_M)


def test_a_path_reports_the_poses_it_missed(kinematics: Kinematics) -> None:
    poses = slerp(downward(0.35, 0.0, 0.1), downward(1.2, 0.0, 0.1), np.linspace(0, 1, 25))
    path = kinematics.solve_path(poses)
    assert path.reached[0]
    assert not path.reached[-1]
    first = int(np.argmin(path.reached))
    assert all(path.reasons[first:])
    with pytest.raises(NoSolution) as caught:
        path.require_reached()
    assert caught.value.sample == first
    assert f"pose {first} " in str(caught.value)


@pytest.mark.parametrize(
    ("poses", "code"),
    [
        (np.empty((0, 4, 4)), ErrorCode.TRAJECTORY_EMPTY),
        (np.eye(4), ErrorCode.TRAJECTORY_BAD_SHAPE),
        (2 * np.eye(4)[None], ErrorCode.NOT_A_ROTATION),
        (np.full((1, 4, 4), np.nan), ErrorCode.NOT_A_ROTATION),
    ],
)
def test_bad_poses_are_refused(kinematics: Kinematics, poses: np.ndarray, code: ErrorCode) -> None:
    with pytest.raises(KinemaError) as caught:
        kinematics.solve_path(poses)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("seed", "code"),
    [(np.zeros(3), ErrorCode.TRAJECTORY_BAD_SHAPE), (np.full(7, np.nan), ErrorCode.TRAJECTORY_NOT_FINITE)],
)
def test_bad_seeds_are_refused(kinematics: Kinematics, seed: np.ndarray, code: ErrorCode) -> None:
    with pytest.raises(TrajectoryError) as caught:
        kinematics.inverse(downward(0.3, 0.0, 0.1), seed)
    assert caught.value.code == code
