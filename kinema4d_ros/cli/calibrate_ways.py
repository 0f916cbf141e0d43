"""The work behind `kinema4d calibrate`: files in, a result, its picture and its verdict out."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from kinema4d_ros.calibration import read_camera, read_camera_info, read_pose, save_camera, write_camera_info
from kinema4d_ros.calibration.boards import parse_board
from kinema4d_ros.calibration.drift import check_drift
from kinema4d_ros.calibration.handeye import calibrate_hand_eye
from kinema4d_ros.calibration.inputs import find_boards, image_files, read_joints, read_masks, read_pairs
from kinema4d_ros.calibration.intrinsics import calibrate_intrinsics
from kinema4d_ros.calibration.markerless import calibrate_markerless
from kinema4d_ros.calibration.pictures import coverage_picture, outline_picture, reconstruction_picture
from kinema4d_ros.calibration.pose_estimate import PoseEstimate
from kinema4d_ros.calibration.quality import Quality
from kinema4d_ros.calibration.recon import align_reconstruction, load_surface, robot_surface
from kinema4d_ros.calibration.silhouette import mask_iou, rectify_masks
from kinema4d_ros.calibration.table_board import calibrate_table_board
from kinema4d_ros.camera import PinholeCamera
from kinema4d_ros.cli import calibrate_page
from kinema4d_ros.cli.calibrate_live import collect_from_topic
from kinema4d_ros.errors import CalibrationError, ErrorCode, KinemaError
from kinema4d_ros.files import read_yaml, write_yaml
from kinema4d_ros.kinematics.forward import forward_all
from kinema4d_ros.media import read_image, write_image
from kinema4d_ros.render import render_pointmaps
from kinema4d_ros.robot import Robot
from kinema4d_ros.transforms import from_rpy

__all__ = ["board", "check", "extrinsics", "intrinsics", "markerless", "page", "recon"]


def board(arguments: argparse.Namespace) -> int:
    """Draw a board to print."""
    pattern = parse_board(arguments.board)
    if not 30 <= arguments.dpi <= 2400:
        raise KinemaError(f"--dpi is {arguments.dpi}", expected="30 to 2400", code=ErrorCode.ARGUMENT_INVALID)
    pixels = max(8, round(pattern.square_m / 0.0254 * arguments.dpi))
    picture = pattern.picture(pixels)
    exact_dpi = pixels / (pattern.square_m / 0.0254)
    write_image(arguments.out, np.repeat(picture[..., None], 3, axis=2))
    left, top, right, bottom = pattern.picture_area
    print(f"{arguments.out}: {1e3 * (right - left):.1f} x {1e3 * (bottom - top):.1f} mm at {exact_dpi:.2f} dpi")
    print("print without scaling, measure a square, and give the measured size as SQUARE_M")
    return 0


def intrinsics(arguments: argparse.Namespace) -> int:
    """Focal length and lens from images of a board."""

    pattern = parse_board(arguments.board)
    if bool(arguments.topic) == bool(arguments.images):
        raise KinemaError(
            "images and --topic" if arguments.topic else "neither images nor --topic",
            expected="one of them",
            code=ErrorCode.ARGUMENT_INVALID,
        )
    images = [collect_from_topic(arguments, pattern)] if arguments.topic else arguments.images
    views, size, notes = find_boards(_bar(image_files(images), arguments), pattern)
    result = calibrate_intrinsics(list(views.values()), pattern, *size, distortion_model=arguments.model)
    K, quality = result.camera.K_opencv, result.quality
    numbers = {
        "fx": K[0, 0], "fy": K[1, 1], "cx": K[0, 2], "cy": K[1, 2], "sigma": result.sigma[:4].tolist(),
        "distortion": list(result.camera.distortion), "dropped": list(result.dropped), "without_board": len(notes),
    }  # fmt: skip
    if arguments.picture:
        write_image(arguments.picture, coverage_picture(result))
    text = f"fx {K[0, 0]:.2f} fy {K[1, 1]:.2f} cx {K[0, 2]:.2f} cy {K[1, 2]:.2f}, one sigma {result.sigma[0]:.2f} px"
    _report(arguments, quality, numbers, [*notes, text], "the intrinsics")
    write_camera_info(arguments.out, result.info(arguments.name))
    return 0


def extrinsics(arguments: argparse.Namespace) -> int:
    """The camera's pose from a board on the gripper or at a measured place."""

    pattern, robot, camera = parse_board(arguments.board), Robot.load(arguments.robot), _camera(arguments.camera)
    files = image_files(arguments.images)
    views, size, notes = find_boards(_bar(files, arguments), pattern)
    _require_size(size, camera)
    if arguments.table:
        place = from_rpy(arguments.table[3:], arguments.table[:3])
        result: PoseEstimate = calibrate_table_board(list(views.values()), place, pattern, camera)
    else:
        q = read_joints(_joints(arguments), robot, len(files))[list(views)]
        names = [link.name for link in robot.links]
        if arguments.link not in names:
            raise KinemaError(
                f"--link is '{arguments.link}'", expected=f"one of {', '.join(names)}", code=ErrorCode.UNKNOWN_LINK
            )
        arms = forward_all(robot, q)[:, names.index(arguments.link)]
        result = calibrate_hand_eye(list(views.values()), arms, pattern, camera)
    return _pose_result(arguments, result, camera, robot, notes)


