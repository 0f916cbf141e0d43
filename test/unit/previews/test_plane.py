"""Planes among outliers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinema4d_ros.previews.report.plane import fit_plane


@settings(max_examples=50)
@given(seed=st.integers(0, 2**32 - 1), distance=st.floats(0.3, 2.0), outliers=st.integers(0, 200))
def test_the_plane_is_found_and_the_camera_is_above_it(seed: int, distance: float, outliers: int) -> None:
    rng = np.random.default_rng(seed)
    normal = rng.normal(size=3)
    normal /= np.linalg.norm(normal)
    side = np.linalg.svd(normal[None])[2][1:]
    points = -distance * normal + rng.uniform(-0.3, 0.3, (400, 2)) @ side
    clutter = -distance * normal + rng.uniform(0.05, 0.3, (outliers, 1)) * normal + rng.normal(0, 0.1, (outliers, 3))
    plane = fit_plane(np.concatenate([points + rng.normal(0, 0.0005, points.shape), clutter]))
    assert plane is not None
    assert plane[:3] @ normal > 0.9995
    assert plane[3] == pytest.approx(distance, abs=0.003)


@pytest.mark.parametrize(
    "points",
    [np.zeros((0, 3)), np.ones((20, 3)), np.ones((500, 3)), np.random.default_rng(0).normal(size=(800, 3))],
    ids=["none", "few", "all in one place", "a cloud"],
)
def test_no_plane(points: np.ndarray) -> None:
    assert fit_plane(points) is None
