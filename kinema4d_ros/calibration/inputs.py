"""Files that a calibration starts from: series of images, masks and joint positions that belong together."""

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
"""What `kinema4d segment` writes beside its folder of masks."""

_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff")


def image_files(paths: Sequence[str | Path]) -> list[Path]:
    """The pictures among files and in folders, folders by name; at least one."""
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
    """Views by position of their file, the images' (width, height), and a line for each image without the board."""
    views: dict[int, BoardView] = {}
    notes: list[str] = []
    size: tuple[int, int] | None = None
    for i, file in enumerate(files):
        image = read_image(file)
        here = (image.shape[1], image.shape[0])
        if size is not None and here != size:
            raise CalibrationError(
                f"{file} is {here[0]} x {here[1]}, the images before it are {size[0]} x {size[1]}",
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
    """(C, H, W) bool of pictures whose robot is bright and whose rest is black."""
    masks = []
    for file in files:
        image = read_image(file)
        masks.append(np.asarray(image.max(axis=2) > 127))
        if masks[-1].shape != masks[0].shape:
            raise CalibrationError(
                f"{file} is of shape {masks[-1].shape}, the masks before it of {masks[0].shape}", expected="one size"
            )
    return np.stack(masks)


def read_seen_masks(files: Sequence[Path]) -> NDArray[np.bool_]:
    """Like `read_masks`, of what the camera saw: a mask that was drawn only confirms the camera that drew it."""
    if drawn := marked_masks(files, "drawn"):
        raise CalibrationError(
            f"{len(drawn)} of {len(files)} masks are the drawn robot, {files[drawn[0]]} first",
            expected="masks of what the camera saw",
            hint="leave the masks out, or segment again with --background, SAM 2 or by hand",
        )
    return read_masks(files)


def marked_masks(files: Sequence[Path], mark: str) -> list[int]:
    """Which of the mask files `kinema4d segment` marked, as "drawn" or "doubtful"; none without its report."""
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
    """(count, J) joint positions from a trajectory file: one row for each image, in the order of the images' names.

    `options` are those of `read_trajectory`.
    """
    trajectory = read_trajectory(path, robot, **options)
    positions = trajectory.for_robot(robot)
    if len(positions) != count:
        raise CalibrationError(
            f"{path} has {len(positions)} rows for {count} images",
            expected="one row for each image, in the order of the images' names",
        )
    return positions


def read_pairs(path: str | Path) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Picked pairs of a YAML file: lists `recon` and `base` of [x, y, z], the latter in metres."""
    document = read_yaml(path)
    points = []
    for key in ("recon", "base"):
        try:
            array = np.array(document.get(key), dtype=np.float64)
        except (TypeError, ValueError, OverflowError):
            array = np.empty(0)
        if array.ndim != 2 or array.shape[1] != 3 or not np.isfinite(array).all():
            raise CalibrationError(
                f"'{key}' of {path} is no list of points", expected="lines such as - [0.1, 0.2, 0.3]"
            )
        points.append(array)
    return points[0], points[1]
