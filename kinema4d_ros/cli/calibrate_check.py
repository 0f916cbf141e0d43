"""`kinema4d calibrate check` and `compare`: is the camera where a file says, and do several files say the same?"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.calibration import read_camera, read_pose
from kinema4d_ros.calibration.compare import compare as compare_poses
from kinema4d_ros.calibration.drift import Drift, check_drift, check_drift_by_edges
from kinema4d_ros.calibration.inputs import image_files, read_joints, read_seen_masks
from kinema4d_ros.calibration.pictures import outline_picture
from kinema4d_ros.calibration.silhouette import mask_iou, rectify_masks
from kinema4d_ros.cli.calibrate_report import CANNOT_TELL, DIFFERS, require_size
from kinema4d_ros.cli.joint_options import joint_options
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import CalibrationError, ErrorCode, KinemaError
from kinema4d_ros.io.images import read_image, strip, write_image
from kinema4d_ros.kinematics.forward import forward_all
from kinema4d_ros.render import Scene, render_poses
from kinema4d_ros.robot import Robot

__all__ = ["check", "compare", "draw_over"]

_CODES = {"still": 0, "agree": 0, "moved": DIFFERS, "disagree": DIFFERS, "unknown": CANNOT_TELL}
_WORDS = {"still": "fits", "moved": "moved", "unknown": "cannot tell"}


def check(arguments: argparse.Namespace) -> int:
    """Whether the robot is where the calibration draws it, from masks or from the images' own edges."""
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
            print(f"{arguments.camera} states no uncertainty: the calibration may never have been better than that")
        print(f"drawn: {arguments.out}")
    return _CODES[drift.verdict]


def compare(arguments: argparse.Namespace) -> int:
    """Whether several files put the camera in the same place."""
    names = [str(path) for path in arguments.files]
    if len(set(names)) < len(names):
        raise KinemaError("a file is named twice", expected="different files", code=ErrorCode.ARGUMENT_INVALID)
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
    """Write the overlays; what they show, in numbers."""
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
