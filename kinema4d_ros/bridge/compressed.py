"""Pictures as PNG or JPEG in messages: encoded and decoded by several threads, checked before they are decoded."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, TypeVar

import cv2
import numpy as np
from numpy.typing import NDArray
from sensor_msgs.msg import CompressedImage

from kinema4d_ros.bridge.images import ImageError
from kinema4d_ros.core.errors import PointmapError
from kinema4d_ros.io.png import decode_png, encode_png

__all__ = ["bytes_from_compressed", "compressed_from_bytes", "decode_rgb", "encode_rgb", "parallel"]

Format = Literal["jpeg", "png"]

_THREADS = 4
_PNG = b"\x89PNG"
_JPEG = b"\xff\xd8\xff"

A = TypeVar("A")
B = TypeVar("B")


def parallel(work: Callable[[A], B], items: Iterable[A]) -> list[B]:
    """Map with threads: OpenCV's codecs release the interpreter lock."""
    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(work, items))


def compressed_from_bytes(data: bytes, format_: str, header: Any) -> Any:
    """sensor_msgs/CompressedImage of an encoded picture."""
    message = CompressedImage(header=header, format=format_)
    message.data.frombytes(data)
    return message


def bytes_from_compressed(message: Any) -> bytes:
    """The encoded picture of a sensor_msgs/CompressedImage."""
    return bytes(memoryview(message.data))


def encode_rgb(frames: NDArray[np.uint8], format_: Format, header: Any, *, quality: int = 95) -> list[Any]:
    """T sensor_msgs/CompressedImage of (T, H, W, 3) uint8 RGB; "jpeg" with quality 1 to 100, or lossless "png"."""
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
            raise ImageError(f"a frame of shape {rgb.shape} could not be encoded", expected="a non-empty picture")
        return compressed_from_bytes(data.tobytes(), "jpeg", header)

    return parallel(encode, frames)


def decode_rgb(messages: Sequence[Any], *, width: int, height: int) -> NDArray[np.uint8]:
    """(T, H, W, 3) uint8 RGB of PNG or JPEG pictures that must all have this size."""
    out = np.empty((len(messages), height, width, 3), np.uint8)

    def decode(index: int) -> None:
        data = bytes_from_compressed(messages[index])
        if data.startswith(_PNG):
            try:
                out[index] = decode_png(data, width=width, height=height, dtype=np.uint8, channels=3)
            except PointmapError as error:
                raise ImageError(f"picture {index}: {error.what}", expected=error.expected) from error
            return
        if not data.startswith(_JPEG):
            raise ImageError(f"picture {index} starts with {data[:4]!r}", expected="a PNG or a JPEG")
        # The size is read first: a decoder allocates whatever a forged header asks for.
        if _jpeg_size(data) != (width, height) or not data.rstrip(b"\0").endswith(b"\xff\xd9"):
            raise ImageError(f"picture {index} is no complete JPEG of {width} x {height}", expected="that size, whole")
        picture = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
        if picture is None or picture.shape != (height, width, 3):
            raise ImageError(f"picture {index} cannot be decoded", expected=f"a JPEG of {width} x {height}")
        cv2.cvtColor(picture, cv2.COLOR_BGR2RGB, dst=out[index])

    parallel(decode, range(len(messages)))
    return out


def _jpeg_size(data: bytes) -> tuple[int, int] | None:
    """Width and height from a JPEG's start-of-frame segment."""
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
