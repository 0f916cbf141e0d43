"""Recordings of ROS 2 bags (MCAP or SQLite) of a real arm: pictures, depth, measured and commanded joints. No ROS."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from rosbags.rosbag2 import Reader
from rosbags.typesys import Stores, get_typestore

from kinema4d_model.data.errors import DataError
from kinema4d_model.data.importers.recording import Recording
from kinema4d_ros.camera import PinholeCamera
from kinema4d_ros.errors import ErrorCode, KinemaError
from kinema4d_ros.readers.common import keep_known
from kinema4d_ros.readers.series import JointSeries
from kinema4d_ros.readers.unfinished import opened_bag
from kinema4d_ros.robot import Robot
from kinema4d_ros.trajectory import JointTrajectory

__all__ = ["bag_recording"]

IMAGE, COMPRESSED = "sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage"
JOINTS = "sensor_msgs/msg/JointState"
_COLOUR = {"rgb8": (3, None), "bgr8": (3, cv2.COLOR_BGR2RGB), "rgba8": (4, cv2.COLOR_RGBA2RGB),
           "bgra8": (4, cv2.COLOR_BGRA2RGB), "mono8": (1, cv2.COLOR_GRAY2RGB)}  # fmt: skip
_DEPTH: dict[str, tuple[Any, float]] = {
    "16UC1": (np.uint16, 1e-3),
    "mono16": (np.uint16, 1e-3),
    "32FC1": (np.float32, 1.0),
}
_MAX_IMAGES = 20_000


def bag_recording(
    path: Path,
    robot: tuple[str, Robot],
    camera: PinholeCamera | None,
    *,
    image_topic: str = "",
    depth_topic: str = "",
    joints_topic: str = "",
    actions_topic: str = "",
    task: str = "unknown",
    success: bool | None = None,
) -> Recording:
    """One motion: a whole bag. Topics that are not named are found by their types and names.

    Pictures: the colour topic with most messages. Commands: a JointState topic with "command" in its name.
    Stamps of the messages count, not when they were recorded.
    """
    try:
        with opened_bag(path) as (reader, unfinished):
            topics = {c.topic: c.msgtype for c in reader.connections}
            counts = {c.topic: c.msgcount for c in reader.connections}
            colour = image_topic or _find(topics, counts, (IMAGE, COMPRESSED), without=("depth",))
            if not colour or topics.get(colour) not in (IMAGE, COMPRESSED):
                there = ", ".join(f"{t} ({k})" for t, k in topics.items()) or "none"
                raise DataError(
                    f"{path} has no pictures on {colour or 'any topic'}",
                    expected=f"an image topic; there are {there}",
                    code=ErrorCode.FILE_UNSUPPORTED,
                )
            pictures = list(_images(reader, colour))
            deep = list(_images(reader, depth_topic)) if depth_topic else []
            if not pictures:
                raise DataError(f"{path}: topic {colour} has no messages", expected="pictures")
            times = np.array([t for t, _ in pictures])
            measured = joints_topic or _find(topics, counts, (JOINTS,), without=("command",))
            commanded = actions_topic or _find(topics, counts, (JOINTS,), within="command")
            joints = _joints(reader, path, robot[1], measured, times[0])
            actions = _joints(reader, path, robot[1], commanded, times[0])
    except KinemaError:
        raise
    except Exception as error:  # a broken file can make its parser fail in any way
        raise DataError(f"{path} cannot be read: {type(error).__name__}: {error}"[:300], expected="a bag") from error
    depth = [deep[int(np.argmin([abs(d - t) for d, _ in deep]))][1] for t in times] if deep else None
    return Recording(
        key=path.stem.replace(".", "_"),
        images=[image for _, image in pictures],
        image_times=times - times[0],
        source="bag",
        joints=joints,
        actions=actions,
        depth=depth,
        camera=camera,
        robot=robot,
        task=task,
        success=success,
        details={
            "image_topic": colour,
            "joints_topic": measured,
            "actions_topic": commanded,
            **({"unfinished": unfinished} if unfinished else {}),
        },
    )


def _find(
    topics: dict[str, str],
    counts: dict[str, int],
    types: tuple[str, ...],
    within: str = "",
    without: tuple[str, ...] = (),
) -> str:
    fits = [t for t, k in topics.items() if k in types and within in t and not any(word in t for word in without)]
    return max(fits, key=lambda t: counts[t], default="")


def _joints(reader: Reader, path: Path, robot: Robot, topic: str, origin_s: float) -> JointTrajectory | None:
    """The joints of a topic on the clock of the pictures: seconds since `origin_s`."""
    if not topic:
        return None
    series = JointSeries()
    first_ns: dict[str, int] = {}
    for stamp_ns, message in _messages(reader, topic):
        names = list(message.name)
        series.add(stamp_ns, names, np.asarray(message.position, dtype=np.float64))
        for name in names:
            first_ns[name] = min(stamp_ns, first_ns.get(name, stamp_ns))
    notes: list[str] = []
    names, times, positions = series.join(path, robot, notes)
    # The series begins when all of its joints report.
    begin_s = 1e-9 * max(first_ns[name] for name in names)
    kept, columns = keep_known(path, robot, names, positions, notes)
    return JointTrajectory(tuple(kept), times + (begin_s - origin_s), columns)


def _messages(reader: Reader, topic: str) -> Iterator[tuple[int, Any]]:
    """(stamp in ns, message) of a topic; without a stamp, when it was received."""
    store = get_typestore(Stores.ROS2_JAZZY)
    connections = [c for c in reader.connections if c.topic == topic]
    if not connections:
        there = ", ".join(c.topic for c in reader.connections)
        raise DataError(f"the bag has no topic {topic}", expected=f"one of {there}", code=ErrorCode.FILE_UNSUPPORTED)
    for connection, received_ns, data in reader.messages(connections=connections):
        message: Any = store.deserialize_cdr(data, connection.msgtype)
        stamp = message.header.stamp
        yield (stamp.sec * 1_000_000_000 + stamp.nanosec) or received_ns, message


def _images(reader: Reader, topic: str) -> Iterator[tuple[float, NDArray[Any]]]:
    for count, (stamp_ns, message) in enumerate(_messages(reader, topic)):
        if count >= _MAX_IMAGES:
            raise DataError(
                f"topic {topic} has more than {_MAX_IMAGES} pictures", expected="one motion", hint="cut the bag"
            )
        yield 1e-9 * stamp_ns, _decompressed(message) if hasattr(message, "format") else _plain(message)


def _decompressed(message: Any) -> NDArray[Any]:
    image = cv2.imdecode(np.asarray(message.data, np.uint8), cv2.IMREAD_UNCHANGED)
    if image is None:
        raise DataError(f"a compressed image ({message.format}) cannot be decoded", expected="JPEG or PNG")
    if image.ndim == 2 and image.dtype == np.uint16:
        return np.asarray(image * np.float32(1e-3), np.float32)
    return np.asarray(cv2.cvtColor(image, cv2.COLOR_GRAY2RGB if image.ndim == 2 else cv2.COLOR_BGR2RGB))


def _plain(message: Any) -> NDArray[Any]:
    height, width, step = int(message.height), int(message.width), int(message.step)
    data = np.asarray(message.data, np.uint8)
    kind = message.encoding
    if kind in _COLOUR:
        channels, convert = _COLOUR[kind]
        dtype: Any = np.uint8
    elif kind in _DEPTH:
        channels, convert, dtype = 1, None, _DEPTH[kind][0]
    else:
        raise DataError(f"image encoding {kind!r}", expected=f"one of {', '.join([*_COLOUR, *_DEPTH])}")
    row = width * channels * np.dtype(dtype).itemsize
    if height < 1 or width < 1 or step < row or data.size != step * height:
        raise DataError(f"an image of {width} x {height} {kind} with {data.size} bytes", expected=f"{step} x {height}")
    pixels = np.ascontiguousarray(data.reshape(height, step)[:, :row]).view(dtype)
    if message.is_bigendian and np.dtype(dtype).itemsize > 1:
        pixels = pixels.byteswap()
    if kind in _DEPTH:
        return np.asarray(pixels * np.float32(_DEPTH[kind][1]), np.float32)
    image = pixels.reshape(height, width, channels)
    return np.asarray(image if convert is None else cv2.cvtColor(image, convert))
