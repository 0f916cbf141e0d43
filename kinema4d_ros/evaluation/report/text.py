"""Sentences of the evaluation report (verdict, bias, ranking, power, correction) and formatted numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from kinema4d_ros.evaluation.rates import Interval
from kinema4d_ros.evaluation.settings import ORACLE, TRUTH
from kinema4d_ros.evaluation.summary import EvaluationSummary, ModelSummary
from kinema4d_ros.evaluation.summary.cells import Cell
from kinema4d_ros.evaluation.summary.correction_check import CorrectionRow
from kinema4d_ros.lab.profile import CONSTANT

__all__ = [
    "NONE",
    "Value",
    "corrected_words",
    "correction_words",
    "headline",
    "number",
    "percent",
    "power_words",
    "probability_words",
    "signed",
    "verdict",
    "worth_words",
]

NONE = "—"
"""Shown for undefined values."""

WORTH = 0.95
"""An error counts as better only below this factor of the other error."""

APART = 0.1
"""Biases that differ by less are reported as a mean only."""


@dataclass(frozen=True)
class Value:
    """A number and its detail, such as an interval, shown in smaller type; `tone` is a class of the style sheet."""

    text: str
    detail: str = ""
    tone: str = ""

    @classmethod
    def of(cls, interval: Interval | None, *, sign: bool = False) -> Value:
        """Format an estimate with its interval."""
        if interval is None:
            return cls(NONE)
        show = signed if sign else number
        return cls(show(interval.estimate), f"{show(interval.low)} to {show(interval.high)}")


def number(value: float | None, digits: int = 2) -> str:
    """Format a number with fixed digits; NONE if it is undefined or not finite."""
    if value is None or not math.isfinite(value):
        return NONE
    return f"{value:.{digits}f}"


def signed(value: float | None) -> str:
    """Format a number with its sign; use a third digit where two would round to zero."""
    if value is None or not math.isfinite(value):
        return NONE
    return f"{value:+.3f}" if 0.0005 <= abs(value) < 0.005 else f"{value:+.2f}" if abs(value) >= 0.005 else "0.00"


def percent(value: float) -> str:
    """Format whole per cent with a no-break space; 0 % and 100 % are shown only for exactly 0 and 1."""
    whole = round(100 * value)
    if (whole == 0 and value > 0) or (whole == 100 and value < 1):
        return f"{100 * value:.1f}\u00a0%"
    return f"{whole}\u00a0%"


def headline(summary: EvaluationSummary) -> str:
    """Describe the size and progress of the evaluation."""
    settings: Mapping[str, Any] = summary.settings
    policies, scenarios = len(settings["policies"]), len(settings["scenarios"])
    if settings["runs"]:
        size = f"{policies} policies x {scenarios} scenarios x {settings['runs']} runs"
        profile = settings.get("profile", CONSTANT)
        where = "" if profile == CONSTANT else f" in the lab's profile “{profile}”"
        text = f"{size} of the task “{settings.get('task', 'unknown')}”{where}: {summary.planned} trials"
    else:
        text = f"{summary.planned} recorded runs of {policies} policies and {scenarios} tasks"
    if summary.missing:
        text += f", {summary.finished} of them finished so far. {summary.missing} are missing: the figures will change"
    failed = sum(failure.count for failure in summary.lab_failures)
    if failed:
        text += f". {failed} of them failed in the lab; they are listed below and excluded from the rates"
    return text + "."


def verdict(model: ModelSummary) -> str:
    """Assess in one paragraph how far a model can be trusted."""
    cell = model.overall
    if cell.lab is None or cell.agreement is None:
        return f"No run has an outcome both in the lab and in {model.label}: it cannot be assessed."
    informs, trust = _trust(cell.lab.estimate, cell.agreement, cell.count)
    if model.label.partition("/")[0] == TRUTH:
        return f"Not a model but the lab's own images: all errors here are the judge's. {trust} {_wrong(cell)}"
    if model.label.partition("/")[0] == ORACLE:
        trust = (
            "Not a model of the camera's picture: a draft that is given the lab's true shapes and poses, but not its "
            f"physics. What separates a draft from it is the fit. {trust}"
        )
    parts = [_mixed(model), trust, _bias(cell), _parts(model), _wrong(cell), _winner(model), _advice(model, informs)]
    return " ".join(part for part in parts if part)


def _mixed(model: ModelSummary) -> str:
    """Warn if one label covers rollouts of several models."""
    if len(model.made_by) < 2:
        return ""
    return f"These figures mix rollouts of {' and '.join(model.made_by)}: they do not describe a single model."


def _trust(rate: float, same: Interval, count: int) -> tuple[bool, str]:
    """Compare the verdicts with always predicting the more frequent outcome; True = significantly better."""
    base = max(rate, 1 - rate)
    text = (
        f"It agrees with the lab in {percent(same.estimate)} of {count} runs "
        f"({percent(same.low)} to {percent(same.high)}); "
        f"always predicting “{'success' if rate >= 0.5 else 'failure'}” would agree in {percent(base)}"
    )
    if same.low > base:
        return True, text + ": its verdicts on single runs are better than that baseline."
    if same.estimate > base:
        return False, text + ": these runs do not show that its verdicts are better than that baseline."
    return False, text + ": its verdicts are not better than that baseline."


def _bias(cell: Cell) -> str:
    bias, lab, model = cell.bias, cell.lab, cell.model
    if bias is None or lab is None or model is None:
        return ""
    between = f"{signed(bias.low)} to {signed(bias.high)}"
    rates = f"success rate {number(model.estimate)}, {number(lab.estimate)} in the lab"
    if bias.low > 0:
        return f"It is optimistic by {number(bias.estimate)} ({between}): {rates}."
    if bias.high < 0:
        return f"It is pessimistic by {number(-bias.estimate)} ({between}): {rates}."
    return f"No significant bias ({signed(bias.estimate)}, {between}): {rates}."


def _parts(model: ModelSummary) -> str:
    """Report biases of policies or scenarios that differ widely, because they may cancel in the mean."""
    found = []
    for what, cells in (("policies", model.policies), ("scenarios", model.scenarios)):
        known = sorted((c.bias.estimate, c.policy or c.scenario) for c in cells if c.bias is not None)
        if len(known) > 1 and known[-1][0] - known[0][0] >= APART:
            (low, worst), (high, best) = known[0], known[-1]
            found.append(f"the bias of {what} ranges from {signed(low)} (“{worst}”) to {signed(high)} (“{best}”)")
    text = ", ".join(found)
    return f"That is a mean: {text}." if text else ""


def _wrong(cell: Cell) -> str:
    found = []
    if cell.false_success is not None:
        found.append(f"it shows {percent(cell.false_success.estimate)} of the lab's failures as successes")
    if cell.false_failure is not None:
        found.append(f"it misses {percent(cell.false_failure.estimate)} of the lab's successes")
    text = ", and ".join(found)
    text = text[:1].upper() + text[1:] + "." if text else ""
    if cell.undecided:
        text += f" In {cell.undecided} of {cell.count} runs the judge cannot tell; these count as failures."
    return text


def _winner(model: ModelSummary) -> str:
    ranking = model.ranking
    if len(ranking.policies) < 2 or not ranking.tables:
        return f"No ranking: {ranking.why}."
    if len(ranking.lab_best) == len(ranking.policies):
        return "All policies have the same success rate in the lab, so there is no ranking to compare with."
    best = " and ".join(f"“{name}”" for name in ranking.lab_best)
    cost = number(ranking.regret.estimate if ranking.regret else None)
    if len(ranking.model_best) == len(ranking.policies):
        return f"All policies have the same success rate in it, so it picks no best policy; the lab's best is {best}."
    chosen = " and ".join(f"“{name}”" for name in ranking.model_best)
    if ranking.winner_agrees is None:
        text = f"Its best policies {chosen} are tied; the lab's best is {best}: a random pick costs {cost} of success."
    elif ranking.winner_agrees:
        text = f"It picks {chosen} as the best policy, as the lab does."
    else:
        text = f"It picks {chosen}, but the lab's best is {best}: this costs {cost} of success."
    if ranking.spearman is not None and ranking.mmrv is not None:
        rank, violation = ranking.spearman, ranking.mmrv.estimate
        span = f"{number(rank.low)} to {number(rank.high)}"
        text += f" Over {len(ranking.policies)} policies the rank correlation is {number(rank.estimate)} ({span})"
        text += f", the mean worst rank violation {number(violation)}."
    return text


def _advice(model: ModelSummary, informs: bool) -> str:
    bias, ranking = model.overall.bias, model.ranking
    off = [abs(cell.bias.estimate) for cell in model.policies if cell.bias and 0 not in cell.bias]
    ordered = ranking.spearman is not None and ranking.spearman.low > 0
    if not informs and not ordered:
        return "Do not use it to evaluate policies."
    use = "Use it to rank policies" if ordered else "Do not use it to rank policies"
    runs = "" if informs else ", and do not use it for single runs"
    if off:
        return f"{use}{runs}; a policy's success rate may be off by {number(max(off))} and must be corrected."
    if bias is not None and (bias.low > 0 or bias.high < 0):
        side = "above" if bias.low > 0 else "below"
        return f"{use}{runs}; its success rates are {number(abs(bias.estimate))} {side} those of the lab."
    return f"{use}{runs}; no policy's success rate has a significant bias."


def power_words(model: ModelSummary) -> str:
    """Describe the smallest differences that these runs can detect."""
    power = model.power
    if power.rate is None:
        return "There are no pairs: no difference can be detected."
    parts = []
    for runs, value, where in (
        (power.runs, power.between_policies, "over all scenarios"),
        (power.cell_runs, power.between_cells, "on one scenario"),
    ):
        seen = f"a difference of {number(value)} between two policies" if value else "no difference between policies"
        parts.append(f"with {runs} runs of each policy {where}, {seen} can be detected")
    words = f"{'; '.join(parts)} (80 % power, 95 % level, at the lab's rate of {number(power.rate)}; for two sets of"
    words = words[:1].upper() + words[1:] + " independent scenes; on the same scenes smaller ones can be detected)."
    differ = percent(power.disagreement or 0.0)
    if power.bias:
        return f"{words} At {differ} disagreement, a policy's bias of {number(power.bias)} can be detected."
    return f"{words} At {differ} disagreement, no bias of a single policy can be detected."


def probability_words(model: ModelSummary) -> str:
    """Report the quality of the stated probabilities, and of verdicts forced where the model cannot tell."""
    said = model.probabilities
    cell, calibration, unknown = said.overall, said.calibration, said.undecided
    if not cell.count:
        return "There are no pairs: nothing is known about its probabilities."
    if calibration is None:
        text = f"It states no probabilities: its verdicts count as such, Brier score {number(cell.brier, 3)}."
    else:
        better = "" if cell.brier is None or cell.brier_verdict is None or cell.brier < cell.brier_verdict else "not "
        text = (
            f"It states a probability in {cell.stated} of {cell.count} runs: expected calibration error "
            f"{number(calibration.error, 3)}, Brier score {number(cell.brier, 3)}, of its verdicts alone "
            f"{number(cell.brier_verdict, 3)}: the probabilities are {better}better than the verdicts."
        )
    if not unknown.count or unknown.share is None:
        return f"{text} It gives a verdict on every run."
    text += f" In {unknown.count} runs ({percent(unknown.share.estimate)}) it cannot tell"
    if unknown.right is None:
        return f"{text}; its frames suggest no verdict there."
    low, high = percent(unknown.right.low), percent(unknown.right.high)
    return (
        f"{text}; the verdict that its frames suggest there would be right in {percent(unknown.right.estimate)} of "
        f"{unknown.forced} runs ({low} to {high})."
    )


def correction_words(model: ModelSummary) -> str:
    """State for each number of real trials whether the correction helps."""
    correction = model.correction
    parts = []
    for k in dict.fromkeys(row.real_trials for row in correction.rows):
        rows = {row.method: row for row in correction.rows if row.real_trials == k}
        parts.append(_compare(k, rows))
    if correction.why:
        parts.append(f"Not checked: {correction.why}.")
    return " ".join(parts)


def _compare(k: int, rows: Mapping[str, CorrectionRow]) -> str:
    corrected = min((rows[name] for name in ("powered", "curve")), key=lambda row: row.error)
    # The curve adds two pseudo-trials, which alone improves estimates from few runs ("shrunk"): no gain of the model.
    real, model = min(rows["real"].error, rows["shrunk"].error), rows["model"].error
    name = {"powered": "prediction-powered", "curve": "success curve"}[corrected.method]
    text = f"With {k} real trials the better correction ({name}) is off by {number(corrected.error, 3)}, "
    text += f"the better estimate without a model by {number(real, 3)}, the model alone by {number(model, 3)}: "
    beats_real, beats_model = (corrected.error < WORTH * other for other in (real, model))
    if beats_real and beats_model:
        return text + "the correction helps."
    if beats_real:
        return text + "the model helps, the correction does not."
    if beats_model:
        return text + "the correction is needed, and the model adds nothing to the real trials."
    return text + "the correction does not help."


def corrected_words(model: ModelSummary) -> str:
    """State whether the correction improves on the real trials alone."""
    corrected = model.corrected
    if not corrected.rates:
        return f"No corrected rates: {corrected.why}."
    narrower = sum(one.corrected.high - one.corrected.low < one.real.high - one.real.low for one in corrected.rates)
    count = len(corrected.rates)
    text = f"The corrected interval is narrower than that of the real trials alone for {narrower} of {count} policies."
    if narrower <= count / 2:
        text += " For most policies the model adds nothing to the real trials."
    held = [one for one in corrected.rates if one.held_out is not None]
    if held:
        corrected_off, real_off, model_off = (
            number(fmean(abs(getattr(one, name).estimate - one.held_out) for one in held), 3)
            for name in ("corrected", "real", "model")
        )
        text += (
            f" Against the lab's outcomes of the other runs, the corrected rate is off by {corrected_off} on average, "
            f"the real trials alone by {real_off}, the uncorrected model by {model_off}: one draw of real trials; the "
            "table below has many."
        )
    return text + (f" Not corrected: {corrected.why}." if corrected.why else "")


def worth_words(model: ModelSummary) -> str:
    """Report the Brier scores of the probabilities of single runs."""
    calibration = model.corrected.calibration
    if calibration is None:
        return "Verdicts are not calibrated: there are too few real trials or other runs."
    text = f"Fitted to {calibration.fitted} real trials of all policies, applied to {calibration.count} other runs."
    if calibration.brier is None or calibration.brier_verdict is None or calibration.brier_rate is None:
        return text + " The real outcomes of those runs are not known."
    best = min(calibration.brier_verdict, calibration.brier_rate)
    text += (
        " Brier score (mean squared error, 0 is perfect) of the calibrated probabilities "
        f"{number(calibration.brier, 3)}, of the uncalibrated verdicts {number(calibration.brier_verdict, 3)}, of one "
        f"rate for all runs {number(calibration.brier_rate, 3)}: "
    )
    return text + ("calibration helps." if calibration.brier < best else "calibration does not help.")
