"""Encoded frames of an outcome: lossless, and forged or damaged bytes are refused before they allocate."""

from __future__ import annotations

import struct
import zlib
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from kinema4d_ros.core.errors import ErrorCode, KinemaError, PointmapError
from kinema4d_ros.core.outcomes import FramePatch, Patches
from kinema4d_ros.io.patches import decode_patches, encode_patches

SIZE = {"frames": 3, "height": 5, "width": 7}


def some(seed: int = 0, *, robot: bool = True, basis: bool = True) -> Patches:
    rng = np.random.default_rng(seed)
    patches = []
    for _ in range(3):
        index = np.flatnonzero(rng.random(35) < rng.choice([0.0, 0.4, 1.0])).astype(np.uint32)
        n = len(index)
        xyz = rng.integers(0, 2**32, (n, 3), dtype=np.uint32).view(np.float32)
        mask, source = rng.random(n) < 0.5, rng.integers(0, 7, n, dtype=np.uint8)
        rgb = rng.integers(0, 256, (n, 3), dtype=np.uint8)
        patches.append(FramePatch(index, rgb, xyz, mask if robot else None, source if basis else None))
    return tuple(patches)


@pytest.mark.parametrize("robot", [True, False])
@pytest.mark.parametrize("basis", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_any_patches_round_trip(seed: int, robot: bool, basis: bool) -> None:
    patches = some(seed, robot=robot, basis=basis)
    for found, wanted in zip(decode_patches(encode_patches(patches), **SIZE), patches, strict=True):
        assert np.array_equal(found.index, wanted.index)
        assert np.array_equal(found.rgb, wanted.rgb)
        assert np.array_equal(found.xyz.view(np.uint32), wanted.xyz.view(np.uint32))
        if len(wanted):
            assert (found.robot_mask is not None, found.basis is not None) == (robot, basis)
            assert not robot or np.array_equal(found.robot_mask, wanted.robot_mask)
            assert not basis or np.array_equal(found.basis, wanted.basis)


def forged(counts: list[int], raw: bytes, flags: int = 0, frames: int = 3) -> bytes:
    head = b"kinema4d patches 1\n" + struct.pack("<BI", flags, frames)
    return head + np.array(counts, "<u4").tobytes() + zlib.compress(raw)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "0 bytes"),
        (b"kinema4d patches 1\n\0", "start with"),
        (forged([0, 0, 0], b"", frames=9), "patches of 9 frames"),
        (forged([0, 0, 0], b"", flags=4), "the flags 4"),
        (forged([0], b"")[:27], "truncated"),
        (forged([36, 0, 0], bytes(36 * 19)), "have 36 pixels"),
        (forged([2**32 - 1, 0, 0], b""), "have 4294967295 pixels"),
        (forged([1, 0, 0], bytes(18)), "18 bytes of pixels"),
        (forged([1, 0, 0], bytes(10_000_000)), "20 bytes of pixels"),
        (forged([1, 0, 0], bytes([35]) + bytes(18)), "has pixel 35"),
        (forged([2, 0, 0], bytes(38)), "not in order"),
        (forged([1, 0, 0], bytes(19) + b"\2", flags=1), "holds 2"),
        (forged([1, 0, 0], bytes(19) + b"\7", flags=2), "basis holds the value 7"),
        (forged([0, 0, 0], b"") + b"more", "0 bytes of pixels"),
    ],
)
def test_forged_bytes_are_refused(data: bytes, message: str) -> None:
    with pytest.raises(PointmapError) as caught:
        decode_patches(data, **SIZE)
    assert message in str(caught.value)
    assert caught.value.code == ErrorCode.WIRE_CORRUPT


def test_a_limit_of_pixels_holds_before_decoding() -> None:
    data = encode_patches(some(1))
    total = sum(map(len, some(1)))
    decode_patches(data, **SIZE, most_pixels=total)
    with pytest.raises(PointmapError, match=f"{total} pixels"):
        decode_patches(data, **SIZE, most_pixels=total - 1)


@hypothesis_settings(max_examples=200)
@given(st.integers(0, 10_000), st.integers(0, 255), st.integers(0, 3))
def test_changed_bytes_give_patches_or_an_error_of_ours(where: int, value: int, cut: int) -> None:
    data = bytearray(encode_patches(some(2)))
    data[where % len(data)] = value
    # Any other exception fails the test.
    with suppress(KinemaError):
        decode_patches(bytes(data[: len(data) - cut]), **SIZE)
