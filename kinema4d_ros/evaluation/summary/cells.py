"""Pairs of outcomes counted: rates in the lab and in a model, bias, wrong verdicts, each with its interval.

What is not defined (no pair, no failure to be wrong about) is None, never NaN.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.evaluation.rates import Confusion, Interval, PairedOutcomes
from kinema4d_ros.evaluation.trial import Trial, TrialRecord

__all__ = ["ALL", "Cell", "Failure", "Outcomes", "Pair", "collect", "count_cell", "draws"]

ALL = ""
"""In place of a policy's or a scenario's name: all of them."""

RESAMPLES = 2000
BLOCK = 2_000_000
EXAMPLES = 3


@dataclass(frozen=True)
class Pair:
    """A trial with both outcomes; a verdict of None = the judge cannot tell, which is no success."""

    trial: Trial
    lab: bool
    verdict: bool | None
    confidence: float

    @property
    def model(self) -> bool:
        """The model's outcome as rates count it."""
        return self.verdict is True

    @property
    def score(self) -> float:
        """0 = surely a failure, 1 = surely a success, 0.5 = the judge cannot tell."""
        sign = {True: 1.0, False: -1.0, None: 0.0}[self.verdict]
        return 0.5 + 0.5 * sign * min(max(self.confidence, 0.0), 1.0)


@dataclass(frozen=True)
class Failure:
    """Runs without an outcome, by their reason.

    Attributes:
        where: "lab" or the model's label.
        text: the error.
        count: runs.
        policies: whose runs they were.
        examples: keys of some of the trials.
    """

    where: str
    text: str
    count: int
    policies: tuple[str, ...]
    examples: tuple[str, ...]


@dataclass(frozen=True)
class Outcomes:
    """The trials of a model, sorted out."""

    pairs: tuple[Pair, ...]
    missing: tuple[Trial, ...]
    failed: tuple[tuple[Trial, str, str], ...]

    def failures(self, where: str) -> tuple[Failure, ...]:
        """Those that happened "lab" or in a model's label, the most frequent first."""
        counted = Counter(text for _, place, text in self.failed if place == where)
        found = []
        for text, count in counted.most_common():
            trials = [trial for trial, place, error in self.failed if (place, error) == (where, text)]
            policies = tuple(dict.fromkeys(trial.policy for trial in trials))
            found.append(Failure(where, text, count, policies, tuple(t.key for t in trials[:EXAMPLES])))
        return tuple(found)


def collect(label: str, trials: Iterable[Trial], records: Mapping[str, TrialRecord]) -> Outcomes:
    """Sort trials into pairs, those that are missing and those that failed (trial, where, text)."""
    pairs, missing, failed = [], [], []
    for trial in trials:
        record = records.get(trial.key)
        outcome = record.models.get(label) if record is not None else None
        if record is not None and record.lab.success is None:
            failed.append((trial, "lab", record.lab.error or "the outcome in the lab is not known"))
        elif record is None or outcome is None:
            missing.append(trial)
        elif outcome.error:
            failed.append((trial, label, outcome.error))
        else:
            pairs.append(Pair(trial, bool(record.lab.success), outcome.success, outcome.confidence))
    return Outcomes(tuple(pairs), tuple(missing), tuple(failed))


@dataclass(frozen=True)
class Cell:
    """A policy on a scenario, or all policies or scenarios together, in the lab and in a model.

    Attributes:
        policy, scenario: names; ALL = together.
        planned, missing, failed: trials asked for, not run yet, and without an outcome.
        pairs: trials with both outcomes, counted; "cannot tell" is not a success.
        confusion: the same with "cannot tell" apart.
        lab, model: success rates; None = no pair.
        bias: model minus lab, paired.
        false_success: share of the lab's failures that the model shows as successes; None = no failure.
        false_failure: share of the lab's successes that it does not show as such; None = no success.
        agreement: share of equal outcomes.
        p_value: McNemar's; None where policies are together, because runs on one table are not independent.
    """

    policy: str
    scenario: str
    planned: int
    missing: int
    failed: int
    pairs: PairedOutcomes
    confusion: Confusion
    lab: Interval | None
    model: Interval | None
    bias: Interval | None
    false_success: Interval | None
    false_failure: Interval | None
    agreement: Interval | None
    p_value: float | None

    @property
    def count(self) -> int:
        """Pairs."""
        return self.pairs.count

    @property
    def undecided(self) -> int:
        """Pairs of which the judge cannot tell."""
        return self.confusion.unknown


