"""`kinema4d calibrate check` and `compare`, and the input and output helpers of all `calibrate` subcommands."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.calibration import read_camera, read_camera_info, read_pose, save_camera
from kinema4d_ros.calibration.drift import Drift, check_drift, check_drift_by_edges
from kinema4d_ros.calibration.inputs import image_files, read_joints, read_seen_masks
from kinema4d_ros.calibration.pictures import outline_picture
from kinema4d_ros.calibration.pose_estimate import PoseEstimate, check_against
from kinema4d_ros.calibration.pose_estimate import compare as compare_poses
from kinema4d_ros.calibration.quality import Quality, finding, sorted_findings
from kinema4d_ros.calibration.silhouette import Silhouettes, mask_iou, rectify_masks
from kinema4d_ros.cli.options import joint_options
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import CalibrationError, ErrorCode, KinemaError
from kinema4d_ros.io.files import read_yaml
from kinema4d_ros.io.images import read_image, strip, write_image
from kinema4d_ros.kinematics.forward import forward_all
from kinema4d_ros.render import Scene, render_poses
from kinema4d_ros.robot import Robot

__all__ = [
    "CANNOT_TELL",
    "DIFFERS",
    "camera_of",
    "check",
    "compare",
    "draw_over",
    "joints_of",
    "pose_result",
    "report",
    "require_size",
    "with_overlap",
]

CANNOT_TELL, DIFFERS = 1, 2
"""Exit codes of `check` and `compare`; 0 = agreement. A rejected calibration result also exits with 2."""

WORST_IOU = 0.80


def pose_result(
    arguments: argparse.Namespace, result: PoseEstimate, camera: PinholeCamera, robot: Robot, notes: Sequence[str]
) -> int:
    """Compare a pose with the files of --against, print it, and write it if it passes the quality gate."""
    lines = list(notes)
    for other in arguments.against:
        known = read_pose(other)
        if known.parent_frame != robot.base_link:
            raise CalibrationError(
                f"the pose in {other} is relative to frame '{known.parent_frame}'",
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
    """Add the IoU of the rendered robot with masks that were not used to estimate the pose."""
    seen = read_seen_masks(masks)
    require_size((seen.shape[2], seen.shape[1]), camera)
    iou = Silhouettes(robot, q, seen, camera).overlap(result.base_T_camera)
    found = list(result.quality.findings)
    if iou < WORST_IOU:
        found.append(finding("poor_overlap", f"the IoU of the rendered robot and the masks is {iou:.3f}"))
    return replace(result, quality=replace(result.quality, mask_iou=iou, findings=sorted_findings(found)))


def report(
    arguments: argparse.Namespace, quality: Quality, numbers: dict[str, Any], lines: Sequence[str], what: str
) -> None:
    """Print the result, then raise if it fails the quality gate and --force is not given."""
    if arguments.json:
        print(json.dumps({**numbers, **quality.numbers()}))
    else:
        print("\n".join([*lines, *quality.lines()]))
    if not arguments.force:
        quality.require(what)


def camera_of(path: Path) -> PinholeCamera:
    """Read the intrinsics from a CameraInfo file or a camera file."""
    if "intrinsics" in read_yaml(path):
        return read_camera(path)
    return read_camera_info(path).camera(np.eye(4))


def joints_of(arguments: argparse.Namespace) -> Path:
    """Return the file of joint positions, or raise if --joints is missing."""
    if arguments.joints is None:
        raise KinemaError(
            "--joints is missing", expected="a file with one row for each image", code=ErrorCode.ARGUMENT_INVALID
        )
    return Path(arguments.joints)


def require_size(size: tuple[int, int], camera: PinholeCamera) -> None:
    """Raise unless an image size (width, height) is that of the camera file."""
    if size != (camera.width, camera.height):
        raise CalibrationError(
            f"the images are {size[0]} x {size[1]}",
            expected=f"{camera.width} x {camera.height}, as in the camera file",
            code=ErrorCode.CAMERA_BAD_SIZE,
        )


_CODES = {"still": 0, "agree": 0, "moved": DIFFERS, "disagree": DIFFERS, "unknown": CANNOT_TELL}
_WORDS = {"still": "fits", "moved": "moved", "unknown": "cannot tell"}


def check(arguments: argparse.Namespace) -> int:
    """Test whether the robot appears where the calibration renders it, by masks or by image edges."""
    robot, camera, pose = Robot.load(arguments.robot), read_camera(arguments.camera), read_pose(arguments.camera)
    files = image_files(arguments.image)
    images = [read_image(file) for file in files]
    for image in images:
        require_size((image.shape[1], image.shape[0]), camera)
    q = np.tile(robot.home_position(), (len(files), 1))
    if arguments.joints is not None:
        q = read_joints(arguments.joints, robot, len(files), **joint_options(arguments))
    masks = None if arguments.mask is None else read_seen_masks(image_files(arguments.mask))
    if masks is not None and len(masks) != len(images):
        raise CalibrationError(f"{len(masks)} masks for {len(images)} images", expected="one for each")
    known: Any = {
        "covariance": pose.covariance, "freedom": pose.degrees_of_freedom, "residual_px": pose.residuals.px or 0.0,
    }  # fmt: skip
    if masks is None:
        rectified = np.stack([camera.rectify(image) for image in images])
        drift = check_drift_by_edges(robot, q, rectified, camera.rectified(), **known)
    else:
        drift = check_drift(robot, q, masks, camera, **known)
    numbers = draw_over(arguments.out, robot, q, camera, images, masks, drift)
    if arguments.json:
        print(json.dumps(numbers))
    else:
        by = "edges of the image" if masks is None else "the mask"
        text = drift.text.removeprefix("cannot tell: ")
        print(f"{_WORDS[drift.verdict]}: {text} (by {by}{'s' if len(files) > 1 else ''})")
        if pose.covariance is None and drift.verdict == "moved":
            print(f"{arguments.camera} states no uncertainty: the offset may be the error of the calibration itself")
        print(f"overlay: {arguments.out}")
    return _CODES[drift.verdict]


def compare(arguments: argparse.Namespace) -> int:
    """Test whether several files agree on the camera's pose."""
    names = [str(path) for path in arguments.files]
    if len(set(names)) < len(names):
        raise KinemaError("a file is given twice", expected="different files", code=ErrorCode.ARGUMENT_INVALID)
    found = compare_poses({name: read_pose(path) for name, path in zip(names, arguments.files, strict=True)})
    print(json.dumps(found.numbers()) if arguments.json else "\n".join(found.lines()))
    return _CODES[found.verdict]


