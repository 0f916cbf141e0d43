"""Estimates of real success from many runs in the model and few real ones, corrected for the model's bias.

prediction_powered   the real success rate: all model runs, corrected by the paired ones, with an interval
SuccessCurve         the probability of real success for a verdict's score, monotone, from paired runs
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import isotonic_regression
from scipy.stats import t as student

from kinema4d_ros.core.errors import EvaluationError
from kinema4d_ros.evaluation.rates import Interval, require_outcomes, wilson

__all__ = ["SuccessCurve", "prediction_powered"]

Floats = NDArray[np.float64]

FEW, ENOUGH = 10, 40
"""Number of real runs up to which the interval adds two pseudo-errors of the model, and from which it adds none."""


def prediction_powered(
    model_alone: ArrayLike, model_paired: ArrayLike, real_paired: ArrayLike, level: float = 0.95
) -> Interval:
    """Estimate the real success rate by prediction-powered inference, with the model's weight fitted to the data.

    The mean of the model's runs would be the rate if the model were right; the paired runs measure its error. A model
    that is uncorrelated with reality gets weight 0, and the estimate is that of the paired runs alone.

    Args:
        model_alone: (N,) the model's verdicts, 0 to 1, of runs that were not repeated in reality.
        model_paired: (n,) its verdicts on runs that were.
        real_paired: (n,) real outcomes of these.
        level: of the interval.
    """
    alone, paired = _scores(model_alone, "model_alone"), _scores(model_paired, "model_paired")
    real = require_outcomes(real_paired, "the real outcomes").astype(np.float64)
    if len(paired) != len(real) or len(real) < 2:
        raise EvaluationError(
            f"{len(paired)} verdicts and {len(real)} real outcomes", expected="one of each for at least two real runs"
        )
    n, many = len(real), len(alone)
    spread = float(np.concatenate([alone, paired]).var(ddof=1))
    weights = _weights(paired, real, (1 + n / many) * spread)
    rest = real - weights * paired
    mean_weight = float(weights.mean())
    estimate = min(max(mean_weight * float(alone.mean()) + float(rest.mean()), 0.0), 1.0)
    if mean_weight**2 * spread / many + float(rest.var(ddof=1)) / n <= 1e-12:
        # All paired runs are equal: their spread does not show how rare the other outcome is.
        few = wilson(int(real.sum()), n, level)
        return Interval(estimate, few.low, few.high)
    # Few real runs may miss the model's errors by chance. The interval, not the estimate, then adds two pseudo-errors,
    # a false success and a false failure: without them its coverage is too low.
    made_up = min(max((ENOUGH - n) / (ENOUGH - FEW), 0.0), 1.0)
    mistakes = made_up * float(((np.array([-mean_weight, 1.0]) - rest.mean()) ** 2).sum())
    size = n + 2 * made_up
    centre = (n * estimate + made_up) / size
    spread_of_rest = (float(((rest - rest.mean()) ** 2).sum()) + mistakes) / (size - 1)
    variance = mean_weight**2 * spread / many + spread_of_rest / size
    reach = float(student.ppf(0.5 + level / 2, size - 1)) * math.sqrt(variance)
    return Interval(estimate, max(min(centre - reach, estimate), 0.0), min(max(centre + reach, estimate), 1.0))


def _weights(paired: Floats, real: Floats, scale: float) -> Floats:
    """Compute the model's weight (n,) in each paired run, fitted to the other runs (leave-one-out)."""
    n = len(real)
    if scale <= 1e-12 or n < 3:
        return np.zeros(n)
    product = (paired - paired.mean()) * (real - real.mean())
    covariance = (product.sum() - n / (n - 1) * product) / (n - 2)
    return np.asarray(np.clip(covariance / scale, 0.0, 1.0), np.float64)


@dataclass(frozen=True, eq=False)
class SuccessCurve:
    """Probability of real success over a verdict's score: isotonic regression with one success and failure added.

    The two added runs, half a success at each end, keep the curve away from 0 and 1 after few runs.

    Attributes:
        scores: (K,) float64, ascending.
        rates: (K,) float64, non-decreasing.
    """

    scores: Floats
    rates: Floats

    @classmethod
    def fit(cls, scores: ArrayLike, real: ArrayLike) -> SuccessCurve:
        """Fit to paired runs: scores (n,) from 0 to 1 and real outcomes (n,)."""
        x, y = _scores(scores, "scores"), require_outcomes(real, "the real outcomes").astype(np.float64)
        if len(x) != len(y):
            raise EvaluationError(f"{len(x)} scores and {len(y)} real outcomes", expected="one of each")
        order = np.argsort(x, kind="stable")
        padded_x = np.concatenate([[0.0], x[order], [1.0]])
        padded_y = np.concatenate([[0.5], y[order], [0.5]])
        levels, where = np.unique(padded_x, return_inverse=True)
        counts = np.bincount(where).astype(np.float64)
        means = np.bincount(where, padded_y) / counts
        return cls(levels, np.asarray(isotonic_regression(means, weights=counts).x, np.float64))

    def __call__(self, scores: ArrayLike) -> Floats:
        """Return the probabilities (N,) of scores (N,)."""
        return np.asarray(np.interp(_scores(scores, "scores"), self.scores, self.rates), np.float64)


def _scores(values: ArrayLike, name: str) -> Floats:
    array = np.asarray(values, np.float64)
    if array.ndim != 1 or not len(array):
        raise EvaluationError(f"{name} have shape {array.shape}", expected="(N,), at least one")
    if not np.isfinite(array).all() or array.min() < 0 or array.max() > 1:
        raise EvaluationError(f"{name} range from {array.min():g} to {array.max():g}", expected="numbers from 0 to 1")
    return array
