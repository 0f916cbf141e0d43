"""Joint trajectories: validation on construction, exact resampling and integration."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from kinema4d_ros.core.errors import ErrorCode, KinemaError, TrajectoryError
from kinema4d_ros.core.trajectory import FRAMES, HOLD_PERIOD_S, JointTrajectory
from kinema4d_ros.core.transforms import slerp
from kinema4d_ros.kinematics import NoSolution
from kinema4d_ros.kinematics.pinocchio_backend import PinocchioKinematics
from kinema4d_ros.robot import Robot

POSITIONS = st.floats(-10, 10)


@st.composite
def trajectories(draw: st.DrawFn) -> JointTrajectory:
    samples, joints = draw(st.integers(2, 30)), draw(st.integers(1, 7))
    steps = draw(arrays(np.float64, samples, elements=st.floats(1e-3, 10)))
    positions = draw(arrays(np.float64, (samples, joints), elements=POSITIONS))
    return JointTrajectory(tuple(f"j{i}" for i in range(joints)), np.cumsum(steps), positions)


@given(trajectories(), st.integers(2, 100))
def test_resampling_keeps_the_ends_exactly_and_is_uniform_in_time(trajectory: JointTrajectory, n: int) -> None:
    out = trajectory.resample(n)
    assert len(out) == n
    assert out.names == trajectory.names
    np.testing.assert_array_equal(out.positions[[0, -1]], trajectory.positions[[0, -1]])
    np.testing.assert_array_equal(out.times[[0, -1]], trajectory.times[[0, -1]])
    np.testing.assert_allclose(np.diff(out.times), trajectory.duration_s / (n - 1), rtol=1e-9, atol=1e-12)


@given(trajectories(), st.integers(2, 100))
def test_resampled_positions_stay_between_the_neighbouring_samples(trajectory: JointTrajectory, n: int) -> None:
    out = trajectory.resample(n)
    after = np.clip(np.searchsorted(trajectory.times, out.times), 1, len(trajectory) - 1)
    a, b = trajectory.positions[after - 1], trajectory.positions[after]
    assert np.all(out.positions >= np.minimum(a, b) - 1e-9)
    assert np.all(out.positions <= np.maximum(a, b) + 1e-9)


@given(trajectories())
def test_sampling_at_its_own_times_returns_the_samples(trajectory: JointTrajectory) -> None:
    np.testing.assert_array_equal(trajectory.at(trajectory.times), trajectory.positions)


@given(st.integers(2, 40), st.floats(0.1, 100), st.integers(0, 2**31))
def test_velocities_that_are_linear_in_time_integrate_exactly(samples: int, rate: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    slope, start_speed, start = rng.uniform(-2, 2, (3, 4))
    t = np.arange(samples) / rate
    out = JointTrajectory.from_velocities("abcd", start_speed + slope * t[:, None], start, rate_hz=rate)
    exact = start + start_speed * t[:, None] + 0.5 * slope * t[:, None] ** 2
    np.testing.assert_allclose(out.positions, exact, rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(out.positions[0], start)


@given(trajectories())
def test_integrating_the_mean_velocities_gives_the_positions_back(trajectory: JointTrajectory) -> None:
    rates = trajectory.mean_velocities()
    steps = rates * np.diff(trajectory.times)[:, None]
    rebuilt = trajectory.positions[0] + np.vstack([np.zeros_like(steps[:1]), np.cumsum(steps, axis=0)])
    np.testing.assert_allclose(rebuilt, trajectory.positions, atol=1e-9)


def controller_spline(plan: JointTrajectory, t: float) -> np.ndarray:
    """Return what joint_trajectory_controller commands at a time, by its own formulas (trajectory.cpp)."""
    i = max(i for i in range(len(plan) - 1) if plan.times[i] <= t)
    duration, t = plan.times[i + 1] - plan.times[i], t - plan.times[i]
    p0, p1 = plan.positions[i : i + 2]
    v0, v1 = plan.velocities[i : i + 2]
    c = [p0, v0]
    if plan.accelerations is None:
        c.append((-3 * p0 + 3 * p1 - 2 * v0 * duration - v1 * duration) / duration**2)
        c.append((2 * p0 - 2 * p1 + v0 * duration + v1 * duration) / duration**3)
    else:
        a0, a1 = plan.accelerations[i : i + 2]
        t1, t2 = duration, duration**2
        c.append(0.5 * a0)
        c.append((-20 * p0 + 20 * p1 - 3 * a0 * t2 + a1 * t2 - 12 * v0 * t1 - 8 * v1 * t1) / (2 * duration**3))
        c.append((30 * p0 - 30 * p1 + 3 * a0 * t2 - 2 * a1 * t2 + 16 * v0 * t1 + 14 * v1 * t1) / (2 * duration**4))
        c.append((-12 * p0 + 12 * p1 - a0 * t2 + a1 * t2 - 6 * v0 * t1 - 6 * v1 * t1) / (2 * duration**5))
    return sum(k * t**n for n, k in enumerate(c))


@given(trajectories(), st.booleans(), st.integers(0, 2**31))
def test_a_plan_with_derivatives_matches_the_controllers_spline(
    plan: JointTrajectory, accelerated: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    tables = rng.uniform(-3, 3, (1 + accelerated, *plan.positions.shape))
    plan = JointTrajectory(plan.names, plan.times, plan.positions, *tables)
    for t in rng.uniform(plan.times[0], plan.times[-1], 5):
        np.testing.assert_allclose(plan.at(t)[0], controller_spline(plan, t), rtol=1e-7, atol=1e-7)
        # A step that is short for every segment: the error of the difference grows with (step / segment)^2.
        step = 1e-4 * float(np.diff(plan.times).min())
        slope = (plan.at(t + step) - plan.at(t - step)) / (2 * step)
        if np.abs(plan.times - t).min() > step:
            np.testing.assert_allclose(plan.velocities_at(t), slope, rtol=1e-3, atol=1e-3)
    np.testing.assert_array_equal(plan.at(plan.times), plan.positions)
    np.testing.assert_array_equal(plan.velocities_at(plan.times), plan.velocities)
    np.testing.assert_array_equal(plan.at([plan.times[0] - 1, plan.times[-1] + 1]), plan.positions[[0, -1]])
    np.testing.assert_array_equal(plan.resample(7).positions, plan.at(plan.resample(7).times))


def test_only_keeps_the_samples_of_some_joints() -> None:
    tables = np.arange(24.0).reshape(4, 2, 3)
    plan = JointTrajectory(("a", "b", "c"), [0.0, 1.0], *tables)
    share = plan.only(["c", "x", "a"])
    assert share is not None
    assert share.names == ("a", "c")
    for what, table in zip(("positions", "velocities", "accelerations", "effort"), tables, strict=True):
        np.testing.assert_array_equal(getattr(share, what), table[:, [0, 2]])
    assert plan.only(["x"]) is None


def spline(robot: Robot, **changes: object) -> JointTrajectory:
    """Joint 1 by 0.2 rad in 2 s through one point, with velocities and accelerations, from rest to rest."""
    q = np.tile(robot.home_position(), (3, 1))
    q[:, 0] += [0.0, 0.1, 0.2]
    v, a = np.zeros_like(q), np.zeros_like(q)
    v[1, 0] = 0.15
    tables = {"times": [0.0, 1.0, 2.0], "velocities": v, "accelerations": a, **changes}
    return JointTrajectory(robot.joint_names, positions=q, **tables)


def set_at(sample: int, value: float, shape: tuple[int, int] = (3, 7)) -> np.ndarray:
    table = np.zeros(shape)
    table[sample, 0] = value
    return table


def test_derivatives_within_the_limits_pass(yam: Robot) -> None:
    assert spline(yam).validate(yam, check_velocity=True) == ()
    assert spline(yam, effort=set_at(1, 0.1)).validate(yam, check_velocity=True) == ()


@pytest.mark.parametrize(
    ("changes", "code", "text"),
    [
        ({"velocities": set_at(1, 50.0)}, "TRAJECTORY_TOO_FAST", "'joint1' at sample 1"),
        ({"velocities": set_at(2, 0.01)}, "TRAJECTORY_TOO_FAST", "ends with joint 'joint1'"),
        ({"velocities": set_at(0, 0.01)}, "TRAJECTORY_TOO_FAST", "starts with joint 'joint1'"),
        # Slow at every point but too fast between them, because of the accelerations.
        ({"accelerations": set_at(1, 100.0)}, "TRAJECTORY_TOO_FAST", "rad/s"),
        ({"accelerations": set_at(1, 1e308)}, "TRAJECTORY_TOO_FAST", "rad/s"),
        ({"effort": set_at(1, 1e4)}, "TRAJECTORY_OUT_OF_LIMITS", "N m"),
        # A controller interpolates a spline from the current position to the first point: it would swing back first.
        ({"times": [9.0, 10.0, 11.0], "accelerations": set_at(0, 0.5)}, "TRAJECTORY_TOO_FAST", "starts late"),
    ],
)
def test_derivatives_that_the_arm_cannot_follow_are_refused(
    yam: Robot, changes: dict[str, object], code: str, text: str
) -> None:
    with pytest.raises(TrajectoryError) as caught:
        spline(yam, **changes).validate(yam, check_velocity=True)
    assert caught.value.code == ErrorCode[code]
    assert text in str(caught.value)


def test_a_huge_spline_is_refused_before_allocation(yam: Robot) -> None:
    count = 90_000
    rest = np.tile(yam.home_position()[:1], (count, 1))
    with pytest.raises(TrajectoryError, match="90,000 samples"):
        JointTrajectory(("joint1",), np.arange(count) * 1e-3, rest, 0 * rest).validate(yam)
    part = slice(0, 80_000)
    JointTrajectory(("joint1",), np.arange(80_000) * 1e-3, rest[part], 0 * rest[part]).validate(yam)


def test_a_spline_that_leaves_the_limits_between_its_points_is_refused(yam: Robot) -> None:
    """All samples are equal, at the limit; the velocity between them moves the arm past it."""
    q = np.tile(yam.home_position(), (3, 1))
    q[:, 0] = yam.upper[0] - 0.01
    v = np.zeros_like(q)
    v[1, 0] = 0.5
    still = JointTrajectory(yam.joint_names, [0.0, 1.0, 2.0], q)
    assert still.validate(yam, check_velocity=True) == ()
    with pytest.raises(TrajectoryError, match="joint1") as caught:
        JointTrajectory(yam.joint_names, still.times, q, v).validate(yam, check_velocity=True)
    assert caught.value.code == ErrorCode.TRAJECTORY_OUT_OF_LIMITS


def test_default_resampling_gives_the_frames_of_a_rollout() -> None:
    assert len(JointTrajectory.from_positions("a", [[0.0], [1.0]], rate_hz=1).resample()) == FRAMES == 49


def test_a_single_sample_is_held() -> None:
    out = JointTrajectory(("a",), [2.0], [[0.7]]).resample(5)
    np.testing.assert_array_equal(out.positions, np.full((5, 1), 0.7))
    np.testing.assert_allclose(out.times, 2.0 + HOLD_PERIOD_S * np.arange(5))


def test_one_frame_is_the_first_sample() -> None:
    out = JointTrajectory(("a",), [1.0, 2.0], [[0.1], [0.2]]).resample(1)
    assert (out.times.tolist(), out.positions.tolist()) == ([1.0], [[0.1]])


def test_positions_are_never_wrapped() -> None:
    out = JointTrajectory.from_positions("a", [[3.1], [-3.1]], rate_hz=1.0).resample(3)
    assert out.positions[1, 0] == pytest.approx(0.0)


def test_the_arrays_are_private_and_read_only() -> None:
    positions = np.zeros((2, 1))
    trajectory = JointTrajectory.from_positions("a", positions, rate_hz=1)
    positions[:] = 9
    assert trajectory.positions.max() == 0
    with pytest.raises(ValueError, match="read-only"):
        trajectory.positions[0] = 1


@pytest.mark.parametrize(
    ("names", "times", "positions", "code", "text"),
    [
        ((), [], np.empty((0, 0)), "TRAJECTORY_EMPTY", "empty"),
        (("a",), [], np.empty((0, 1)), "TRAJECTORY_EMPTY", "empty"),
        (("a",), [0.0, 1.0], [[0.0], [np.nan]], "TRAJECTORY_NOT_FINITE", "'a' at sample 1 is nan"),
        (("a", "b"), [0.0], [[0.0, np.inf]], "TRAJECTORY_NOT_FINITE", "'b' at sample 0 is inf"),
        (("a",), [0.0, np.nan], [[0.0], [1.0]], "TRAJECTORY_NOT_FINITE", "time of sample 1"),
        (("a",), [0.0, 1.0, 1.0], [[0.0]] * 3, "TRAJECTORY_NOT_MONOTONIC", "sample 2 is 1 s"),
        (("a",), [0.0, 2.0, 1.0], [[0.0]] * 3, "TRAJECTORY_NOT_MONOTONIC", "sample 2 is 1 s"),
        (("a",), [0.0, 1.0], [[0.0, 1.0]], "TRAJECTORY_BAD_SHAPE", "(1, 2)"),
        (("a", "a"), [0.0], [[0.0, 1.0]], "TRAJECTORY_BAD_SHAPE", "given twice: a"),
        (("a",), [0.0, 1.0], [[0.0], ["x"]], "TRAJECTORY_BAD_SHAPE", "not a table of numbers"),
        (("a", "b"), [0.0, 1.0], [[0.0, 1.0], [0.0]], "TRAJECTORY_BAD_SHAPE", "not a table of numbers"),
        (("a",), None, [[0.0]], "TRAJECTORY_BAD_SHAPE", "times ()"),
    ],
)
def test_bad_trajectories_are_refused(names, times, positions, code, text) -> None:
    with pytest.raises(TrajectoryError) as caught:
        JointTrajectory(names, times, positions)
    assert caught.value.code == ErrorCode[code]
    assert text in str(caught.value)


@pytest.mark.parametrize(
    "options", [{}, {"times": [0.0], "rate_hz": 1.0}, {"rate_hz": 0.0}, {"rate_hz": -1.0}, {"rate_hz": np.nan}]
)
def test_time_is_given_once_and_is_positive(options) -> None:
    with pytest.raises(TrajectoryError, match="TRAJECTORY_BAD_SHAPE"):
        JointTrajectory.from_positions("a", [[0.0]], **options)


def test_velocities_with_decreasing_times_are_refused() -> None:
    with pytest.raises(TrajectoryError, match="NOT_MONOTONIC"):
        JointTrajectory.from_velocities("a", [[1.0]] * 3, [0.0], times=[0.0, 1.0, 0.5])
    with pytest.raises(TrajectoryError, match="velocity of joint 'a' at sample 1"):
        JointTrajectory.from_velocities("a", [[1.0], [np.nan]], [0.0], rate_hz=1)
    with pytest.raises(TrajectoryError, match="start"):
        JointTrajectory.from_velocities("a", [[1.0]], [0.0, 1.0], rate_hz=1)


def test_resampling_to_zero_samples_is_refused() -> None:
    with pytest.raises(TrajectoryError, match="0 samples"):
        JointTrajectory(("a",), [0.0], [[0.0]]).resample(0)


def test_columns_are_put_into_the_robots_order(yam: Robot) -> None:
    trajectory = JointTrajectory.from_positions(["joint3", "joint1"], [[0.3, 0.1]], rate_hz=1)
    q = trajectory.for_robot(yam)[0]
    expected = yam.home_position()
    expected[[2, 0]] = 0.3, 0.1
    np.testing.assert_array_equal(q, expected)


def test_vendor_finger_names_are_converted(yam: Robot) -> None:
    trajectory = JointTrajectory.from_positions(["joint7", "joint8", "joint1"], [[-0.02, -0.02, 0.5]], rate_hz=1)
    q = trajectory.for_robot(yam)[0]
    assert q[yam.joint_names.index("left_finger_joint")] == pytest.approx(0.02)
    assert q[0] == 0.5


def test_unknown_joints_are_refused_by_name(yam: Robot) -> None:
    trajectory = JointTrajectory.from_positions(["elbow"], [[0.0]], rate_hz=1)
    with pytest.raises(KinemaError, match="elbow") as caught:
        trajectory.validate(yam)
    assert caught.value.code == ErrorCode.UNKNOWN_JOINT
    assert "joint1" in str(caught.value)


def test_validation_reports_a_small_overshoot_and_clips_nothing(yam: Robot) -> None:
    trajectory = JointTrajectory.from_positions(["joint2", "joint3"], [[0.0, 0.1], [-0.004, 0.1]], rate_hz=10)
    (overshoot,) = trajectory.validate(yam)
    assert (overshoot.joint, overshoot.sample) == ("joint2", 1)
    assert overshoot.amount == pytest.approx(0.004, abs=1e-9)
    assert trajectory.positions.min() == -0.004


def test_validation_refuses_a_large_overshoot(yam: Robot) -> None:
    trajectory = JointTrajectory.from_positions(["joint2"], [[0.1], [-0.02]], rate_hz=10)
    with pytest.raises(TrajectoryError, match=r"'joint2' at sample 1 .* 0.02 below its limit") as caught:
        trajectory.validate(yam)
    assert caught.value.code == ErrorCode.TRAJECTORY_OUT_OF_LIMITS
    assert trajectory.validate(yam, tolerance_rad=0.03)


def test_validation_checks_speeds_on_request(yam: Robot) -> None:
    fast = JointTrajectory.from_positions(["joint1"], [[0.0], [1.0]], rate_hz=1000)
    assert fast.validate(yam) == ()
    with pytest.raises(TrajectoryError, match="rad/s") as caught:
        fast.validate(yam, check_velocity=True)
    assert caught.value.code == ErrorCode.TRAJECTORY_TOO_FAST


def test_tool_poses_become_joints_and_gripper_widths(yam: Robot) -> None:
    kinematics = PinocchioKinematics(yam)
    tool = [link.name for link in yam.links].index(yam.tool_link)
    start = kinematics.forward(yam.home_position())[tool]
    end = start.copy()
    end[1, 3] += 0.1
    poses = slerp(start, end, np.linspace(0, 1, 5))
    widths = np.linspace(0.08, 0.0, 5)
    trajectory = JointTrajectory.from_poses(kinematics, poses, rate_hz=2.0, gripper=widths)
    assert trajectory.duration_s == 2.0
    reached = kinematics.forward_all(trajectory.for_robot(yam))[:, tool]
    np.testing.assert_allclose(reached, poses, atol=1e-3)
    fingers = trajectory.positions[:, yam.joint_names.index("left_finger_joint")]
    np.testing.assert_allclose(fingers, widths / 2, atol=1e-9)
    with pytest.raises(TrajectoryError, match="gripper widths"):
        JointTrajectory.from_poses(kinematics, poses, rate_hz=2.0, gripper=[0.0, 0.1])


def test_poses_out_of_reach_are_refused_unless_allowed(yam: Robot) -> None:
    kinematics = PinocchioKinematics(yam)
    pose = np.eye(4)
    pose[:3, 3] = 3.0, 0.0, 0.2
    with pytest.raises(NoSolution):
        JointTrajectory.from_poses(kinematics, pose[None], rate_hz=1)
    closest = JointTrajectory.from_poses(kinematics, pose[None], rate_hz=1, allow_unreachable=True)
    assert closest.validate(yam) == ()
