"""The subcommands of `kinema4d calibrate`: read files or a topic, estimate, write the result and its image."""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from kinema4d_ros.calibration import read_pose, write_camera_info
from kinema4d_ros.calibration.boards import Board, BoardView, parse_board
from kinema4d_ros.calibration.collect import ViewCollector, coverage_map
from kinema4d_ros.calibration.handeye import calibrate_hand_eye
from kinema4d_ros.calibration.inputs import find_boards, image_files, marked_masks, read_joints, read_masks, read_pairs
from kinema4d_ros.calibration.intrinsics import calibrate_intrinsics
from kinema4d_ros.calibration.markerless import calibrate_markerless
from kinema4d_ros.calibration.pictures import (
    BoardSeen,
    board_picture,
    coverage_picture,
    outline_picture,
    reconstruction_picture,
    telling_views,
)
from kinema4d_ros.calibration.pose_estimate import PoseEstimate
from kinema4d_ros.calibration.recon import align_reconstruction
from kinema4d_ros.calibration.silhouette import Masks, Silhouettes
from kinema4d_ros.calibration.surfaces import load_surface, robot_surface
from kinema4d_ros.calibration.table_board import calibrate_table_board
from kinema4d_ros.cli import calibrate_page
from kinema4d_ros.cli.calibrate_check import (
    camera_of,
    check,
    compare,
    joints_of,
    pose_result,
    report,
    require_size,
    with_overlap,
)
from kinema4d_ros.cli.options import joint_options
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import CalibrationError, CameraError, ErrorCode, KinemaError, SetupError
from kinema4d_ros.core.transforms import from_rpy, invert
from kinema4d_ros.io.files import write_yaml
from kinema4d_ros.io.images import read_image, strip, write_image
from kinema4d_ros.kinematics.forward import forward_all
from kinema4d_ros.robot import Robot

__all__ = ["board", "check", "collect_from_topic", "compare", "extrinsics", "intrinsics", "markerless", "page", "recon"]

FIRST_S = 15.0
"""Timeout for the first image."""

POLL_S = 0.02


def collect_from_topic(arguments: argparse.Namespace, board: Board) -> Path:
    """Collect images of the board from a camera topic into a folder, and return it; each image is saved at once.

    Images of an earlier run in the folder count too. Ends with `--count` images, after `--seconds`, or with Ctrl-C.
    """
    if arguments.count < 4 or not arguments.seconds >= 0:
        raise KinemaError(
            f"--count is {arguments.count}, --seconds is {arguments.seconds}",
            expected="4 images or more, 0 seconds (no limit) or more",
            code=ErrorCode.ARGUMENT_INVALID,
        )
    folder = Path(arguments.keep or f"{Path(arguments.out).with_suffix('')}_images")
    folder.mkdir(parents=True, exist_ok=True)
    collector = ViewCollector(board)
    if any(folder.iterdir()):
        for file in image_files([folder]):
            collector.offer(read_image(file), file.name)
    # Ctrl-C ends the collection, not the command.
    with contextlib.suppress(KeyboardInterrupt):
        _collect(arguments, collector, folder)
    if not arguments.json:
        print(f"\n{len(collector.views)} images in {folder}; {collector.share:.0%} of the image has seen the board:")
        print(coverage_map(collector.coverage))
    return folder


