"""`kinema4d calibrate page`: manual calibration in a local browser, with image files or a live camera."""

from __future__ import annotations

import argparse
import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from kinema4d_ros.calibration import read_pose
from kinema4d_ros.calibration.inputs import image_files, read_joints, read_seen_masks
from kinema4d_ros.calibration.manual import ManualCalibration, Shown
from kinema4d_ros.cli.options import joint_options
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import CalibrationError, CameraError, ErrorCode, KinemaError, SetupError
from kinema4d_ros.io.images import read_image
from kinema4d_ros.previews.arm import JointStateMonitor
from kinema4d_ros.robot import Robot

__all__ = ["page"]

FIRST_S = 15.0
MAX_AGE_S = 1.0


def page(arguments: argparse.Namespace, camera: PinholeCamera) -> int:
    """Serve the page until Ctrl-C."""
    from kinema4d_ros.web.calibration_page import CalibrationPage
    from kinema4d_ros.web.server import TOKEN_VARIABLE, PageServer

    if bool(arguments.topic) == bool(arguments.images):
        raise KinemaError(
            "both images and --topic are given" if arguments.topic else "neither images nor --topic is given",
            expected="one of them",
            code=ErrorCode.ARGUMENT_INVALID,
        )
    robot = Robot.load(arguments.robot)
    if arguments.guess is not None:
        camera = camera.posed(read_pose(arguments.guess).parent_T_child)
    elif np.array_equal(camera.base_T_camera, np.eye(4)):
        raise CalibrationError(
            f"{arguments.camera} has no camera pose",
            expected="a camera file, or --guess with rough extrinsics",
            code=ErrorCode.ARGUMENT_INVALID,
        )
    with contextlib.ExitStack() as stack:
        refresh: Callable[[], bool] | None = None
        if arguments.topic:
            live = stack.enter_context(_live(arguments.topic, robot))
            first = _wait_for(live, arguments.topic)
            manual = ManualCalibration(robot, camera, [first])
            refresh = _refresher(live, manual)
        else:
            manual = ManualCalibration(robot, camera, _from_files(arguments, robot))
        server = PageServer("127.0.0.1", arguments.port, token=os.environ.get(TOKEN_VARIABLE, ""))
        stack.callback(server.stop)
        shown = CalibrationPage(server, manual, Path(arguments.out), refresh)
        stack.callback(shown.close)
        print(f"the page is at {server.url} (Ctrl-C ends it)", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait(arguments.seconds or None)
    return 0


def _from_files(arguments: argparse.Namespace, robot: Robot) -> list[Shown]:
    files = image_files(arguments.images)
    if arguments.joints is None:
        raise KinemaError(
            "--joints is missing", expected="a file with one row for each image", code=ErrorCode.ARGUMENT_INVALID
        )
    q = read_joints(arguments.joints, robot, len(files), **joint_options(arguments))
    masks: Any = [None] * len(files)
    if arguments.masks is not None:
        masks = read_seen_masks(image_files([arguments.masks]))
        if len(masks) != len(files):
            raise CalibrationError(f"{len(masks)} masks for {len(files)} images", expected="one for each")
    return [
        Shown(q[i], np.asarray(read_image(file)), None if masks[i] is None else masks[i], file.name)
        for i, file in enumerate(files)
    ]


@contextlib.contextmanager
def _live(topic: str, robot: Robot) -> Iterator[Callable[[], tuple[int, Shown] | None]]:
    """Yield a function that returns the newest image with its stamp (ns) and the joint positions at that stamp.

    It returns None until both an image and joint states at its stamp have arrived.
    """
    try:
        from kinema4d_ros.ros import names
        from kinema4d_ros.ros.client import PreviewClient
        from kinema4d_ros.ros.messages.images import rgb_from_image
        from kinema4d_ros.ros.messages.stamps import nanoseconds
        from kinema4d_ros.ros.messages.trajectories import joint_sample_from_msg
    except ImportError as error:
        raise SetupError(f"--topic needs ROS 2: {error}", expected="rclpy", hint="kinema4d doctor") from None
    monitor = JointStateMonitor(robot, MAX_AGE_S)
    endpoint = replace(names.CAMERA_IMAGE, name=topic)

    def hear(message: Any) -> None:
        with contextlib.suppress(KinemaError):  # ignore invalid joint states and keep the page running
            sample = joint_sample_from_msg(message)
            monitor.update(sample.names, sample.positions, sample.stamp_ns * 1e-9, time.monotonic())

    def newest() -> tuple[int, Shown] | None:
        message = graph.newest(endpoint)
        if message is None:
            return None
        stamp_ns = nanoseconds(message.header.stamp)
        q = monitor.at(stamp_ns * 1e-9)
        return None if q is None else (stamp_ns, Shown(q, rgb_from_image(message), None, topic))

    with PreviewClient() as graph:
        graph.listen(endpoint)
        graph.listen(names.JOINT_STATES, hear)
        yield newest


def _wait_for(live: Callable[[], tuple[int, Shown] | None], topic: str) -> Shown:
    deadline = time.monotonic() + FIRST_S
    while time.monotonic() < deadline:
        found = live()
        if found is not None:
            return found[1]
        time.sleep(0.05)
    raise CameraError(
        f"no image on {topic} with joint states at its stamp",
        expected=f"both within {FIRST_S:g} s",
        hint="check that the camera and arm drivers run in this ROS domain and that their clocks agree",
        code=ErrorCode.CAMERA_STALE,
    )


def _refresher(live: Callable[[], tuple[int, Shown] | None], manual: ManualCalibration) -> Callable[[], bool]:
    last = [0]

    def refresh() -> bool:
        found = live()
        if found is None or found[0] == last[0]:
            return False
        last[0] = found[0]
        manual.show(found[1])
        return True

    return refresh
