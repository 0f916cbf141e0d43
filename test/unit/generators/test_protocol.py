"""Requests, progress and cancellation: the contract of every generator."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.requests import robot_of_a_square

from kinema4d_ros.core.errors import ErrorCode, GeneratorError, KinemaError
from kinema4d_ros.core.trajectory import JointTrajectory
from kinema4d_ros.generators import Cancelled, CommandedMotion, GenerateRequest, Progress, raise_if_cancelled
from kinema4d_ros.robot import Robot


def good() -> dict[str, Any]:
    return {"image": np.zeros((24, 36, 3), np.uint8), "robot": robot_of_a_square(36, 24)}


def test_a_request_knows_its_camera_and_times() -> None:
    request = GenerateRequest(**good(), seed=np.int64(4))
    assert request.camera is request.robot.camera
    assert np.array_equal(request.times, request.robot.times)
    assert len(request) == 3
    assert type(request.seed) is int


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"image": np.zeros((36, 24, 3), np.uint8)}, "image is uint8 of shape (36, 24, 3)"),
        ({"image": np.zeros((24, 36, 3), np.float32)}, "image is float32"),
        ({"image": None}, "image is NoneType"),
        ({"robot": np.zeros(3)}, "robot is ndarray"),
        ({"robot": replace(robot_of_a_square(36, 24), times=None)}, "no times"),
        ({"robot": replace(robot_of_a_square(36, 24), times=np.array([0.0, 1.0, 1.0]))}, "do not increase"),
        ({"depth": np.zeros((24, 36))}, "depth is float64"),
        ({"depth": np.zeros((24, 36), np.float32)}, "depth holds"),
        ({"depth": np.full((24, 36), np.inf, np.float32)}, "depth holds infinity"),
        ({"plan_hash": "short"}, "plan_hash is 'short'"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": None}, "seed is None"),
    ],
)
def test_bad_requests(change: dict[str, Any], message: str) -> None:
    with pytest.raises(GeneratorError) as caught:
        GenerateRequest(**{**good(), **change})
    assert message in str(caught.value)
    assert caught.value.code == ErrorCode.GENERATOR_BAD_REQUEST
    assert caught.value.expected


def test_commands_of_some_joints_become_those_of_the_robot(yam: Robot) -> None:
    times, start = np.array([0.0, 1.0, 2.0]), yam.home_position() + 0.01
    plan = JointTrajectory(
        ("joint2", "joint1"),
        times,
        np.array([[0.1, 0.0], [0.2, 0.1], [0.3, 0.0]]),
        np.array([[0.0, 0.0], [0.3, 0.0], [0.0, 0.0]]),
        np.zeros((3, 2)),
        np.ones((3, 2)),
    )
    commands = CommandedMotion.of(yam, plan, start).commands
    assert commands.names == yam.joint_names
    assert np.array_equal(commands.times, times)
    assert np.array_equal(commands.positions[:, :2], plan.positions[:, ::-1])
    assert np.array_equal(commands.positions[:, 2:], np.tile(start[2:], (3, 1)))
    assert commands.velocities is not None
    assert np.array_equal(commands.velocities[:, :2], [[0.0, 0.0], [0.0, 0.3], [0.0, 0.0]])
    assert not commands.velocities[:, 2:].any()
    assert commands.accelerations is not None
    assert commands.effort is None
    moment = np.array([0.37, 1.4])
    assert np.array_equal(commands.at(moment)[:, :2], plan.at(moment)[:, ::-1])


def test_a_mimic_finger_moves_its_leader(yam: Robot) -> None:
    follower = next(joint for joint in yam.joints if joint.mimic is not None)
    assert follower.mimic is not None
    plan = JointTrajectory(
        (follower.name,), np.array([0.0, 1.0]), np.array([[0.0], [-0.01]]), np.array([[0.0], [-0.02]])
    )
    commands = CommandedMotion.of(yam, plan).commands
    leader = yam.joint_names.index(follower.mimic.joint)
    assert commands.velocities is not None
    assert commands.velocities[1, leader] == pytest.approx(-0.02 / follower.mimic.multiplier)


@pytest.mark.parametrize(
    ("times", "message"),
    [
        ([0.1, 1.0], "the commands last from 0.1 to 1 s"),
        ([0.0, 0.19], "the commands last from 0 to 0.19 s"),
        ([0.0, 0.2], ""),
        ([0.0, 5.0], ""),
        ([0.0], ""),
    ],
)
def test_commands_cover_the_frames(times: list[float], message: str, yam: Robot) -> None:
    q = np.tile(yam.home_position(), (len(times), 1))
    motion = CommandedMotion(yam, JointTrajectory(yam.joint_names, np.array(times), q))
    if not message:
        assert GenerateRequest(**good(), motion=motion).motion is motion
        return
    with pytest.raises(GeneratorError, match=message) as caught:
        GenerateRequest(**good(), motion=motion)
    assert caught.value.code == ErrorCode.GENERATOR_BAD_REQUEST


def test_commands_of_other_joints_are_refused(yam: Robot) -> None:
    with pytest.raises(GeneratorError, match="the commands are of elbow") as caught:
        CommandedMotion(yam, JointTrajectory(("elbow",), np.zeros(1), np.zeros((1, 1))))
    assert caught.value.code == ErrorCode.GENERATOR_BAD_REQUEST


def test_cancellation_names_the_step() -> None:
    raise_if_cancelled(None, Progress("x"))
    raise_if_cancelled(lambda: False, Progress("x"))
    with pytest.raises(Cancelled, match="step 2 of 5 of 'denoise'") as caught:
        raise_if_cancelled(lambda: True, Progress("denoise", 2, 5))
    assert isinstance(caught.value, KinemaError)
    assert caught.value.code == ErrorCode.CANCELLED
