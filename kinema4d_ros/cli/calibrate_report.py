"""What all ways of `kinema4d calibrate` share: reading cameras, printing a result, and refusing a bad one."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from kinema4d_ros.calibration import read_camera, read_camera_info, read_pose, save_camera
from kinema4d_ros.calibration.compare import check_against
from kinema4d_ros.calibration.inputs import read_seen_masks
from kinema4d_ros.calibration.pose_estimate import PoseEstimate
from kinema4d_ros.calibration.quality import Quality, finding, sorted_findings
from kinema4d_ros.calibration.silhouette import Silhouettes
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import CalibrationError, ErrorCode, KinemaError
from kinema4d_ros.io.files import read_yaml
from kinema4d_ros.robot import Robot

__all__ = ["CANNOT_TELL", "DIFFERS", "camera_of", "joints_of", "pose_result", "report", "require_size", "with_overlap"]

CANNOT_TELL, DIFFERS = 1, 2
"""Exit codes of comparisons and checks; 0 = all is well. A refused result ends with 2 as well."""

WORST_IOU = 0.80


def pose_result(
    arguments: argparse.Namespace, result: PoseEstimate, camera: PinholeCamera, robot: Robot, notes: Sequence[str]
) -> int:
    """Hold a pose against the files it should agree with, print it, and write it unless it is bad."""
    lines = list(notes)
    for other in arguments.against:
        known = read_pose(other)
        if known.parent_frame != robot.base_link:
            raise CalibrationError(
                f"the pose of {other} is given in '{known.parent_frame}'",
                expected=f"'{robot.base_link}', the robot's base frame",
                code=ErrorCode.CALIBRATION_FRAME_MISMATCH,
            )
        result, line = check_against(result, other.name, known)
        lines.append(line)
    x, y, z = result.base_T_camera[:3, 3]
    sigma = f"one sigma {result.sigma_mm:.2f} mm, {result.sigma_deg:.3f} degrees"
    lines.append(f"{result.method}: camera at {x:.4f} {y:.4f} {z:.4f} m, {sigma}")
    numbers = {
        "base_T_camera": result.base_T_camera.tolist(), "sigma_mm": result.sigma_mm, "sigma_deg": result.sigma_deg,
        "covariance": result.covariance.tolist(), "degrees_of_freedom": result.degrees_of_freedom,
    }  # fmt: skip
    report(arguments, result.quality, numbers, lines, "the extrinsics")
    pose = result.extrinsics(robot.base_link, camera.frame_id)
    save_camera(arguments.out, camera.posed(result.base_T_camera), pose)
    return 0


def with_overlap(
    result: PoseEstimate, robot: Robot, q: Any, masks: Sequence[Path], camera: PinholeCamera
) -> PoseEstimate:
    """The result with the IoU of the drawn robot and masks that took no part in finding it."""
    seen = read_seen_masks(masks)
    require_size((seen.shape[2], seen.shape[1]), camera)
    iou = Silhouettes(robot, q, seen, camera).overlap(result.base_T_camera)
    found = list(result.quality.findings)
    if iou < WORST_IOU:
        found.append(finding("poor_overlap", f"the drawn robot covers the seen one with IoU {iou:.3f}"))
    return replace(result, quality=replace(result.quality, mask_iou=iou, findings=sorted_findings(found)))


def report(
    arguments: argparse.Namespace, quality: Quality, numbers: dict[str, Any], lines: Sequence[str], what: str
) -> None:
    """Print the result, then refuse it if the gate does."""
    if arguments.json:
        print(json.dumps({**numbers, **quality.numbers()}))
    else:
        print("\n".join([*lines, *quality.lines()]))
    if not arguments.force:
        quality.require(what)


def camera_of(path: Path) -> PinholeCamera:
    """Intrinsics of a CameraInfo file or of a camera file."""
    if "intrinsics" in read_yaml(path):
        return read_camera(path)
    return read_camera_info(path).camera(np.eye(4))


def joints_of(arguments: argparse.Namespace) -> Path:
    """The file of joint positions, which must be given."""
    if arguments.joints is None:
        raise KinemaError(
            "--joints is missing", expected="a file with one row for each image", code=ErrorCode.ARGUMENT_INVALID
        )
    return Path(arguments.joints)


def require_size(size: tuple[int, int], camera: PinholeCamera) -> None:
    """Images must be (width, height) of the camera's file."""
    if size != (camera.width, camera.height):
        raise CalibrationError(
            f"the images are {size[0]} x {size[1]}",
            expected=f"{camera.width} x {camera.height}, as in the camera's file",
            code=ErrorCode.CAMERA_BAD_SIZE,
        )
