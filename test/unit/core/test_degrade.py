from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinema4d_ros.core.degrade import (
    Degradation,
    add_noise,
    drop_points,
    random_rotation,
    random_shift,
    rotate_image,
    shift_pixels,
)
from kinema4d_ros.core.errors import ErrorCode, PointmapError
from kinema4d_ros.core.pointmap import PointmapSequence

Make = Callable[..., PointmapSequence]
Degrade = Callable[[PointmapSequence, int], PointmapSequence]

SEEDED: dict[str, Degrade] = {
    "drop": lambda s, seed: drop_points(s, seed=seed),
    "noise": lambda s, seed: add_noise(s, seed=seed),
    "shift": lambda s, seed: random_shift(s, seed=seed),
    "rotate": lambda s, seed: random_rotation(s, seed=seed, limit_deg=30),
}


@pytest.mark.parametrize("name", SEEDED)
@pytest.mark.parametrize("rgb", [True, False])
def test_points_links_and_colours_agree_and_the_input_is_kept(make_sequence: Make, name: str, rgb: bool) -> None:
    sequence = make_sequence(rgb=rgb)
    before = sequence.xyz.copy(), sequence.link_ids.copy()
    worse = SEEDED[name](sequence, 4)
    worse.check_points()
    if rgb:
        assert worse.rgb is not None
        assert not worse.rgb[~worse.mask].any()
        assert worse.rgb[worse.mask].all(-1).all()
    else:
        assert worse.rgb is None
    np.testing.assert_array_equal(sequence.xyz, before[0])
    np.testing.assert_array_equal(sequence.link_ids, before[1])
    assert not np.array_equal(worse.xyz, sequence.xyz, equal_nan=True)
    assert worse.camera is sequence.camera


@pytest.mark.parametrize("name", SEEDED)
def test_results_depend_on_the_seed(make_sequence: Make, name: str) -> None:
    sequence = make_sequence()
    first, again, other = (SEEDED[name](sequence, seed).xyz for seed in (5, 5, 6))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other, equal_nan=True)


@pytest.mark.parametrize("ratio", [0.0, 0.05, 0.5, 1.0])
def test_exactly_the_given_ratio_is_dropped(make_sequence: Make, ratio: float) -> None:
    sequence = make_sequence()
    total = int(sequence.mask.sum())
    worse = drop_points(sequence, seed=0, ratio=ratio)
    assert int(worse.mask.sum()) == total - round(ratio * total)
    kept = worse.mask
    assert not (kept & ~sequence.mask).any()
    np.testing.assert_array_equal(worse.xyz[kept], sequence.xyz[kept])


def test_noise_has_the_given_standard_deviation(make_sequence: Make) -> None:
    sequence = make_sequence(frames=4, height=60, width=80)
    difference = (add_noise(sequence, seed=0, sigma_m=0.02).xyz - sequence.xyz)[sequence.mask]
    n = difference.shape[0]
    np.testing.assert_allclose(difference.std(0), 0.02, rtol=4 / np.sqrt(n))
    np.testing.assert_allclose(difference.mean(0), 0.0, atol=5 * 0.02 / np.sqrt(n))
    np.testing.assert_array_equal(add_noise(sequence, seed=0, sigma_m=0.0).xyz, sequence.xyz)


@settings(max_examples=40)
@given(columns=st.integers(-40, 40), rows=st.integers(-30, 30))
def test_a_shift_moves_whole_pixels(make_sequence: Make, columns: int, rows: int) -> None:
    sequence = make_sequence(frames=1)
    moved = shift_pixels(sequence, columns, rows)
    for v in range(20):
        for u in range(31):
            inside = 0 <= v - rows < 20 and 0 <= u - columns < 31
            assert moved.link_ids[0, v, u] == (sequence.link_ids[0, v - rows, u - columns] if inside else 0)
    moved.check_points()


def test_random_shifts_stay_within_the_limit_and_reach_it(make_sequence: Make) -> None:
    ids = np.zeros((1, 20, 31), np.uint8)
    ids[0, 10, 15] = 1
    xyz = np.where(ids[..., None] > 0, np.float32(1), np.float32(np.nan)).repeat(3, -1)
    one = PointmapSequence(xyz, ids, make_sequence().camera)
    found = [np.argwhere(random_shift(one, seed=seed).mask)[0][1:] - [10, 15] for seed in range(300)]
    assert np.abs(found).max() == 5
    assert len({tuple(f) for f in found}) > 80


