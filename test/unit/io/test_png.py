from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from PIL import Image

from kinema4d_ros.core.errors import ErrorCode, PointmapError
from kinema4d_ros.io.png import decode_png, encode_png

shapes = array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=12)
images = st.one_of(
    shapes.flatmap(lambda s: arrays(np.uint8, s)),
    shapes.flatmap(lambda s: arrays(np.uint16, s)),
    shapes.flatmap(lambda s: arrays(np.uint8, (*s, 3))),
    shapes.flatmap(lambda s: arrays(np.uint16, (*s, 3))),
)
IMAGE = np.random.default_rng(0).integers(0, 65536, (12, 17), dtype=np.uint16)
DATA = encode_png(IMAGE)


@given(images)
def test_lossless(image: Any) -> None:
    channels = 1 if image.ndim == 2 else 3
    back = decode_png(
        encode_png(image), width=image.shape[1], height=image.shape[0], dtype=image.dtype.type, channels=channels
    )
    assert back.dtype == image.dtype
    np.testing.assert_array_equal(back, image)


def test_other_programs_read_the_same_pixels() -> None:
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(DATA))), IMAGE)
    rgb = np.random.default_rng(1).integers(0, 256, (5, 6, 3), dtype=np.uint8)
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(encode_png(rgb)))), rgb)


@pytest.mark.parametrize("length", range(0, len(DATA), 7))
def test_truncated_files_are_refused(length: int) -> None:
    with pytest.raises(PointmapError) as caught:
        decode_png(DATA[:length], width=17, height=12, dtype=np.uint16)
    assert caught.value.code == ErrorCode.WIRE_CORRUPT


@given(st.integers(0, len(DATA) - 1), st.integers(1, 255))
def test_a_changed_byte_is_refused(position: int, change: int) -> None:
    damaged = bytearray(DATA)
    damaged[position] ^= change
    with pytest.raises(PointmapError) as caught:
        decode_png(bytes(damaged), width=17, height=12, dtype=np.uint16)
    assert caught.value.code == ErrorCode.WIRE_CORRUPT


@pytest.mark.parametrize(
    "wanted",
    [
        {"width": 12, "height": 17, "dtype": np.uint16},
        {"width": 17, "height": 12, "dtype": np.uint8},
        {"width": 17, "height": 12, "dtype": np.uint16, "channels": 3},
    ],
)
def test_another_kind_of_image_is_refused_with_both_kinds(wanted: dict[str, Any]) -> None:
    with pytest.raises(PointmapError, match="17 x 12, 16 bits, grey; expected") as caught:
        decode_png(DATA, **wanted)
    assert caught.value.code == ErrorCode.WIRE_CORRUPT


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def test_a_huge_header_is_refused_before_allocation() -> None:
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 2**31 - 1, 2**31 - 1, 16, 0, 0, 0, 0))
    forged = DATA[:8] + header + chunk(b"IEND", b"")
    with pytest.raises(PointmapError, match="2147483647 x 2147483647"):
        decode_png(forged, width=17, height=12, dtype=np.uint16)


def test_a_file_without_pixels_is_refused() -> None:
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 17, 12, 16, 0, 0, 0, 0))
    for body in (b"", chunk(b"IDAT", zlib.compress(b"\0" * 40)), chunk(b"IDAT", b"garbage")):
        with pytest.raises(PointmapError) as caught:
            decode_png(DATA[:8] + header + body + chunk(b"IEND", b""), width=17, height=12, dtype=np.uint16)
        assert caught.value.code == ErrorCode.WIRE_CORRUPT


def test_files_that_do_not_start_with_a_header_are_refused() -> None:
    for data in (b"", b"JFIF", DATA[:8] + chunk(b"IEND", b"")):
        with pytest.raises(PointmapError):
            decode_png(data, width=17, height=12, dtype=np.uint16)


@pytest.mark.parametrize(
    "image", [np.zeros((2, 2)), np.zeros((2, 2, 4), np.uint8), np.zeros(3, np.uint8), np.zeros((0, 4), np.uint8)]
)
def test_images_that_png_cannot_hold_are_refused(image: Any) -> None:
    with pytest.raises(PointmapError, match="cannot become a PNG"):
        encode_png(image)
