"""Quality of a model's ranking of policies: correlation, rank violations, agreement on the best policy, regret.

>>> real, model = [0.2, 0.5, 0.9], [0.4, 0.3, 0.95]
>>> round(mmrv(model, real), 4), regret(model, real)
(0.2, 0.0)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import rankdata

from kinema4d_ros.core.errors import EvaluationError
from kinema4d_ros.evaluation.rates import Interval

__all__ = ["Ranking", "bootstrap", "mmrv", "pearson", "rank_policies", "regret", "spearman", "winner_agrees"]

Floats = NDArray[np.float64]
RESAMPLES = 2000


def _rates(model: ArrayLike, real: ArrayLike, least: int = 2) -> tuple[Floats, Floats]:
    m, r = np.asarray(model, np.float64), np.asarray(real, np.float64)
    if m.ndim != 1 or m.shape != r.shape or len(m) < least:
        raise EvaluationError(
            f"rates of shape {m.shape} in the model and {r.shape} in reality",
            expected=f"one of each for at least {least} policies",
        )
    if not (np.isfinite(m).all() and np.isfinite(r).all()):
        raise EvaluationError(
            "a success rate is NaN or infinite", expected="finite numbers; leave out policies without runs"
        )
    return m, r


def pearson(model: ArrayLike, real: ArrayLike) -> float:
    """Compute the linear correlation of success rates; NaN if either has no spread."""
    m, r = _rates(model, real)
    m, r = m - m.mean(), r - r.mean()
    size = float(np.sqrt((m @ m) * (r @ r)))
    return float(m @ r) / size if size > 1e-12 else float("nan")


def spearman(model: ArrayLike, real: ArrayLike) -> float:
    """Compute the correlation of ranks; ties share a rank."""
    m, r = _rates(model, real)
    return pearson(rankdata(m), rankdata(r))


def mmrv(model: ArrayLike, real: ArrayLike) -> float:
    """Compute the mean maximum rank violation: mean over policies of the largest real difference to a misranked policy.

    0 = every pair is ranked as in reality; swapping two policies with similar real rates costs little.
    """
    m, r = _rates(model, real)
    swapped = (m[:, None] < m) != (r[:, None] < r)
    worst: Floats = (np.abs(r[:, None] - r) * swapped).max(axis=1)
    return float(worst.mean())


def winner_agrees(model: ArrayLike, real: ArrayLike) -> bool:
    """Return whether the model's best policy is among the best in reality."""
    m, r = _rates(model, real, 1)
    return bool(r[int(np.argmax(m))] >= r.max())


def regret(model: ArrayLike, real: ArrayLike) -> float:
    """Compute the loss of real success rate by choosing the model's best policy instead of the best in reality."""
    m, r = _rates(model, real, 1)
    return float(r.max() - r[int(np.argmax(m))])


def bootstrap(
    outcomes_model: NDArray[np.bool_],
    outcomes_real: NDArray[np.bool_],
    statistic: Callable[[Floats, Floats], float],
    *,
    level: float = 0.95,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval:
    """Compute a statistic of success rates with its percentile bootstrap interval; runs are resampled in pairs.

    Args:
        outcomes_model, outcomes_real: (P, N) bool, P policies on the same N runs.
        statistic: of two arrays (P,) of rates.
        level, resamples, seed: of the interval.
    """
    m, r = np.asarray(outcomes_model, np.float64), np.asarray(outcomes_real, np.float64)
    if m.ndim != 2 or m.shape != r.shape or 0 in m.shape:
        raise EvaluationError(f"outcomes of shape {m.shape} and {r.shape}", expected="(policies, runs) for both")
    rng = np.random.default_rng(seed)
    found = np.empty(resamples)
    for i in range(resamples):
        drawn = rng.integers(0, m.shape[1], m.shape[1])
        found[i] = statistic(m[:, drawn].mean(1), r[:, drawn].mean(1))
    known = found[np.isfinite(found)]
    if not len(known):
        return Interval(statistic(m.mean(1), r.mean(1)), float("nan"), float("nan"))
    low, high = np.percentile(known, [50 * (1 - level), 50 * (1 + level)])
    return Interval(statistic(m.mean(1), r.mean(1)), float(low), float(high))


@dataclass(frozen=True)
class Ranking:
    """Measures of a model's ranking of policies, with bootstrap intervals over runs."""

    policies: int
    runs: int
    pearson: Interval
    spearman: Interval
    mmrv: Interval
    regret: Interval
    winner_agrees: bool


def rank_policies(
    outcomes_model: NDArray[np.bool_], outcomes_real: NDArray[np.bool_], *, seed: int = 0, resamples: int = RESAMPLES
) -> Ranking:
    """Measure the ranking of P policies by N paired runs each, (P, N) bool."""
    m, r = np.asarray(outcomes_model), np.asarray(outcomes_real)

    def of(statistic: Callable[[Floats, Floats], float]) -> Interval:
        return bootstrap(m, r, statistic, seed=seed, resamples=resamples)

    return Ranking(
        m.shape[0],
        m.shape[1],
        of(pearson),
        of(spearman),
        of(mmrv),
        of(regret),
        winner_agrees(m.mean(1), r.mean(1)),
    )
