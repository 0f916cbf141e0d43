"""Outcomes, alternatives, bases and commands in messages: round trips, and refusal of what does not fit."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.requests import robot_of_a_square
from trajectory_msgs.msg import JointTrajectoryPoint

from kinema4d_ros.core.errors import ErrorCode, KinemaError
from kinema4d_ros.core.outcomes import ObjectMotion, Outcome, patches_between
from kinema4d_ros.core.rollout import Frames, Rollout
from kinema4d_ros.core.trajectory import JointTrajectory, hash_trajectory
from kinema4d_ros.generators import CommandedMotion, GenerateRequest
from kinema4d_ros.io.patches import encode_patches
from kinema4d_ros.robot import Robot
from kinema4d_ros.ros.messages import request as requests
from kinema4d_ros.ros.messages.outcomes import outcomes_to_markers
from kinema4d_ros.ros.messages.page import prediction_from_msg
from kinema4d_ros.ros.messages.request import request_from_goal, request_to_goal
from kinema4d_ros.ros.messages.rollout import rollout_from_msg, rollout_to_msg
from kinema4d_ros.ros.messages.stamps import time_from_ns
from kinema4d_ros.web.prediction import Prediction

STAMP = time_from_ns(1_700_000_000_123_456_789)


def other_frames(rollout: Rollout) -> Frames:
    other = rollout.copy()
    other.rgb[1:, 4:9, 5:11] ^= 0x35
    other.xyz[2, 6:12, 7:9] = np.float32(0.7)
    return other


@pytest.fixture
def stated(rollout: Rollout) -> Rollout:
    """The rollout with two outcomes, bases and an unknown, on a clock that starts at 2 s."""
    return replace(
        rollout,
        times=rollout.times + 2.0,
        outcomes=(Outcome(0.83, "lifted", ((2.1, "the fingers touch object_1"),)), Outcome(0.17, "slips")),
        alternatives=(patches_between(rollout, other_frames(rollout)),),
        basis=np.random.default_rng(1).integers(0, 7, rollout.robot_mask.shape, dtype=np.uint8),
        unknowns=("object_2 is hidden; measured depth would help",),
    )


def test_what_a_rollout_states_round_trips(stated: Rollout) -> None:
    read = rollout_from_msg(rollout_to_msg(stated, STAMP, rgb_format="png"))
    assert [one.label for one in read.outcomes] == ["lifted", "slips"]
    assert [one.probability for one in read.outcomes] == [0.83, 0.17]
    assert read.outcomes[0].events[0][0] == pytest.approx(0.1)
    assert read.unknowns == stated.unknowns
    np.testing.assert_array_equal(read.basis, stated.basis)
    np.testing.assert_array_equal(read.with_outcome(1).rgb, other_frames(stated).rgb)
    np.testing.assert_array_equal(read.with_outcome(1).xyz[2, 6:12, 7:9], np.float32(0.7))


def damage_patches(message: Any) -> None:
    data = bytearray(message.alternatives[0].patches)
    data[len(data) // 2] ^= 1
    message.alternatives[0].patches = array("B", bytes(data))


def too_much(message: Any) -> None:
    """All pixels in three alternatives: more than two times the rollout's own."""
    shape = (3, 32, 48)
    full = Frames(np.ones((*shape, 3), np.uint8), np.ones((*shape, 3), np.float32), np.zeros(shape, bool))
    zero = Frames(np.zeros((*shape, 3), np.uint8), np.zeros((*shape, 3), np.float32), np.zeros(shape, bool))
    message.alternatives[0].patches = array("B", encode_patches(patches_between(zero, full)))
    message.alternatives = message.alternatives * 3
    message.outcomes[0].probability = 0.3
    message.outcomes = [message.outcomes[0], *(message.outcomes[1:] * 3)]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda m: setattr(m, "outcomes", m.outcomes[:1]), ErrorCode.WIRE_CORRUPT),
        (lambda m: setattr(m, "alternatives", []), ErrorCode.WIRE_CORRUPT),
        (lambda m: setattr(m, "basis", m.basis[:2]), ErrorCode.WIRE_CORRUPT),
        (lambda m: setattr(m.basis[1], "data", m.basis[1].data[:30]), ErrorCode.WIRE_CORRUPT),
        (damage_patches, ErrorCode.WIRE_CORRUPT),
        (too_much, ErrorCode.WIRE_CORRUPT),
        (lambda m: setattr(m.outcomes[0], "event_s", [0.1, 0.2]), ErrorCode.WIRE_CORRUPT),
        (lambda m: setattr(m.outcomes[0], "event_s", [float("nan")]), ErrorCode.ROLLOUT_INVALID),
        (lambda m: setattr(m.outcomes[0], "probability", 0.9), ErrorCode.ROLLOUT_INVALID),
        (lambda m: setattr(m.outcomes[0], "probability", float("nan")), ErrorCode.ROLLOUT_INVALID),
        (lambda m: setattr(m.outcomes[0], "label", "x" * 10_000), ErrorCode.ROLLOUT_INVALID),
        (lambda m: setattr(m, "unknowns", ["x"] * 10_000), ErrorCode.ROLLOUT_INVALID),
    ],
)
def test_statements_that_do_not_fit_are_refused(
    stated: Rollout, change: Callable[[Any], None], code: ErrorCode
) -> None:
    message = rollout_to_msg(stated, STAMP)
    change(message)
    with pytest.raises(KinemaError) as caught:
        rollout_from_msg(message)
    assert caught.value.code == code


