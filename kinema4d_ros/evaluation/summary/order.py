"""Ranking of policies by a model compared with the lab, and the statistical power of the runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm, rankdata

from kinema4d_ros.evaluation.ranking import mmrv, pearson, spearman
from kinema4d_ros.evaluation.rates import Interval, detectable_difference
from kinema4d_ros.evaluation.summary.cells import Cell, Pair, draws

__all__ = ["PolicyRanking", "Power", "detectable_bias", "estimate_power", "rank"]

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class PolicyRanking:
    """Ranking of policies by success on scenes that all of them finished; None = not defined, see `why`.

    Attributes:
        policies: that are ranked.
        left_out: policies without a finished pair.
        tables: number of scenes that all ranked policies finished.
        lab_rates, model_rates: on these scenes, for each policy.
        pearson, spearman, mmrv: with bootstrap intervals over seeds.
        lab_best, model_best: the best policies; several = they are tied.
        winner_agrees: whether the model's best is the lab's best; None = a tie leaves it open.
        winner_share: how often it is, over bootstrap resamples of seeds; ties are broken at random.
        regret: loss of real success rate by choosing the model's best; ties are broken at random.
        why: what is not defined, and the reason; "" = everything is defined.
    """

    policies: tuple[str, ...]
    left_out: tuple[str, ...]
    tables: int
    lab_rates: tuple[float, ...] = ()
    model_rates: tuple[float, ...] = ()
    pearson: Interval | None = None
    spearman: Interval | None = None
    mmrv: Interval | None = None
    lab_best: tuple[str, ...] = ()
    model_best: tuple[str, ...] = ()
    winner_agrees: bool | None = None
    winner_share: float | None = None
    regret: Interval | None = None
    why: str = ""


@dataclass(frozen=True)
class Power:
    """Smallest differences that these runs can detect with 80 % power at the 95 % level; None = none.

    Attributes:
        runs: the fewest pairs of a policy.
        rate: the lab's success rate at which differences are computed.
        between_policies: smallest difference between two policies over all scenarios, on independent scenes.
        cell_runs: the fewest pairs of a policy on one scenario.
        between_cells: the same on one scenario.
        disagreement: share of pairs that differ.
        bias: smallest bias of one policy that McNemar's test detects at this disagreement.
    """

    runs: int
    rate: float | None
    between_policies: float | None
    cell_runs: int
    between_cells: float | None
    disagreement: float | None
    bias: float | None


def rank(pairs: Sequence[Pair], policies: Sequence[str]) -> PolicyRanking:
    """Rank the policies of a model's pairs."""
    known: dict[str, dict[tuple[str, int], Pair]] = {policy: {} for policy in policies}
    for pair in pairs:
        known[pair.trial.policy][pair.trial.scenario, pair.trial.seed] = pair
    ranked = tuple(policy for policy in policies if known[policy])
    left_out = tuple(policy for policy in policies if not known[policy])
    common = sorted(set.intersection(*(set(known[policy]) for policy in ranked))) if ranked else []
    if len(ranked) < 2:
        why = f"a ranking needs two policies with finished runs, got {len(ranked)}"
        return PolicyRanking(ranked, left_out, len(common), why=why)
    if not common:
        return PolicyRanking(ranked, left_out, 0, why="no scene was finished by all policies")
    model = np.array([[known[policy][table].model for table in common] for policy in ranked])
    lab = np.array([[known[policy][table].lab for table in common] for policy in ranked])
    m, r = model.mean(1), lab.mean(1)
    again = _Again.of(model.astype(np.float64), lab.astype(np.float64), [seed for _, seed in common])
    lab_best, model_best = _best(ranked, r), _best(ranked, m)
    level = len(lab_best) == len(ranked)
    hits, regrets = _by_lot(again.model, again.lab)
    return PolicyRanking(
        ranked,
        left_out,
        len(common),
        tuple(float(value) for value in r),
        tuple(float(value) for value in m),
        _interval(pearson(m, r), again.pearson()),
        _interval(spearman(m, r), again.spearman()),
        _interval(mmrv(m, r), again.mmrv()),
        lab_best,
        model_best,
        None if level else _agree(lab_best, model_best),
        None if level else float(hits.mean()),
        _interval(float(_by_lot(m, r)[1]), regrets),
        _why(m, r, lab_best, model_best),
    )


