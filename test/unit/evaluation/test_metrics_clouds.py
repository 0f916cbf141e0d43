"""Chamfer distances and F-score against SciPy's trees, for organised and unorganised clouds; refusals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial import cKDTree
from scipy.spatial.distance import cdist

from kinema4d_ros.evaluation import EvaluationError, cloud_distance, consecutive_distances, frame_distances


def reference(a: np.ndarray, b: np.ndarray, limit: float) -> tuple[float, float, float]:
    """Chamfer L1, L2 and F-score from all pairs."""
    pairs = cdist(a.astype(np.float64), b.astype(np.float64))
    there, back = pairs.min(axis=1), pairs.min(axis=0)
    precision, recall = (there < limit).mean(), (back < limit).mean()
    f = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
    return (there.mean() + back.mean()) / 2, (there**2).mean() + (back**2).mean(), f


def organised(seed: int, h: int, w: int, *, holes: float, kind: str) -> np.ndarray:
    """(h, w, 3) float32: a wavy surface, or points without any order."""
    rng = np.random.default_rng(seed)
    if kind == "wild":
        xyz = rng.normal(0, 0.2, (h, w, 3))
    else:
        v, u = np.mgrid[0:h, 0:w] / 60.0
        z = 1 + 0.05 * np.sin(9 * u + seed) + rng.normal(0, 0.002, (h, w))
        xyz = np.stack([u * z, v * z, z], axis=-1)
    xyz[rng.random((h, w)) < holes] = np.nan
    return xyz.astype(np.float32)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    h=st.integers(1, 23),
    w=st.integers(1, 23),
    holes=st.sampled_from([0.0, 0.3, 0.9]),
    kind=st.sampled_from(["surface", "wild"]),
)
def test_both_algorithms_agree_with_brute_force(seed: int, h: int, w: int, holes: float, kind: str) -> None:
    a, b = organised(seed, h, w, holes=holes, kind=kind), organised(seed + 1, h, w, holes=holes, kind="surface")
    flat = [cloud[np.isfinite(cloud[..., 0])] for cloud in (a, b)]
    result = frame_distances(a[None], b[None], (0.03,))[0]
    assert (result.predicted_points, result.true_points) == (len(flat[0]), len(flat[1])) or np.isnan(result.chamfer_l1)
    if not len(flat[0]) or not len(flat[1]):
        assert np.isnan(result.chamfer_l1)
        assert np.isnan(result.f_score[0])
        return
    expected = reference(*flat, 0.03)
    for found in (result, cloud_distance(*flat, (0.03,))):
        np.testing.assert_allclose((found.chamfer_l1, found.chamfer_l2, found.f_score[0]), expected, atol=1e-9)


def test_a_large_cloud_agrees_with_a_tree() -> None:
    a, b = organised(1, 120, 180, holes=0.05, kind="surface"), organised(2, 120, 180, holes=0.05, kind="surface")
    # An object at another place in the other cloud: the same pixel is a bad first guess.
    b[20:60, 30:70] = a[40:80, 100:140] - np.float32([0, 0, 0.2])
    flat = [cloud[np.isfinite(cloud[..., 0])].astype(np.float64) for cloud in (a, b)]
    there, back = cKDTree(flat[1]).query(flat[0])[0], cKDTree(flat[0]).query(flat[1])[0]
    found = frame_distances(a[None], b[None], (0.005, 0.02))[0]
    assert found.accuracy == pytest.approx(there.mean(), abs=1e-9)
    assert found.completeness == pytest.approx(back.mean(), abs=1e-9)
    assert found.precision == pytest.approx([(there < 0.005).mean(), (there < 0.02).mean()])
    assert found.recall == pytest.approx([(back < 0.005).mean(), (back < 0.02).mean()])


def test_known_numbers() -> None:
    found = cloud_distance([[0, 0, 0], [1, 0, 0]], [[0, 0, 0.3]], (0.5,))
    far = np.sqrt(1 + 0.09)
    assert found.accuracy == pytest.approx((0.3 + far) / 2)
    assert found.completeness == pytest.approx(0.3)
    assert found.chamfer_l1 == pytest.approx((found.accuracy + found.completeness) / 2)
    assert found.chamfer_l2 == pytest.approx((0.09 + far**2) / 2 + 0.09)
    assert (found.precision, found.recall) == ((0.5,), (1.0,))
    assert found.f_score[0] == pytest.approx(2 / 3)


def test_the_nearest_point_may_be_outside_of_the_mask() -> None:
    a = organised(1, 20, 20, holes=0, kind="surface")
    b = np.roll(a, 3, axis=1)
    mask = np.zeros((1, 20, 20), bool)
    mask[0, 5:10, 8:12] = True
    found = frame_distances(a[None], b[None], (0.01,), mask)[0]
    assert found.predicted_points == 20
    assert found.chamfer_l1 == 0.0


def test_consecutive_distances() -> None:
    still = organised(4, 15, 25, holes=0.2, kind="surface")
    moved = still.copy()
    moved[3:8, 3:8, 2] += 0.1
    steps = consecutive_distances(np.stack([still, still, moved]))
    assert len(steps) == 2
    assert steps[0].chamfer_l1 == 0.0
    assert steps[0].f_score == (1.0,)
    both = [cloud[np.isfinite(cloud[..., 0])] for cloud in (moved, still)]
    assert steps[1].chamfer_l1 == pytest.approx(reference(*both, 0.01)[0], abs=1e-9)


def test_a_frame_without_points_is_nan_and_the_others_are_not() -> None:
    a = np.stack([organised(1, 9, 9, holes=0, kind="surface")] * 2)
    b = a.copy()
    b[1] = np.nan
    first, second = frame_distances(a, b)
    assert first.chamfer_l1 == 0
    assert np.isnan(second.chamfer_l1)
    assert second.true_points == 0


def test_bad_clouds_are_refused() -> None:
    good = np.zeros((4, 3))
    for bad, says in (
        (np.zeros((0, 3)), "has no point"),
        (np.full((4, 3), np.nan), "has no point"),
        (np.zeros((4, 2)), r"shape \(4, 2\)"),
        (np.array([[0, np.nan, 0]]), "nan"),
        (np.array([[0, np.inf, 0]]), "inf"),
    ):
        with pytest.raises(EvaluationError, match=says):
            cloud_distance(bad, good)
        with pytest.raises(EvaluationError, match=says):
            cloud_distance(good, bad)
    sequence = np.zeros((2, 3, 4, 3), np.float32)
    with pytest.raises(EvaluationError, match="one shape"):
        frame_distances(sequence, sequence[:1])
    with pytest.raises(EvaluationError, match="uint8"):
        frame_distances(sequence, sequence.astype(np.uint8))
    with pytest.raises(EvaluationError, match="at least two"):
        consecutive_distances(sequence[:1])
    with pytest.raises(EvaluationError, match="thresholds"):
        frame_distances(sequence, sequence, (0.0,))
