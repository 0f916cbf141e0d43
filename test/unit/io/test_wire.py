from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import ErrorCode, PointmapError
from kinema4d_ros.core.pointmap import PointmapSequence
from kinema4d_ros.io.png import encode_png
from kinema4d_ros.io.wire import (
    DEPTH_UNIT_M,
    MAX_DEPTH_M,
    SOME_LINK,
    XyzImage,
    decode_frames,
    decode_xyz,
    encode_frames,
    encode_xyz,
)

Make = Callable[..., PointmapSequence]
CAMERA = PinholeCamera(5, 4, [[6.0, 0, 2.2], [0, 7, 1.9], [0, 0, 1]])
FLOAT32_ROUNDING_M = 4e-7


def at_depth(z: Any) -> PointmapSequence:
    """Return a sequence whose pixels lie on their rays at z (T, 4, 5), NaN = no point."""
    xyz = (CAMERA.rays() * z[..., None]).astype(np.float32)
    return PointmapSequence(xyz, np.where(np.isfinite(z), 3, 0).astype(np.uint8), CAMERA)


@given(arrays(np.float64, (2, 4, 5), elements=st.just(np.nan) | st.floats(1e-4, 6.5535)))
def test_depth_round_trips_within_half_a_step(z: Any) -> None:
    sequence = at_depth(z)
    back = decode_frames(encode_frames(sequence))
    np.testing.assert_array_equal(back.link_ids, sequence.link_ids)
    error = np.abs(back.xyz - sequence.xyz)[sequence.mask]
    assert np.isnan(back.xyz[~sequence.mask]).all()
    assert error[:, 2].max(initial=0.0) <= DEPTH_UNIT_M / 2 + FLOAT32_ROUNDING_M
    # x and y err as z does, times the slope of the ray.
    assert error.max(initial=0.0) <= DEPTH_UNIT_M / 2 + FLOAT32_ROUNDING_M


def test_decoding_is_stable(make_sequence: Make) -> None:
    once = decode_frames(encode_frames(make_sequence()))
    twice = decode_frames(encode_frames(once))
    np.testing.assert_array_equal(twice.xyz, once.xyz)
    np.testing.assert_array_equal(twice.times, once.times)


def test_points_stay_on_their_rays(make_sequence: Make) -> None:
    sequence = decode_frames(encode_frames(make_sequence()))
    uv = sequence.camera.project(sequence.xyz[sequence.mask])
    _, v, u = np.nonzero(sequence.mask)
    np.testing.assert_allclose(uv, np.stack([u, v], -1) + 0.5, atol=1e-4)


def test_link_ids_may_be_left_out(make_sequence: Make) -> None:
    sequence = make_sequence()
    wire = encode_frames(sequence, link_ids=False)
    assert wire.link_ids is None
    back = decode_frames(wire)
    np.testing.assert_array_equal(back.mask, sequence.mask)
    assert set(np.unique(back.link_ids)) == {0, SOME_LINK}


def test_an_empty_frame_round_trips(make_sequence: Make) -> None:
    back = decode_frames(encode_frames(make_sequence(share=0.0)))
    assert not back.mask.any()


@pytest.mark.parametrize("z", [6.5536, 10.0, 0.0, 4e-5, -1.0, np.nan, np.inf])
def test_depths_that_do_not_fit_are_refused(z: float) -> None:
    sequence = at_depth(np.ones((3, 4, 5)))
    xyz = sequence.xyz.copy()
    xyz[1, 2, 3, 2] = z
    with pytest.raises(PointmapError, match="frame 1 has 1 robot pixels that do not fit") as caught:
        encode_frames(replace(sequence, xyz=xyz))
    assert caught.value.code == ErrorCode.POINTMAP_BAD_INPUT


def test_the_ends_of_the_range_fit() -> None:
    z = np.full((1, 4, 5), np.nan)
    z[0, 0, 0], z[0, 0, 1] = DEPTH_UNIT_M, MAX_DEPTH_M
    back = decode_frames(encode_frames(at_depth(z)))
    np.testing.assert_allclose(back.xyz[0, 0, :2, 2], [DEPTH_UNIT_M, MAX_DEPTH_M], rtol=1e-6)


