"""Joint states that come late, twice, in pieces or broken."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinema4d_ros.errors import ErrorCode, KinemaError
from kinema4d_ros.live import JointStateMonitor
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


def test_nothing_heard_is_stale(monitor: JointStateMonitor) -> None:
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


def test_states_in_pieces_are_merged(monitor: JointStateMonitor, yam: Robot) -> None:
    q = yam.home_position()
    monitor.update(yam.joint_names[:3], q[:3], 1.0, 1.0)
    with pytest.raises(KinemaError, match="joint4"):
        monitor.state(1.0)
    monitor.update(yam.joint_names[:2:-1], q[:2:-1], 1.1, 1.1)
    np.testing.assert_allclose(monitor.state(1.2).positions, q)


def test_a_late_message_does_not_turn_the_arm_back(monitor: JointStateMonitor, yam: Robot) -> None:
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


def test_other_devices_on_the_topic_are_counted_and_left_alone(monitor: JointStateMonitor, yam: Robot) -> None:
    feed(monitor, yam.home_position(), 1.0)
    monitor.update(["other_arm_joint", "right_finger_joint"], [0.3, 0.01], 1.1, 1.1)
    assert monitor.counts(1.1).unknown_joints == ("other_arm_joint",)
    np.testing.assert_allclose(monitor.state(1.1).positions, yam.home_position())


def test_the_rate_is_measured_and_falls_to_zero_in_silence(monitor: JointStateMonitor, yam: Robot) -> None:
    for i in range(50):
        feed(monitor, yam.home_position(), 1 + i / 100)
    assert monitor.counts(1.5).rate_hz == pytest.approx(100.0)
    assert monitor.counts(3.0).rate_hz == 0.0


def test_reset_forgets(monitor: JointStateMonitor, yam: Robot) -> None:
    feed(monitor, yam.home_position(), 100.0)
    monitor.reset()
    assert code(monitor, 100.0) == ErrorCode.JOINT_STATES_STALE
    feed(monitor, yam.home_position(), 1.0)
    assert monitor.state(1.0).stamp_s == 1.0


@settings(max_examples=50, deadline=None)
@given(share=st.floats(0.0, 1.0), steps=st.integers(1, 20))
def test_the_arm_at_an_image_stamp_lies_between_its_neighbours(yam: Robot, share: float, steps: int) -> None:
    monitor = JointStateMonitor(yam)
    q = yam.home_position()
    for i in range(steps + 1):
        feed(monitor, q + 0.1 * i, 1.0 + i)
    at = monitor.at(1.0 + share * steps)
    assert at is not None
    np.testing.assert_allclose(at, q + 0.1 * share * steps, atol=1e-12)


def test_the_arm_is_not_guessed_outside_what_was_heard(monitor: JointStateMonitor, yam: Robot) -> None:
    assert monitor.at(1.0) is None
    feed(monitor, yam.home_position(), 1.0)
    assert monitor.at(0.9) is None
    assert monitor.at(1.4) is not None
    assert monitor.at(1.6) is None
