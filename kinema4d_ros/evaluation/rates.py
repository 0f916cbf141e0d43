"""Success rates, their paired differences with intervals valid for few runs, and confusion matrices.

>>> wilson(15, 20)
Interval(estimate=0.75, low=0.5313, high=0.8881)
>>> mcnemar_p(only_first=9, only_second=1).round(4)
np.float64(0.0215)
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import binom, norm

from kinema4d_ros.core.errors import EvaluationError

__all__ = [
    "Confusion",
    "Interval",
    "PairedOutcomes",
    "detectable_difference",
    "mcnemar_p",
    "paired_difference",
    "require_outcomes",
    "wilson",
]


@dataclass(frozen=True)
class Interval:
    """An estimate with its confidence interval; NaN = no data."""

    estimate: float
    low: float
    high: float

    def __contains__(self, value: float) -> bool:
        """Return whether a value lies inside."""
        return self.low <= value <= self.high

    def __repr__(self) -> str:
        """Format with four digits."""
        return f"Interval(estimate={self.estimate:.4g}, low={self.low:.4g}, high={self.high:.4g})"


@dataclass(frozen=True)
class PairedOutcomes:
    """Counts of the outcomes of runs in the model and in reality."""

    both: int
    only_model: int
    only_real: int
    neither: int

    @classmethod
    def of(cls, model: ArrayLike, real: ArrayLike) -> PairedOutcomes:
        """Count two arrays of outcomes of the same runs."""
        m, r = require_outcomes(model, "the model's outcomes"), require_outcomes(real, "the real outcomes")
        if len(m) != len(r):
            raise EvaluationError(
                f"{len(m)} outcomes of the model and {len(r)} real ones", expected="one of each for every run"
            )
        counts = [int((a & b).sum()) for a, b in ((m, r), (m, ~r), (~m, r), (~m, ~r))]
        return cls(*counts)

    @property
    def count(self) -> int:
        """Number of runs."""
        return self.both + self.only_model + self.only_real + self.neither

    def model(self, level: float = 0.95) -> Interval:
        """Compute the success rate in the model."""
        return wilson(self.both + self.only_model, self.count, level)

    def real(self, level: float = 0.95) -> Interval:
        """Compute the success rate in reality."""
        return wilson(self.both + self.only_real, self.count, level)

    def bias(self, level: float = 0.95) -> Interval:
        """Compute the bias, model minus reality: above 0 the model is optimistic."""
        return paired_difference(self, level)

    def false_success(self, level: float = 0.95) -> Interval:
        """Compute the share of real failures that succeed in the model."""
        return wilson(self.only_model, self.only_model + self.neither, level)

    def false_failure(self, level: float = 0.95) -> Interval:
        """Compute the share of real successes that fail in the model."""
        return wilson(self.only_real, self.only_real + self.both, level)

    def agreement(self, level: float = 0.95) -> Interval:
        """Compute the share of runs with the same outcome."""
        return wilson(self.both + self.neither, self.count, level)

    def p_value(self) -> float:
        """Compute the p-value of McNemar's exact test of no bias."""
        return float(mcnemar_p(self.only_model, self.only_real))


def require_outcomes(values: ArrayLike, name: str) -> NDArray[np.bool_]:
    """Return outcomes as (N,) bool; numbers other than 0 and 1 are refused."""
    array = np.asarray(values)
    if array.ndim != 1 or not len(array):
        raise EvaluationError(f"{name} have shape {array.shape}", expected="(N,), at least one")
    if array.dtype != np.bool_ and not np.isin(array, (0, 1)).all():
        raise EvaluationError(
            f"{name} hold {array[~np.isin(array, (0, 1))][0]!r}", expected="True and False, or 1 and 0"
        )
    return array.astype(np.bool_)


def _quantile(level: float) -> float:
    if not 0 < level < 1:
        raise EvaluationError(f"the level is {level}", expected="between 0 and 1, such as 0.95")
    return float(norm.ppf(0.5 + level / 2))


def wilson(successes: int, runs: int, level: float = 0.95) -> Interval:
    """Compute Wilson's score interval of a success rate: within 0 to 1, and valid for few runs."""
    if not 0 <= successes <= runs:
        raise EvaluationError(f"{successes} successes in {runs} runs", expected="0 to the number of runs")
    z = _quantile(level)
    if runs == 0:
        return Interval(math.nan, math.nan, math.nan)
    share = successes / runs
    spread = z * math.sqrt(share * (1 - share) / runs + z * z / (4 * runs * runs))
    middle, scale = share + z * z / (2 * runs), 1 + z * z / runs
    return Interval(share, max(0.0, (middle - spread) / scale), min(1.0, (middle + spread) / scale))