@dataclass(frozen=True, eq=False)
class _Again:
    """(P, R) success rates in R bootstrap resamples: `ranking.bootstrap`, all resamples at once.

    Scenes of one seed are drawn together, because the outcomes of a policy may depend on the seed.
    """

    model: Floats
    lab: Floats

    @classmethod
    def of(cls, model: Floats, lab: Floats, seeds: Sequence[int]) -> _Again:
        which, number = np.unique(np.asarray(seeds), return_inverse=True)
        found = []
        for drawn in draws(len(which)):
            often = np.stack([np.bincount(row, minlength=len(which)) for row in drawn], axis=1)
            weights = often.astype(np.float64)[number]
            # Integers are summed before the division, so that ties stay exact.
            found.append(np.stack([model @ weights, lab @ weights]) / weights.sum(0))
        rates = np.concatenate(found, axis=2)
        return cls(rates[0], rates[1])

    def pearson(self) -> Floats:
        return _correlations(self.model, self.lab)

    def spearman(self) -> Floats:
        return _correlations(rankdata(self.model, axis=0), rankdata(self.lab, axis=0))

    def mmrv(self) -> Floats:
        swapped = (self.model[:, None] < self.model) != (self.lab[:, None] < self.lab)
        worst = (np.abs(self.lab[:, None] - self.lab) * swapped).max(axis=1)
        return np.asarray(worst.mean(axis=0), np.float64)


def _correlations(m: Floats, r: Floats) -> Floats:
    m, r = m - m.mean(0), r - r.mean(0)
    size = np.sqrt((m * m).sum(0) * (r * r).sum(0))
    found: Floats = np.divide((m * r).sum(0), size, out=np.full(size.shape, np.nan), where=size > 1e-12)
    return found


def _interval(estimate: float, again: Floats) -> Interval | None:
    known = again[np.isfinite(again)]
    if not math.isfinite(estimate) or not len(known):
        return None
    low, high = np.percentile(known, [2.5, 97.5])
    return Interval(estimate, float(low), float(high))


def _why(m: Floats, r: Floats, lab_best: tuple[str, ...], model_best: tuple[str, ...]) -> str:
    reasons = []
    if np.ptp(r) < 1e-12:
        reasons.append("all policies are level in the lab: no correlation, no winner")
    if np.ptp(m) < 1e-12:
        reasons.append("all policies are level in the model: no correlation")
    if len(lab_best) < len(r) and _agree(lab_best, model_best) is None:
        reasons.append(f"{', '.join(model_best)} are level in the model: lots decide the winner")
    return "; ".join(reasons)


def _best(policies: Sequence[str], rates: Floats) -> tuple[str, ...]:
    return tuple(policy for policy, rate in zip(policies, rates, strict=True) if rate >= rates.max() - 1e-12)


def _agree(lab_best: tuple[str, ...], model_best: tuple[str, ...]) -> bool | None:
    hits = sum(policy in lab_best for policy in model_best)
    return None if 0 < hits < len(model_best) else hits > 0


def _by_lot(m: Floats, r: Floats) -> tuple[Floats, Floats]:
    """Return for rates (P,) or (P, R) the probability that the model's best is the lab's best, and the regret."""
    chosen, best = m >= m.max(0) - 1e-12, r >= r.max(0) - 1e-12
    draws = chosen.sum(0)
    return (chosen & best).sum(0) / draws, r.max(0) - (r * chosen).sum(0) / draws


def estimate_power(cells: Sequence[Cell], policies: Sequence[Cell], overall: Cell) -> Power:
    """Compute the power of the available pairs; policies without pairs are left out."""
    runs = min((cell.count for cell in policies if cell.count), default=0)
    cell_runs = min((cell.count for cell in cells if cell.count), default=0)
    if overall.lab is None or overall.agreement is None:
        return Power(runs, None, None, cell_runs, None, None, None)
    rate, differing = overall.lab.estimate, 1 - overall.agreement.estimate
    return Power(
        runs,
        rate,
        _seen(runs, rate),
        cell_runs,
        _seen(cell_runs, rate),
        differing,
        detectable_bias(runs, differing),
    )


def _seen(runs: int, rate: float) -> float | None:
    value = detectable_difference(runs, rate)
    return value if math.isfinite(value) else None


def detectable_bias(runs: int, disagreement: float, *, power: float = 0.8, level: float = 0.95) -> float | None:
    """Compute the smallest paired difference that McNemar's test detects at a share of disagreeing pairs; None = none.

    A difference cannot be larger than the share of pairs that disagree.
    """
    z_level, z_power = float(norm.ppf(0.5 + level / 2)), float(norm.ppf(power))

    def seen(difference: float) -> bool:
        noise = z_level * math.sqrt(disagreement) + z_power * math.sqrt(max(0.0, disagreement - difference**2))
        return difference * math.sqrt(runs) >= noise

    if runs < 1 or disagreement <= 0 or not seen(disagreement):
        return None
    low, high = 0.0, disagreement
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if seen(middle) else (middle, high)
    return high
