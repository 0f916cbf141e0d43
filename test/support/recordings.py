"""A small recording of a waving arm, rendered on a plain background, and its bag messages."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rosbags.rosbag2 import StoragePlugin, Writer
from rosbags.typesys import Stores, get_typestore

from kinema4d_model.data.episode import load_robot
from kinema4d_model.data.importers.recording import Recording
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.trajectory import JointTrajectory
from kinema4d_ros.render import render_pointmaps
from kinema4d_ros.robot import Robot

N, W, H, FPS = 21, 96, 64, 10.0
STORE = get_typestore(Stores.ROS2_JAZZY)
LATE = 0.004
"""Offset between commanded and measured joints, radians and metres."""


def yam() -> tuple[str, Robot]:
    """Return the robot's name and model."""
    return "yam", load_robot("yam")


def table_camera() -> PinholeCamera:
    """Return a camera aimed at the arm."""
    return PinholeCamera.look_at((0.95, -0.45, 0.65), (0.25, 0, 0.15), width=W, height=H, fov_y_deg=40)


@lru_cache(maxsize=1)
def waving() -> Recording:
    """Return a complete recording: images, depth, measured and commanded joints."""
    robot = yam()
    q = robot[1].home_position() + np.linspace(0, 1, N)[:, None] * np.array([0.5, 0.2, -0.2, 0.1, 0.0, 0.0, 0.01])
    motion = JointTrajectory.from_positions(robot[1].joint_names, q, rate_hz=FPS)
    drawn = render_pointmaps(robot[1], motion, table_camera(), rgb=True, threads=1)
    assert drawn.rgb is not None
    ground = np.linspace(60, 200, W, dtype=np.uint8)[None, :, None].repeat(H, 0).repeat(3, 2)
    images = [np.where(mask[..., None], rgb, ground) for mask, rgb in zip(drawn.mask, drawn.rgb, strict=True)]
    depth = [np.where(np.isfinite(z), z, np.float32(1.4)) for z in drawn.xyz[..., 2]]
    told = JointTrajectory(motion.names, motion.times, motion.positions + LATE)
    return Recording(
        "toy", images, motion.times, "test", joints=motion, actions=told, depth=depth, camera=table_camera(),
        robot=robot, task="wave", instruction="wave the arm", success=True,
    )  # fmt: skip


def message(kind: str, **fields: Any) -> Any:
    """A ROS message without ROS."""
    return STORE.types[kind](**fields)


def header(time_s: float) -> Any:
    """Return a header with the stamp."""
    stamp = message("builtin_interfaces/msg/Time", sec=int(time_s), nanosec=round(time_s % 1 * 1e9))
    return message("std_msgs/msg/Header", stamp=stamp, frame_id="camera")


def image(time_s: float, pixels: NDArray[Any], encoding: str) -> Any:
    """Return an image message with padded rows, as some drivers send."""
    rows = np.ascontiguousarray(pixels).view(np.uint8).reshape(pixels.shape[0], -1)
    padded = np.pad(rows, ((0, 0), (0, 8)))
    return message(
        "sensor_msgs/msg/Image", header=header(time_s), height=pixels.shape[0], width=pixels.shape[1],
        encoding=encoding, is_bigendian=0, step=padded.shape[1], data=padded.ravel(),
    )  # fmt: skip


def joint_state(time_s: float, names: tuple[str, ...], q: NDArray[np.float64]) -> Any:
    """Return a joint state with positions only."""
    empty = np.empty(0)
    return message(
        "sensor_msgs/msg/JointState", header=header(time_s), name=list(names), position=q, velocity=empty, effort=empty
    )


def joint_trajectory(
    names: tuple[str, ...], times: NDArray[np.float64], q: NDArray[np.float64], stamp_s: float = 0.0
) -> Any:
    """Return a plan for a controller; without a stamp it begins when received."""
    empty = np.empty(0)
    points = [
        message(
            "trajectory_msgs/msg/JointTrajectoryPoint", positions=row, velocities=empty, accelerations=empty,
            effort=empty,
            time_from_start=message("builtin_interfaces/msg/Duration", sec=int(t), nanosec=round(t % 1 * 1e9)),
        )
        for t, row in zip(times, q, strict=True)
    ]  # fmt: skip
    kind = "trajectory_msgs/msg/JointTrajectory"
    return message(kind, header=header(stamp_s), joint_names=list(names), points=points)


def write_bag(path: Path, messages: list[tuple[float, str, Any]]) -> None:
    """Write a bag of (receive time, topic, message)."""
    with Writer(path, version=9, storage_plugin=StoragePlugin.MCAP) as writer:
        links: dict[str, Any] = {}
        for received_s, topic, content in sorted(messages, key=lambda entry: entry[0]):
            kind = content.__msgtype__
            if topic not in links:
                links[topic] = writer.add_connection(topic, kind, typestore=STORE)
            writer.write(links[topic], round(received_s * 1e9), STORE.serialize_cdr(content, kind))