def paired_difference(pairs: PairedOutcomes, level: float = 0.95) -> Interval:
    """Compute Tango's score interval of the difference of two rates of the same runs, model minus real.

    It holds all differences that a score test does not reject, and is valid where a normal approximation is not: few
    runs, rates near 0 or 1, or hardly any disagreement.
    """
    n, z = pairs.count, _quantile(level)
    if n == 0:
        return Interval(math.nan, math.nan, math.nan)
    more, less = pairs.only_model, pairs.only_real
    difference = (more - less) / n

    def score(delta: float) -> float:
        """Compute the score (in standard deviations) of a true difference of `delta`; falls as `delta` grows."""
        a, b = 2 * n, -more - less + (2 * n - more + less) * delta
        # Maximum-likelihood share of runs that succeed only in reality, given the difference `delta`.
        share = (math.sqrt(max(0.0, b * b + 4 * a * less * delta * (1 - delta))) - b) / (2 * a)
        variance = n * (2 * share + delta * (1 - delta))
        gap = more - less - n * delta
        return gap / math.sqrt(variance) if variance > 1e-12 else math.copysign(math.inf, gap) if gap else 0.0

    def crossing(wanted: float, low: float, high: float) -> float:
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if score(middle) > wanted else (low, middle)
        return (low + high) / 2

    return Interval(difference, crossing(z, -1.0, difference), crossing(-z, difference, 1.0))


def mcnemar_p(only_first: int, only_second: int) -> np.float64:
    """Compute the exact two-sided p-value of McNemar's test from the two disagreement counts; 1 if both are 0."""
    if min(only_first, only_second) < 0:
        raise EvaluationError(f"{only_first} and {only_second} disagreements", expected="counts, 0 or more")
    return np.float64(min(1.0, 2 * binom.cdf(min(only_first, only_second), only_first + only_second, 0.5)))


def detectable_difference(runs: int, rate: float = 0.5, *, power: float = 0.8, level: float = 0.95) -> float:
    """Compute the smallest difference to `rate` that two series of `runs` runs each detect with this power.

    The series are independent; runs on the same seeds detect smaller ones. NaN if no difference can be detected.
    """
    if runs < 1 or not 0 <= rate <= 1 or not 0 < power < 1:
        raise EvaluationError(
            f"{runs} runs at a rate of {rate} with power {power}", expected="at least one run, shares from 0 to 1"
        )
    z_level, z_power = _quantile(level), float(norm.ppf(power))

    def seen(other: float) -> bool:
        pooled = (rate + other) / 2
        noise = z_level * math.sqrt(2 * pooled * (1 - pooled))
        noise += z_power * math.sqrt(rate * (1 - rate) + other * (1 - other))
        return abs(other - rate) * math.sqrt(runs) >= noise

    # Towards the farther end of the scale, where larger differences are possible.
    end = 1.0 if rate <= 0.5 else 0.0
    if not seen(end):
        return math.nan
    near, far = rate, end
    for _ in range(60):
        middle = (near + far) / 2
        near, far = (near, middle) if seen(middle) else (middle, far)
    return abs(far - rate)


# Verdicts of a judge against the truth as a confusion matrix.
#
# >>> table = Confusion.of([True, True, False, None], [True, False, False, True])
# >>> table.agreement, table.false_success, table.unknown
# (0.5, 1, 1)


@dataclass(frozen=True)
class Confusion:
    """Counts of verdicts by truth. "Cannot tell" never agrees, and is not counted as a failure.

    Attributes:
        true_success, false_failure, unknown_success: verdicts True, False and None on true successes.
        false_success, true_failure, unknown_failure: the same on true failures.
    """

    true_success: int = 0
    false_failure: int = 0
    unknown_success: int = 0
    false_success: int = 0
    true_failure: int = 0
    unknown_failure: int = 0

    @classmethod
    def of(cls, verdicts: Iterable[bool | None], truths: Iterable[bool]) -> Confusion:
        """Count verdicts against truths, in the same order."""
        judged, known = list(verdicts), list(truths)
        if len(judged) != len(known):
            raise EvaluationError(f"{len(judged)} verdicts for {len(known)} truths", expected="equal numbers")
        pairs = list(zip(judged, known, strict=True))
        return cls(
            true_success=pairs.count((True, True)),
            false_failure=pairs.count((False, True)),
            unknown_success=pairs.count((None, True)),
            false_success=pairs.count((True, False)),
            true_failure=pairs.count((False, False)),
            unknown_failure=pairs.count((None, False)),
        )

    @property
    def total(self) -> int:
        """Number of verdicts."""
        return self._successes + self._failures

    @property
    def unknown(self) -> int:
        """Number of verdicts "cannot tell"."""
        return self.unknown_success + self.unknown_failure

    @property
    def agreement(self) -> float:
        """Share of correct verdicts; NaN without verdicts."""
        return _share(self.true_success + self.true_failure, self.total)

    @property
    def false_success_rate(self) -> float:
        """Share of true failures that are judged a success; these make a policy look better than it is."""
        return _share(self.false_success, self._failures)

    @property
    def false_failure_rate(self) -> float:
        """Share of true successes that are judged a failure."""
        return _share(self.false_failure, self._successes)

    @property
    def _successes(self) -> int:
        return self.true_success + self.false_failure + self.unknown_success

    @property
    def _failures(self) -> int:
        return self.false_success + self.true_failure + self.unknown_failure

    def table(self) -> str:
        """Format the matrix as Markdown."""
        return "\n".join(
            (
                "| truth | judged success | judged failure | cannot tell |",
                "|---|---|---|---|",
                f"| success | {self.true_success} | {self.false_failure} | {self.unknown_success} |",
                f"| failure | {self.false_success} | {self.true_failure} | {self.unknown_failure} |",
            )
        )


def _share(part: int, whole: int) -> float:
    return part / whole if whole else float("nan")