@pytest.mark.parametrize("turns", [1, 2, 3])
def test_quarter_turns_are_exact(make_sequence: Make, turns: int) -> None:
    sequence = make_sequence(height=24, width=24)
    turned = rotate_image(sequence, 90.0 * turns)
    # np.rot90 rotates counter-clockwise in the image.
    np.testing.assert_array_equal(turned.link_ids, np.rot90(sequence.link_ids, -turns, (1, 2)))
    np.testing.assert_array_equal(turned.xyz, np.rot90(sequence.xyz, -turns, (1, 2)))


def test_a_rotation_turns_about_the_centre(make_sequence: Make) -> None:
    ids = np.zeros((1, 101, 101), np.uint8)
    ids[0, 48:53, 88:93] = 1
    xyz = np.where(ids[..., None] > 0, np.float32(1), np.float32(np.nan)).repeat(3, -1)
    patch = PointmapSequence(xyz, ids, make_sequence(height=101, width=101).camera)
    np.testing.assert_array_equal(rotate_image(patch, 0.0).link_ids, ids)
    _, v, u = np.nonzero(rotate_image(patch, 5.0).mask)
    np.testing.assert_allclose(
        [u.mean(), v.mean()], 50 + 40 * np.array([np.cos(np.radians(5)), np.sin(np.radians(5))]), atol=0.3
    )


def test_random_rotations_stay_within_the_limit(make_sequence: Make) -> None:
    ids = np.zeros((1, 201, 201), np.uint8)
    ids[0, 99:102, 180:200] = 1
    xyz = np.where(ids[..., None] > 0, np.float32(1), np.float32(np.nan)).repeat(3, -1)
    ray = PointmapSequence(xyz, ids, make_sequence(height=201, width=201).camera)
    angles = []
    for seed in range(60):
        _, v, u = np.nonzero(random_rotation(ray, seed=seed).mask)
        angles.append(np.degrees(np.arctan2(v.mean() - 100, u.mean() - 100)))
    assert np.abs(angles).max() < 5.2
    assert min(angles) < -3
    assert max(angles) > 3


@pytest.mark.parametrize(
    "call",
    [
        lambda s: drop_points(s, seed=0, ratio=1.5),
        lambda s: drop_points(s, seed=0, ratio=float("nan")),
        lambda s: add_noise(s, seed=0, sigma_m=-1.0),
        lambda s: add_noise(s, seed=0, sigma_m=float("inf")),
        lambda s: rotate_image(s, float("nan")),
        lambda s: random_shift(s, seed=0, limit_px=-1),
        lambda s: random_rotation(s, seed=0, limit_deg=-1.0),
    ],
)
def test_invalid_amounts_are_refused(make_sequence: Make, call: Any) -> None:
    with pytest.raises(PointmapError):
        call(make_sequence())


@pytest.mark.parametrize(
    ("text", "label", "same"),
    [
        ("drop", "drop 5 %", lambda s: drop_points(s, seed=9)),
        ("drop=0.125", "drop 12.5 %", lambda s: drop_points(s, seed=9, ratio=0.125)),
        ("noise=0.02", "noise 20 mm", lambda s: add_noise(s, seed=9, sigma_m=0.02)),
        ("shift=3", "shift up to 3 px", lambda s: random_shift(s, seed=9, limit_px=3)),
        ("rotate", "rotate up to 5 deg", lambda s: random_rotation(s, seed=9)),
    ],
)
def test_degradations_are_named(make_sequence: Make, text: str, label: str, same: Any) -> None:
    sequence, found = make_sequence(), Degradation.parse(text)
    assert found.label == label
    np.testing.assert_array_equal(found.apply(sequence, 9).xyz, same(sequence).xyz)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("blur", "one of drop, noise, shift, rotate"),
        ("", "one of drop, noise, shift, rotate"),
        ("drop=1.2", r"0 to 1 \(share of the points\), as in drop=0.05"),
        ("noise=nan", "standard deviation in metres"),
        ("rotate=-1", "degrees"),
        ("shift=2.5", "whole pixels"),
        ("drop=", "share"),
        ("noise=1cm", "metres"),
    ],
)
def test_invalid_degradations_are_refused(text: str, words: str) -> None:
    with pytest.raises(PointmapError, match=words) as caught:
        Degradation.parse(text)
    assert caught.value.code is ErrorCode.ARGUMENT_INVALID
