"""Readers of calibration input: images, masks, joint positions and point pairs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.calibration.boards import Board, BoardView
from kinema4d_ros.core.errors import CalibrationError, ErrorCode, FileFormatError
from kinema4d_ros.io.files import read_json, read_yaml
from kinema4d_ros.io.images import read_image
from kinema4d_ros.io.trajectories import read_trajectory
from kinema4d_ros.robot.model import Robot

__all__ = [
    "SEGMENTATION_REPORT",
    "find_boards",
    "image_files",
    "marked_masks",
    "read_joints",
    "read_masks",
    "read_pairs",
    "read_seen_masks",
]

SEGMENTATION_REPORT = "segmentation.json"
"""Report that `kinema4d segment` writes next to its folder of masks."""

_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff")


def image_files(paths: Sequence[str | Path]) -> list[Path]:
    """List image files from paths of files and folders, folder contents sorted by name; at least one."""
    found: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            found += sorted(p for p in path.iterdir() if p.suffix.lower() in _SUFFIXES)
        elif path.is_file():
            found.append(path)
        else:
            raise FileFormatError(
                f"{path} does not exist", expected="images or a folder of them", code=ErrorCode.FILE_MISSING
            )
    if not found:
        raise FileFormatError(
            f"no image in {', '.join(map(str, paths))}", expected=", ".join(_SUFFIXES), code=ErrorCode.FILE_MISSING
        )
    return found


def find_boards(files: Sequence[Path], board: Board) -> tuple[dict[int, BoardView], tuple[int, int], list[str]]:
    """Find the board in all images: views by file index, image size (width, height), and an error per failed image."""
    views: dict[int, BoardView] = {}
    notes: list[str] = []
    size: tuple[int, int] | None = None
    for i, file in enumerate(files):
        image = read_image(file)
        here = (image.shape[1], image.shape[0])
        if size is not None and here != size:
            raise CalibrationError(
                f"{file} is {here[0]} x {here[1]}, the previous images are {size[0]} x {size[1]}",
                expected="images of one camera at one size",
                code=ErrorCode.CAMERA_BAD_SIZE,
            )
        size = here
        try:
            views[i] = board.find(image, file.name)
        except CalibrationError as error:
            if "mirrored_board" in error.what:
                raise
            notes.append(str(error))
    if not views or size is None:
        raise CalibrationError(f"no image shows the board: {notes[0]}", expected=f"images of {board.text}")
    return views, size, notes


def read_masks(files: Sequence[Path]) -> NDArray[np.bool_]:
    """Read (C, H, W) bool masks from images: True where any channel is above 127."""
    masks = []
    for file in files:
        image = read_image(file)
        masks.append(np.asarray(image.max(axis=2) > 127))
        if masks[-1].shape != masks[0].shape:
            raise CalibrationError(
                f"{file} has shape {masks[-1].shape}, the previous masks have {masks[0].shape}",
                expected="masks of one size",
            )
    return np.stack(masks)


def read_seen_masks(files: Sequence[Path]) -> NDArray[np.bool_]:
    """Read masks like `read_masks`, but reject rendered ones: they only reproduce the camera pose they came from."""
    if drawn := marked_masks(files, "drawn"):
        raise CalibrationError(
            f"{len(drawn)} of {len(files)} masks are rendered, the first is {files[drawn[0]]}",
            expected="masks segmented from camera images",
            hint="omit the masks, or segment again with --background, SAM 2 or by hand",
        )
    return read_masks(files)


def marked_masks(files: Sequence[Path], mark: str) -> list[int]:
    """List indices of mask files that `kinema4d segment` marked "drawn" or "doubtful"; empty without its report."""
    marked = []
    for i, file in enumerate(files):
        report = file.parent.parent / SEGMENTATION_REPORT
        if not report.is_file():
            continue
        document = read_json(report)
        names = document.get(mark) if isinstance(document, dict) else None
        if isinstance(names, list) and file.stem in names:
            marked.append(i)
    return marked


def read_joints(path: str | Path, robot: Robot, count: int, **options: Any) -> NDArray[np.float64]:
    """Read (count, J) joint positions from a trajectory file: one row per image, in the order of the image names.

    `options` are passed to `read_trajectory`.
    """
    trajectory = read_trajectory(path, robot, **options)
    positions = trajectory.for_robot(robot)
    if len(positions) != count:
        raise CalibrationError(
            f"{path} has {len(positions)} rows for {count} images",
            expected="one row per image, in the order of the image names",
        )
    return positions


def read_pairs(path: str | Path) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Read picked point pairs from a YAML file: lists `recon` and `base` of [x, y, z], the latter in metres."""
    document = read_yaml(path)
    points = []
    for key in ("recon", "base"):
        try:
            array = np.array(document.get(key), dtype=np.float64)
        except (TypeError, ValueError, OverflowError):
            array = np.empty(0)
        if array.ndim != 2 or array.shape[1] != 3 or not np.isfinite(array).all():
            raise CalibrationError(
                f"'{key}' of {path} is not a list of points", expected="lines such as - [0.1, 0.2, 0.3]"
            )
        points.append(array)
    return points[0], points[1]
