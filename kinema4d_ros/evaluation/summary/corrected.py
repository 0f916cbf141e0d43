"""Success rates with a model's optimism taken off, and what a verdict is worth, from the real trials that are known.

Real trials are those somebody tells of (`real.csv`). Without any, the lab stands for reality: the first tables of each
policy are taken as its real trials, the others are seen by the model alone, and what happened in them in the lab shows
how good the corrected figures are.
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
"""Tables of each policy that stand for real trials where none are known."""
LEAST_REAL = 3
"""Fewer of a policy cannot tell how far the model is off."""

VERDICTS = {
    "failure": (-0.01, 0.25, "failure, confidence above 0.5"),
    "failure?": (0.25, 0.4999, "failure, confidence up to 0.5"),
    "unknown": (0.4999, 0.5001, "cannot tell, or confidence 0"),
    "success?": (0.5001, 0.75, "success, confidence up to 0.5"),
    "success": (0.75, 1.01, "success, confidence above 0.5"),
}
"""Bins of scores: from above the first number up to the second, and what they are called."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class CorrectedRate:
    """A policy's real success rate.

    Attributes:
        policy: label.
        real_trials, model_trials: known real ones, and others that only the model has seen.
        real: from the real trials alone.
        model: the model's verdicts on the others, as they are.
        corrected: those, corrected by the real trials (prediction-powered inference).
        held_out: what the lab says of the others; None where real trials are not the lab's.
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
    """What a verdict means.

    Attributes:
        verdict: of VERDICTS.
        probability: of real success after such a verdict, mean of the curve; None = there was no such verdict.
        count: verdicts on runs held out.
        observed: how many of these really succeeded; None = none, or it is not known.
    """

    verdict: str
    probability: float | None
    count: int
    observed: Interval | None


@dataclass(frozen=True)
class Calibration:
    """Single runs: how good the curve's probabilities are on runs that it was not fitted to.

    Attributes:
        fitted, count: runs it was fitted to, and runs held out.
        verdicts: by verdict.
        brier: mean squared error of the probabilities; smaller is better, None = truth not known.
        brier_verdict: of the verdicts as they are, success = 1 and all else = 0.
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
    """What a model says once it is corrected.

    Attributes:
        source: "real" trials, or the "lab" in their place.
        rates: of the policies with enough real trials and others.
        calibration: of single runs; None = too few.
        probabilities: of real success, by trial key, of runs held out.
        why: why something is missing; "" = nothing is.
    """

    source: str
    rates: tuple[CorrectedRate, ...]
    calibration: Calibration | None
    probabilities: Mapping[str, float]
    why: str


def correct(pairs: Mapping[str, Sequence[Pair]], real: Mapping[str, bool] | None = None) -> Corrected:
    """Apply what the real trials teach.

    Args:
        pairs: of one model, by policy.
        real: outcomes of real trials by trial key; None or empty = the lab stands in.
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
    """Real trials of a policy: which pairs they are, the model's verdicts, and what really happened."""

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
