from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import ErrorCode, KinemaError, PointmapError
from kinema4d_ros.core.pointmap import PointmapSequence, denormalise

Make = Callable[..., PointmapSequence]
CAMERA = PinholeCamera(4, 3, [[5.0, 0, 2], [0, 5, 1.5], [0, 0, 1]])


@st.composite
def sequences(draw: st.DrawFn) -> PointmapSequence:
    """Draw sequences of any finite points, not only those on the rays; at least one robot pixel."""
    ids = draw(arrays(np.uint8, (2, 3, 4), elements=st.sampled_from([0, 1, 9, 255])).filter(np.any))
    xyz = draw(arrays(np.float32, (2, 3, 4, 3), elements=st.floats(-8, 8, width=32)))
    return PointmapSequence(np.where((ids != 0)[..., None], xyz, np.float32(np.nan)), ids, CAMERA)


@settings(max_examples=40)
@given(sequences())
def test_bounds_are_the_extremes_of_the_robot(sequence: PointmapSequence) -> None:
    points = sequence.xyz[sequence.mask]
    np.testing.assert_array_equal(sequence.bounds(), [points.min(0), points.max(0)])


@settings(max_examples=40)
@given(sequences())
def test_normalisation_fills_the_unit_interval_and_is_reversible(sequence: PointmapSequence) -> None:
    normalised = sequence.normalised()
    values = normalised.values[sequence.mask]
    span = normalised.bounds[1] - normalised.bounds[0]
    assert normalised.values.dtype == np.float32
    assert np.all(normalised.values[~sequence.mask] == 0)
    assert values.min() >= 0
    assert values.max() <= 1
    ordinary = span > 1.1e-9
    np.testing.assert_array_equal(values.min(0), 0)
    np.testing.assert_allclose(values.max(0)[ordinary], 1, atol=1e-6)
    back = normalised.inverse()
    assert np.isnan(back[~sequence.mask]).all()
    # One rounding of the normalised value and two of the result, all in float32.
    np.testing.assert_allclose(back[sequence.mask], sequence.xyz[sequence.mask], atol=4 * 2**-24 * 16)


@settings(max_examples=40)
@given(sequences())
def test_normalisation_keeps_the_order_of_points(sequence: PointmapSequence) -> None:
    values, points = sequence.normalised().values[sequence.mask], sequence.xyz[sequence.mask]
    for axis in range(3):
        order = np.argsort(points[:, axis], kind="stable")
        assert np.all(np.diff(values[order, axis]) >= 0)


def test_an_axis_without_extent_is_zero_and_reversible(make_sequence: Make) -> None:
    sequence = make_sequence()
    flat = sequence.xyz.copy()
    flat[sequence.mask, 2] = 0.75
    normalised = replace(sequence, xyz=flat).normalised()
    assert np.all(normalised.values[..., 2] == 0)
    np.testing.assert_array_equal(normalised.bounds[:, 2], [0.75, 0.75])
    assert np.all(normalised.inverse()[sequence.mask, 2] == 0.75)


def test_a_tiny_extent_counts_as_zero(make_sequence: Make) -> None:
    sequence = make_sequence()
    nearly = sequence.xyz.copy()
    nearly[sequence.mask, 0] = 0.0
    nearly[tuple(np.argwhere(sequence.mask)[0])][0] = 1e-45
    normalised = replace(sequence, xyz=nearly).normalised()
    assert np.all(normalised.values[..., 0] == 0)
    assert np.all(np.isfinite(normalised.values))


def test_given_bounds_are_used_and_points_outside_are_clipped(make_sequence: Make) -> None:
    sequence = make_sequence()
    bounds = np.array([[-1.0, -1.0, 0.0], [1.0, 1.0, 1.0]])
    normalised = sequence.normalised(bounds)
    np.testing.assert_array_equal(normalised.bounds, bounds)
    expected = np.clip((sequence.xyz[sequence.mask] - bounds[0]) / (bounds[1] - bounds[0]), 0, 1)
    np.testing.assert_allclose(normalised.values[sequence.mask], expected, atol=1e-6)
    assert expected.max() == 1.0


def test_bounds_are_shared_by_all_frames(make_sequence: Make) -> None:
    sequence = make_sequence(frames=5)
    values = sequence.normalised().values
    reaches_top = [values[t].max() == 1.0 for t in range(5)]
    assert 0 < sum(reaches_top) <= 3


def test_views_and_read_only_arrays_are_fine(make_sequence: Make) -> None:
    sequence = make_sequence(frames=4)
    xyz = sequence.xyz[::2]
    xyz.flags.writeable = False
    every_second = PointmapSequence(xyz, sequence.link_ids[::2], sequence.camera)
    np.testing.assert_allclose(every_second.normalised().inverse(), xyz, atol=1e-6)


