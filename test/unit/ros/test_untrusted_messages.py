"""Malformed messages found by fuzzing: each is refused with a code before expensive work."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from sensor_msgs.msg import JointState

from kinema4d_msgs.action import GenerateRollout
from kinema4d_msgs.msg import PlanReport
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import ErrorCode, KinemaError
from kinema4d_ros.core.pointmap import PointmapSequence
from kinema4d_ros.core.rollout import Rollout
from kinema4d_ros.ros.messages.camera import MAX_PIXELS, require_affordable
from kinema4d_ros.ros.messages.images import ImageError, image_from_array
from kinema4d_ros.ros.messages.page import report_from_msg
from kinema4d_ros.ros.messages.request import frames_to_msg, request_from_goal
from kinema4d_ros.ros.messages.rollout import require_whole, rollout_to_msg
from kinema4d_ros.ros.messages.stamps import header, time_from_ns
from kinema4d_ros.ros.messages.trajectories import JointStateError, joint_sample_from_msg

STAMP = time_from_ns(1_700_000_000_000_000_000)


@pytest.mark.parametrize(("sec", "nanosec"), [(-1, 0), (-(2**31), 2**32 - 1), (1, 10**9), (2**31 - 1, 2**32 - 1)])
def test_a_joint_state_with_an_invalid_stamp(sec: int, nanosec: int) -> None:
    message = JointState(name=["joint1"], position=[0.0])
    message.header.stamp.sec, message.header.stamp.nanosec = sec, nanosec
    with pytest.raises(JointStateError, match="is stamped"):
        joint_sample_from_msg(message)


def test_names_are_compared_in_linear_time() -> None:
    count = 50_000
    message = JointState(header=header(1), name=[f"j{i}" for i in range(count)], position=[0.0] * count)
    started = time.process_time()
    assert len(joint_sample_from_msg(message).names) == count
    # Pairwise comparison would take a minute.
    assert time.process_time() - started < 10.0


@pytest.mark.parametrize("times", [[0.0, 0.1, float("nan")], [0.0, 0.2, 0.1], [-1.0, 0.1, 0.2], [0.0, 0.1, 1e300]])
def test_a_rollout_with_invalid_times(rollout: Rollout, times: list[float]) -> None:
    message = rollout_to_msg(rollout, STAMP)
    require_whole(message)
    message.times = times
    with pytest.raises(KinemaError) as caught:
        require_whole(message)
    assert caught.value.code == ErrorCode.ROLLOUT_INVALID


def test_frames_that_would_exhaust_memory(camera: PinholeCamera) -> None:
    pixels = camera.width * camera.height
    require_affordable(MAX_PIXELS // pixels, camera)
    with pytest.raises(KinemaError) as caught:
        require_affordable(MAX_PIXELS // pixels + 1, camera)
    assert caught.value.code == ErrorCode.CAMERA_BAD_SIZE


def test_the_image_size_is_checked_before_frames_are_decoded(camera: PinholeCamera) -> None:
    ids = np.ones((1, camera.height, camera.width), np.uint8)
    xyz = (camera.rays() * 0.5).astype(np.float32)[None]
    goal = GenerateRollout.Goal(robot_frames=frames_to_msg(PointmapSequence(xyz, ids, camera, np.zeros(1)), STAMP))
    goal.image = image_from_array(np.zeros((camera.height, camera.width, 3), np.uint8), "rgb8", header(1))
    goal.robot_frames.camera_info.width = goal.robot_frames.camera_info.height = 16_384
    # The encoded frames are damaged too: decoding them first would raise another error.
    goal.robot_frames.depth[0].data = goal.robot_frames.depth[0].data[:20]
    with pytest.raises(ImageError, match="the image is"):
        request_from_goal(goal)


def _report(**changes: Any) -> Any:
    message = PlanReport(times=[0.0, 0.1], clearance_m=[0.1, float("nan")], contact_threshold_m=0.005)
    for name, value in changes.items():
        setattr(message, name, value)
    return message


def test_a_report_may_contain_unknown_clearance() -> None:
    assert len(report_from_msg(_report()).times) == 2


def test_names_in_a_report_are_one_short_line() -> None:
    report = report_from_msg(_report(min_clearance_link="a\nb\x1b[2J" + "c" * 500, first_contact_link="gripper"))
    assert report.min_clearance_link.startswith("a b [2Jc")
    assert len(report.min_clearance_link) == 64
    assert report.first_contact_link == "gripper"


@pytest.mark.parametrize(
    "changes",
    [
        {"times": [], "clearance_m": []},
        {"times": [0.0, float("inf")]},
        {"times": [0.1, 0.0]},
        {"clearance_m": [1e308, 0.1]},
        {"clearance_m": [0.1, float("-inf")]},
        {"contact_threshold_m": float("nan")},
        {"contact_threshold_m": 1e308},
    ],
)
def test_a_report_that_cannot_be_plotted(changes: dict[str, Any]) -> None:
    with pytest.raises(KinemaError) as caught:
        report_from_msg(_report(**changes))
    assert caught.value.code == ErrorCode.WIRE_CORRUPT
