"""Images of messages as arrays and back, without copies where the layout allows it.

cv_bridge gives the same arrays but always copies, and its conversion module is missing on machines
without a ROS distribution, so it is not used even where it is installed; a test compares the two there.
"""

from __future__ import annotations

import sys
from array import array
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from sensor_msgs.msg import Image

from kinema4d_ros.core.errors import ErrorCode, KinemaError

__all__ = ["ImageError", "depth_from_image", "image_from_array", "image_to_array", "new_data", "rgb_from_image"]

_LAYOUT: dict[str, tuple[str, int]] = {
    "rgb8": ("u1", 3),
    "bgr8": ("u1", 3),
    "rgba8": ("u1", 4),
    "bgra8": ("u1", 4),
    "mono8": ("u1", 1),
    "8UC1": ("u1", 1),
    "8UC3": ("u1", 3),
    "mono16": ("u2", 1),
    "16UC1": ("u2", 1),
    "32FC1": ("f4", 1),
}
_TO_RGB = {
    "bgr8": cv2.COLOR_BGR2RGB,
    "rgba8": cv2.COLOR_RGBA2RGB,
    "bgra8": cv2.COLOR_BGRA2RGB,
    "mono8": cv2.COLOR_GRAY2RGB,
}
_NATIVE_BIG = sys.byteorder == "big"


class ImageError(KinemaError):
    """An image message that cannot be what it says it is."""

    default_code = ErrorCode.IMAGE_INVALID


def new_data(size: int) -> Any:
    """A uint8 array for a message's `data` field, to be filled through `np.frombuffer`.

    Assigning an ndarray to the field copies it element by element, a hundred times slower.
    """
    return array("B", bytes(1)) * size


def image_to_array(message: Any) -> NDArray[Any]:
    """(H, W) or (H, W, C) pixels of a sensor_msgs/Image in its own encoding, native byte order.

    A view of the message's bytes where nothing has to be converted: do not write to it. Row padding
    (`step` above the row's length) is skipped, not copied.
    """
    kind, channels = _layout(message.encoding)
    height, width, step = int(message.height), int(message.width), int(message.step)
    itemsize = int(kind[1])
    row = width * channels * itemsize
    if height == 0 or width == 0 or step < row or len(message.data) != step * height:
        raise ImageError(
            f"a {width} x {height} image '{message.encoding}' with step {step} has {len(message.data)} bytes",
            expected=f"a step of at least {row} and step x height bytes",
        )
    big = bool(message.is_bigendian) and itemsize > 1
    dtype = np.dtype((">" if big else "<") + kind) if itemsize > 1 else np.dtype(np.uint8)
    shape, strides = (height, width, channels), (step, channels * itemsize, itemsize)
    pixels: NDArray[Any] = np.ndarray(shape, dtype, buffer=message.data, strides=strides)
    if channels == 1:
        pixels = pixels[..., 0]
    native = dtype.newbyteorder("=")
    return pixels if dtype == native else pixels.astype(native)


def image_from_array(pixels: NDArray[Any], encoding: str, header: Any) -> Any:
    """sensor_msgs/Image of pixels (H, W) or (H, W, C) whose dtype and channels fit the encoding; one copy."""
    kind, channels = _layout(encoding)
    shape = pixels.shape if pixels.ndim == 3 else (*pixels.shape, 1)
    if len(shape) != 3 or shape[2] != channels or 0 in shape or pixels.dtype != np.dtype(kind):
        raise ImageError(
            f"an array of {pixels.dtype} and shape {pixels.shape} is no '{encoding}' image",
            expected=f"{np.dtype(kind)} of shape (H, W{f', {channels}' if channels > 1 else ''}), not empty",
        )
    message = Image(header=header, height=shape[0], width=shape[1], encoding=encoding)
    message.is_bigendian = int(_NATIVE_BIG)
    message.step = shape[1] * channels * pixels.itemsize
    message.data = new_data(message.step * shape[0])
    np.frombuffer(message.data, pixels.dtype).reshape(shape)[...] = pixels.reshape(shape)
    return message


def rgb_from_image(message: Any, *, width: int | None = None, height: int | None = None) -> NDArray[np.uint8]:
    """(H, W, 3) uint8 RGB of a colour or mono8 image; with `width` and `height` it must have that size.

    An rgb8 image is a view of the message's bytes: do not write to it.
    """
    if message.encoding != "rgb8" and message.encoding not in _TO_RGB:
        raise ImageError(
            f"an image with encoding '{message.encoding}' is no colour image",
            expected=f"rgb8, {', '.join(sorted(_TO_RGB))}",
            hint="let the driver or image_proc convert it",
        )
    _require_size(message.width, message.height, width, height)
    pixels = image_to_array(message)
    if message.encoding == "rgb8":
        return pixels
    return np.asarray(cv2.cvtColor(np.ascontiguousarray(pixels), _TO_RGB[message.encoding]), dtype=np.uint8)


def depth_from_image(message: Any) -> NDArray[np.float32]:
    """(H, W) float32 metres, NaN = nothing measured, of a depth image (32FC1 metres, 16UC1 or mono16 millimetres)."""
    if message.encoding == "32FC1":
        depth = np.array(image_to_array(message), dtype=np.float32)
        depth[~(np.isfinite(depth) & (depth > 0))] = np.nan
        return depth
    if message.encoding in ("16UC1", "mono16"):
        steps = image_to_array(message)
        return np.asarray(np.where(steps > 0, steps * np.float32(1e-3), np.float32(np.nan)), dtype=np.float32)
    raise ImageError(f"an image with encoding '{message.encoding}' is no depth image", expected="32FC1 or 16UC1")


def _layout(encoding: str) -> tuple[str, int]:
    if encoding not in _LAYOUT:
        raise ImageError(f"image encoding '{encoding}' is not supported", expected=", ".join(sorted(_LAYOUT)))
    return _LAYOUT[encoding]


def _require_size(width: int, height: int, wanted_width: int | None, wanted_height: int | None) -> None:
    if wanted_width not in (None, width) or wanted_height not in (None, height):
        raise ImageError(
            f"the image is {width} x {height}",
            expected=f"{wanted_width} x {wanted_height}",
            hint="image and camera_info must belong together",
        )