def _collect(arguments: argparse.Namespace, collector: ViewCollector, folder: Path) -> None:
    try:
        from kinema4d_ros.ros import names
        from kinema4d_ros.ros.client import PreviewClient
        from kinema4d_ros.ros.messages.images import rgb_from_image
    except ImportError as error:
        raise SetupError(f"--topic needs ROS 2: {error}", expected="rclpy", hint="kinema4d doctor") from None
    endpoint = replace(names.CAMERA_IMAGE, name=arguments.topic)
    with (
        PreviewClient() as graph,
        tqdm(total=arguments.count, unit="image", disable=arguments.json, desc=arguments.topic) as bar,
    ):
        graph.listen(endpoint)
        bar.update(len(collector.views))
        started = time.monotonic()
        last: Any = None
        while len(collector.views) < arguments.count:
            now = time.monotonic()
            if 0 < arguments.seconds < now - started:
                return
            message = graph.newest(endpoint)
            if message is None and now - started > FIRST_S:
                raise CameraError(
                    f"no image received on {arguments.topic}",
                    expected=f"an image within {FIRST_S:g} s",
                    hint="check with `ros2 topic hz` that the camera driver runs in this ROS domain",
                    code=ErrorCode.CAMERA_STALE,
                )
            if message is None or message is last:
                time.sleep(POLL_S)
                continue
            last = message
            image = rgb_from_image(message)
            offer = collector.offer(image, _next(folder).name)
            if offer.word == "kept":
                write_image(_next(folder), image)
                bar.update(1)
            bar.set_postfix_str(f"coverage {collector.share:.0%}, {offer.text}")


def _next(folder: Path) -> Path:
    """Return an unused image path in the folder."""
    number = len(list(folder.iterdir()))
    while (folder / f"view_{number:03d}.png").exists():
        number += 1
    return folder / f"view_{number:03d}.png"


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
    print("print without scaling, measure a square, and pass the measured size as SQUARE_M")
    return 0


