"""Conversion sensor_msgs/CameraInfo <-> `PinholeCamera`, including their half-pixel offset.

CameraInfo has integer coordinates at pixel centres, this package at pixel corners; `kinema4d_ros.calibration`
converts files with the same functions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sensor_msgs.msg import CameraInfo as CameraInfoMsg

from kinema4d_ros.calibration.camera_files import CameraInfo
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import CalibrationError, CameraError, ErrorCode, KinemaError
from kinema4d_ros.ros.messages.poses import transform_to_matrix

__all__ = ["camera_from_info", "camera_from_msg", "camera_mismatch", "info_from_camera", "require_affordable"]

INTRINSICS_TOLERANCE_PX = 2.0
"""Largest difference between the driver's intrinsics and the calibration file, at a corner of the image."""

MAX_PIXELS = 1 << 28
"""Limit for all frames of a message together: 16 times 49 frames of 480 x 720, and 3 GB as points."""


def camera_from_info(
    message: Any,
    base_T_camera: ArrayLike | None = None,
    *,
    base_frame: str = "base_link",
    rectified: bool = False,
) -> PinholeCamera:
    """Convert a sensor_msgs/CameraInfo and a pose, which the message does not contain, to a camera.

    Args:
        message: `k` and `d` describe the raw image, `p` the rectified one. A region of interest and
            binning are applied, so the camera has the size of the images that come with the message.
        base_T_camera: (4, 4) metres; identity by default.
        base_frame: name of the base frame.
        rectified: whether the images are rectified; uses `p` and no distortion.
    """
    K = np.array(message.p, dtype=np.float64).reshape(3, 4)[:, :3] if rectified else np.array(message.k).reshape(3, 3)
    if not K.any():
        raise CalibrationError(
            f"the CameraInfo of '{message.header.frame_id}' is all zero: the camera is not calibrated",
            expected=f"intrinsics in {'p' if rectified else 'k'}",
            hint="calibrate the camera and configure its driver to load the result",
        )
    if rectified and (message.p[3] or message.p[7]):
        raise CameraError(
            f"the CameraInfo of '{message.header.frame_id}' has a baseline: p[3, 7] = {message.p[3]}, {message.p[7]}",
            expected="0: a monocular camera, or the left one of a stereo pair",
            code=ErrorCode.CAMERA_BAD_INTRINSICS,
        )
    info = CameraInfo(
        name=message.header.frame_id,
        width=int(message.width),
        height=int(message.height),
        camera_matrix=K,
        distortion_model="plumb_bob" if rectified else message.distortion_model or "plumb_bob",
        distortion=() if rectified else tuple(float(c) for c in message.d),
    )
    pose = np.eye(4) if base_T_camera is None else base_T_camera
    frame_id = message.header.frame_id or "camera_optical_frame"
    camera = info.camera(pose, frame_id=frame_id, base_frame=base_frame)
    return _binned(_cropped(camera, message.roi), int(message.binning_x), int(message.binning_y))


def camera_from_msg(message: Any) -> PinholeCamera:
    """Return the rectified camera of a kinema4d_msgs/Rollout or RobotFrames, at its pose in its base frame."""
    return camera_from_info(
        message.camera_info,
        transform_to_matrix(message.base_to_camera),
        base_frame=message.base_frame or "base_link",
        rectified=True,
    )


def camera_mismatch(live: PinholeCamera, file: PinholeCamera) -> KinemaError | None:
    """Return how the driver's camera differs from the calibration file's; None within the tolerance."""
    if (live.width, live.height) != (file.width, file.height):
        return CameraError(
            f"the camera sends {live.width} x {live.height}",
            expected=f"{file.width} x {file.height}, as in the calibration file",
            hint="set the driver to the calibrated resolution, or calibrate again",
            code=ErrorCode.CAMERA_BAD_SIZE,
        )
    corners = np.array([[x, y, 1.0] for x in (-0.5, 0.5) for y in (-0.4, 0.4)])
    moved = float(np.abs(live.project(corners) - file.project(corners)).max())
    # "not <=" instead of ">": a point that cannot be projected gives NaN, which must count as a mismatch.
    if not moved <= INTRINSICS_TOLERANCE_PX:
        return CameraError(
            f"the driver's intrinsics differ from the calibration file by up to {moved:.1f} px",
            expected=f"at most {INTRINSICS_TOLERANCE_PX:g} px",
            hint="use the same calibration in the driver and here",
            code=ErrorCode.CALIBRATION_INVALID,
        )
    return None


def require_affordable(frames: int, camera: PinholeCamera) -> None:
    """Reject frames that would exhaust memory when decoded: encoded, a million pixels may take one kilobyte."""
    if frames * camera.width * camera.height > MAX_PIXELS:
        raise CameraError(
            f"{frames} frames of {camera.width} x {camera.height}",
            expected=f"at most {MAX_PIXELS} pixels in all",
            code=ErrorCode.CAMERA_BAD_SIZE,
        )


def info_from_camera(camera: PinholeCamera, stamp: Any) -> Any:
    """Convert a camera to a sensor_msgs/CameraInfo, with a Time message as its stamp; `p` is [K | 0], `r` is I."""
    info = CameraInfo.of(camera)
    message = CameraInfoMsg(width=info.width, height=info.height, distortion_model=info.distortion_model)
    message.header.stamp = stamp
    message.header.frame_id = camera.frame_id
    message.d = list(info.distortion) or [0.0] * 5
    message.k = info.camera_matrix.ravel()
    message.r = np.eye(3).ravel()
    message.p = np.hstack([info.camera_matrix, np.zeros((3, 1))]).ravel()
    return message


def _cropped(camera: PinholeCamera, roi: Any) -> PinholeCamera:
    if roi.width == 0 or roi.height == 0:
        return camera
    if roi.x_offset + roi.width > camera.width or roi.y_offset + roi.height > camera.height:
        raise CameraError(
            f"the region of interest {roi.width} x {roi.height} at ({roi.x_offset}, {roi.y_offset}) exceeds the image",
            expected=f"a region inside {camera.width} x {camera.height}",
            code=ErrorCode.CAMERA_BAD_SIZE,
        )
    return camera.cropped(roi.x_offset, roi.y_offset, roi.width, roi.height)


def _binned(camera: PinholeCamera, binning_x: int, binning_y: int) -> PinholeCamera:
    if binning_x <= 1 and binning_y <= 1:
        return camera
    return camera.scaled(camera.width // max(binning_x, 1), camera.height // max(binning_y, 1))
