"""Episodes of the official Robo4D-200k folder layout; fields that it does not store are listed in `missing`.

    videos/N.mp4         colour                  mask_videos/N.mp4    the robot alone, black elsewhere
    pointmap/N.mp4       normalised x, y, z      mask_pointmap/N.mp4  the same of the robot
    first_frames/N.png   first image             train_shuffled.txt   the N used for training
                                                 train_img_shuffled.txt   their first images, same N line by line

Pointmaps are 8-bit and their bounds are not stored, so they are not metric and stay normalised images.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from kinema4d_model.data.episode import Episode, Outcome, StoredCondition, versions
from kinema4d_model.data.importers.recording import Missing, stand_in_camera
from kinema4d_model.data.importers.video import read_video
from kinema4d_ros.core.errors import DataError, ErrorCode
from kinema4d_ros.io.files import read_bytes

__all__ = ["MISSING", "read_robo4d", "robo4d_numbers"]

MISSING = ("actions", "bounds", "camera", "depth", "ids", "joints", "outcome", "robot", "task", "times")
_ROBOT_LEVEL = 16
"""A pixel brighter than this in any channel is robot: video compression turns black slightly grey."""
_RATE_HZ = 10.0
_MAX_LIST_BYTES = 64 * 2**20


def robo4d_numbers(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield (N, split) of the episodes: "train" if listed, else "val"; all "train" without a list.

    Raises:
        DataError: there are no videos, or the two lists disagree.
    """
    videos = sorted((folder / "videos").glob("*.mp4"))
    if not videos:
        raise DataError(f"{folder} has no videos/*.mp4", expected="the Robo4D-200k layout", code=ErrorCode.FILE_MISSING)
    train = _listed(folder)
    for number in sorted({video.stem for video in videos} | (train or set())):
        yield number, "train" if train is None or number in train else "val"


def _listed(folder: Path) -> set[str] | None:
    """Return the N of both lists, which must agree; None without a list."""
    lists = {}
    for file in (folder / "train_shuffled.txt", folder / "train_img_shuffled.txt"):
        if file.is_file():
            lines = read_bytes(file, _MAX_LIST_BYTES).decode(errors="replace").splitlines()
            lists[file.name] = [Path(line.strip().split(",")[0]).stem for line in lines if line.strip()]
    if not lists:
        return None
    (first_name, first), *others = lists.items()
    for name, numbers in others:
        if numbers != first:
            at = next((i for i, (a, b) in enumerate(zip(first, numbers, strict=False)) if a != b), None)
            at = min(len(first), len(numbers)) if at is None else at
            raise DataError(
                f"{folder}: {first_name} and {name} disagree in line {at + 1}",
                expected="the same episodes in the same order",
                hint="one of the two belongs to another version of the dataset",
            )
    return set(first)


def read_robo4d(folder: Path, number: str, *, frames: int, width: int, height: int) -> Episode:
    """Read one episode with `frames` frames of the given size, uniform in time.

    Raises:
        Missing: it is listed but has no video.
    """
    if not (folder / "videos" / f"{number}.mp4").is_file():
        raise Missing(f"{number} is listed, but videos/{number}.mp4 does not exist", expected="its video")
    rgb, count = _video(folder / "videos" / f"{number}.mp4", frames, width, height, cv2.INTER_AREA)
    pointmap, _ = _video(folder / "pointmap" / f"{number}.mp4", frames, width, height, cv2.INTER_NEAREST)
    robot, _ = _video(folder / "mask_videos" / f"{number}.mp4", frames, width, height, cv2.INTER_NEAREST)
    robot_map, _ = _video(folder / "mask_pointmap" / f"{number}.mp4", frames, width, height, cv2.INTER_NEAREST)
    mask = (robot.max(axis=-1) > _ROBOT_LEVEL).astype(np.uint8)
    robot, robot_map = robot * mask[..., None], robot_map * mask[..., None]
    return Episode(
        key=f"robo4d-{number}",
        rgb=rgb,
        depth_m=None,
        ids=None,
        names=("robot",),
        link_count=1,
        times=np.arange(frames) / _RATE_HZ,
        camera=stand_in_camera(width, height),
        robot="",
        joint_names=(),
        joints=None,
        actions=None,
        condition_ids=mask,
        bounds=None,
        known_bounds=None,
        task="unknown",
        outcome=Outcome(None),
        source="robo4d-200k",
        condition=StoredCondition(robot, None, robot_map),
        versions=versions(),
        details={"number": number, "source_frames": count},
        missing=MISSING,
        pointmap01=pointmap,
    )


def _video(path: Path, frames: int, width: int, height: int, how: int) -> tuple[NDArray[np.uint8], int]:
    pictures, _ = read_video(path)
    chosen = np.linspace(0, len(pictures) - 1, frames).round().astype(int)
    return np.stack([cv2.resize(pictures[i], (width, height), interpolation=how) for i in chosen]), len(pictures)
