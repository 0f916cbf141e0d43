"""Messages of poses, paths and cameras."""

from __future__ import annotations

import numpy as np
import pytest
from geometry_msgs.msg import Pose, PoseArray, PoseStamped
from hypothesis import given, settings
from hypothesis import strategies as st
from nav_msgs.msg import Path
from sensor_msgs.msg import CameraInfo as CameraInfoMsg

from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import CameraError, ErrorCode, TrajectoryError
from kinema4d_ros.core.transforms import from_rpy
from kinema4d_ros.ros.messages.camera import camera_from_info, info_from_camera
from kinema4d_ros.ros.messages.poses import (
    matrices_to_pose_array,
    matrix_to_pose,
    matrix_to_transform,
    path_to_matrices,
    pose_array_to_matrices,
    pose_to_matrix,
    transform_to_matrix,
)
from kinema4d_ros.ros.messages.stamps import header, time_from_ns

angles = st.tuples(*[st.floats(-3.1, 3.1)] * 3)
places = st.tuples(*[st.floats(-10, 10)] * 3)


@given(angles, places)
def test_matrices_round_trip(rpy: tuple[float, ...], xyz: tuple[float, ...]) -> None:
    T = from_rpy(rpy, xyz)
    np.testing.assert_allclose(pose_to_matrix(matrix_to_pose(T)), T, atol=1e-14)
    np.testing.assert_allclose(transform_to_matrix(matrix_to_transform(T)), T, atol=1e-14)
    array = matrices_to_pose_array(np.stack([T, np.eye(4)]), header(5, "base_link"))
    np.testing.assert_allclose(pose_array_to_matrices(array), [T, np.eye(4)], atol=1e-14)


def path(stamps_ns: list[int], frames: list[str] | None = None) -> Path:
    message = Path(header=header(0, "base_link"))
    for i, ns in enumerate(stamps_ns):
        pose = PoseStamped(header=header(ns, frames[i] if frames else ""), pose=matrix_to_pose(np.eye(4)))
        pose.pose.position.x = float(i)
        message.poses.append(pose)
    return message


def test_a_path_gives_times_when_it_has_stamps() -> None:
    start = 1_700_000_000 * 10**9
    poses, times = path_to_matrices(path([start, start + 1, start + 10**9]))
    assert times is not None
    np.testing.assert_array_equal(times, [0.0, 1e-9, 1.0])
    np.testing.assert_array_equal(poses[:, 0, 3], [0, 1, 2])
    assert path_to_matrices(path([0, 0, 0]))[1] is None


@pytest.mark.parametrize("stamps", [[5, 5], [5, 4], [5, 0]])
def test_a_path_with_missing_or_decreasing_stamps_is_refused(stamps: list[int]) -> None:
    with pytest.raises(TrajectoryError) as caught:
        path_to_matrices(path(stamps))
    assert caught.value.code == ErrorCode.TRAJECTORY_NOT_MONOTONIC


def test_bad_poses_are_refused() -> None:
    with pytest.raises(TrajectoryError) as caught:
        pose_array_to_matrices(PoseArray())
    assert caught.value.code == ErrorCode.TRAJECTORY_EMPTY
    with pytest.raises(TrajectoryError, match="camera"):
        path_to_matrices(path([1, 2], ["base_link", "camera"]))
    left_empty = Pose()
    left_empty.orientation.w = 0.0
    with pytest.raises(TrajectoryError, match="norm 0") as caught:
        pose_array_to_matrices(PoseArray(poses=[Pose(), left_empty]))
    assert caught.value.code == ErrorCode.NOT_A_ROTATION
    lost = Pose()
    lost.position.y = float("nan")
    with pytest.raises(TrajectoryError, match="pose 1") as caught:
        pose_array_to_matrices(PoseArray(poses=[Pose(), lost]))
    assert caught.value.code == ErrorCode.TRAJECTORY_NOT_FINITE


@settings(max_examples=8, deadline=None)
@given(st.floats(400, 900), st.floats(400, 900), st.floats(-20, 20), angles, places)
def test_a_camera_round_trips(
    fx: float, fy: float, shift: float, rpy: tuple[float, ...], xyz: tuple[float, ...]
) -> None:
    K = [[fx, 0, 320 + shift], [0, fy, 240 - shift], [0, 0, 1]]
    sent = PinholeCamera(
        640, 480, K, from_rpy(rpy, xyz), (0.01, -0.02, 0.001, 0.002, 0.0), frame_id="eye", base_frame="root"
    )
    message = info_from_camera(sent, time_from_ns(9))
    assert (message.header.frame_id, message.header.stamp.nanosec) == ("eye", 9)
    # ROS has integer coordinates at pixel centres.
    assert message.k[2] == pytest.approx(sent.K[0, 2] - 0.5, abs=1e-12)
    read = camera_from_info(message, sent.base_T_camera, base_frame="root")
    np.testing.assert_allclose(read.K, sent.K, rtol=1e-15, atol=1e-12)
    np.testing.assert_array_equal(read.base_T_camera, sent.base_T_camera)
    assert (read.width, read.height, read.frame_id, read.base_frame) == (640, 480, "eye", "root")
    assert read.distortion == sent.distortion
    assert not camera_from_info(message, rectified=True).has_distortion


def test_region_of_interest_and_binning_give_the_camera_of_the_image() -> None:
    message = info_from_camera(PinholeCamera(640, 480, [[500, 0, 320], [0, 500, 240], [0, 0, 1]]), time_from_ns(0))
    message.roi.x_offset, message.roi.y_offset, message.roi.width, message.roi.height = 100, 40, 400, 300
    message.binning_x = message.binning_y = 2
    camera = camera_from_info(message)
    assert (camera.width, camera.height) == (200, 150)
    np.testing.assert_allclose(camera.K, [[250, 0, 110], [0, 250, 100], [0, 0, 1]])
    message.roi.width = 600
    with pytest.raises(CameraError) as caught:
        camera_from_info(message)
    assert caught.value.code == ErrorCode.CAMERA_BAD_SIZE


def test_unusable_cameras_are_refused() -> None:
    with pytest.raises(CameraError, match="not calibrated") as caught:
        camera_from_info(CameraInfoMsg(width=640, height=480))
    assert caught.value.code == ErrorCode.CALIBRATION_INVALID
    message = info_from_camera(PinholeCamera(640, 480, [[500, 0, 320], [0, 500, 240], [0, 0, 1]]), time_from_ns(0))
    message.distortion_model, message.d = "equidistant", [0.1, 0.0, 0.0, 0.0]
    with pytest.raises(CameraError, match="equidistant") as caught:
        camera_from_info(message)
    assert caught.value.code == ErrorCode.CAMERA_BAD_DISTORTION
    message.p[3] = -60.0
    with pytest.raises(CameraError, match="baseline"):
        camera_from_info(message, rectified=True)
