"""Tests of the metric fit on the robot's pixels: exact recovery, noise, outliers, refused fits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kinema4d_model.pipeline.metric import MetricLimits, bounds_fit, fit_metric
from kinema4d_ros.core.errors import ErrorCode, GeneratorError

SHAPE = (3, 24, 36)
scales = st.tuples(*[st.floats(0.2, 5.0)] * 3).map(np.array)
offsets = st.tuples(*[st.floats(-2.0, 2.0)] * 3).map(np.array)


def scene(seed: int = 0, spread: tuple[float, float, float] = (0.4, 0.3, 0.5)) -> tuple[NDArray, NDArray]:
    """Return exact points (T, H, W, 3), metres, around (0, 0, 1), NaN outside the mask; and the mask."""
    rng = np.random.default_rng(seed)
    mask = np.zeros(SHAPE, bool)
    mask[:, 4:20, 6:30] = True
    points = (rng.random((*SHAPE, 3)) - 0.5) * spread + (0.0, 0.1, 1.0)
    return np.where(mask[..., None], points, np.nan).astype(np.float32), mask


def predicted(xyz: NDArray, scale: NDArray, offset: NDArray, noise_m: float = 0.0, seed: int = 1) -> NDArray:
    noise = noise_m * np.random.default_rng(seed).standard_normal(xyz.shape)
    return np.nan_to_num((xyz + noise - offset) / scale, nan=0.3).astype(np.float32)


@settings(max_examples=40, deadline=None)
@given(scale=scales, offset=offsets, seed=st.integers(0, 100))
def test_scale_and_offset_are_recovered(scale: NDArray, offset: NDArray, seed: int) -> None:
    xyz, mask = scene(seed)
    values = predicted(xyz, scale, offset)
    fit = fit_metric(values, xyz, mask)
    assert np.allclose(fit.scale, scale, rtol=1e-4)
    assert np.allclose(fit.apply(values)[mask], xyz[mask], atol=1e-4)
    assert fit.residual_m < 1e-4
    assert fit.inliers.min() > 0.9
    assert not fit.refused


@settings(max_examples=30, deadline=None)
@given(scale=scales, offset=offsets, share=st.floats(0.0, 0.35), seed=st.integers(0, 100))
def test_outliers_on_a_third_of_the_robot_do_not_matter(
    scale: NDArray, offset: NDArray, share: float, seed: int
) -> None:
    xyz, mask = scene(seed)
    values = predicted(xyz, scale, offset, noise_m=0.002, seed=seed)
    rng = np.random.default_rng(seed + 1)
    wrong = rng.random(SHAPE) < share
    # One-sided and clustered, as from a missing arm: the worst case for least squares.
    values[wrong] = rng.uniform(0.8, 1.0, (int(wrong.sum()), 3)).astype(np.float32)
    fit = fit_metric(values, xyz, mask)
    good = mask & ~wrong
    error = np.linalg.norm(fit.apply(values)[good] - xyz[good], axis=-1)
    assert np.sqrt(np.mean(error**2)) < 0.006
    assert np.allclose(fit.scale, scale, rtol=0.03)


def test_noise_does_not_shrink_the_world() -> None:
    xyz, mask = scene()
    scale, offset = np.array([1.0, 1.2, 0.9]), np.array([-0.5, -0.4, 0.6])
    fit = fit_metric(predicted(xyz, scale, offset, noise_m=0.05), xyz, mask)
    # Regressing metres on values would lose noise^2 / variance, here 12 to 33 % of the gain.
    assert np.allclose(fit.scale, scale, rtol=0.08)
    assert fit.axis_residual_m == pytest.approx([0.05] * 3, rel=0.25)
    assert fit.residual_m == pytest.approx(0.05 * np.sqrt(3), rel=0.15)


def test_the_condition_number_equals_numpys() -> None:
    xyz, mask = scene()
    fit = fit_metric(predicted(xyz, np.ones(3), np.zeros(3)), xyz, mask)
    inner = np.zeros(SHAPE, bool)
    inner[:, 5:19, 7:29] = True
    for axis in range(3):
        x = xyz[inner][:, axis].astype(np.float64)
        assert fit.condition[axis] == pytest.approx(np.linalg.cond(np.stack([x, np.ones_like(x)], 1)), rel=0.01)


def test_edge_pixels_are_excluded() -> None:
    xyz, mask = scene()
    values = predicted(xyz, np.ones(3), np.zeros(3))
    inner = np.zeros(SHAPE, bool)
    inner[:, 5:19, 7:29] = True
    values[mask & ~inner] = 7.0
    assert fit_metric(values, xyz, mask).residual_m < 1e-5


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("small", "covers"),
        ("none", "covers 0 pixels"),
        ("flat", "on the y axis"),
        ("backwards", "runs backwards on the x axis"),
        ("noise", "on the"),
        ("constant", "on the z axis"),
        ("far", "condition number"),
        ("nan", "covers 0 pixels"),
    ],
)
def test_refused_fits_give_the_reason(change: str, words: str) -> None:
    xyz, mask = scene(spread=(0.4, 0.01 if change == "flat" else 0.3, 0.5))
    limits = MetricLimits()
    if change == "far":
        xyz += np.float32(50.0)
        limits = MetricLimits(max_condition=100.0)
    values = predicted(xyz, np.ones(3), np.zeros(3))
    if change in ("small", "none"):
        mask = mask.copy()
        mask[:, 6 if change == "small" else 0 :] = False
        mask[1:] = False
    elif change == "backwards":
        values[..., 0] *= -1
    elif change == "noise":
        values = np.random.default_rng(77).random(values.shape).astype(np.float32)
    elif change == "constant":
        values[..., 2] = 0.5
    elif change == "nan":
        values[:] = np.nan
    with pytest.raises(GeneratorError) as caught:
        fit_metric(values, xyz, mask, limits)
    assert caught.value.code == ErrorCode.METRIC_REFUSED
    assert words in caught.value.what
    assert caught.value.hint


def test_arrays_of_mismatched_shapes_are_refused() -> None:
    xyz, mask = scene()
    with pytest.raises(GeneratorError) as caught:
        fit_metric(xyz[:2], xyz, mask)
    assert caught.value.code == ErrorCode.GENERATOR_BAD_REQUEST


def test_without_a_fit_the_bounds_are_used_and_their_error_is_measured() -> None:
    xyz, mask = scene()
    bounds = np.array([[-1.0, -1.0, 0.0], [1.0, 1.0, 2.0]])
    values = predicted(xyz + np.float32(0.03), bounds[1] - bounds[0], bounds[0])
    fit = bounds_fit(bounds, values, xyz, mask, "too small")
    assert np.allclose(fit.apply(values)[mask], xyz[mask] + 0.03, atol=1e-5)
    assert fit.residual_m == pytest.approx(0.03 * np.sqrt(3), rel=1e-3)
    assert "too small" in fit.summary()
    assert bounds_fit(bounds, values, xyz, np.zeros_like(mask), "").residual_m == 0.0
