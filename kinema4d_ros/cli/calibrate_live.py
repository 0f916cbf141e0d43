"""Pictures for `kinema4d calibrate intrinsics --topic`: collected from a camera's topic, each on disk at once."""

from __future__ import annotations

import argparse
import contextlib
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from kinema4d_ros.calibration.boards import Board
from kinema4d_ros.calibration.collect import ViewCollector, coverage_map
from kinema4d_ros.calibration.inputs import image_files
from kinema4d_ros.core.errors import CameraError, ErrorCode, KinemaError, SetupError
from kinema4d_ros.io.images import read_image, write_image

__all__ = ["collect_from_topic"]

FIRST_S = 15.0
"""How long to wait for the first picture."""

POLL_S = 0.02


def collect_from_topic(arguments: argparse.Namespace, board: Board) -> Path:
    """The folder of the pictures that were kept; those of an earlier run count too.

    Ends when there are `--count` pictures, after `--seconds`, or with Ctrl-C.
    """
    if arguments.count < 4 or not arguments.seconds >= 0:
        raise KinemaError(
            f"--count is {arguments.count}, --seconds is {arguments.seconds}",
            expected="4 pictures or more, 0 seconds (no limit) or more",
            code=ErrorCode.ARGUMENT_INVALID,
        )
    folder = Path(arguments.keep or f"{Path(arguments.out).with_suffix('')}_images")
    folder.mkdir(parents=True, exist_ok=True)
    collector = ViewCollector(board)
    if any(folder.iterdir()):
        for file in image_files([folder]):
            collector.offer(read_image(file), file.name)
    # With Ctrl-C the person says that it is enough.
    with contextlib.suppress(KeyboardInterrupt):
        _collect(arguments, collector, folder)
    if not arguments.json:
        print(f"\n{len(collector.views)} pictures in {folder}; {collector.share:.0%} of the image has seen the board:")
        print(coverage_map(collector.coverage))
    return folder


def _collect(arguments: argparse.Namespace, collector: ViewCollector, folder: Path) -> None:
    try:
        from kinema4d_ros.bridge import names
        from kinema4d_ros.bridge.client import PreviewClient
        from kinema4d_ros.bridge.images import rgb_from_image
    except ImportError as error:
        raise SetupError(f"--topic needs ROS 2: {error}", expected="rclpy", hint="kinema4d doctor") from None
    endpoint = replace(names.CAMERA_IMAGE, name=arguments.topic)
    with (
        PreviewClient() as graph,
        tqdm(total=arguments.count, unit="picture", disable=arguments.json, desc=arguments.topic) as bar,
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
                    f"no picture has arrived on {arguments.topic}",
                    expected=f"one within {FIRST_S:g} s",
                    hint="is the camera's driver running in this ROS domain? ros2 topic hz tells",
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
    """A name that no picture in the folder has."""
    number = len(list(folder.iterdir()))
    while (folder / f"view_{number:03d}.png").exists():
        number += 1
    return folder / f"view_{number:03d}.png"
