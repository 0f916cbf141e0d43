"""Damaged images for messages: truncated, bit-flipped, forged, and small files that claim a huge size."""

from __future__ import annotations

import random
import struct
import zlib

__all__ = ["damaged_picture", "png_claiming"]

_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_claiming(width: int, height: int, bits: int = 16, colour: int = 0, pixels: bytes = b"\0" * 64) -> bytes:
    """Return a PNG with valid checksums whose header states this size, independent of its data (`pixels`)."""
    header = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0)
    body = zlib.compress(pixels, 9)
    return _SIGNATURE + _chunk(b"IHDR", header) + _chunk(b"IDAT", body) + _chunk(b"IEND", b"")


def _forged(chance: random.Random, data: bytes) -> bytes:
    """Return the PNG with another size in its header and a valid checksum."""
    if data[:8] != _SIGNATURE or len(data) < 33:
        return png_claiming(chance.choice((0, 1, 90, 30_000)), 30_000)
    width, height = struct.unpack_from(">II", data, 16)
    size = chance.choice(((width, height + 1), (30_000, 30_000), (2**31 - 1, 2**31 - 1), (0, 0), (height, width)))
    header = struct.pack(">II", *size) + data[24:29]
    return data[:8] + _chunk(b"IHDR", header) + data[33:]


def _bomb(chance: random.Random, data: bytes) -> bytes:
    """Return a PNG of the expected size whose data inflates to a thousand times of it."""
    bits, colour, width, height = 16, 0, 90, 60
    if data[:8] == _SIGNATURE and len(data) >= 33:
        width, height, bits, colour = struct.unpack_from(">IIBB", data, 16)
    return png_claiming(width, height, bits, colour, bytes(chance.choice((0, 1 << 20, 1 << 24))))


def damaged_picture(chance: random.Random, data: bytes, giant: int) -> bytes:
    """Return damaged bytes of a PNG, a JPEG or raw pixels."""
    way = chance.choice(("empty", "cut", "flip", "flip", "longer", "noise", "forged", "bomb", "giant", "jpeg header"))
    if way == "empty":
        return b""
    if way == "cut":
        return data[: chance.randrange(len(data) + 1)]
    if way == "flip" and data:
        made = bytearray(data)
        for _ in range(chance.randint(1, 4)):
            made[chance.randrange(len(made))] ^= 1 << chance.randrange(8)
        return bytes(made)
    if way == "longer":
        return data + chance.randbytes(chance.randint(1, 64))
    if way == "forged":
        return _forged(chance, data)
    if way == "bomb":
        return _bomb(chance, data)
    if way == "giant" and chance.random() < 0.1:
        return bytes(giant)
    if way == "jpeg header":
        # A start-of-frame segment of 65535 x 65535, with nothing after it.
        return b"\xff\xd8\xff\xc0\x00\x11\x08\xff\xff\xff\xff\x03" + bytes(9) + b"\xff\xd9"
    return chance.randbytes(chance.randint(1, 256))