def intrinsics(arguments: argparse.Namespace) -> int:
    """Estimate focal length and distortion from images of a board."""

    pattern = parse_board(arguments.board)
    if bool(arguments.topic) == bool(arguments.images):
        raise KinemaError(
            "both images and --topic are given" if arguments.topic else "neither images nor --topic is given",
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
    report(arguments, quality, numbers, [*notes, text], "the intrinsics")
    write_camera_info(arguments.out, result.info(arguments.name))
    return 0


def extrinsics(arguments: argparse.Namespace) -> int:
    """Estimate the camera's pose from a board on the gripper or at a measured pose."""

    pattern, robot, camera = parse_board(arguments.board), Robot.load(arguments.robot), camera_of(arguments.camera)
    files = image_files(arguments.images)
    masks = [] if arguments.masks is None else _masks_for(arguments.masks, files)
    views, size, notes = find_boards(_bar(files, arguments), pattern)
    require_size(size, camera)
    q = None
    if masks or not arguments.table:
        q = read_joints(joints_of(arguments), robot, len(files), **joint_options(arguments))
    if arguments.table or q is None:
        place = from_rpy(arguments.table[3:], arguments.table[:3])
        tolerance = arguments.size_tolerance / 100
        result: PoseEstimate = calibrate_table_board(list(views.values()), place, pattern, camera, size_sigma=tolerance)
        base_T_boards = np.tile(place, (len(views), 1, 1))
    else:
        names = [link.name for link in robot.links]
        if arguments.link not in names:
            raise KinemaError(
                f"--link is '{arguments.link}'", expected=f"one of {', '.join(names)}", code=ErrorCode.UNKNOWN_LINK
            )
        arms = forward_all(robot, q[list(views)])[:, names.index(arguments.link)]
        hand_eye = calibrate_hand_eye(list(views.values()), arms, pattern, camera)
        result, base_T_boards = hand_eye, arms @ hand_eye.gripper_T_board
    if masks:
        result = with_overlap(result, robot, q, masks, camera)
    if arguments.picture:
        _draw_boards(arguments.picture, files, views, result, base_T_boards, pattern, camera)
    return pose_result(arguments, result, camera, robot, notes)


def markerless(arguments: argparse.Namespace) -> int:
    """Estimate the camera's pose from masks of the robot."""

    robot, camera = Robot.load(arguments.robot), camera_of(arguments.camera)
    files = image_files(arguments.masks)
    masks = read_masks(files)
    require_size((masks.shape[2], masks.shape[1]), camera)
    q = read_joints(joints_of(arguments), robot, len(files), **joint_options(arguments))
    guess = read_pose(arguments.guess).parent_T_child
    say = None if arguments.json else lambda line: print(line, flush=True)
    names = [file.name for file in files]
    drawn, doubtful = marked_masks(files, "drawn"), marked_masks(files, "doubtful")
    result = calibrate_markerless(
        robot, q, masks, camera, guess=guess, names=names, drawn=drawn, doubtful=doubtful, progress=say
    )
    if arguments.picture:
        seen = [i for i in range(len(files)) if i not in drawn]
        _draw_outlines(arguments.picture, Silhouettes(robot, q[seen], masks[seen], camera), result)
    return pose_result(arguments, result, camera, robot, [])


def recon(arguments: argparse.Namespace) -> int:
    """Align a reconstructed mesh with the robot."""

    robot = Robot.load(arguments.robot)
    q = robot.home_position() if arguments.joints is None else read_joints(arguments.joints, robot, 1)[0]
    surface = load_surface(arguments.mesh)
    pairs = (None, None) if arguments.pairs is None else read_pairs(arguments.pairs)
    result = align_reconstruction(surface, robot, q, *pairs, similarity=arguments.similarity, engine=arguments.engine)
    if arguments.picture:
        write_image(arguments.picture, reconstruction_picture(result, surface, robot_surface(robot, q)))
    numbers = {
        "recon_T_base": result.recon_T_base.tolist(), "base_T_recon": result.base_T_recon.tolist(),
        "scale": result.scale, "pairs_mm": result.pairs_mm, "within_5mm": result.share,
        "engine": result.engine.name, "engine_note": result.engine.note,
    }  # fmt: skip
    start = "global search" if result.pairs_mm is None else f"pairs {result.pairs_mm:.1f} mm"
    text = f"scale {result.scale:.5f}, {start}, {result.share:.0%} of the mesh within 5 mm"
    report(arguments, result.quality, numbers, [text, f"refined by {result.engine.text}"], "the alignment")
    write_yaml(arguments.out, {**numbers, "residual_mm": result.quality.mm})
    return 0


def page(arguments: argparse.Namespace) -> int:
    """Serve the page that sets the camera's pose by hand."""
    return calibrate_page.page(arguments, camera_of(arguments.camera))


def _draw_boards(
    path: Path,
    files: Sequence[Path],
    views: Mapping[int, BoardView],
    result: PoseEstimate,
    base_T_boards: Any,
    pattern: Board,
    camera: PinholeCamera,
) -> None:
    """Draw the worst, a middle and the best image with detected and projected corners."""
    at = list(views)
    camera_T_base = invert(result.base_T_camera)
    seen = [
        BoardSeen(read_image(files[at[i]]), views[at[i]], camera_T_base @ base_T_boards[i])
        for i in telling_views([px for _, px in result.quality.views])
    ]
    write_image(path, board_picture(seen, pattern, camera))


def _draw_outlines(path: Path, silhouettes: Silhouettes, result: PoseEstimate) -> None:
    """Draw the worst, a middle and the best mask with observed and rendered outlines."""
    chosen = telling_views([px for _, px in result.quality.views])
    drawn = silhouettes.draw(result.base_T_camera).mask
    tiles = [outline_picture(_grey(silhouettes.mask[i]), silhouettes.mask[i], drawn[i]) for i in chosen]
    write_image(
        path, strip(tiles, len(tiles), [f"{n}: {px:.2f} px" for n, px in (result.quality.views[i] for i in chosen)])
    )


def _grey(mask: Masks) -> Any:
    return np.where(mask[..., None], np.full(3, 205, np.uint8), np.full(3, 245, np.uint8))


def _masks_for(folder: Path, images: Sequence[Path]) -> list[Path]:
    masks = image_files([folder])
    if len(masks) != len(images):
        raise CalibrationError(f"{folder} has {len(masks)} masks for {len(images)} images", expected="one for each")
    return masks


def _bar(files: list[Path], arguments: argparse.Namespace) -> Any:
    return tqdm(files, desc="images", unit="image", disable=arguments.json or len(files) < 4)
