"""`kinema4d calibrate check` and `compare`: is the camera where a file says, and do several files say the same?"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.calibration import read_camera, read_pose
from kinema4d_ros.calibration.compare import compare as compare_poses
from kinema4d_ros.calibration.drift import Drift, check_drift, check_drift_by_edges
from kinema4d_ros.calibration.inputs import read_joints, read_masks
from kinema4d_ros.calibration.pictures import outline_picture
from kinema4d_ros.calibration.silhouette import mask_iou, rectify_masks
from kinema4d_ros.camera import PinholeCamera
from kinema4d_ros.cli.calibrate_report import CANNOT_TELL, DIFFERS, require_size
from kinema4d_ros.errors import ErrorCode, KinemaError
from kinema4d_ros.media import read_image, write_image
from kinema4d_ros.render import render_pointmaps
from kinema4d_ros.robot import Robot

__all__ = ["check", "compare", "draw_over"]

_CODES = {"still": 0, "agree": 0, "moved": DIFFERS, "disagree": DIFFERS, "unknown": CANNOT_TELL}


def check(arguments: argparse.Namespace) -> int:
    """Whether the robot is where the calibration draws it, from a mask or from the image's own edges."""
    robot, camera = Robot.load(arguments.robot), read_camera(arguments.camera)
    q = robot.home_position() if arguments.joints is None else read_joints(arguments.joints, robot, 1)[0]
    image = read_image(arguments.image)
    require_size((image.shape[1], image.shape[0]), camera)
    mask = None if arguments.mask is None else read_masks([arguments.mask])[0]
    if mask is None:
        drift = check_drift_by_edges(robot, q, camera.rectify(image), camera.rectified())
    else:
        drift = check_drift(robot, q[None], [mask], camera, covariance=read_pose(arguments.camera).covariance)
    numbers = draw_over(arguments.out, robot, q, camera, image, mask, drift)
    if arguments.json:
        print(json.dumps(numbers))
    else:
        by = "edges of the image" if mask is None else "the mask"
        print(f"{drift.verdict}: {drift.text} (by {by})")
        shown = ("robot_pixels", "iou", "px")
        print(
            f"{arguments.out}: " + ", ".join(f"{key} {numbers[key]}" for key in shown if numbers.get(key) is not None)
        )
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
    image: NDArray[np.uint8] | None,
    mask: NDArray[np.bool_] | None,
    drift: Drift,
) -> dict[str, Any]:
    """Write the overlay; what it shows, in numbers."""
    drawn = render_pointmaps(robot, q[None], camera.rectified()).mask[0]
    seen = None if mask is None else rectify_masks([mask], camera)[0][0]
    told = drift.verdict != "unknown"
    numbers: dict[str, Any] = {
        "robot_pixels": int(drawn.sum()),
        "iou": None if seen is None else round(mask_iou(drawn, seen), 4),
        "px": round(drift.px, 3) if told else None,
        "verdict": drift.verdict,
        "shift_mm": round(drift.shift_mm, 2) if told else None,
        "turn_deg": round(drift.turn_deg, 3) if told else None,
        "seen_px": round(drift.seen_px, 3) if told else None,
        "seen_mm": round(drift.seen_mm, 3) if told else None,
    }
    background = np.full((*drawn.shape, 3), 245, np.uint8) if image is None else camera.rectify(image)
    said = [
        drift.verdict,
        f"IoU {numbers['iou']:.3f}" if seen is not None else "",
        f"{drift.px:.2f} px" if told else "",
    ]
    write_image(path, outline_picture(background, seen, drawn, ", ".join(part for part in said if part)))
    return numbers
