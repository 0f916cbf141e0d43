"""Joint states and plans from messages: exact values, equal hashes, error codes for invalid messages."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from moveit_msgs.msg import DisplayTrajectory, RobotTrajectory
from sensor_msgs.msg import JointState
from trajectory_msgs.msg import JointTrajectory as JointTrajectoryMsg
from trajectory_msgs.msg import JointTrajectoryPoint, MultiDOFJointTrajectoryPoint

from kinema4d_ros.core.errors import ErrorCode, TrajectoryError
from kinema4d_ros.core.trajectory import JointTrajectory, hash_trajectory
from kinema4d_ros.ros.messages.stamps import duration_from_ns, header
from kinema4d_ros.ros.messages.trajectories import (
    JointStateError,
    joint_sample_from_msg,
    start_from_display,
    trajectory_from_display,
    trajectory_from_msg,
    trajectory_to_msg,
)

NAN = float("nan")


def state(names: list[str], positions: list[float], velocities: list[float] | None = None) -> JointState:
    return JointState(header=header(12_000_000_034), name=names, position=positions, velocity=velocities or [])


def plan(names: list[str], points: list[tuple[float, list[float]]]) -> JointTrajectoryMsg:
    return JointTrajectoryMsg(
        joint_names=names,
        points=[JointTrajectoryPoint(positions=q, time_from_start=duration_from_ns(round(t * 1e9))) for t, q in points],
    )


def display(*plans: JointTrajectoryMsg, start: dict[str, float] | None = None) -> DisplayTrajectory:
    message = DisplayTrajectory(trajectory=[RobotTrajectory(joint_trajectory=p) for p in plans])
    message.trajectory_start.joint_state.name = list(start or {})
    message.trajectory_start.joint_state.position = list((start or {}).values())
    return message


def test_a_joint_state_is_read_with_its_stamp() -> None:
    sample = joint_sample_from_msg(state(["b", "a"], [1.0, 2.0], [0.1, 0.2]))
    assert sample.as_dict() == {"b": 1.0, "a": 2.0}
    assert sample.stamp_ns == 12_000_000_034
    assert sample.velocities is not None
    np.testing.assert_array_equal(sample.velocities, [0.1, 0.2])
    assert joint_sample_from_msg(state(["a"], [0.0])).velocities is None


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (state([], []), "0 names"),
        (state(["a", "b"], [1.0]), "2 names and 1 positions"),
        (state(["a"], [1.0, 2.0]), "1 names and 2 positions"),
        (state(["a", "b", "a"], [1.0, 2.0, 3.0]), "contains a twice"),
        (state(["a", "b"], [1.0, NAN]), "'b' is at nan"),
        (state(["a"], [float("inf")]), "inf"),
        (state(["a", "b"], [1.0, 2.0], [0.0]), "1 velocities"),
    ],
)
def test_an_invalid_joint_state_is_refused(message: JointState, text: str) -> None:
    with pytest.raises(JointStateError, match=text) as caught:
        joint_sample_from_msg(message)
    assert caught.value.code == ErrorCode.JOINT_STATES_INVALID


@given(
    st.lists(st.integers(1, 10**11), min_size=1, max_size=10),
    st.data(),
)
def test_a_plan_keeps_its_hash_through_its_message(steps_ns: list[int], data: st.DataObject) -> None:
    finite = st.floats(-1e3, 1e3)
    q = data.draw(st.lists(st.tuples(finite, finite), min_size=len(steps_ns), max_size=len(steps_ns)))
    sent = JointTrajectory(("x", "y"), np.cumsum(steps_ns) * 1e-9, np.array(q))
    received = trajectory_from_msg(trajectory_to_msg(sent, header(3)))
    assert received.names == sent.names
    np.testing.assert_allclose(received.times, sent.times, rtol=1e-15, atol=1e-9)
    np.testing.assert_array_equal(received.positions, sent.positions)
    assert hash_trajectory(received) == hash_trajectory(sent)


def test_a_plan_may_start_late() -> None:
    read = trajectory_from_msg(plan(["a"], [(0.5, [1.0]), (1.0, [2.0])]))
    np.testing.assert_array_equal(read.times, [0.5, 1.0])


def with_derivatives(message: JointTrajectoryMsg, **tables: list[list[float]]) -> JointTrajectoryMsg:
    for what, rows in tables.items():
        for point, row in zip(message.points, rows, strict=True):
            setattr(point, what, row)
    return message


def test_points_of_a_plan_are_unchanged_by_a_round_trip() -> None:
    sent = with_derivatives(
        plan(["a", "b"], [(0.0, [0.0, 1.0]), (0.1, [0.1, 1.0 / 3.0]), (0.3, [0.2, 2.0])]),
        velocities=[[0.0, 0.0], [0.7, -1e-3], [0.0, -0.0]],
        accelerations=[[2.0, 0.1], [1.0 / 7.0, 0.0], [-2.0, 0.0]],
        effort=[[5.0, 1.0], [4.0, 2.0], [3.0, 3.0]],
    )
    assert trajectory_to_msg(trajectory_from_msg(sent), sent.header) == sent
    bare = plan(["a"], [(0.0, [0.0]), (1.0, [1.0])])
    assert trajectory_to_msg(trajectory_from_msg(bare), bare.header) == bare


TWO = [(0.0, [0.0]), (1.0, [1.0])]


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (plan([], []), ErrorCode.TRAJECTORY_EMPTY),
        (plan(["a"], []), ErrorCode.TRAJECTORY_EMPTY),
        (plan(["a", "b"], [(0.0, [1.0])]), ErrorCode.TRAJECTORY_BAD_SHAPE),
        (plan(["a"], [(0.0, [])]), ErrorCode.TRAJECTORY_BAD_SHAPE),
        (plan(["a", "a"], [(0.0, [1.0, 1.0])]), ErrorCode.TRAJECTORY_BAD_SHAPE),
        (plan(["a"], [(0.0, [NAN])]), ErrorCode.TRAJECTORY_NOT_FINITE),
        (plan(["a"], [(0.0, [1.0]), (0.0, [2.0])]), ErrorCode.TRAJECTORY_NOT_MONOTONIC),
        (plan(["a"], [(2.0, [1.0]), (1.0, [2.0])]), ErrorCode.TRAJECTORY_NOT_MONOTONIC),
        (plan(["a"], [(-1.0, [1.0]), (1.0, [2.0])]), ErrorCode.TRAJECTORY_NOT_MONOTONIC),
        (with_derivatives(plan(["a"], TWO), velocities=[[0.0], [NAN]]), ErrorCode.TRAJECTORY_NOT_FINITE),
        (with_derivatives(plan(["a"], TWO), velocities=[[0.0], []]), ErrorCode.TRAJECTORY_BAD_SHAPE),
        (with_derivatives(plan(["a"], TWO), velocities=[[0.0, 1.0], [0.0]]), ErrorCode.TRAJECTORY_BAD_SHAPE),
        (with_derivatives(plan(["a"], TWO), effort=[[1.0], [float("inf")]]), ErrorCode.TRAJECTORY_NOT_FINITE),
        # A joint_trajectory_controller would command 0 for every joint of such a plan.
        (with_derivatives(plan(["a"], TWO), accelerations=[[0.0], [0.0]]), ErrorCode.TRAJECTORY_BAD_SHAPE),
    ],
)
def test_a_bad_plan_is_refused_with_its_code(message: JointTrajectoryMsg, code: ErrorCode) -> None:
    with pytest.raises(TrajectoryError) as caught:
        trajectory_from_msg(message)
    assert caught.value.code == code


def test_samples_in_one_nanosecond_cannot_be_sent() -> None:
    close = JointTrajectory(("a",), [1.0, 1.0 + 2e-10], [[0.0], [1.0]])
    with pytest.raises(TrajectoryError, match="nanosecond"):
        trajectory_to_msg(close, header())


def test_segments_of_a_displayed_plan_are_joined_in_time() -> None:
    message = display(
        plan(["a", "b"], [(0.0, [0.0, 0.0]), (1.0, [1.0, 2.0])]),
        plan(["g"], [(0.0, [0.04]), (0.5, [0.0])]),
        plan(["b"], [(0.25, [3.0])]),
        start={"a": 0.0, "b": 0.0, "g": 0.04, "unused": 9.0},
    )
    read = trajectory_from_display(message)
    assert read.names == ("a", "b", "g")
    np.testing.assert_allclose(read.times, [0.0, 1.0, 1.5, 1.75])
    np.testing.assert_array_equal(read.positions, [[0, 0, 0.04], [1, 2, 0.04], [1, 2, 0.0], [1, 3, 0.0]])
    assert start_from_display(message)["unused"] == 9.0


def test_a_displayed_plan_that_starts_late_begins_at_its_start_state() -> None:
    message = display(plan(["a"], [(0.2, [1.0]), (1.0, [2.0])]), start={"a": 0.9})
    read = trajectory_from_display(message)
    np.testing.assert_array_equal(read.times, [0.0, 0.2, 1.0])
    np.testing.assert_array_equal(read.positions[:, 0], [0.9, 1.0, 2.0])
    without = trajectory_from_display(display(plan(["a"], [(0.2, [1.0]), (1.0, [2.0])])))
    np.testing.assert_array_equal(without.times, [0.2, 1.0])


def test_a_displayed_plan_keeps_the_derivatives_that_are_valid_for_all_segments() -> None:
    rest = [[0.0], [0.0]]
    one = with_derivatives(plan(["a"], [(0.2, [1.0]), (1.0, [2.0])]), velocities=[[0.5], [0.0]], accelerations=rest)
    read = trajectory_from_display(display(one, start={"a": 0.9}))
    assert read.velocities is not None
    assert read.accelerations is not None
    np.testing.assert_array_equal(read.velocities[:, 0], [0.0, 0.5, 0.0])
    np.testing.assert_array_equal(read.accelerations[:, 0], [0.0, 0.0, 0.0])
    held = with_derivatives(plan(["a"], [(0.2, [1.0]), (1.0, [2.0])]), velocities=rest, effort=[[7.0], [6.0]])
    effort = trajectory_from_display(display(held, start={"a": 0.9})).effort
    assert effort is not None
    np.testing.assert_array_equal(effort[:, 0], [7.0, 7.0, 6.0])
    move = with_derivatives(
        plan(["a"], [(0.0, [0.0]), (1.0, [1.0]), (2.0, [2.0])]), velocities=[[0.0], [1.0], [0.0]], effort=[[1.0]] * 3
    )
    grip = with_derivatives(plan(["g"], [(0.0, [0.04]), (0.5, [0.0])]), velocities=rest)
    both = trajectory_from_display(display(move, grip, start={"a": 0.0, "g": 0.04}))
    assert both.velocities is not None
    np.testing.assert_array_equal(both.velocities, [[0, 0], [1, 0], [0, 0], [0, 0]])
    assert both.effort is None
    straight = trajectory_from_display(display(move, plan(["g"], [(0.5, [0.0])]), start={"a": 0.0, "g": 0.04}))
    assert straight.velocities is None


def test_inconsistent_displayed_plans_are_refused() -> None:
    segment = plan(["a"], [(0.0, [0.0]), (1.0, [1.0])])
    with pytest.raises(TrajectoryError) as caught:
        trajectory_from_display(display())
    assert caught.value.code == ErrorCode.TRAJECTORY_EMPTY
    with pytest.raises(TrajectoryError, match="starts with joint 'a' at 0"):
        trajectory_from_display(display(segment, segment))
    with pytest.raises(TrajectoryError, match="'g' moves only in a later segment"):
        trajectory_from_display(display(segment, plan(["g"], [(0.0, [0.0]), (1.0, [1.0])])))
    floating = display(segment)
    floating.trajectory[0].multi_dof_joint_trajectory.joint_names = ["virtual_joint"]
    floating.trajectory[0].multi_dof_joint_trajectory.points = [MultiDOFJointTrajectoryPoint()]
    with pytest.raises(TrajectoryError, match="virtual_joint"):
        trajectory_from_display(floating)
