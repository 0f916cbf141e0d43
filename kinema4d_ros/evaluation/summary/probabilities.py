"""Probabilities of success that a model states: soft rates, Brier score, calibration, and runs that it cannot tell.

The probability of a run is the one that the model states. Where it states none, its verdict counts as 1 or 0, and
"cannot tell" as 0.5. Undefined values are None, never NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.evaluation.rates import Interval, wilson
from kinema4d_ros.evaluation.summary.cells import ALL, Pair, draws, numbered

__all__ = [
    "BINS",
    "Calibration",
    "CalibrationBin",
    "Probabilities",
    "SoftCell",
    "Undecided",
    "calibrate",
    "count_probabilities",
    "soft_cell",
]

BINS = 10
"""Bins of equal width of the calibration curve."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class SoftCell:
    """Probabilities of a policy on a scenario, or of all policies or scenarios together; None = no pair.

    Attributes:
        policy, scenario: names; ALL = together.
        count: pairs.
        stated: pairs with a probability that the model states.
        rate: soft success rate, the mean probability.
        bias: soft rate minus the lab's rate, paired.
        brier: mean squared error of the probabilities; 0 is perfect, 0.25 that of always 0.5.
        brier_verdict: the same of the verdicts alone.
        right: share of right verdicts; "cannot tell" is never right.
    """

    policy: str
    scenario: str
    count: int
    stated: int
    rate: Interval | None
    bias: Interval | None
    brier: float | None
    brier_verdict: float | None
    right: Interval | None


@dataclass(frozen=True)
class CalibrationBin:
    """Runs with a stated probability from `low` to below `high` (the last bin includes 1).

    Attributes:
        count: runs.
        stated: mean probability.
        observed: share of them that succeeds in the lab, with Wilson's interval.
    """

    low: float
    high: float
    count: int
    stated: float
    observed: Interval


@dataclass(frozen=True)
class Calibration:
    """How well stated probabilities match what happens.

    Attributes:
        count: runs with a stated probability.
        error: expected calibration error, the mean of |stated - observed| over the runs, by bins.
        bins: those that hold runs.
    """

    count: int
    error: float
    bins: tuple[CalibrationBin, ...]


@dataclass(frozen=True)
class Undecided:
    """Runs that the model or its judge cannot tell.

    Attributes:
        count: runs.
        share: of all pairs; None = no pair.
        forced: of these, runs whose frames suggest a verdict.
        right: share of these suggested verdicts that is right; None = there are none.
    """

    count: int
    share: Interval | None
    forced: int
    right: Interval | None


@dataclass(frozen=True)
class Probabilities:
    """Probabilities of a model: by policy and scenario, their calibration, and what it cannot tell.

    Attributes:
        overall, policies, scenarios, cells: as in `ModelSummary`.
        calibration: of the stated probabilities; None = the model states none.
        undecided: runs without a verdict.
    """

    overall: SoftCell
    policies: tuple[SoftCell, ...]
    scenarios: tuple[SoftCell, ...]
    cells: tuple[SoftCell, ...]
    calibration: Calibration | None
    undecided: Undecided


def count_probabilities(pairs: Sequence[Pair], policies: Sequence[str], scenarios: Sequence[str]) -> Probabilities:
    """Compute the probabilities of a model's pairs."""
    return Probabilities(
        soft_cell(pairs),
        tuple(soft_cell(pairs, policy) for policy in policies),
        tuple(soft_cell(pairs, ALL, scenario) for scenario in scenarios),
        tuple(soft_cell(pairs, policy, scenario) for policy in policies for scenario in scenarios),
        calibrate(pairs),
        _undecided(pairs),
    )


def soft_cell(pairs: Sequence[Pair], policy: str = ALL, scenario: str = ALL) -> SoftCell:
    """Compute the probabilities of a policy and a scenario; intervals are bootstraps over scenes and over seeds."""
    here = [p for p in pairs if policy in (ALL, p.trial.policy) and scenario in (ALL, p.trial.scenario)]
    stated = sum(pair.probability is not None for pair in here)
    if not here:
        return SoftCell(policy, scenario, 0, 0, None, None, None, None, None)
    soft, verdict = np.array([p.soft for p in here]), np.array([p.hard for p in here])
    lab = np.array([p.lab for p in here], np.float64)
    right = np.array([p.verdict is p.lab for p in here], np.float64)
    groups = (
        numbered([(pair.trial.scenario, pair.trial.seed) for pair in here]),
        numbered([pair.trial.seed for pair in here]),
    )
    return SoftCell(
        policy,
        scenario,
        len(here),
        stated,
        _mean(soft, groups, 0.0),
        _mean(soft - lab, groups, -1.0),
        float(((soft - lab) ** 2).mean()),
        float(((verdict - lab) ** 2).mean()),
        _mean(right, groups, 0.0),
    )


def calibrate(pairs: Sequence[Pair]) -> Calibration | None:
    """Compare stated probabilities with the lab's outcomes; None if the model states none."""
    given = [(pair.probability, pair.lab) for pair in pairs if pair.probability is not None]
    if not given:
        return None
    stated, lab = np.array([p for p, _ in given], np.float64), np.array([one for _, one in given], bool)
    which = np.minimum((stated * BINS).astype(int), BINS - 1)
    bins, error = [], 0.0
    for number in range(BINS):
        chosen = which == number
        count = int(chosen.sum())
        if not count:
            continue
        mean, observed = float(stated[chosen].mean()), wilson(int(lab[chosen].sum()), count)
        bins.append(CalibrationBin(number / BINS, (number + 1) / BINS, count, mean, observed))
        error += count / len(given) * abs(mean - observed.estimate)
    return Calibration(len(given), error, tuple(bins))


def _undecided(pairs: Sequence[Pair]) -> Undecided:
    unknown = [pair for pair in pairs if pair.verdict is None]
    forced = [pair for pair in unknown if pair.forced is not None]
    return Undecided(
        len(unknown),
        wilson(len(unknown), len(pairs)) if pairs else None,
        len(forced),
        wilson(sum(pair.forced is pair.lab for pair in forced), len(forced)) if forced else None,
    )


def _mean(values: Floats, groupings: Sequence[NDArray[np.intp]], least: float) -> Interval:
    """Compute the mean of values from `least` to 1, with an interval that covers the bootstrap over each grouping.

    One group says nothing about others: the interval is then the whole range.
    """
    mean = float(values.mean())
    low = high = mean
    for groups in groupings:
        count = int(groups.max()) + 1
        if count < 2:
            return Interval(mean, least, 1.0)
        sums, sizes = np.bincount(groups, values), np.bincount(groups).astype(np.float64)
        again = np.concatenate([sums[drawn].sum(1) / sizes[drawn].sum(1) for drawn in draws(count)])
        ends = np.percentile(again, [2.5, 97.5])
        low, high = min(low, float(ends[0])), max(high, float(ends[1]))
    return Interval(mean, low, high)
