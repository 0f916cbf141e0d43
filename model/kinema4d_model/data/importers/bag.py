"""ROS 2 bags (MCAP or SQLite) as recordings: images, depth, measured and commanded joints. Needs no ROS.

Depth must be registered to the images. Topics with such a name are found automatically (`camera/depth`,
`aligned_depth...`, `depth_registered...`); any other topic must be given.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from rosbags.rosbag2 import Reader

from kinema4d_model.data.importers.bag_joints import bag_messages, find_topic, read_bag_joints, topic_types
from kinema4d_model.data.importers.recording import Recording
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import DataError, ErrorCode, FileFormatError, KinemaError
from kinema4d_ros.io.bags import opened_bag
from kinema4d_ros.io.joint_match import JointOptions
from kinema4d_ros.robot import Robot

__all__ = [
    "bag_recording",
]


IMAGE, COMPRESSED = "sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage"
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
    details: Mapping[str, Any] | None = None,
    joints: JointOptions | None = None,
) -> Recording:
    """Read a whole bag as one motion; topics that are not given are found by type and name.

    Images: the colour topic with most messages. Commands: see `bag_joints`. Times are message stamps, not receive
    times; a trajectory without a stamp begins when it was received. `joints` maps joint names and the gripper's scale.
    """
    try:
        with opened_bag(path) as (reader, unfinished):
            topics = topic_types(reader)
            colour = image_topic or find_topic(reader, (IMAGE, COMPRESSED), without=("depth",))
            if not colour or topics.get(colour) not in (IMAGE, COMPRESSED):
                there = ", ".join(f"{t} ({k})" for t, k in topics.items()) or "none"
                raise DataError(
                    f"{path} has no images on {colour or 'any topic'}",
                    expected=f"an image topic; the bag has {there}",
                    code=ErrorCode.FILE_UNSUPPORTED,
                )
            pictures = list(_images(reader, colour))
            depth_topic = depth_topic or _registered_depth(reader)
            deep = list(_images(reader, depth_topic)) if depth_topic else []
            if not pictures:
                raise DataError(f"{path}: topic {colour} has no messages", expected="images")
            times = np.array([t for t, _ in pictures])
            found = read_bag_joints(reader, path, robot[1], times[0], times[-1], joints_topic, actions_topic, joints)
    except FileFormatError as error:
        raise DataError(error.what, expected=error.expected, hint=error.hint, code=error.code) from error
    except KinemaError:
        raise
    except Exception as error:  # the parser can raise anything on a corrupt file
        raise DataError(f"{path} cannot be read: {type(error).__name__}: {error}"[:300], expected="a bag") from error
    depth = [deep[int(np.argmin([abs(d - t) for d, _ in deep]))][1] for t in times] if deep else None
    return Recording(
        key=path.stem.replace(".", "_"),
        images=[image for _, image in pictures],
        image_times=times - times[0],
        source="bag",
        joints=found.joints,
        actions=found.actions,
        depth=depth,
        camera=camera,
        robot=robot,
        task=task,
        success=success,
        details={
            "image_topic": colour,
            "depth_topic": depth_topic,
            "joints_topic": found.joints_topic,
            "actions_topic": found.actions_topic,
            **({"unfinished": unfinished} if unfinished else {}),
            **({"notes": list(found.notes)} if found.notes else {}),
            **(details or {}),
        },
    )


def _registered_depth(reader: Reader) -> str:
    """Return a depth topic whose name indicates registration to the images, or ""."""
    for word in ("camera/depth", "aligned_depth", "depth_registered"):
        topic = find_topic(reader, (IMAGE,), within=word)
        if topic and (word != "camera/depth" or topic.endswith(word)):
            return topic
    return ""


def _images(reader: Reader, topic: str) -> Iterator[tuple[float, NDArray[Any]]]:
    for count, found in enumerate(bag_messages(reader, topic)):
        if count >= _MAX_IMAGES:
            raise DataError(
                f"topic {topic} has more than {_MAX_IMAGES} images", expected="one motion", hint="split the bag"
            )
        message = found.message
        yield 1e-9 * found.time_ns, _decompressed(message) if hasattr(message, "format") else _plain(message)


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