def test_a_process_may_fork_after_use(make_sequence: Make) -> None:
    sequence = make_sequence()
    expected = sequence.bounds()

    def child() -> None:
        os._exit(0 if np.array_equal(sequence.bounds(), expected) else 1)

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(60)
    assert process.exitcode == 0


def test_the_mask_is_where_links_are(make_sequence: Make) -> None:
    sequence = make_sequence()
    assert len(sequence) == 3
    assert sequence.mask.dtype == np.bool_
    np.testing.assert_array_equal(sequence.mask, np.isfinite(sequence.xyz[..., 0]))
    assert sequence.mask is sequence.mask


def test_an_empty_sequence_has_no_bounds(make_sequence: Make) -> None:
    sequence = make_sequence(share=0.0)
    for call in (sequence.bounds, sequence.normalised):
        with pytest.raises(PointmapError, match="no frame shows the robot") as caught:
            call()
        assert caught.value.code == ErrorCode.POINTMAP_EMPTY


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_broken_points_are_refused(make_sequence: Make, value: float) -> None:
    sequence = make_sequence()
    xyz = sequence.xyz.copy()
    t, v, u = np.argwhere(sequence.mask)[-1]
    xyz[t, v, u, 1] = value
    broken = replace(sequence, xyz=xyz)
    with pytest.raises(PointmapError, match=f"frame {t} has 1 robot pixels") as caught:
        broken.bounds()
    assert caught.value.code == ErrorCode.POINTMAP_BAD_INPUT
    with pytest.raises(PointmapError, match=f"row {v}, column {u}"):
        broken.check_points()


def test_points_without_a_link_are_found(make_sequence: Make) -> None:
    sequence = make_sequence()
    sequence.check_points()
    ids = sequence.link_ids.copy()
    ids[tuple(np.argwhere(sequence.mask)[0])] = 0
    with pytest.raises(PointmapError, match="frame 0 has 1 pixels"):
        replace(sequence, link_ids=ids).check_points()


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"xyz": np.zeros((3, 20, 31, 3))}, ErrorCode.POINTMAP_BAD_INPUT),
        ({"xyz": np.zeros((3, 20, 31), np.float32)}, ErrorCode.POINTMAP_BAD_INPUT),
        ({"link_ids": np.zeros((3, 20, 31), np.int32)}, ErrorCode.POINTMAP_BAD_INPUT),
        ({"link_ids": np.zeros((20, 31), np.uint8)}, ErrorCode.POINTMAP_BAD_INPUT),
        ({"link_ids": np.zeros((0, 20, 31), np.uint8)}, ErrorCode.POINTMAP_BAD_INPUT),
        ({"rgb": np.zeros((3, 20, 31, 4), np.uint8)}, ErrorCode.POINTMAP_BAD_INPUT),
        ({"times": np.zeros(2)}, ErrorCode.POINTMAP_BAD_INPUT),
        ({"times": np.array([0.0, 2.0, 1.0])}, ErrorCode.POINTMAP_BAD_INPUT),
        ({"times": np.array([0.0, np.nan, 1.0])}, ErrorCode.POINTMAP_BAD_INPUT),
        ({"camera": PinholeCamera(31, 21, np.diag([30.0, 30, 1]))}, ErrorCode.CAMERA_BAD_SIZE),
        (
            {"camera": PinholeCamera(31, 20, np.diag([90.0, 90, 1]), distortion=(0.1, 0, 0, 0))},
            ErrorCode.CAMERA_BAD_DISTORTION,
        ),
    ],
)
def test_arrays_that_do_not_fit_are_refused(make_sequence: Make, changes: dict[str, Any], code: ErrorCode) -> None:
    with pytest.raises(KinemaError) as caught:
        replace(make_sequence(), **changes)
    assert caught.value.code == code


@pytest.mark.parametrize(
    "bounds",
    [np.zeros((3, 2)), [[0, 0, 0], [1, 1, np.nan]], [[0, 0, 1], [1, 1, 0]]],
)
def test_invalid_bounds_are_refused(make_sequence: Make, bounds: Any) -> None:
    sequence = make_sequence()
    with pytest.raises(PointmapError, match="are invalid"):
        sequence.normalised(bounds)
    with pytest.raises(PointmapError, match="are invalid"):
        denormalise(sequence.xyz, bounds, sequence.mask)


def test_denormalise_refuses_values_of_another_shape(make_sequence: Make) -> None:
    mask = make_sequence().mask
    with pytest.raises(PointmapError, match="values is"):
        denormalise(np.zeros((3, 20, 30, 3), np.float32), np.array([[0, 0, 0], [1, 1, 1]]), mask)
