"""Check of the correction of a model's bias: estimates from k real trials, scored on held-out runs.

For each policy k of its pairs are drawn. An estimate uses the real outcomes of these; of the other runs it uses the
model's verdicts only, and is scored on their real outcomes. Repeated with other draws from a fixed seed.

The success curve adds one success and one failure as pseudo-trials. That alone improves estimates from few runs,
without the model: "shrunk" shows how much of the curve's gain comes from it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from kinema4d_ros.evaluation.correction import SuccessCurve, prediction_powered
from kinema4d_ros.evaluation.rates import Interval, wilson
from kinema4d_ros.evaluation.summary.cells import Pair

__all__ = ["METHODS", "Correction", "CorrectionRow", "check_correction"]

METHODS = {
    "model": "the model's verdicts, uncorrected",
    "real": "the k real trials alone",
    "shrunk": "the k real trials and two pseudo-trials, one success and one failure",
    "powered": "prediction-powered: model runs corrected by the k real trials",
    "curve": "success curve fitted to the k real trials",
    "transfer": "success curve fitted to the other policies' real trials only",
}
REAL_TRIALS = (10, 20, 40)
HELD_OUT = 10
"""Minimum number of held-out runs on which an estimate is scored."""

Floats = NDArray[np.float64]
_Z = float(norm.ppf(0.975))
_wilson = lru_cache(maxsize=None)(wilson)  # a few hundred different counts, computed many thousand times


@dataclass(frozen=True)
class CorrectionRow:
    """Scores of an estimate over all draws and policies.

    Attributes:
        real_trials: k, for each policy.
        method: of METHODS.
        error: mean absolute error of the success rate of the held-out runs.
        brier: mean squared error of the success probability of each held-out run; a method without per-run
            probabilities uses its rate for all runs.
        bias: mean signed error; above 0 = optimistic.
        width: of the 95 % interval; None = the estimate has none.
        coverage: share of intervals that, widened by the noise of the held-out runs, cover their rate.
    """

    real_trials: int
    method: str
    error: float
    brier: float
    bias: float
    width: float | None
    coverage: float | None


@dataclass(frozen=True)
class Correction:
    """Rows for each k and method.

    Attributes:
        rows: empty = too few runs.
        policies: with enough runs, by k.
        repeats: draws for each k.
        why: why some k are missing; "" = none is.
    """

    rows: tuple[CorrectionRow, ...]
    policies: Mapping[int, tuple[str, ...]]
    repeats: int
    why: str


def check_correction(
    pairs: Mapping[str, Sequence[Pair]],
    *,
    real_trials: Sequence[int] = REAL_TRIALS,
    repeats: int = 100,
    seed: int = 0,
) -> Correction:
    """Score every method for every k.

    Args:
        pairs: of one model, by policy.
        real_trials: values of k.
        repeats: draws.
        seed: of the draws.
    """
    rows: list[CorrectionRow] = []
    used: dict[int, tuple[str, ...]] = {}
    short = []
    for k in real_trials:
        able = {policy: found for policy, found in pairs.items() if len(found) >= k + HELD_OUT}
        if not able:
            short.append(f"{k} real trials need {k + HELD_OUT} finished runs of a policy")
            continue
        used[k] = tuple(able)
        rows += _score(able, k, repeats, np.random.default_rng([seed, k]))
    return Correction(tuple(rows), used, repeats, "; ".join(short))


def _score(pairs: Mapping[str, Sequence[Pair]], k: int, repeats: int, rng: np.random.Generator) -> list[CorrectionRow]:
    data = {policy: _Data.of(found) for policy, found in pairs.items()}
    found: dict[str, list[_Scored]] = {method: [] for method in METHODS}
    for _ in range(repeats):
        drawn = {policy: rng.permutation(len(one.lab))[:k] for policy, one in data.items()}
        splits = {policy: one.split(drawn[policy]) for policy, one in data.items()}
        for policy, (known, rest) in splits.items():
            others = [split[0] for name, split in splits.items() if name != policy]
            truth = float(rest.lab.mean())
            for method, (estimate, likely) in _estimates(known, rest.verdicts_only(), others).items():
                inside = _holds(estimate, truth, len(rest.lab)) if _bounded(estimate) else None
                bounds = estimate if _bounded(estimate) else None
                brier = float(np.mean((likely - rest.lab) ** 2))
                found[method].append(_Scored(estimate.estimate - truth, brier, bounds, inside))
    return [_row(k, method, values) for method, values in found.items() if values]


@dataclass(frozen=True)
class _Scored:
    """One estimate of one draw: signed error, Brier score, interval, and whether the interval covers the truth."""

    error: float
    brier: float
    interval: Interval | None
    inside: bool | None


def _row(k: int, method: str, values: Sequence[_Scored]) -> CorrectionRow:
    errors = np.array([one.error for one in values])
    widths = [one.interval.high - one.interval.low for one in values if one.interval is not None]
    return CorrectionRow(
        k,
        method,
        float(np.abs(errors).mean()),
        float(np.mean([one.brier for one in values])),
        float(errors.mean()),
        float(np.mean(widths)) if widths else None,
        float(np.mean([bool(one.inside) for one in values])) if widths else None,
    )


@dataclass(frozen=True, eq=False)
class _Verdicts:
    """(N,) verdicts (0 or 1) and scores of a model."""

    model: Floats
    score: Floats


@dataclass(frozen=True, eq=False)
class _Data(_Verdicts):
    """(N,) verdicts, scores and real outcomes."""

    lab: NDArray[np.bool_]

    @classmethod
    def of(cls, pairs: Sequence[Pair]) -> _Data:
        return cls(
            np.array([float(p.model) for p in pairs]),
            np.array([p.score for p in pairs]),
            np.array([p.lab for p in pairs], bool),
        )

    def split(self, drawn: NDArray[np.intp]) -> tuple[_Data, _Data]:
        mask = np.zeros(len(self.lab), bool)
        mask[drawn] = True
        known, rest = (_Data(self.model[m], self.score[m], self.lab[m]) for m in (mask, ~mask))
        return known, rest

    def verdicts_only(self) -> _Verdicts:
        return _Verdicts(self.model, self.score)


def _estimates(known: _Data, rest: _Verdicts, others: Sequence[_Data]) -> dict[str, tuple[Interval, Floats]]:
    """Estimate the success rate of `rest` with every method, without its real outcomes.

    Each estimate comes with the success probability of each of those runs (N,).
    """
    count = len(rest.model)
    rates = {
        "real": _wilson(int(known.lab.sum()), len(known.lab)),
        "shrunk": Interval((float(known.lab.sum()) + 1) / (len(known.lab) + 2), math.nan, math.nan),
        "powered": prediction_powered(rest.model, known.model, known.lab),
    }
    found = {"model": (_wilson(int(rest.model.sum()), count), rest.model)}
    found |= {name: (rate, np.full(count, rate.estimate)) for name, rate in rates.items()}
    found["curve"] = _by_curve(SuccessCurve.fit(known.score, known.lab), rest)
    if others:
        curve = SuccessCurve.fit(np.concatenate([o.score for o in others]), np.concatenate([o.lab for o in others]))
        found["transfer"] = _by_curve(curve, rest)
    return found


def _by_curve(curve: Callable[[Floats], Floats], rest: _Verdicts) -> tuple[Interval, Floats]:
    likely = curve(rest.score)
    return Interval(float(likely.mean()), math.nan, math.nan), likely


def _bounded(interval: Interval) -> bool:
    return math.isfinite(interval.low) and math.isfinite(interval.high)


def _holds(interval: Interval, truth: float, count: int) -> bool:
    """Return whether an interval, widened by the noise of `count` held-out runs, covers their rate."""
    # Shrunk towards 0.5: a rate of 0 or 1 in few runs still has noise.
    rate = (interval.estimate * count + 1) / (count + 2)
    noise = _Z * math.sqrt(rate * (1 - rate) / count)
    below, above = interval.estimate - interval.low, interval.high - interval.estimate
    return interval.estimate - math.hypot(below, noise) <= truth <= interval.estimate + math.hypot(above, noise)
