"""Counts of paired outcomes: rates in the lab and in a model, bias and wrong verdicts, each with its interval.

Undefined values (no pair, no failure in the lab) are None, never NaN.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.evaluation.rates import Confusion, Interval, PairedOutcomes
from kinema4d_ros.evaluation.trial import Trial, TrialRecord

__all__ = ["ALL", "Cell", "Failure", "Outcomes", "Pair", "collect", "count_cell", "draws", "numbered"]

ALL = ""
"""Used as the name of all policies or all scenarios together."""

RESAMPLES = 2000
BLOCK = 2_000_000
EXAMPLES = 3


@dataclass(frozen=True)
class Pair:
    """A trial with outcomes in the lab and in the model; verdict None = the judge cannot tell, counted as failure.

    `probability` and `forced` are those of `ModelOutcome`.
    """

    trial: Trial
    lab: bool
    verdict: bool | None
    confidence: float
    probability: float | None = None
    forced: bool | None = None

    @property
    def model(self) -> bool:
        """The model's outcome as counted in the rates."""
        return self.verdict is True

    @property
    def hard(self) -> float:
        """The verdict as a probability: 1, 0, or 0.5 = the judge cannot tell."""
        return 0.5 if self.verdict is None else float(self.verdict)

    @property
    def soft(self) -> float:
        """The probability of success that the model states; without one, that of the verdict."""
        return self.hard if self.probability is None else self.probability

    @property
    def score(self) -> float:
        """Score of the verdict: 0 = certain failure, 1 = certain success, 0.5 = the judge cannot tell."""
        sign = {True: 1.0, False: -1.0, None: 0.0}[self.verdict]
        return 0.5 + 0.5 * sign * min(max(self.confidence, 0.0), 1.0)


@dataclass(frozen=True)
class Failure:
    """Runs that have no outcome for the same reason.

    Attributes:
        where: "lab" or the model's label.
        text: the error.
        count: runs.
        policies: of these runs.
        examples: keys of some of the trials.
    """

    where: str
    text: str
    count: int
    policies: tuple[str, ...]
    examples: tuple[str, ...]


@dataclass(frozen=True)
class Outcomes:
    """The trials of a model as pairs, missing trials and failed trials (trial, where, text)."""

    pairs: tuple[Pair, ...]
    missing: tuple[Trial, ...]
    failed: tuple[tuple[Trial, str, str], ...]

    def failures(self, where: str) -> tuple[Failure, ...]:
        """Group the failures of the "lab" or of a model's label by reason, the most frequent first."""
        counted = Counter(text for _, place, text in self.failed if place == where)
        found = []
        for text, count in counted.most_common():
            trials = [trial for trial, place, error in self.failed if (place, error) == (where, text)]
            policies = tuple(dict.fromkeys(trial.policy for trial in trials))
            found.append(Failure(where, text, count, policies, tuple(t.key for t in trials[:EXAMPLES])))
        return tuple(found)


def collect(label: str, trials: Iterable[Trial], records: Mapping[str, TrialRecord]) -> Outcomes:
    """Sort trials into pairs, missing trials and failed trials (trial, where, text)."""
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
            lab = bool(record.lab.success)
            said = outcome.success, outcome.confidence, outcome.probability, outcome.forced
            pairs.append(Pair(trial, lab, *said))
    return Outcomes(tuple(pairs), tuple(missing), tuple(failed))


@dataclass(frozen=True)
class Cell:
    """A policy on a scenario, or all policies or scenarios together, in the lab and in a model.

    Attributes:
        policy, scenario: names; ALL = together.
        planned, missing, failed: trials planned, not run yet, and failed without an outcome.
        pairs: counts of trials with both outcomes; "cannot tell" counts as failure.
        confusion: the same with "cannot tell" counted separately.
        lab, model: success rates; None = no pair.
        bias: model minus lab, paired.
        false_success: share of the lab's failures that the model shows as successes; None = no failure.
        false_failure: share of the lab's successes that it does not show as such; None = no success.
        agreement: share of equal outcomes.
        p_value: McNemar's; None where several policies are combined, because runs on one scene are not independent.
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
        """Number of pairs."""
        return self.pairs.count

    @property
    def undecided(self) -> int:
        """Number of pairs where the judge cannot tell."""
        return self.confusion.unknown


def count_cell(outcomes: Outcomes, policy: str = ALL, scenario: str = ALL) -> Cell:
    """Count the trials of a policy and a scenario.

    Where policies or scenarios are combined, an interval also covers the bootstrap over scenes and over seeds: runs
    of several policies on one scene, and of a policy with one seed on several scenarios, are not independent.
    """

    def here(trial: Trial) -> bool:
        return policy in (ALL, trial.policy) and scenario in (ALL, trial.scenario)

    pairs = [pair for pair in outcomes.pairs if here(pair.trial)]
    missing = sum(here(trial) for trial in outcomes.missing)
    failed = sum(here(trial) for trial, _, _ in outcomes.failed)
    model, lab = np.array([p.model for p in pairs], bool), np.array([p.lab for p in pairs], bool)
    counted = PairedOutcomes.of(model, lab) if pairs else PairedOutcomes(0, 0, 0, 0)
    seeds = numbered([pair.trial.seed for pair in pairs])
    tables = numbered([(pair.trial.scenario, pair.trial.seed) for pair in pairs])

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
    """Draw RESAMPLES rows of `count` indices below `count` with replacement, in blocks that fit into memory."""
    rng = np.random.default_rng(0)
    block = max(1, min(RESAMPLES, BLOCK // count))
    for begin in range(0, RESAMPLES, block):
        yield rng.integers(0, count, (min(block, RESAMPLES - begin), count))


def numbered(keys: Sequence[Hashable]) -> NDArray[np.intp]:
    """Number the keys: (N,) indices, equal for equal keys."""
    known: dict[Hashable, int] = {}
    return np.array([known.setdefault(key, len(known)) for key in keys], np.intp)


def _covering(interval: Interval, values: NDArray[np.float64], groups: NDArray[np.intp]) -> Interval:
    """Widen the interval to cover the bootstrap over whole groups of values."""
    which, number = np.unique(groups, return_inverse=True)
    if len(which) == len(values):
        return interval
    sums, counts = np.bincount(number, values), np.bincount(number).astype(np.float64)
    again = np.concatenate([sums[drawn].sum(1) / counts[drawn].sum(1) for drawn in draws(len(which))])
    low, high = np.percentile(again, [2.5, 97.5])
    return Interval(interval.estimate, min(interval.low, float(low)), max(interval.high, float(high)))