def markerless(arguments: argparse.Namespace) -> int:
    """The camera's pose from masks of the robot."""

    robot, camera = Robot.load(arguments.robot), _camera(arguments.camera)
    files = image_files(arguments.masks)
    masks = read_masks(files)
    _require_size((masks.shape[2], masks.shape[1]), camera)
    q = read_joints(_joints(arguments), robot, len(files))
    guess = read_pose(arguments.guess).parent_T_child
    say = None if arguments.json else lambda line: print(line, flush=True)
    result = calibrate_markerless(robot, q, masks, camera, guess=guess, progress=say)
    if arguments.picture:
        _draw(arguments.picture, robot, q[0], camera.posed(result.base_T_camera), None, masks[0])
    return _pose_result(arguments, result, camera, robot, [])


def recon(arguments: argparse.Namespace) -> int:
    """A reconstructed mesh laid onto the robot."""

    robot = Robot.load(arguments.robot)
    q = robot.home_position() if arguments.joints is None else read_joints(arguments.joints, robot, 1)[0]
    surface = load_surface(arguments.mesh)
    result = align_reconstruction(surface, robot, q, *read_pairs(arguments.pairs), similarity=arguments.similarity)
    if arguments.picture:
        write_image(arguments.picture, reconstruction_picture(result, surface, robot_surface(robot, q)))
    numbers = {
        "recon_T_base": result.recon_T_base.tolist(), "base_T_recon": result.base_T_recon.tolist(),
        "scale": result.scale, "pairs_mm": result.pairs_mm, "within_5mm": result.share,
    }  # fmt: skip
    text = f"scale {result.scale:.5f}, pairs {result.pairs_mm:.1f} mm, {result.share:.0%} of the mesh within 5 mm"
    _report(arguments, result.quality, numbers, [text], "the alignment")
    write_yaml(arguments.out, {**numbers, "residual_mm": result.quality.mm})
    return 0


def check(arguments: argparse.Namespace) -> int:
    """The robot drawn over an image, with IoU and residual."""
    robot, camera = Robot.load(arguments.robot), read_camera(arguments.camera)
    q = robot.home_position() if arguments.joints is None else read_joints(arguments.joints, robot, 1)[0]
    image = read_image(arguments.image)
    _require_size((image.shape[1], image.shape[0]), camera)
    mask = None if arguments.mask is None else read_masks([arguments.mask])[0]
    numbers = _draw(arguments.out, robot, q, camera, image, mask)
    if arguments.json:
        print(json.dumps(numbers))
    else:
        print(f"{arguments.out}: " + ", ".join(f"{key} {value}" for key, value in numbers.items()))
    return 0


