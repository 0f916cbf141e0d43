"""Implementation of `kinema4d segment`: read images, segment them, write masks and a contact sheet."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from kinema4d_ros.calibration import read_camera
from kinema4d_ros.calibration.inputs import SEGMENTATION_REPORT as _REPORT
from kinema4d_ros.calibration.inputs import image_files, read_joints
from kinema4d_ros.cli.options import joint_options
from kinema4d_ros.core.errors import ErrorCode, KinemaError
from kinema4d_ros.io.files import replacing_folder
from kinema4d_ros.io.images import read_image, strip, write_image
from kinema4d_ros.robot import Robot
from kinema4d_ros.segmentation import Prompt, RenderedSegmenter, RobotSegmenter, best_method, make_segmenter
from kinema4d_ros.segmentation.protocol import Segmentation, as_stack

__all__ = ["contact_sheet", "run"]

_ROBOT = np.array([52, 168, 83], np.float32)
_MOST = 24


def contact_sheet(
    images: NDArray[np.uint8], found: Segmentation, *, width: int = 360, columns: int = 4
) -> NDArray[np.uint8]:
    """Draw masks over their images for a visual check: (h, w, 3) uint8 RGB.

    The robot is tinted green, the rest darker, the score in the corner; at most 24 images, evenly spaced.

    Args:
        images: (H, W, 3) or (T, H, W, 3) uint8 RGB, the segmented images.
        found: their masks.
        width: of a tile, pixels.
        columns: of the sheet.
    """
    stack = as_stack(images)
    masks = found.masks[None] if found.masks.ndim == 2 else found.masks
    shown = np.unique(np.linspace(0, len(stack) - 1, min(_MOST, len(stack))).round().astype(int))
    height = max(1, round(width * stack.shape[1] / stack.shape[2]))
    tiles, labels = [], []
    for i in shown:
        tinted = np.where(masks[i][..., None], 0.5 * stack[i] + 0.5 * _ROBOT, 0.55 * stack[i])
        tiles.append(cv2.resize(tinted.astype(np.uint8), (width, height), interpolation=cv2.INTER_AREA))
        labels.append(f"{i}: {found.scores[i]:.2f}" if masks[i].any() else f"{i}: no robot")
    return strip(tiles, columns, labels)


_VIDEOS = (".mp4", ".mkv", ".avi", ".mov", ".webm", ".m4v")


def run(arguments: argparse.Namespace) -> int:
    """Segment and write; exit code 1 when no image shows a robot, otherwise 0."""
    names, images = _read(arguments)
    rendered = _rendered(arguments, len(images))
    prompt = _prompt(arguments, rendered)
    background = None if arguments.background is None else read_image(arguments.background)
    method = arguments.method
    if method == "auto":
        method = best_method(
            weights=arguments.weights,
            pictures=len(images),
            background=background is not None or bool(arguments.box or arguments.points),
            rendered=rendered is not None,
        )
    segmenter = _segmenter(method, arguments, rendered, background)
    with tqdm(total=len(images), desc=method, unit="image", disable=None) as bar:

        def count(done: int, _: int) -> None:
            bar.update(done - bar.n)

        found = segmenter.segment(images, prompt, progress=count)
    with replacing_folder(arguments.out, lambda folder: (folder / _REPORT).is_file()) as folder:
        (folder / "masks").mkdir()
        for name, mask in zip(names, found.masks, strict=True):
            picture = np.repeat(mask[..., None].astype(np.uint8) * 255, 3, axis=2)
            write_image(folder / "masks" / f"{name}.png", picture)
        write_image(folder / "overlay.png", contact_sheet(images, found))
        report = {
            "method": found.method,
            "notes": list(found.notes),
            "drawn": [names[i] for i in found.drawn],
            "doubtful": [names[i] for i in found.doubtful],
            "scores": {name: round(float(score), 4) for name, score in zip(names, found.scores, strict=True)},
        }
        (folder / _REPORT).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    for note in found.notes:
        print(f"note: {note}")
    print(f"{arguments.out}: {len(names)} masks by {found.method}, mean score {found.scores.mean():.3f}")
    return 1 if len(found.empty) == len(names) else 0


def _read(arguments: argparse.Namespace) -> tuple[list[str], NDArray[np.uint8]]:
    """Read the images (T, H, W, 3) uint8 RGB, with the names of the masks to write."""
    if arguments.every < 1:
        raise _bad(f"--every is {arguments.every}", "1 or more")
    paths: list[Path] = arguments.images
    if len(paths) == 1 and paths[0].suffix.lower() in _VIDEOS:
        from kinema4d_model.data.importers.video import read_video

        frames = read_video(paths[0])[0][:: arguments.every]
        return [f"{i * arguments.every:05d}" for i in range(len(frames))], np.stack(frames)
    files = image_files(paths)[:: arguments.every]
    images = [read_image(file) for file in files]
    for file, image in zip(files, images, strict=True):
        if image.shape != images[0].shape:
            raise KinemaError(
                f"{file} is {image.shape[1]} x {image.shape[0]}",
                expected=f"{images[0].shape[1]} x {images[0].shape[0]}, as {files[0]}",
                code=ErrorCode.CAMERA_BAD_SIZE,
            )
    names = [file.stem for file in files]
    if len(set(names)) < len(names):
        names = [f"{i:05d}" for i in range(len(files))]
    return names, np.stack(images)


def _rendered(arguments: argparse.Namespace, count: int) -> RenderedSegmenter | None:
    if arguments.camera is None or arguments.joints is None:
        if arguments.camera is not None or arguments.joints is not None or arguments.method == "rendered":
            raise _bad("--camera or --joints is missing", "both, to render the robot")
        return None
    robot, camera = Robot.load(arguments.robot), read_camera(arguments.camera)
    options = joint_options(arguments)
    try:
        q = read_joints(arguments.joints, robot, 1, **options)
    except KinemaError:
        q = read_joints(arguments.joints, robot, count, **options)
    return RenderedSegmenter(robot, camera, q)


def _prompt(arguments: argparse.Namespace, rendered: RenderedSegmenter | None) -> Prompt | None:
    clicks = _numbers(arguments.points, "--points", (2, 3))
    prompt = Prompt(
        text=arguments.text,
        points=[click[:2] for click in clicks],
        labels=[click[2] if len(click) == 3 else 1 for click in clicks],
        boxes=_numbers(arguments.box, "--box", (4,)),
        mask=None if rendered is None else rendered.prompt.mask,
        frame=arguments.frame,
    )
    return None if prompt.is_empty else prompt


def _segmenter(
    method: str,
    arguments: argparse.Namespace,
    rendered: RenderedSegmenter | None,
    background: NDArray[np.uint8] | None,
) -> RobotSegmenter:
    if method == "rendered" and rendered is not None:
        return rendered
    if method == "sam2":
        if arguments.weights is None:
            raise _bad("SAM 2 needs --weights", "a folder with its checkpoint")
        return make_segmenter("sam2", weights=arguments.weights, detector=arguments.detector, device=arguments.device)
    return make_segmenter("classical", background=background, margin_px=arguments.margin)


def _numbers(texts: Sequence[str], name: str, lengths: tuple[int, ...]) -> list[list[float]]:
    rows = []
    for text in texts:
        try:
            row = [float(part) for part in text.split(",")]
        except ValueError:
            row = []
        if len(row) not in lengths:
            raise _bad(f"{name} has '{text}'", f"{' or '.join(map(str, lengths))} numbers separated by commas")
        rows.append(row)
    return rows


def _bad(what: str, expected: str) -> KinemaError:
    return KinemaError(what, expected=expected, code=ErrorCode.ARGUMENT_INVALID)
