"""Joint states that are late, duplicated, partial or invalid."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinema4d_ros.core.errors import ErrorCode, KinemaError
from kinema4d_ros.previews.arm import JointStateMonitor
from kinema4d_ros.robot import Robot


@pytest.fixture
def monitor(yam: Robot) -> JointStateMonitor:
    return JointStateMonitor(yam, max_age_s=0.5)


def feed(monitor: JointStateMonitor, q: np.ndarray, stamp_s: float, now_s: float | None = None) -> None:
    monitor.update(monitor.robot.joint_names, q, stamp_s, stamp_s if now_s is None else now_s)


def code(monitor: JointStateMonitor, now_s: float) -> ErrorCode:
    with pytest.raises(KinemaError) as caught:
        monitor.state(now_s)
    return caught.value.code


def test_no_message_is_stale(monitor: JointStateMonitor) -> None:
    assert code(monitor, 0.0) == ErrorCode.JOINT_STATES_STALE


def test_the_newest_state_and_its_velocity(monitor: JointStateMonitor, yam: Robot) -> None:
    q = yam.home_position()
    feed(monitor, q, 10.0)
    feed(monitor, q + 0.01, 10.1)
    state = monitor.state(10.15)
    np.testing.assert_allclose(state.positions, q + 0.01)
    np.testing.assert_allclose(state.velocities, 0.1, rtol=1e-6)
    assert state.stamp_s == 10.1
    assert state.age_s == pytest.approx(0.05)


def test_partial_states_are_merged(monitor: JointStateMonitor, yam: Robot) -> None:
    q = yam.home_position()
    monitor.update(yam.joint_names[:3], q[:3], 1.0, 1.0)
    with pytest.raises(KinemaError, match="joint4"):
        monitor.state(1.0)
    monitor.update(yam.joint_names[:2:-1], q[:2:-1], 1.1, 1.1)
    np.testing.assert_allclose(monitor.state(1.2).positions, q)


def test_a_late_message_does_not_move_the_arm_back(monitor: JointStateMonitor, yam: Robot) -> None:
    q = yam.home_position()
    feed(monitor, q, 2.0)
    feed(monitor, q + 1.0, 1.0, now_s=2.05)
    feed(monitor, q + 1.0, 2.0, now_s=2.06)
    np.testing.assert_allclose(monitor.state(2.1).positions, q)
    counts = monitor.counts(2.1)
    assert (counts.accepted, counts.out_of_order) == (1, 2)


def test_silence_is_stale_even_when_the_source_clock_is_ahead(monitor: JointStateMonitor, yam: Robot) -> None:
    feed(monitor, yam.home_position(), stamp_s=1e9, now_s=5.0)
    assert monitor.state(5.4).age_s == pytest.approx(0.4)
    assert code(monitor, 5.6) == ErrorCode.JOINT_STATES_STALE


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_broken_messages_are_refused_and_counted(monitor: JointStateMonitor, yam: Robot, bad: float) -> None:
    q = yam.home_position()
    feed(monitor, q, 1.0)
    with pytest.raises(KinemaError) as caught:
        feed(monitor, np.where(np.arange(len(q)) == 2, bad, q), 1.1)
    assert caught.value.code == ErrorCode.JOINT_STATES_INVALID
    with pytest.raises(KinemaError):
        monitor.update(yam.joint_names, q[:-1], 1.2, 1.2)
    np.testing.assert_allclose(monitor.state(1.2).positions, q)
    assert monitor.counts(1.2).invalid == 2


def test_other_devices_on_the_topic_are_counted_and_ignored(monitor: JointStateMonitor, yam: Robot) -> None:
    feed(monitor, yam.home_position(), 1.0)
    monitor.update(["other_arm_joint", "right_finger_joint"], [0.3, 0.01], 1.1, 1.1)
    assert monitor.counts(1.1).unknown_joints == ("other_arm_joint",)
    np.testing.assert_allclose(monitor.state(1.1).positions, yam.home_position())


def test_the_rate_is_measured_and_falls_to_zero_in_silence(monitor: JointStateMonitor, yam: Robot) -> None:
    for i in range(50):
        feed(monitor, yam.home_position(), 1 + i / 100)
    assert monitor.counts(1.5).rate_hz == pytest.approx(100.0)
    assert monitor.counts(3.0).rate_hz == 0.0


@pytest.mark.parametrize("stray_s", [0.0, 100.0, 2.0**31])
def test_one_stray_stamp_neither_moves_the_arm_nor_makes_correct_ones_late(
    monitor: JointStateMonitor, yam: Robot, stray_s: float
) -> None:
    q = yam.home_position()
    feed(monitor, q, 1000.0, now_s=5.0)
    feed(monitor, q + 1.0, stray_s, now_s=5.01)
    np.testing.assert_allclose(monitor.state(5.01).positions, q)
    feed(monitor, q + 0.001, 1000.02, now_s=5.02)
    np.testing.assert_allclose(monitor.state(5.02).positions, q + 0.001)
    counts = monitor.counts(5.02)
    assert (counts.accepted, counts.other_clock, counts.out_of_order) == (2, 1, 0)


def test_a_speed_needs_two_states_without_a_silence_between_them(monitor: JointStateMonitor, yam: Robot) -> None:
    q = yam.home_position()
    feed(monitor, q, 10.0, now_s=0.0)
    assert np.isnan(monitor.state(0.0).velocities).all()
    feed(monitor, q, 10.01, now_s=0.01)
    np.testing.assert_allclose(monitor.state(0.01).velocities, 0.0)
    feed(monitor, q, 12.0, now_s=2.0)
    assert np.isnan(monitor.state(2.0).velocities).all()


@pytest.mark.parametrize("other_s", [0.1, 2.0**31 - 10.0])
def test_a_new_clock_is_accepted_once_the_old_one_is_stale(
    monitor: JointStateMonitor, yam: Robot, other_s: float
) -> None:
    q = yam.home_position()
    feed(monitor, q, 1000.0, now_s=5.0)
    for step in range(1, 51):
        feed(monitor, q + 0.5, other_s + 0.01 * step, now_s=5.0 + 0.01 * step)
    np.testing.assert_allclose(monitor.state(5.5).positions, q)
    assert code(monitor, 5.505) == ErrorCode.JOINT_STATES_STALE
    for step in range(51, 53):
        feed(monitor, q + 0.5, other_s + 0.01 * step, now_s=5.0 + 0.01 * step)
    state = monitor.state(5.52)
    np.testing.assert_allclose(state.positions, q + 0.5)
    np.testing.assert_allclose(state.velocities, 0.0)
    assert monitor.at(1000.0) is None
    assert monitor.at(other_s + 0.52) is not None


def test_the_first_message_may_be_the_wrong_one(monitor: JointStateMonitor, yam: Robot) -> None:
    q = yam.home_position()
    feed(monitor, q + 1.0, 4e9, now_s=5.0)
    for step in range(1, 60):
        feed(monitor, q, 1000.0 + 0.01 * step, now_s=5.0 + 0.01 * step)
    np.testing.assert_allclose(monitor.state(5.6).positions, q)


def test_two_devices_of_one_arm_may_have_clocks_of_their_own(monitor: JointStateMonitor, yam: Robot) -> None:
    q = yam.home_position()
    for step in range(100):
        monitor.update(yam.joint_names[:-1], q[:-1], 1000.0 + 0.01 * step, 5.0 + 0.01 * step)
        monitor.update(yam.joint_names[-1:], q[-1:], 20.0 + 0.01 * step, 5.0 + 0.01 * step)
    assert monitor.state(6.0).age_s < 0.1
    assert monitor.counts(6.0).other_clock == 0


def test_a_paused_simulation_is_not_another_clock(monitor: JointStateMonitor, yam: Robot) -> None:
    q = yam.home_position()
    feed(monitor, q, 10.0, now_s=5.0)
    feed(monitor, q + 0.1, 10.01, now_s=65.0)
    np.testing.assert_allclose(monitor.state(65.1).positions, q + 0.1)


def test_unknown_joint_names_are_bounded(monitor: JointStateMonitor, yam: Robot) -> None:
    feed(monitor, yam.home_position(), 1.0)
    for index in range(1000):
        monitor.update([f"{index}" * 1000], [0.0], 1.1, 1.1)
    unknown = monitor.counts(1.1).unknown_joints
    assert len(unknown) == 16
    assert max(map(len, unknown)) == 64


@settings(max_examples=50, deadline=None)
@given(share=st.floats(0.0, 1.0), steps=st.integers(1, 20))
def test_the_arm_at_an_image_stamp_is_interpolated(yam: Robot, share: float, steps: int) -> None:
    monitor = JointStateMonitor(yam)
    q = yam.home_position()
    for i in range(steps + 1):
        feed(monitor, q + 0.1 * i, 1.0 + i)
    at = monitor.at(1.0 + share * steps)
    assert at is not None
    np.testing.assert_allclose(at, q + 0.1 * share * steps, atol=1e-12)


def test_the_arm_is_not_extrapolated_outside_the_history(monitor: JointStateMonitor, yam: Robot) -> None:
    assert monitor.at(1.0) is None
    feed(monitor, yam.home_position(), 1.0)
    assert monitor.at(0.9) is None
    assert monitor.at(1.4) is not None
    assert monitor.at(1.6) is None
