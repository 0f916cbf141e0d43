from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinema4d_ros.core.errors import ErrorCode, KinemaError, TrajectoryError
from kinema4d_ros.core.trajectory import JointTrajectory
from kinema4d_ros.physics.controller import BLEND_S, TrajectoryController
from kinema4d_ros.robot import Robot


@pytest.fixture
def controller(primitive_arm: Robot) -> TrajectoryController:
    return TrajectoryController(primitive_arm, primitive_arm.home_position())


def ramp(robot: Robot, joint: str, by: float, times: tuple[float, ...] = (0.0, 1.0, 2.0)) -> JointTrajectory:
    start = robot.home_position()[robot.joint_names.index(joint)]
    return JointTrajectory.from_positions([joint], [[start + by * t] for t in times], times=times)


def test_passes_through_the_samples_and_holds_the_end(controller: TrajectoryController, primitive_arm: Robot) -> None:
    home, joint = primitive_arm.home_position(), primitive_arm.joint_names[0]
    controller.follow(ramp(primitive_arm, joint, 0.2), 10.0, home)
    for t in (0.0, 1.0, 2.0, 5.0):
        q, _ = controller.target(10.0 + t)
        assert q[0] == pytest.approx(home[0] + 0.2 * min(t, 2.0))
        np.testing.assert_allclose(q[1:], home[1:])
    assert controller.busy(11.9)
    assert not controller.busy(12.0)
    assert controller.remaining_s(11.5) == pytest.approx(0.5)
    np.testing.assert_array_equal(controller.target(13.0)[1], 0.0)


def test_trajectory_with_velocities_is_followed_along_its_spline(
    controller: TrajectoryController, primitive_arm: Robot
) -> None:
    home = primitive_arm.home_position()
    plan = JointTrajectory(
        (primitive_arm.joint_names[0],),
        [0.0, 1.0, 2.0],
        home[0] + np.array([[0.0], [0.1], [0.0]]),
        [[0.0], [0.3], [0.0]],
    )
    controller.follow(plan, 10.0, home)
    for t in np.linspace(0.0, 2.0, 23):
        q, v = controller.target(10.0 + t)
        assert q[0] == pytest.approx(plan.at(t)[0, 0], abs=1e-4)
        assert v[0] == pytest.approx(plan.velocities_at(t)[0, 0], abs=1e-2)
    assert max(controller.target(10.0 + t)[0][0] for t in np.linspace(1, 2, 30)) > home[0] + 0.11


@given(st.lists(st.floats(-0.5, 0.5), min_size=2, max_size=8), st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_interpolation_stays_within_the_range_of_adjacent_samples(
    primitive_arm: Robot, offsets: list[float], seed: int
) -> None:
    home, joint = primitive_arm.home_position(), primitive_arm.joint_names[0]
    values = home[0] + np.array([0.0, *offsets])
    times = np.cumsum(np.random.default_rng(seed).uniform(0.3, 1.0, len(values)))
    controller = TrajectoryController(primitive_arm, home)
    controller.follow(JointTrajectory.from_positions([joint], values[:, None], times=times), 0.0, home)
    clock = times - times[0]
    for i in range(len(values) - 1):
        inside = [controller.target(t)[0][0] for t in np.linspace(clock[i], clock[i + 1], 9)]
        low, high = sorted(values[i : i + 2])
        assert low - 1e-12 <= min(inside)
        assert max(inside) <= high + 1e-12


def test_velocity_is_the_derivative_of_position(controller: TrajectoryController, primitive_arm: Robot) -> None:
    home = primitive_arm.home_position()
    plan = ramp(primitive_arm, primitive_arm.joint_names[0], 0.2, (0.0, 0.4, 1.0, 2.0))
    controller.hold(home + 0.02)
    controller.follow(plan, 0.0, home + 0.02)
    for t in (0.1, 0.3, 0.7, 1.4):
        before, after = controller.target(t - 1e-6)[0], controller.target(t + 1e-6)[0]
        np.testing.assert_allclose(controller.target(t)[1], (after - before) / 2e-6, atol=1e-5)


def test_new_trajectory_replaces_a_running_one_without_a_jump(
    controller: TrajectoryController, primitive_arm: Robot
) -> None:
    home, joint = primitive_arm.home_position(), primitive_arm.joint_names[0]
    controller.follow(ramp(primitive_arm, joint, 0.3), 0.0, home)
    before, _ = controller.target(0.2)
    controller.follow(ramp(primitive_arm, joint, -0.3), 0.2, before)
    after, _ = controller.target(0.2)
    np.testing.assert_allclose(after, before, atol=1e-12)
    assert controller.target(2.2)[0][0] == pytest.approx(home[0] - 0.6)
    assert controller.target(0.2 + BLEND_S)[0][0] < home[0] + 0.01


def test_start_mismatch_is_rejected_and_the_running_plan_continues(
    controller: TrajectoryController, primitive_arm: Robot
) -> None:
    home, joint = primitive_arm.home_position(), primitive_arm.joint_names[0]
    controller.follow(ramp(primitive_arm, joint, 0.2), 0.0, home)
    expected, _ = controller.target(2.0)
    far = JointTrajectory.from_positions([joint], [[home[0] + 0.5], [home[0] + 0.6]], times=[0.0, 1.0])
    with pytest.raises(TrajectoryError) as caught:
        controller.follow(far, 0.1, home)
    assert caught.value.code == ErrorCode.PLAN_START_MISMATCH
    assert joint in str(caught.value)
    np.testing.assert_array_equal(controller.target(2.0)[0], expected)


@pytest.mark.parametrize(
    ("joint", "positions", "times", "code"),
    [
        ("joint1", [0.0, 99.0], [0.0, 90.0], ErrorCode.TRAJECTORY_OUT_OF_LIMITS),
        ("joint1", [0.0, 1.0], [0.0, 0.001], ErrorCode.TRAJECTORY_TOO_FAST),
        ("elbow", [0.0, 0.1], [0.0, 1.0], ErrorCode.UNKNOWN_JOINT),
    ],
)
def test_bad_trajectories_are_rejected(
    yam: Robot, joint: str, positions: list[float], times: list[float], code: ErrorCode
) -> None:
    controller = TrajectoryController(yam, yam.home_position())
    plan = JointTrajectory.from_positions([joint], np.array(positions)[:, None], times=times)
    with pytest.raises(KinemaError) as caught:
        controller.follow(plan, 0.0, yam.home_position())
    assert caught.value.code == code
    assert not controller.busy(0.0)


def test_stop_brakes_smoothly_and_holds(controller: TrajectoryController, primitive_arm: Robot) -> None:
    home, joint = primitive_arm.home_position(), primitive_arm.joint_names[0]
    controller.follow(ramp(primitive_arm, joint, 0.4), 0.0, home)
    at, speed = controller.target(1.0)
    controller.stop(1.0)
    np.testing.assert_allclose(controller.target(1.0)[0], at)
    np.testing.assert_allclose(controller.target(1.0)[1], speed)
    assert not controller.busy(1.0)
    rest, still = controller.target(3.0)
    assert abs(still[0]) < 1e-9
    assert at[0] < rest[0] < at[0] + 0.05