def page(arguments: argparse.Namespace) -> int:
    """The camera's pose by hand."""
    return calibrate_page.page(arguments, _camera(arguments.camera))


def _draw(
    path: Path, robot: Robot, q: Any, camera: PinholeCamera, image: Any | None, mask: Any | None
) -> dict[str, Any]:
    """Write the overlay; what it shows, in numbers."""

    pinhole = camera.rectified()
    drawn = render_pointmaps(robot, q[None], pinhole).mask[0]
    seen = None if mask is None else rectify_masks([mask], camera)[0][0]
    numbers: dict[str, Any] = {"robot_pixels": int(drawn.sum())}
    if mask is not None and seen is not None:
        drift = check_drift(robot, q[None], [mask], camera)
        numbers |= {
            "iou": round(mask_iou(drawn, seen), 4), "px": round(drift.px, 3), "verdict": drift.verdict,
            "shift_mm": round(drift.shift_mm, 2), "turn_deg": round(drift.turn_deg, 3),
        }  # fmt: skip
    background = np.full((*drawn.shape, 3), 245, np.uint8) if image is None else camera.rectify(image)
    text = f"IoU {numbers['iou']:.3f}, {numbers['px']:.2f} px" if mask is not None else ""
    write_image(path, outline_picture(background, seen, drawn, text))
    return numbers


def _pose_result(
    arguments: argparse.Namespace, result: PoseEstimate, camera: PinholeCamera, robot: Robot, notes: Sequence[str]
) -> int:
    if arguments.picture and arguments.way == "extrinsics":
        _draw(arguments.picture, robot, robot.home_position(), camera.posed(result.base_T_camera), None, None)
    x, y, z = result.base_T_camera[:3, 3]
    sigma = f"one sigma {result.sigma_mm:.2f} mm, {result.sigma_deg:.3f} degrees"
    text = f"{result.method}: camera at {x:.4f} {y:.4f} {z:.4f} m, {sigma}"
    numbers = {
        "base_T_camera": result.base_T_camera.tolist(), "sigma_mm": result.sigma_mm, "sigma_deg": result.sigma_deg,
        "covariance": result.covariance.tolist(), "degrees_of_freedom": result.degrees_of_freedom,
    }  # fmt: skip
    _report(arguments, result.quality, numbers, [*notes, text], "the extrinsics")
    pose = result.extrinsics(robot.base_link, camera.frame_id)
    save_camera(arguments.out, camera.posed(result.base_T_camera), pose)
    return 0


def _report(
    arguments: argparse.Namespace, quality: Quality, numbers: dict[str, Any], lines: Sequence[str], what: str
) -> None:
    """Print the result, then refuse it if the gate does."""
    if arguments.json:
        gate = {"px": quality.px, "mm": quality.mm, "mask_iou": quality.mask_iou, "poses": quality.poses}
        print(json.dumps({**numbers, **gate, "verdict": quality.verdict, "findings": list(quality.names)}))
    else:
        print("\n".join([*lines, *quality.lines()]))
    if not arguments.force:
        quality.require(what)


def _camera(path: Path) -> PinholeCamera:
    """Intrinsics of a CameraInfo file or of a camera file."""
    if "intrinsics" in read_yaml(path):
        return read_camera(path)
    return read_camera_info(path).camera(np.eye(4))


def _joints(arguments: argparse.Namespace) -> Path:
    if arguments.joints is None:
        raise KinemaError(
            "--joints is missing", expected="a file with one row for each image", code=ErrorCode.ARGUMENT_INVALID
        )
    return Path(arguments.joints)


def _require_size(size: tuple[int, int], camera: PinholeCamera) -> None:
    if size != (camera.width, camera.height):
        raise CalibrationError(
            f"the images are {size[0]} x {size[1]}",
            expected=f"{camera.width} x {camera.height}, as in the camera's file",
            code=ErrorCode.CAMERA_BAD_SIZE,
        )


def _bar(files: list[Path], arguments: argparse.Namespace) -> Any:
    return tqdm(files, desc="images", unit="image", disable=arguments.json or len(files) < 4)