def commanded(robot: Robot) -> GenerateRequest:
    """A request with a spline of 5 points, on a clock that starts at 2 s."""
    frames = robot_of_a_square()
    assert frames.times is not None
    times = 2.0 + np.array([0.0, 0.05, 0.1, 0.2, 0.3])
    q = np.tile(robot.home_position(), (5, 1))
    q[:, 0] += [0.0, 0.01, 0.03, 0.05, 0.06]
    rates = np.zeros_like(q)
    rates[1:4, 0] = 0.2
    motion = CommandedMotion(robot, JointTrajectory(robot.joint_names, times, q, rates))
    image = np.zeros((48, 72, 3), np.uint8)
    return GenerateRequest(image, replace(frames, times=frames.times + 2.0), motion=motion)


def test_commands_round_trip_with_their_own_points(yam: Robot) -> None:
    sent = commanded(yam)
    goal = request_to_goal(sent, STAMP, STAMP)
    read = request_from_goal(goal, yam)
    assert sent.motion is not None
    assert read.motion is not None
    assert read.motion.robot is yam
    wanted = replace(sent.motion.commands, times=sent.motion.commands.times - 2.0)
    assert hash_trajectory(read.motion.commands) == hash_trajectory(wanted)
    bare = request_to_goal(replace(sent, motion=None), STAMP, STAMP)
    assert request_from_goal(bare, yam).motion is None
    assert request_from_goal(bare).motion is None


@pytest.mark.parametrize("given", [True, False])
def test_commands_of_another_robot_are_refused(yam: Robot, given: bool) -> None:
    other = replace(yam, joints=(replace(yam.joints[0], axis=-yam.joints[0].axis), *yam.joints[1:]))
    goal = request_to_goal(commanded(yam), STAMP, STAMP)
    with pytest.raises(KinemaError, match="robot") as caught:
        request_from_goal(goal, other if given else None)
    assert caught.value.code == ErrorCode.GENERATOR_OTHER_ROBOT
    assert caught.value.hint


