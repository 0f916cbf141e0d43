"""Rates, rankings and corrections: known values, laws that must hold, and coverage by simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import pearsonr, spearmanr

from kinema4d_ros.core.errors import EvaluationError
from kinema4d_ros.evaluation.correction import SuccessCurve, prediction_powered
from kinema4d_ros.evaluation.ranking import bootstrap, mmrv, pearson, rank_policies, regret, spearman, winner_agrees
from kinema4d_ros.evaluation.rates import PairedOutcomes, detectable_difference, mcnemar_p, wilson

TRIALS = 3000


def test_wilson_has_the_values_of_the_literature() -> None:
    # Newcombe 1998, table I, method 3.
    for successes, runs, low, high in ((81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611)):
        found = wilson(successes, runs)
        assert found.low == pytest.approx(low, abs=6e-5)
        assert found.high == pytest.approx(high, abs=6e-5)
    assert wilson(1, 29).low == pytest.approx(0.0061, abs=6e-5)
    assert math.isnan(wilson(0, 0).estimate)


def test_a_difference_inside_its_interval_is_not_rejected_by_the_score_test() -> None:
    pairs = PairedOutcomes(36, 12, 2, 0)
    found = pairs.bias()
    assert found.estimate == pytest.approx(0.2)
    # At no difference the score is McNemar's: (b - c) / sqrt(b + c), beyond the quantile if 0 lies outside.
    assert (10 / math.sqrt(14) > 1.96) == (0 not in found)
    for counts in ((20, 3, 3, 24), (49, 1, 0, 0), (0, 50, 0, 0), (25, 0, 0, 25)):
        found = PairedOutcomes(*counts).bias()
        assert -1 <= found.low <= found.estimate <= found.high <= 1
        mirrored = PairedOutcomes(counts[0], counts[2], counts[1], counts[3]).bias()
        assert mirrored.low == pytest.approx(-found.high, abs=1e-9)
    assert PairedOutcomes(25, 0, 0, 25).bias().high > 0.02, "no disagreement in 50 runs is not no bias"


def test_mcnemar_is_the_exact_binomial() -> None:
    assert mcnemar_p(9, 1) == pytest.approx(22 / 1024)
    assert mcnemar_p(5, 5) == mcnemar_p(0, 0) == 1
    assert mcnemar_p(0, 6) == pytest.approx(2 / 64)


def test_paired_outcomes_are_counted() -> None:
    pairs = PairedOutcomes.of([1, 1, 0, 0, 1], [True, False, True, False, True])
    assert (pairs.both, pairs.only_model, pairs.only_real, pairs.neither) == (2, 1, 1, 1)
    assert pairs.model().estimate == 0.6
    assert pairs.bias().estimate == pytest.approx(0)
    assert pairs.false_success().estimate == 0.5
    assert pairs.false_failure().estimate == pytest.approx(1 / 3)
    assert pairs.agreement().estimate == 0.6
    assert pairs.p_value() == 1


@pytest.mark.parametrize(("runs", "rate"), [(20, 0.5), (50, 0.3), (50, 0.8), (150, 0.9)])
def test_wilson_covers(runs: int, rate: float) -> None:
    rng = np.random.default_rng(runs)
    inside = [rate in wilson(int(k), runs) for k in rng.binomial(runs, rate, TRIALS)]
    assert 0.93 <= np.mean(inside) <= 0.97


@pytest.mark.parametrize(("real", "optimism", "noise"), [(0.5, 0.15, 0.1), (0.8, 0.05, 0.05), (0.3, 0.0, 0.2)])
def test_the_bias_interval_covers(real: float, optimism: float, noise: float) -> None:
    rng = np.random.default_rng(int(100 * real))
    inside = []
    for _ in range(TRIALS):
        r = rng.random(50) < real
        turn = rng.random(50)
        m = np.where(r, turn >= noise, turn < noise + optimism)
        truth = (1 - real) * (noise + optimism) - real * noise
        inside.append(truth in PairedOutcomes.of(m, r).bias())
    assert 0.93 <= np.mean(inside) <= 0.97


@pytest.mark.parametrize(("real", "hit", "false"), [(0.6, 0.9, 0.3), (0.4, 0.95, 0.1), (0.5, 0.5, 0.5)])
def test_the_corrected_rate_covers_and_is_not_optimistic(real: float, hit: float, false: float) -> None:
    rng = np.random.default_rng(int(1000 * hit))
    inside, estimates, naive, widths, plain = [], [], [], [], []
    for _ in range(TRIALS):
        r = rng.random(40 + 400) < real
        m = (rng.random(440) < np.where(r, hit, false)).astype(float)
        found = prediction_powered(m[40:], m[:40], r[:40])
        inside.append(real in found)
        estimates.append(found.estimate)
        naive.append(m.mean())
        widths.append(found.high - found.low)
        few = wilson(int(r[:40].sum()), 40)
        plain.append(few.high - few.low)
    assert 0.93 <= np.mean(inside) <= 0.97
    assert abs(np.mean(estimates) - real) < 0.01
    if hit > 0.8:
        # The model alone is wrong by its optimism; the paired runs alone need a wider interval.
        assert abs(np.mean(naive) - real) > 0.03
        assert np.mean(widths) < 0.9 * np.mean(plain)


def test_equal_paired_runs_still_have_an_interval() -> None:
    found = prediction_powered([1, 1, 0, 1], [1, 1, 1, 1, 1], [1, 1, 1, 1, 1])
    assert found.low < 0.6
    assert found.high == 1


def test_correlations_are_scipys() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        a, b = rng.random(6), rng.integers(0, 4, 6) / 4
        if b.std() == 0:
            continue
        assert pearson(a, b) == pytest.approx(float(pearsonr(a, b).statistic), abs=1e-12)
        assert spearman(a, b) == pytest.approx(float(spearmanr(a, b).statistic), abs=1e-12)
    assert math.isnan(pearson([0.5, 0.5], [0.1, 0.9]))


def test_rank_violations_by_hand() -> None:
    real = [0.1, 0.4, 0.5, 0.9]
    assert mmrv(real, real) == 0
    # The two in the middle are swapped: each is violated by the other, 0.1 apart.
    assert mmrv([0.1, 0.5, 0.4, 0.9], real) == pytest.approx((0.1 + 0.1) / 4)
    # Best and worst are swapped: 0.8 for both, and the others are misranked against the ends.
    assert mmrv([0.9, 0.4, 0.5, 0.1], real) == pytest.approx((0.8 + 0.5 + 0.4 + 0.8) / 4)
    assert winner_agrees([0.2, 0.9], [0.3, 0.4])
    assert not winner_agrees([0.9, 0.2], [0.3, 0.4])
    assert regret([0.9, 0.2], [0.3, 0.4]) == pytest.approx(0.1)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=2, max_size=8))
def test_properties_of_rankings(pairs: list[tuple[float, float]]) -> None:
    model, real = np.array(pairs).T
    assert 0 <= mmrv(model, real) <= np.ptp(real) + 1e-12
    assert 0 <= regret(model, real) <= np.ptp(real) + 1e-12
    assert mmrv(real, real) == 0
    assert regret(real, real) == 0
    assert winner_agrees(model, real) == (regret(model, real) == 0)


def test_a_ranking_has_intervals_from_the_runs() -> None:
    rng = np.random.default_rng(1)
    rates = np.array([0.2, 0.5, 0.8, 0.9])
    real = rng.random((4, 50)) < rates[:, None]
    model = real ^ (rng.random((4, 50)) < 0.08)
    found = rank_policies(model, real, resamples=300)
    assert (found.policies, found.runs) == (4, 50)
    assert found.pearson.low <= found.pearson.estimate <= found.pearson.high <= 1 + 1e-12
    assert found.pearson.low > 0.8
    assert found.mmrv.low >= 0
    same = bootstrap(real, real, mmrv, resamples=50)
    assert (same.estimate, same.low, same.high) == (0, 0, 0)


def test_detectable_difference() -> None:
    # The textbook's two-sample formula: 0.5 against 0.7 needs 93 in each group at 80 % power.
    assert detectable_difference(93, 0.5) == pytest.approx(0.2, abs=0.002)
    assert detectable_difference(50, 0.5) > detectable_difference(200, 0.5) > 0
    assert math.isnan(detectable_difference(2, 0.5))
    rng = np.random.default_rng(0)
    gap = detectable_difference(100, 0.4)
    a, b = rng.binomial(100, 0.4, TRIALS), rng.binomial(100, 0.4 + gap, TRIALS)
    pooled = (a + b) / 200
    z = (b - a) / 100 / np.sqrt(np.maximum(pooled * (1 - pooled) * 2 / 100, 1e-12))
    assert 0.76 < np.mean(z > 1.96) < 0.84


def test_a_success_curve_is_calibrated_on_runs_it_has_not_seen() -> None:
    rng = np.random.default_rng(5)
    score = rng.random(4000)
    real = rng.random(4000) < score**2  # the verdict is optimistic
    curve = SuccessCurve.fit(score[:400], real[:400])
    assert (np.diff(curve.rates) >= -1e-12).all()
    told = curve(score[400:])
    assert abs(told.mean() - real[400:].mean()) < 0.04
    assert np.abs(told - score[400:] ** 2).mean() < 0.07
    assert np.mean((told - real[400:]) ** 2) < np.mean((score[400:] - real[400:]) ** 2)
    few = SuccessCurve.fit([0.9, 0.95], [1, 1])
    assert few([1.0])[0] < 1


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: wilson(5, 3),
        lambda: wilson(1, 3, level=1.0),
        lambda: PairedOutcomes.of([1, 0], [1]),
        lambda: PairedOutcomes.of([], []),
        lambda: PairedOutcomes.of([0.5], [1]),
        lambda: mcnemar_p(-1, 2),
        lambda: detectable_difference(0),
        lambda: pearson([1.0], [1.0]),
        lambda: mmrv([0.1, float("nan")], [0.1, 0.2]),
        lambda: prediction_powered([0.5], [0.5], [1]),
        lambda: prediction_powered([1.5], [0.5, 0.2], [1, 0]),
        lambda: SuccessCurve.fit([0.5], [1, 0]),
        lambda: bootstrap(np.zeros((2, 0), bool), np.zeros((2, 0), bool), mmrv),
    ],
)
def test_bad_numbers_are_refused(wrong: object) -> None:
    assert callable(wrong)
    with pytest.raises(EvaluationError):
        wrong()
