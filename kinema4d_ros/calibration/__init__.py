"""Camera calibration; this package exports the file readers and writers for intrinsics and extrinsics."""

from kinema4d_ros.calibration.camera_files import (
    CameraInfo,
    camera_document,
    camera_from_document,
    load_camera,
    read_camera,
    read_camera_info,
    read_easy_handeye,
    read_pose,
    save_camera,
    write_camera_info,
)
from kinema4d_ros.calibration.extrinsics import Extrinsics, Residuals, read_extrinsics, write_extrinsics

__all__ = [
    "CameraInfo",
    "Extrinsics",
    "Residuals",
    "camera_document",
    "camera_from_document",
    "load_camera",
    "read_camera",
    "read_camera_info",
    "read_easy_handeye",
    "read_extrinsics",
    "read_pose",
    "save_camera",
    "write_camera_info",
    "write_extrinsics",
]
