"""In-memory PNG images of 8 and 16 bits; damaged or unexpected data is rejected before decoding."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.core.errors import ErrorCode, PointmapError

__all__ = ["decode_png", "encode_png"]

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_GREY, _RGB = 0, 2
# Measured on 49 frames of 480 x 720 depth: 1.25 MB in 0.14 s; all filters 1.27 MB in 0.34 s, level 9 0.99 MB in 1.24 s.
_OPTIONS = [cv2.IMWRITE_PNG_COMPRESSION, 3]
if hasattr(cv2, "IMWRITE_PNG_FILTER"):  # OpenCV 4.12; older ones choose a filter themselves
    _OPTIONS += [cv2.IMWRITE_PNG_FILTER, cv2.IMWRITE_PNG_FILTER_UP]


def encode_png(image: NDArray[np.uint8] | NDArray[np.uint16]) -> bytes:
    """Encode a grey (H, W) or RGB (H, W, 3) image, uint8 or uint16, as lossless PNG."""
    fits = image.ndim == 2 or (image.ndim == 3 and image.shape[2] == 3)
    if image.dtype not in (np.uint8, np.uint16) or not fits or 0 in image.shape:
        raise PointmapError(
            f"an image of {image.dtype} and shape {image.shape} cannot become a PNG",
            expected="uint8 or uint16 of shape (H, W) or (H, W, 3), not empty",
        )
    bgr = image if image.ndim == 2 else np.ascontiguousarray(image[..., ::-1])
    return bytes(cv2.imencode(".png", bgr, _OPTIONS)[1])


def decode_png(
    data: bytes,
    *,
    width: int,
    height: int,
    dtype: type[np.uint8] | type[np.uint16],
    channels: int = 1,
    name: str = "the PNG",
) -> NDArray[Any]:
    """Decode a PNG that must have exactly this size and type to a grey (H, W) or RGB (H, W, 3) image.

    The header and all checksums are verified first: decoders fill in missing data of a truncated file, and
    allocate any size that a forged header states. `name` identifies the image in errors.
    """
    found = _header(data, name)
    wanted = (width, height, 8 * np.dtype(dtype).itemsize, _GREY if channels == 1 else _RGB)
    if found != wanted:
        raise _corrupt(f"{name} is {_describe(*found)}", _describe(*wanted))
    image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    if image is None or image.dtype != dtype or image.shape[:2] != (height, width):
        raise _corrupt(f"the pixels of {name} cannot be decoded", _describe(*wanted))
    return np.ascontiguousarray(image[..., ::-1]) if channels == 3 else np.asarray(image)


def _header(data: bytes, name: str) -> tuple[int, int, int, int]:
    """Return width, height, bits and colour type; check all chunks to the end."""
    if data[:8] != _SIGNATURE:
        raise _corrupt(f"{name} has {len(data)} bytes that start with {bytes(data[:8])!r}", "a PNG")
    header: tuple[int, int, int, int] | None = None
    position, view = 8, memoryview(data)
    while position + 12 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, position)
        end = position + 12 + length
        if end > len(data):
            break
        if zlib.crc32(view[position + 4 : end - 4]) != struct.unpack_from(">I", data, end - 4)[0]:
            raise _corrupt(f"part {kind!r} of {name} does not match its checksum", "an undamaged PNG")
        if header is None:
            if kind != b"IHDR" or length != 13:
                raise _corrupt(f"{name} starts with {kind!r}", "a PNG header")
            header = struct.unpack_from(">IIBB", data, position + 8)
        if kind == b"IEND" and header is not None:
            return header
        position = end
    raise _corrupt(f"{name} is truncated after {len(data)} bytes", "a complete PNG")


def _describe(width: int, height: int, bits: int, colour: int) -> str:
    return f"{width} x {height}, {bits} bits, {({_GREY: 'grey', _RGB: 'RGB'}).get(colour, f'colour type {colour}')}"


def _corrupt(what: str, expected: str) -> PointmapError:
    return PointmapError(what, expected=expected, code=ErrorCode.WIRE_CORRUPT)
