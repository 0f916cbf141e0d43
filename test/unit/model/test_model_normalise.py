"""Tests of the normalisations of pointmaps: what each maps to 0 and 1, and that the metric fit inverts all of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kinema4d_model.pipeline.metric import bounds_fit, fit_metric
from kinema4d_model.pipeline.normalise import NORMALISATIONS, PointScale, describe_normalisation, measure_scale

T, H, W = 3, 20, 30
RAYS = np.dstack([*np.meshgrid(np.linspace(-0.5, 0.5, W), np.linspace(-0.4, 0.4, H)), np.ones((H, W))])

scenes = st.builds(
    lambda seed, size, offset, moves: (seed, np.array(size), np.array(offset), moves),
    st.integers(0, 1000),
    st.tuples(*[st.floats(0.3, 2.0)] * 3),
    st.tuples(st.floats(-1.0, 1.0), st.floats(-1.0, 1.0), st.floats(1.5, 3.0)),
    st.floats(0.0, 0.3),
)


def make(scene: tuple) -> tuple[NDArray, NDArray]:
    """Return a world (T, H, W, 3), metres, that shifts from frame to frame, and the mask of a robot in its middle."""
    seed, size, offset, moves = scene
    rng = np.random.default_rng(seed)
    world = ((rng.random((T, H, W, 3)) - 0.5) * size + offset).astype(np.float32)
    world += (moves * np.arange(T)[:, None, None, None]).astype(np.float32)
    mask = np.zeros((T, H, W), bool)
    mask[:, 3:17, 4:26] = True
    # The robot is inside the scene: the outermost 4 % of it are clipped by one of the normalisations.
    middle = world.mean((1, 2), keepdims=True)
    world = np.where(mask[..., None], middle + 0.6 * (world - middle), world)
    return world.astype(np.float32), mask


def scale_of(kind: str, world: NDArray, mask: NDArray) -> PointScale:
    return measure_scale(kind, (world, np.ones_like(mask)), (world, mask))


@settings(max_examples=25, deadline=None)
@given(scene=scenes, kind=st.sampled_from(NORMALISATIONS))
def test_values_are_in_the_unit_cube_and_the_fit_returns_the_metres(scene: tuple, kind: str) -> None:
    world, mask = make(scene)
    scale = scale_of(kind, world, mask)
    values = scale.values(world, RAYS)
    assert values.min() >= 0
    assert values.max() <= 1
    fit = fit_metric(values, world, mask, per_frame=scale.bounds if scale.bounds.ndim == 3 else None)
    assert np.abs(fit.apply(values) - world)[mask].max() < 2e-3
    assert fit.residual_m < 1e-3
    # The bounds of the condition say the same, should the fit be refused.
    plain = bounds_fit(scale.bounds, values, world, mask, "refused")
    assert np.abs(plain.apply(values) - world)[mask].max() < 2e-3
    assert plain.residual_m < 1e-3


@settings(max_examples=15, deadline=None)
@given(scene=scenes, moved=st.floats(-0.1, 0.1))
def test_a_prediction_centred_on_other_content_is_corrected_frame_by_frame(scene: tuple, moved: float) -> None:
    """A network that learned 4DNeX's centres puts them where its own prediction has them."""
    world, mask = make(scene)
    scale = scale_of("per_frame", world, mask)
    values = scale.values(world, RAYS)
    shifts = np.array([0.0, moved, -0.5 * moved], np.float32)[:, None, None, None]
    fit = fit_metric(values + shifts, world, mask, per_frame=scale.bounds)
    assert fit.offset.shape == (T, 3)
    assert np.abs(fit.apply(values + shifts) - world)[mask].max() < 2e-3
    assert fit.residual_m < 1e-3
    # A frame that hardly shows the robot is moved like the others.
    hidden = mask.copy()
    hidden[2, 4:] = False
    hidden[2, :, 10:] = False
    steady = values + np.float32(moved)
    fit = fit_metric(steady, world, hidden, per_frame=scale.bounds)
    assert np.abs(fit.apply(steady) - world)[mask].max() < 2e-3


def test_each_normalisation_has_its_own_zero_and_one() -> None:
    world, mask = make((1, np.array([2.0, 1.0, 0.5]), np.array([0.0, 0.0, 2.0]), 0.2))
    low, high = world.reshape(-1, 3).min(0), world.reshape(-1, 3).max(0)
    axis = scale_of("per_axis", world, mask)
    assert np.allclose(axis.bounds, [low, high])
    one = scale_of("one_scale", world, mask)
    assert np.allclose(one.bounds[1] - one.bounds[0], (high - low).max())
    assert np.allclose(one.bounds.mean(0), (low + high) / 2)
    frame = scale_of("per_frame", world, mask)
    assert frame.bounds.shape == (2, T, 3)
    for t in range(T):
        points = np.concatenate([world[t].reshape(-1, 3), world[t][mask[t]]])
        p2, p98 = np.percentile(points, (2, 98), axis=0)
        assert np.allclose(frame.bounds[:, t].mean(0), (p2 + p98) / 2, atol=1e-6)
        assert np.allclose(frame.limits[:, t], [p2, p98], atol=1e-6)
    spans = frame.bounds[1] - frame.bounds[0]
    assert np.allclose(spans, spans.flat[0])
    assert {describe_normalisation(kind).split()[0] for kind in NORMALISATIONS} == set(NORMALISATIONS)


@pytest.mark.parametrize("kind", NORMALISATIONS)
def test_a_scene_without_points_has_finite_values(kind: str) -> None:
    nothing = np.full((T, H, W, 3), np.nan, np.float32)
    scale = measure_scale(kind, (nothing, np.zeros((T, H, W), bool)))
    assert np.isfinite(scale.values(nothing, RAYS)).all()
    flat = np.ones((T, H, W, 3), np.float32)
    values = measure_scale(kind, (flat, np.ones((T, H, W), bool))).values(flat, RAYS)
    assert np.isfinite(values).all()