def drop_points(goal: Any) -> None:
    goal.commands.points = []


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (drop_points, ErrorCode.TRAJECTORY_EMPTY),
        (lambda g: setattr(g, "robot_sha256", ""), ErrorCode.GENERATOR_OTHER_ROBOT),
        (lambda g: setattr(g, "robot_sha256", "f" * 64), ErrorCode.GENERATOR_OTHER_ROBOT),
        (lambda g: setattr(g.commands, "joint_names", ["elbow"] * 7), ErrorCode.TRAJECTORY_BAD_SHAPE),
        (lambda g: setattr(g.commands.points[1], "positions", [float("nan")] * 7), ErrorCode.TRAJECTORY_NOT_FINITE),
        (lambda g: setattr(g.commands, "points", g.commands.points[:3]), ErrorCode.GENERATOR_BAD_REQUEST),
        (lambda g: setattr(g.commands, "points", g.commands.points[1:]), ErrorCode.GENERATOR_BAD_REQUEST),
    ],
)
def test_invalid_commands_are_refused(yam: Robot, change: Callable[[Any], None], code: ErrorCode) -> None:
    goal = request_to_goal(commanded(yam), STAMP, STAMP)
    change(goal)
    with pytest.raises(KinemaError) as caught:
        request_from_goal(goal, yam)
    assert caught.value.code == code


def test_too_many_commands_are_refused_before_they_are_read(yam: Robot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "MAX_COMMANDS", 5)
    goal = request_to_goal(commanded(yam), STAMP, STAMP)
    request_from_goal(goal, yam)
    goal.commands.points.append(JointTrajectoryPoint())
    with pytest.raises(KinemaError, match="6 points") as caught:
        request_from_goal(goal, yam)
    assert caught.value.code == ErrorCode.GENERATOR_BAD_REQUEST


def test_stated_motions_round_trip_and_others_stay_unstated(stated: Rollout) -> None:
    moved = ObjectMotion("object_1", (0.1, 0.2, 0.0), (0.2, 0.2, 0.0), 0.12, 2.5)
    first = replace(stated.outcomes[0], objects=(moved, ObjectMotion("object_2", (0, 0, 0), (0, 0, 0), 0.0)))
    message = rollout_to_msg(replace(stated, outcomes=(first, replace(stated.outcomes[1], objects=()))), STAMP)
    one, other = rollout_from_msg(message).outcomes
    assert one.objects == (replace(moved, first_motion_s=0.5), first.objects[1])
    assert other.objects == ()
    assert rollout_from_msg(rollout_to_msg(stated, STAMP)).outcomes[0].objects is None
    message.outcomes[0].object_names = ["object_1"]
    with pytest.raises(KinemaError) as caught:
        rollout_from_msg(message)
    assert caught.value.code == ErrorCode.WIRE_CORRUPT


def test_the_outcome_that_is_played_is_marked(stated: Rollout) -> None:
    markers = outcomes_to_markers(rollout_to_msg(stated, STAMP), 1).markers
    assert [one.text for one in markers[1:3]] == ["83 % lifted", "> 17 % slips"]
    assert [one.id for one in markers[1:3]] == [0, 1]
    assert markers[0].action == markers[0].DELETEALL


def test_the_page_shows_the_outcome_that_is_asked_for(stated: Rollout) -> None:
    message = rollout_to_msg(stated, STAMP, rgb_format="png")
    shown = prediction_from_msg(message, 10**6, lambda: False, 1)
    wanted = Prediction.of(rollout_from_msg(message).with_outcome(1), 10**6)
    assert (shown.outcomes, shown.outcome) == (("83 % lifted", "17 % slips"), 1)
    for one, other in zip(shown.clouds, wanted.clouds, strict=True):
        np.testing.assert_array_equal(one.rgb, other.rgb)
        np.testing.assert_array_equal(one.points, other.points)
        np.testing.assert_array_equal(one.basis, other.basis)
    assert not np.array_equal(shown.pictures[2], prediction_from_msg(message, 10**6, lambda: False).pictures[2])
    with pytest.raises(KinemaError):
        prediction_from_msg(message, 100, lambda: False, 2)
