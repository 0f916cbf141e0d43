"""Conversion of raw and compressed images to arrays and back, without copies where the layout allows it.

cv_bridge gives the same arrays but always copies, and its conversion module is missing on machines
without a ROS distribution, so it is not used even where it is installed; a test compares the two there.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, TypeVar

import cv2
import numpy as np
from numpy.typing import NDArray
from sensor_msgs.msg import CompressedImage, Image

from kinema4d_ros.core.errors import ErrorCode, KinemaError, PointmapError
from kinema4d_ros.io.png import decode_png, encode_png

__all__ = [
    "ImageError",
    "bytes_from_compressed",
    "compressed_from_bytes",
    "decode_rgb",
    "depth_from_image",
    "encode_rgb",
    "image_from_array",
    "image_to_array",
    "new_data",
    "parallel",
    "rgb_from_image",
]

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
    """An image message whose data does not match its description."""

    default_code = ErrorCode.IMAGE_INVALID


def new_data(size: int) -> Any:
    """Return a uint8 array for a message's `data` field, to be filled through `np.frombuffer`.

    Assigning an ndarray to the field copies it element by element, a hundred times slower.
    """
    return array("B", bytes(1)) * size


def image_to_array(message: Any) -> NDArray[Any]:
    """Return the (H, W) or (H, W, C) pixels of a sensor_msgs/Image in its encoding, native byte order.

    The result is a read-only view of the message's bytes where no conversion is needed: do not write to it. Row
    padding (`step` above the row's length) is skipped, not copied.
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
    """Convert pixels (H, W) or (H, W, C), which must match the encoding, to a sensor_msgs/Image with one copy."""
    kind, channels = _layout(encoding)
    shape = pixels.shape if pixels.ndim == 3 else (*pixels.shape, 1)
    if len(shape) != 3 or shape[2] != channels or 0 in shape or pixels.dtype != np.dtype(kind):
        raise ImageError(
            f"an array of {pixels.dtype} and shape {pixels.shape} is not a valid '{encoding}' image",
            expected=f"{np.dtype(kind)} of shape (H, W{f', {channels}' if channels > 1 else ''}), not empty",
        )
    message = Image(header=header, height=shape[0], width=shape[1], encoding=encoding)
    message.is_bigendian = int(_NATIVE_BIG)
    message.step = shape[1] * channels * pixels.itemsize
    message.data = new_data(message.step * shape[0])
    np.frombuffer(message.data, pixels.dtype).reshape(shape)[...] = pixels.reshape(shape)
    return message


def rgb_from_image(message: Any, *, width: int | None = None, height: int | None = None) -> NDArray[np.uint8]:
    """Return (H, W, 3) uint8 RGB of a colour or mono8 image, which must match `width` and `height` if given.

    An rgb8 image is a view of the message's bytes: do not write to it.
    """
    if message.encoding != "rgb8" and message.encoding not in _TO_RGB:
        raise ImageError(
            f"an image with encoding '{message.encoding}' is not a colour image",
            expected=f"rgb8, {', '.join(sorted(_TO_RGB))}",
            hint="convert it in the driver or with image_proc",
        )
    _require_size(message.width, message.height, width, height)
    pixels = image_to_array(message)
    if message.encoding == "rgb8":
        return pixels
    return np.asarray(cv2.cvtColor(np.ascontiguousarray(pixels), _TO_RGB[message.encoding]), dtype=np.uint8)


def depth_from_image(message: Any) -> NDArray[np.float32]:
    """Return (H, W) float32 metres, NaN = no measurement, of a 32FC1 (metres), 16UC1 or mono16 (millimetres) image."""
    if message.encoding == "32FC1":
        depth = np.array(image_to_array(message), dtype=np.float32)
        depth[~(np.isfinite(depth) & (depth > 0))] = np.nan
        return depth
    if message.encoding in ("16UC1", "mono16"):
        steps = image_to_array(message)
        return np.asarray(np.where(steps > 0, steps * np.float32(1e-3), np.float32(np.nan)), dtype=np.float32)
    raise ImageError(f"an image with encoding '{message.encoding}' is not a depth image", expected="32FC1 or 16UC1")


def _layout(encoding: str) -> tuple[str, int]:
    if encoding not in _LAYOUT:
        raise ImageError(f"image encoding '{encoding}' is not supported", expected=", ".join(sorted(_LAYOUT)))
    return _LAYOUT[encoding]


def _require_size(width: int, height: int, wanted_width: int | None, wanted_height: int | None) -> None:
    if wanted_width not in (None, width) or wanted_height not in (None, height):
        raise ImageError(
            f"the image is {width} x {height}",
            expected=f"{wanted_width} x {wanted_height}",
            hint="image and camera_info must come from the same camera",
        )


# PNG and JPEG images: encoded and decoded by several threads, validated before decoding.

Format = Literal["jpeg", "png"]

_THREADS = 4
_PNG = b"\x89PNG"
_JPEG = b"\xff\xd8\xff"

A = TypeVar("A")
B = TypeVar("B")


def parallel(work: Callable[[A], B], items: Iterable[A]) -> list[B]:
    """Map with threads; OpenCV's codecs release the GIL."""
    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(work, items))


