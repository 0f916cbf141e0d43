"""Success rates corrected for a model's bias, and calibrated verdicts, both from real trials.

Real trials are read from `real.csv`. Without it, lab runs are used instead: the first scenes of each policy are its
real trials, of the other runs only the model's verdicts are used, and their outcomes in the lab show how good the
corrected figures are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.evaluation.correction import SuccessCurve, prediction_powered
from kinema4d_ros.evaluation.rates import Interval, wilson
from kinema4d_ros.evaluation.summary.cells import Pair
from kinema4d_ros.evaluation.summary.correction_check import HELD_OUT

__all__ = ["STAND_IN", "VERDICTS", "Calibration", "Corrected", "CorrectedRate", "VerdictWorth", "correct"]

STAND_IN = 10
"""Number of scenes of each policy used as real trials where none are known."""
LEAST_REAL = 3
"""Minimum number of real trials of a policy for a correction."""

VERDICTS = {
    "failure": (-0.01, 0.25, "failure, confidence above 0.5"),
    "failure?": (0.25, 0.4999, "failure, confidence up to 0.5"),
    "unknown": (0.4999, 0.5001, "cannot tell, or confidence 0"),
    "success?": (0.5001, 0.75, "success, confidence up to 0.5"),
    "success": (0.75, 1.01, "success, confidence above 0.5"),
}
"""Bins of scores: lower bound (exclusive), upper bound (inclusive), name."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class CorrectedRate:
    """A policy's real success rate.

    Attributes:
        policy: label.
        real_trials, model_trials: number of real trials, and of other runs with a verdict of the model only.
        real: from the real trials alone.
        model: from the model's verdicts on the other runs, uncorrected.
        corrected: the same, corrected by the real trials (prediction-powered inference).
        held_out: the lab's success rate of the other runs; None where the real trials are not lab runs.
    """

    policy: str
    real_trials: int
    model_trials: int
    real: Interval
    model: Interval
    corrected: Interval
    held_out: float | None


@dataclass(frozen=True)
class VerdictWorth:
    """Calibrated probability of one kind of verdict.

    Attributes:
        verdict: of VERDICTS.
        probability: of real success after such a verdict, mean of the curve; None = no such verdict.
        count: verdicts on held-out runs.
        observed: share of these that really succeeded; None = no such verdict, or not known.
    """

    verdict: str
    probability: float | None
    count: int
    observed: Interval | None


@dataclass(frozen=True)
class Calibration:
    """Quality of the curve's success probabilities on held-out runs.

    Attributes:
        fitted, count: runs it was fitted to, and held-out runs.
        verdicts: by verdict.
        brier: mean squared error of the probabilities; smaller is better, None = truth not known.
        brier_verdict: of the uncalibrated verdicts, success = 1 and all else = 0.
        brier_rate: of the success rate of the real trials, the same for each run.
    """

    fitted: int
    count: int
    verdicts: tuple[VerdictWorth, ...]
    brier: float | None
    brier_verdict: float | None
    brier_rate: float | None


@dataclass(frozen=True)
class Corrected:
    """Corrected rates and calibrated verdicts of a model.

    Attributes:
        source: "real" trials, or "lab" runs in their place.
        rates: of the policies with enough real trials and other runs.
        calibration: of single runs; None = too few runs.
        probabilities: of real success of held-out runs, by trial key.
        why: why rates are missing; "" = none is.
    """

    source: str
    rates: tuple[CorrectedRate, ...]
    calibration: Calibration | None
    probabilities: Mapping[str, float]
    why: str


def correct(pairs: Mapping[str, Sequence[Pair]], real: Mapping[str, bool] | None = None) -> Corrected:
    """Correct a model's rates and calibrate its verdicts with real trials.

    Args:
        pairs: of one model, by policy.
        real: outcomes of real trials by trial key; None or empty = lab runs are used.
    """
    source = "real" if real else "lab"
    rates: list[CorrectedRate] = []
    short: list[str] = []
    fit: list[tuple[float, bool]] = []
    others: list[Pair] = []
    for policy, found in pairs.items():
        known, rest = _split(found, real)
        fit += known.items_of(found)
        others += rest
        if len(known.truth) >= LEAST_REAL and len(rest) >= HELD_OUT:
            rates.append(_rate(policy, known, rest, source))
        else:
            short.append(policy)
    calibration, probabilities = _calibrate(fit, others, source)
    why = ""
    if short:
        need = f"{LEAST_REAL if real else STAND_IN} real trials and {HELD_OUT} other runs"
        why = f"{need} of a policy are needed, {', '.join(short)} have fewer"
    return Corrected(source, tuple(rates), calibration, probabilities, why)


@dataclass(frozen=True, eq=False)
class _Known:
    """Real trials of a policy: indices of the pairs, the model's verdicts, and the real outcomes."""

    where: tuple[int, ...]
    model: Floats
    truth: NDArray[np.bool_]

    def items_of(self, pairs: Sequence[Pair]) -> list[tuple[float, bool]]:
        return [(pairs[i].score, bool(t)) for i, t in zip(self.where, self.truth, strict=True)]


def _split(pairs: Sequence[Pair], real: Mapping[str, bool] | None) -> tuple[_Known, list[Pair]]:
    if real:
        where = [i for i, pair in enumerate(pairs) if pair.trial.key in real]
        truth = [real[pairs[i].trial.key] for i in where]
    else:
        order = sorted(range(len(pairs)), key=lambda i: (pairs[i].trial.seed, pairs[i].trial.scenario))
        where = order[:STAND_IN] if len(pairs) >= STAND_IN + HELD_OUT else []
        truth = [pairs[i].lab for i in where]
    known = _Known(tuple(where), np.array([float(pairs[i].model) for i in where]), np.array(truth, bool))
    taken = set(where)
    return known, [pair for i, pair in enumerate(pairs) if i not in taken]


def _rate(policy: str, known: _Known, rest: Sequence[Pair], source: str) -> CorrectedRate:
    alone = np.array([float(pair.model) for pair in rest])
    return CorrectedRate(
        policy,
        len(known.truth),
        len(rest),
        wilson(int(known.truth.sum()), len(known.truth)),
        wilson(int(alone.sum()), len(alone)),
        prediction_powered(alone, known.model, known.truth),
        float(np.mean([pair.lab for pair in rest])) if source == "lab" else None,
    )


def _calibrate(
    fit: Sequence[tuple[float, bool]], others: Sequence[Pair], source: str
) -> tuple[Calibration | None, dict[str, float]]:
    if len(fit) < STAND_IN or len(others) < HELD_OUT:
        return None, {}
    curve = SuccessCurve.fit([score for score, _ in fit], [truth for _, truth in fit])
    scores = np.array([pair.score for pair in others])
    likely = curve(scores)
    truth = np.array([float(pair.lab) for pair in others]) if source == "lab" else None
    verdicts = []
    for name, (low, high, _) in VERDICTS.items():
        here = (scores > low) & (scores <= high)
        count = int(here.sum())
        seen = None if truth is None or not count else wilson(int(truth[here].sum()), count)
        verdicts.append(VerdictWorth(name, float(likely[here].mean()) if count else None, count, seen))
    rate = float(np.mean([truth for _, truth in fit]))

    def brier(probability: Floats | float) -> float | None:
        return None if truth is None else float(np.mean((probability - truth) ** 2))

    shown = np.array([float(pair.model) for pair in others])
    calibration = Calibration(len(fit), len(others), tuple(verdicts), brier(likely), brier(shown), brier(rate))
    return calibration, {pair.trial.key: float(p) for pair, p in zip(others, likely, strict=True)}
