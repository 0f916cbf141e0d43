"""Messages of robot frames and rollouts: precision of a round trip, and refusal of damaged messages."""

from __future__ import annotations

from array import array
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinema4d_msgs.msg import PointFrame
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import ErrorCode, KinemaError, PointmapError
from kinema4d_ros.core.pointmap import GripTrack, PointmapSequence
from kinema4d_ros.core.rollout import Rollout
from kinema4d_ros.robot import Fingers
from kinema4d_ros.ros.messages.request import frames_from_msg, frames_to_msg
from kinema4d_ros.ros.messages.rollout import STEP_M, decode_points, encode_points, rollout_from_msg, rollout_to_msg
from kinema4d_ros.ros.messages.stamps import time_from_ns

STAMP = time_from_ns(1_700_000_000_123_456_789)
HALF_STEP = STEP_M / 2 * 1.01  # and a little for float32


def same_camera(a: PinholeCamera, b: PinholeCamera) -> None:
    np.testing.assert_allclose(a.K, b.K, atol=1e-12)
    np.testing.assert_allclose(a.base_T_camera, b.base_T_camera, atol=1e-12)
    assert (a.width, a.height, a.frame_id, a.base_frame) == (b.width, b.height, b.frame_id, b.base_frame)


def test_a_rollout_round_trips(rollout: Rollout) -> None:
    message = rollout_to_msg(rollout, STAMP, rgb_format="png")
    assert {frame.encoding for frame in message.points} == {PointFrame.DEPTH16}
    assert message.header.stamp == message.rgb[0].header.stamp == message.camera_info.header.stamp == STAMP
    assert message.header.frame_id == "camera_optical_frame"
    read = rollout_from_msg(message)
    np.testing.assert_array_equal(read.rgb, rollout.rgb)
    np.testing.assert_array_equal(read.robot_mask, rollout.robot_mask)
    np.testing.assert_array_equal(np.isnan(read.xyz), np.isnan(rollout.xyz))
    assert np.nanmax(np.abs(read.xyz - rollout.xyz)) <= HALF_STEP
    np.testing.assert_array_equal(read.times, rollout.times)
    same_camera(read.camera, rollout.camera)
    assert read.provenance == rollout.provenance
    assert (read.rollout_id, read.plan_hash) == (rollout.rollout_id, rollout.plan_hash)


def test_points_off_their_rays_are_encoded_as_three_channels(rollout: Rollout) -> None:
    bent = rollout.xyz.copy()
    bent[1, 20, 30] += np.float32(0.002)
    message = rollout_to_msg(replace(rollout, xyz=bent), STAMP)
    assert [frame.encoding for frame in message.points] == [PointFrame.DEPTH16, PointFrame.XYZ16, PointFrame.DEPTH16]
    read = rollout_from_msg(message).xyz
    np.testing.assert_array_equal(np.isnan(read), np.isnan(bent))
    assert np.nanmax(np.abs(read - bent)) <= HALF_STEP


@settings(max_examples=40)
@given(st.integers(0, 2**32 - 1), st.floats(0.01, 100.0), st.booleans(), st.floats(0, 1))
def test_every_frame_round_trips_within_half_a_step(seed: int, depth_m: float, on_rays: bool, empty: float) -> None:
    camera = PinholeCamera(8, 6, [[7.0, 0, 4.2], [0, 7.5, 2.9], [0, 0, 1]])
    rng = np.random.default_rng(seed)
    z = rng.uniform(0.001, depth_m, (6, 8, 1))
    xyz = camera.rays() * z if on_rays else rng.uniform(-depth_m, depth_m, (6, 8, 3))
    xyz[rng.random((6, 8)) < empty] = np.nan
    points = xyz.astype(np.float32)
    frame = encode_points(points, camera)
    read = decode_points(frame, camera)
    np.testing.assert_array_equal(np.isnan(read), np.isnan(points))
    span = np.ptp(points[~np.isnan(points[..., 0])], axis=0) if not np.all(np.isnan(points)) else np.zeros(3)
    # Off its ray, each axis has its own step; on it, x and y follow z along slopes below 1. Plus float32.
    step = max(STEP_M, float(span.max()) / 65534)
    bound = 0.5 * step + 1e-6 * depth_m + (5e-5 if frame.encoding == PointFrame.DEPTH16 else 0.0)
    assert np.nanmax(np.abs(read - points), initial=0.0) <= bound