def test_another_unit_is_used() -> None:
    wire = encode_frames(at_depth(np.full((1, 4, 5), 1.5)))
    np.testing.assert_allclose(decode_frames(replace(wire, depth_unit_m=1e-3)).xyz[..., 2], 15.0)


def test_frames_that_disagree_are_refused(make_sequence: Make) -> None:
    wire = encode_frames(make_sequence())
    assert wire.link_ids is not None
    other = encode_frames(make_sequence(seed=1)).link_ids
    grey8 = encode_png(np.zeros((20, 31), np.uint8))
    smaller = encode_png(np.zeros((19, 31), np.uint16))
    for bad in (
        replace(wire, depth=()),
        replace(wire, depth_unit_m=0.0),
        replace(wire, depth_unit_m=float("nan")),
        replace(wire, link_ids=wire.link_ids[:2]),
        replace(wire, link_ids=()),
        replace(wire, link_ids=other),
        replace(wire, depth=(grey8, *wire.depth[1:])),
        replace(wire, depth=(smaller, *wire.depth[1:])),
        replace(wire, depth=(b"", *wire.depth[1:])),
        replace(wire, depth=(wire.depth[0][:-20], *wire.depth[1:])),
    ):
        with pytest.raises(PointmapError) as caught:
            decode_frames(bad)
        assert caught.value.code == ErrorCode.WIRE_CORRUPT


def test_the_damaged_image_is_named(make_sequence: Make) -> None:
    wire = encode_frames(make_sequence())
    damaged = (wire.depth[0], wire.depth[1][:-5], wire.depth[2])
    with pytest.raises(PointmapError, match="depth image 1 is truncated after"):
        decode_frames(replace(wire, depth=damaged))


points = arrays(np.float32, (4, 5, 3), elements=st.floats(-50, 50, width=32))
holes = arrays(np.bool_, (4, 5))


@given(points, holes)
def test_xyz_images_err_by_at_most_half_a_step(xyz: Any, hole: Any) -> None:
    xyz = np.where(hole[..., None], np.float32(np.nan), xyz)
    image = encode_xyz(xyz)
    back = decode_xyz(image, width=5, height=4)
    np.testing.assert_array_equal(np.isnan(back), np.isnan(xyz))
    error = np.abs(back.astype(np.float64) - xyz)[~hole]
    assert np.all(error <= image.scale / 2 + 1e-5)
    assert np.all(image.scale <= 100 / 65534)


def test_xyz_images_use_the_whole_range() -> None:
    xyz = np.zeros((1, 2, 3), np.float32)
    xyz[0, 1] = [1.0, 2.0, 0.0]
    image = encode_xyz(xyz)
    np.testing.assert_allclose(image.scale, np.array([1.0, 2.0, 0.0]) / 65534)
    np.testing.assert_array_equal(decode_xyz(image, width=2, height=1), xyz)


def test_a_point_with_one_missing_axis_is_dropped() -> None:
    xyz = np.ones((1, 2, 3), np.float32)
    xyz[0, 0, 1] = np.nan
    back = decode_xyz(encode_xyz(xyz), width=2, height=1)
    assert np.isnan(back[0, 0]).all()
    np.testing.assert_allclose(back[0, 1], 1.0)


def test_bad_xyz_images_are_refused() -> None:
    with pytest.raises(PointmapError, match="shape"):
        encode_xyz(np.zeros((4, 5), np.float32))
    with pytest.raises(PointmapError, match="infinity"):
        encode_xyz(np.full((4, 5, 3), np.inf, np.float32))
    good = encode_xyz(np.ones((4, 5, 3), np.float32))
    for bad in (
        XyzImage(good.png[:30], good.offset, good.scale),
        XyzImage(good.png, np.zeros(2), good.scale),
        XyzImage(good.png, good.offset, np.full(3, np.nan)),
        XyzImage(encode_png(np.zeros((4, 5), np.uint16)), good.offset, good.scale),
    ):
        with pytest.raises(PointmapError) as caught:
            decode_xyz(bad, width=5, height=4)
        assert caught.value.code == ErrorCode.WIRE_CORRUPT