def compressed_from_bytes(data: bytes, format_: str, header: Any) -> Any:
    """Return a sensor_msgs/CompressedImage of an encoded image."""
    message = CompressedImage(header=header, format=format_)
    message.data.frombytes(data)
    return message


def bytes_from_compressed(message: Any) -> bytes:
    """Return the encoded image of a sensor_msgs/CompressedImage."""
    return bytes(memoryview(message.data))


def encode_rgb(frames: NDArray[np.uint8], format_: Format, header: Any, *, quality: int = 95) -> list[Any]:
    """Encode (T, H, W, 3) uint8 RGB to T sensor_msgs/CompressedImage; "jpeg" (quality 1 to 100) or lossless "png"."""
    if frames.ndim != 4 or frames.shape[-1] != 3 or frames.dtype != np.uint8:
        raise ImageError(
            f"frames are {frames.dtype} of shape {frames.shape}", expected="uint8 RGB of shape (T, H, W, 3)"
        )
    options = [cv2.IMWRITE_JPEG_QUALITY, int(np.clip(quality, 1, 100))]

    def encode(rgb: NDArray[np.uint8]) -> Any:
        if format_ == "png":
            return compressed_from_bytes(encode_png(rgb), "png", header)
        done, data = cv2.imencode(".jpg", cv2.cvtColor(rgb, cv2.COLOR_RGB2BGR), options)
        if not done:
            raise ImageError(f"a frame of shape {rgb.shape} could not be encoded", expected="a non-empty image")
        return compressed_from_bytes(data.tobytes(), "jpeg", header)

    return parallel(encode, frames)


def decode_rgb(messages: Sequence[Any], *, width: int, height: int) -> NDArray[np.uint8]:
    """Decode PNG or JPEG images, which must all have this size, to (T, H, W, 3) uint8 RGB."""
    out = np.empty((len(messages), height, width, 3), np.uint8)

    def decode(index: int) -> None:
        data = bytes_from_compressed(messages[index])
        if data.startswith(_PNG):
            try:
                out[index] = decode_png(data, width=width, height=height, dtype=np.uint8, channels=3)
            except PointmapError as error:
                raise ImageError(f"image {index}: {error.what}", expected=error.expected) from error
            return
        if not data.startswith(_JPEG):
            raise ImageError(f"image {index} starts with {data[:4]!r}", expected="a PNG or a JPEG")
        # The size is checked first: a decoder allocates the size in the header, even a forged one.
        if _jpeg_size(data) != (width, height) or not data.rstrip(b"\0").endswith(b"\xff\xd9"):
            raise ImageError(f"image {index} is not a complete JPEG", expected=f"a complete JPEG of {width} x {height}")
        picture = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
        if picture is None or picture.shape != (height, width, 3):
            raise ImageError(f"image {index} cannot be decoded", expected=f"a JPEG of {width} x {height}")
        cv2.cvtColor(picture, cv2.COLOR_BGR2RGB, dst=out[index])

    parallel(decode, range(len(messages)))
    return out


def _jpeg_size(data: bytes) -> tuple[int, int] | None:
    """Return width and height from a JPEG's start-of-frame segment, or None without one."""
    position = 2
    while position + 9 <= len(data) and data[position] == 0xFF:
        marker = data[position + 1]
        if marker == 0xFF:
            position += 1
            continue
        # All start-of-frame markers; C4, C8 and CC in the same range are tables.
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack_from(">HH", data, position + 5)
            return width, height
        position += 2 + int(struct.unpack_from(">H", data, position + 2)[0])
    return None
