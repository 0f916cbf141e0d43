from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from kinema4d_ros.errors import PointmapError
from kinema4d_ros.pointmap import soft_mask


@given(arrays(np.bool_, (3, 6, 7)), st.integers(0, 2**32), st.floats(0, 1))
def test_exactly_the_share_of_the_robot_is_softened(mask: Any, seed: int, ratio: float) -> None:
    soft = soft_mask(mask, seed=seed, ratio=ratio)
    assert soft.dtype == np.float32
    assert soft.shape == mask.shape
    assert np.all(soft[~mask] == 0)
    assert int((soft == 0.5).sum()) == round(ratio * int(mask.sum()))
    assert int((soft == 1.0).sum()) == int(mask.sum()) - round(ratio * int(mask.sum()))


def test_the_paper_softens_a_tenth() -> None:
    mask = np.ones((2, 50, 50), np.bool_)
    assert int((soft_mask(mask, seed=0) == 0.5).sum()) == 500


def test_the_seed_decides() -> None:
    mask = np.random.default_rng(0).random((4, 30, 30)) < 0.5
    np.testing.assert_array_equal(soft_mask(mask, seed=1), soft_mask(mask, seed=1))
    assert not np.array_equal(soft_mask(mask, seed=1), soft_mask(mask, seed=2))


def test_softened_pixels_are_spread_over_the_whole_mask() -> None:
    soft = soft_mask(np.ones((10, 40, 40), np.bool_), seed=3) == 0.5
    per_frame = soft.sum((1, 2))
    # 160 expected in each frame, standard deviation 11.
    assert per_frame.min() > 100
    assert per_frame.max() < 220


def test_the_input_is_not_changed_and_views_work() -> None:
    mask = np.ones((6, 8, 8), np.bool_)
    soft = soft_mask(mask[::2, :, ::2], seed=0, ratio=1.0)
    assert mask.all()
    assert np.all(soft == 0.5)


@pytest.mark.parametrize("ratio", [-0.1, 1.1, float("nan")])
def test_shares_outside_zero_and_one_are_refused(ratio: float) -> None:
    with pytest.raises(PointmapError, match="ratio"):
        soft_mask(np.ones((2, 2), np.bool_), seed=0, ratio=ratio)


def test_a_mask_of_numbers_is_refused() -> None:
    with pytest.raises(PointmapError, match="float64"):
        soft_mask(np.ones((2, 2)), seed=0)  # type: ignore[arg-type]