def count_cell(outcomes: Outcomes, policy: str = ALL, scenario: str = ALL) -> Cell:
    """Count the trials of a policy and a scenario.

    Where policies or scenarios are together, an interval also covers what drawing tables and drawing seeds again
    give: policies share a table, a policy may draw its luck from the seed on every scenario, and so many runs tell
    less than their number says.
    """

    def here(trial: Trial) -> bool:
        return policy in (ALL, trial.policy) and scenario in (ALL, trial.scenario)

    pairs = [pair for pair in outcomes.pairs if here(pair.trial)]
    missing = sum(here(trial) for trial in outcomes.missing)
    failed = sum(here(trial) for trial, _, _ in outcomes.failed)
    model, lab = np.array([p.model for p in pairs], bool), np.array([p.lab for p in pairs], bool)
    counted = PairedOutcomes.of(model, lab) if pairs else PairedOutcomes(0, 0, 0, 0)
    seeds = _numbered([pair.trial.seed for pair in pairs])
    tables = _numbered([(pair.trial.scenario, pair.trial.seed) for pair in pairs])

    def rate(of: Callable[[], Interval], values: NDArray[np.bool_ | np.int8], chosen: NDArray[np.bool_]) -> Interval:
        numbers = values[chosen].astype(np.float64)
        return _covering(_covering(of(), numbers, tables[chosen]), numbers, seeds[chosen])

    every = np.ones(len(pairs), bool)
    difference = model.astype(np.int8) - lab.astype(np.int8)
    return Cell(
        policy,
        scenario,
        len(pairs) + missing + failed,
        missing,
        failed,
        counted,
        Confusion.of([p.verdict for p in pairs], [p.lab for p in pairs]),
        rate(counted.real, lab, every) if pairs else None,
        rate(counted.model, model, every) if pairs else None,
        rate(counted.bias, difference, every) if pairs else None,
        rate(counted.false_success, model, ~lab) if (~lab).any() else None,
        rate(counted.false_failure, ~model, lab) if lab.any() else None,
        rate(counted.agreement, model == lab, every) if pairs else None,
        counted.p_value() if pairs and len(set(tables)) == len(pairs) else None,
    )


def draws(count: int) -> Iterator[NDArray[np.int64]]:
    """Numbers below `count` drawn with replacement, RESAMPLES rows of as many; in blocks that fit into memory."""
    rng = np.random.default_rng(0)
    block = max(1, min(RESAMPLES, BLOCK // count))
    for begin in range(0, RESAMPLES, block):
        yield rng.integers(0, count, (min(block, RESAMPLES - begin), count))


def _numbered(keys: Sequence[Hashable]) -> NDArray[np.intp]:
    """(N,) a number for each key, the same for the same."""
    known: dict[Hashable, int] = {}
    return np.array([known.setdefault(key, len(known)) for key in keys], np.intp)


def _covering(interval: Interval, values: NDArray[np.float64], groups: NDArray[np.intp]) -> Interval:
    """The interval, and what drawing whole groups of values again gives."""
    which, number = np.unique(groups, return_inverse=True)
    if len(which) == len(values):
        return interval
    sums, counts = np.bincount(number, values), np.bincount(number).astype(np.float64)
    again = np.concatenate([sums[drawn].sum(1) / counts[drawn].sum(1) for drawn in draws(len(which))])
    low, high = np.percentile(again, [2.5, 97.5])
    return Interval(interval.estimate, min(interval.low, float(low)), max(interval.high, float(high)))
