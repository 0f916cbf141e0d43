"""Recordings of RLDS datasets (DROID, Bridge, RT-1): an optional extra, for it needs tensorflow_datasets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from typing import Any

import numpy as np

from kinema4d_model.data.errors import DataError
from kinema4d_model.data.importers.recording import Recording
from kinema4d_ros.camera import PinholeCamera
from kinema4d_ros.errors import SetupError
from kinema4d_ros.robot import Robot
from kinema4d_ros.trajectory import JointTrajectory

__all__ = ["RATES_HZ", "rlds_recordings", "steps_recording"]

RATES_HZ = {"droid": 15.0, "bridge": 5.0, "fractal20220817_data": 3.0}
"""Frames a second of the common ones; others must say."""
_IMAGES = ("exterior_image_1_left", "image_0", "image", "agentview_rgb")
_JOINTS = ("joint_position", "state", "robot_joints")


def rlds_recordings(
    folder: str, *, rate_hz: float, robot: tuple[str, Robot] | None = None, camera: PinholeCamera | None = None
) -> Iterator[Recording]:
    """The episodes of a built RLDS folder.

    Raises:
        SetupError: tensorflow_datasets is not installed.
    """
    try:
        tfds = import_module("tensorflow_datasets")
    except ImportError as error:
        raise SetupError(
            "reading RLDS needs tensorflow_datasets, which is not installed",
            expected="the packages tensorflow-datasets and tensorflow (about 2 GB)",
            hint="pip install tensorflow tensorflow-datasets, or convert to LeRobot first",
        ) from error
    builder = tfds.builder_from_directory(folder)
    for number, episode in enumerate(tfds.as_numpy(builder.as_dataset(split="train"))):
        yield steps_recording(episode["steps"], f"{builder.name}-{number:06d}", rate_hz, robot, camera)


def steps_recording(
    steps: Iterable[Mapping[str, Any]],
    key: str,
    rate_hz: float,
    robot: tuple[str, Robot] | None = None,
    camera: PinholeCamera | None = None,
) -> Recording:
    """The recording of RLDS steps: dictionaries with `observation`, `action` and perhaps `language_instruction`."""
    images, joints, words = [], [], ""
    for step in steps:
        seen = step["observation"]
        view = next((name for name in _IMAGES if name in seen), None)
        if view is None:
            raise DataError(f"{key}: observation has {', '.join(seen)}", expected=f"one of {', '.join(_IMAGES)}")
        images.append(np.asarray(seen[view], np.uint8))
        held = next((name for name in _JOINTS if name in seen), None)
        if held is not None:
            joints.append(np.asarray(seen[held], np.float64).ravel())
        text = step.get("language_instruction", b"") or seen.get("natural_language_instruction", b"")
        words = text.decode(errors="replace") if isinstance(text, bytes) else str(text)
    if not images:
        raise DataError(f"{key} has no steps", expected="at least one")
    track = None
    if robot is not None and joints and all(len(row) == len(robot[1].joint_names) for row in joints):
        track = JointTrajectory.from_positions(robot[1].joint_names, np.stack(joints), rate_hz=rate_hz)
    return Recording(
        key=key,
        images=images,
        image_times=np.arange(len(images)) / rate_hz,
        source="rlds",
        joints=track,
        camera=camera,
        robot=robot if track is not None else None,
        task=words or "unknown",
        instruction=words,
    )