def test_robot_frames_round_trip(camera: PinholeCamera) -> None:
    rng = np.random.default_rng(3)
    ids = rng.integers(0, 4, (2, camera.height, camera.width)).astype(np.uint8)
    z = rng.uniform(0.3, 3.0, ids.shape)
    xyz = np.where(ids[..., None] > 0, camera.rays() * z[..., None], np.nan).astype(np.float32)
    sent = PointmapSequence(xyz, ids, camera, np.array([2.0, 2.5]))
    message = frames_to_msg(sent, STAMP, ("base", "arm", "hand"))
    assert (message.header.frame_id, message.base_frame) == ("camera_optical_frame", "base_link")
    received = frames_from_msg(message)
    np.testing.assert_array_equal(received.sequence.link_ids, ids)
    assert np.nanmax(np.abs(received.sequence.xyz - xyz)) <= HALF_STEP
    np.testing.assert_array_equal(received.sequence.times, [0.0, 0.5])
    same_camera(received.sequence.camera, camera)
    assert received.link_names == ("base", "arm", "hand")
    assert received.stamp == STAMP
    bare = frames_from_msg(frames_to_msg(sent, STAMP, link_ids=False))
    np.testing.assert_array_equal(bare.sequence.mask, sent.mask)
    with pytest.raises(PointmapError, match="no times"):
        frames_to_msg(replace(sent, times=None), STAMP)


def test_robot_frames_include_the_gripper(camera: PinholeCamera) -> None:
    shape = (2, camera.height, camera.width)
    ids = np.ones(shape, np.uint8)
    xyz = np.repeat((camera.rays() * 0.5).astype(np.float32)[None], 2, 0)
    poses = np.tile(np.diag([1.0, -1.0, -1.0, 1.0]), (2, 1, 1))
    poses[:, :3, 3] = [[0.3, 0.1, 0.2], [0.3, 0.1, 0.05]]
    grip = GripTrack(poses, np.array([0.08, 0.03]), Fingers(0.02, 0.04, 0.01, 0.05, 0.003))
    message = frames_to_msg(PointmapSequence(xyz, ids, camera, np.array([0.0, 0.5]), grip=grip), STAMP)
    read = frames_from_msg(message).sequence.grip
    assert read is not None
    np.testing.assert_allclose(read.base_T_grip, poses, atol=1e-9)
    np.testing.assert_array_equal(read.width_m, grip.width_m)
    assert read.fingers == grip.fingers
    message.finger_m = [0.02, 0.04]
    with pytest.raises(PointmapError, match="finger_m has 2 values"):
        frames_from_msg(message)
    message.finger_m = [0.02, 0.04, 0.01, float("nan"), 0.003]
    with pytest.raises(PointmapError, match="fingers of") as caught:
        frames_from_msg(message)
    assert caught.value.code is ErrorCode.WIRE_CORRUPT
    message.finger_m = []
    message.grip_width_m = [0.08]
    with pytest.raises(PointmapError, match="2 poses and 1 widths"):
        frames_from_msg(message)
    message.grip, message.grip_width_m = [], []
    assert frames_from_msg(message).sequence.grip is None


def _damage(message: Any, how: str) -> None:
    if how == "mask missing":
        message.robot_mask = message.robot_mask[:-1]
    elif how == "times missing":
        message.times = message.times[:-1]
    elif how == "truncated points":
        message.points[1].png = message.points[1].png[:-20]
    elif how == "other picture":
        message.points[0].png = array("B", bytes(message.robot_mask[0].data))
    elif how == "unknown encoding":
        message.points[0].encoding = 7
    elif how == "infinite scale":
        message.points[0].scale[2] = float("inf")
    elif how == "other size":
        message.camera_info.width = 49
    elif how == "no camera":
        message.camera_info.p[:] = 0.0
    elif how == "not a rotation":
        message.base_to_camera.rotation.w = 5.0
    elif how == "times backwards":
        message.times = [0.0, 0.2, 0.1]
    elif how == "id":
        message.rollout_id = "../../etc"


@pytest.mark.parametrize(
    ("how", "code"),
    [
        ("mask missing", ErrorCode.WIRE_CORRUPT),
        ("times missing", ErrorCode.WIRE_CORRUPT),
        ("truncated points", ErrorCode.WIRE_CORRUPT),
        ("other picture", ErrorCode.WIRE_CORRUPT),
        ("unknown encoding", ErrorCode.WIRE_CORRUPT),
        ("infinite scale", ErrorCode.WIRE_CORRUPT),
        ("other size", ErrorCode.WIRE_CORRUPT),
        ("no camera", ErrorCode.CALIBRATION_INVALID),
        ("not a rotation", ErrorCode.NOT_A_ROTATION),
        ("times backwards", ErrorCode.ROLLOUT_INVALID),
        ("id", ErrorCode.ROLLOUT_INVALID),
    ],
)
def test_a_damaged_rollout_is_refused(rollout: Rollout, how: str, code: ErrorCode) -> None:
    message = rollout_to_msg(rollout, STAMP)
    _damage(message, how)
    with pytest.raises(KinemaError) as caught:
        rollout_from_msg(message)
    assert caught.value.code == code


def test_a_partly_nan_point_cannot_be_encoded(camera: PinholeCamera) -> None:
    points = np.ones((camera.height, camera.width, 3), np.float32)
    points[3, 3, 0] = np.nan
    with pytest.raises(PointmapError, match="1 points"):
        encode_points(points, camera)
