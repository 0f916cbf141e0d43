"""Calibration files: intrinsics, extrinsics, both in one, and those of other tools."""

from kinema4d_ros.calibration.camera_file import (
    camera_document,
    camera_from_document,
    load_camera,
    read_camera,
    read_pose,
    save_camera,
)
from kinema4d_ros.calibration.camera_info import CameraInfo, read_camera_info, write_camera_info
from kinema4d_ros.calibration.easy_handeye import read_easy_handeye
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