def draw_over(
    path: Path,
    robot: Robot,
    q: NDArray[np.float64],
    camera: PinholeCamera,
    images: Sequence[NDArray[np.uint8]],
    masks: NDArray[np.bool_] | None,
    drift: Drift,
) -> dict[str, Any]:
    """Write the overlays and return their numbers; None where the drift could not be measured."""
    drawn = render_poses(Scene.from_robot(robot), forward_all(robot, q), camera.rectified()).mask
    seen = None if masks is None else rectify_masks(masks, camera)[0]
    told = np.isfinite(drift.seen_px)
    numbers: dict[str, Any] = {
        "verdict": drift.verdict,
        "says": drift.text,
        "images": len(images),
        "seen_px": round(drift.seen_px, 3) if told else None,
        "sigma_px": round(drift.sigma_px, 3) if told else None,
        "allowed_px": round(drift.allowed_px, 3) if told else None,
        "seen_mm": round(drift.seen_mm, 3) if told else None,
        "shift_mm": round(drift.shift_mm, 2) if told else None,
        "turn_deg": round(drift.turn_deg, 3) if told else None,
        "residual_px": round(drift.px, 3) if told else None,
        "iou": None if seen is None else round(mask_iou(drawn, seen), 4),
        "robot_pixels": int(drawn.sum()),
    }
    said = _WORDS[drift.verdict] + (f", {drift.seen_px:.1f} px" if told else "")
    tiles = [
        outline_picture(camera.rectify(image), None if seen is None else seen[i], drawn[i], said if i == 0 else "")
        for i, image in enumerate(images)
    ]
    write_image(path, strip(tiles, 3))
    return numbers
