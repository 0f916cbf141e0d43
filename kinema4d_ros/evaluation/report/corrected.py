"""Corrected success rates and the worth of verdicts, as tables and words of a report."""

from __future__ import annotations

from kinema4d_ros.evaluation.proportions import Interval
from kinema4d_ros.evaluation.report.tables import Table
from kinema4d_ros.evaluation.report.text import NONE, Value, number
from kinema4d_ros.evaluation.summary import ModelSummary
from kinema4d_ros.evaluation.summary.corrected import VERDICTS

__all__ = ["corrected_table", "corrected_words", "worth_table", "worth_words"]


def corrected_table(model: ModelSummary) -> Table:
    """Each policy's real success rate by the real trials alone, by the model, and corrected."""
    corrected = model.corrected
    lab = corrected.source == "lab"
    header = ("policy", "real trials", "other runs", "real trials alone", "model as it is", "corrected")
    rows = tuple(
        (
            one.policy,
            str(one.real_trials),
            str(one.model_trials),
            _wide(one.real),
            _wide(one.model),
            _wide(one.corrected),
            *((number(one.held_out),) if lab else ()),
        )
        for one in corrected.rates
    )
    who = (
        "Here lab runs stand for real ones: the first tables of each policy are its real trials, and of the others "
        "only the model's verdicts are used. The last column is what the lab says of those others."
        if lab
        else "Real trials are those of real.csv."
    )
    note = (
        f"{who} Corrected: prediction-powered inference, all of the model's verdicts with what the real trials show of "
        "its error taken off. 95 % intervals, their width behind them; the model's own interval is about its verdicts "
        "and says nothing about reality."
    )
    return Table((*header, "lab, the others") if lab else header, rows, note)


def _wide(interval: Interval) -> Value:
    return Value(
        number(interval.estimate),
        f"{number(interval.low)} to {number(interval.high)}, width {number(interval.high - interval.low)}",
    )


def corrected_words(model: ModelSummary) -> str:
    """Whether the correction is worth the model, in one sentence or two."""
    corrected = model.corrected
    if not corrected.rates:
        return f"No corrected rates: {corrected.why}."
    narrower = sum(_width(one.corrected) < _width(one.real) for one in corrected.rates)
    count = len(corrected.rates)
    text = f"The corrected interval is narrower than that of the real trials alone for {narrower} of {count} policies."
    if narrower <= count / 2:
        text += " For most policies the model adds nothing to its real trials."
    held = [one for one in corrected.rates if one.held_out is not None]
    if held:
        off = {
            "corrected": _mean([abs(one.corrected.estimate - (one.held_out or 0.0)) for one in held]),
            "real": _mean([abs(one.real.estimate - (one.held_out or 0.0)) for one in held]),
            "model": _mean([abs(one.model.estimate - (one.held_out or 0.0)) for one in held]),
        }
        text += (
            f" Against the lab's outcomes of the other runs, the corrected rate is off by "
            f"{number(off['corrected'], 3)} in the mean, the real trials alone by {number(off['real'], 3)}, the model "
            f"as it is by {number(off['model'], 3)}: one draw of real trials; the table below has many."
        )
    return text + (f" Not corrected: {corrected.why}." if corrected.why else "")


def worth_table(model: ModelSummary) -> Table:
    """The probability of real success after each kind of verdict."""
    calibration = model.corrected.calibration
    rows = tuple(
        (VERDICTS[one.verdict][2], str(one.count), number(one.probability), Value.of(one.observed))
        for one in (calibration.verdicts if calibration else ())
        if one.count
    )
    note = (
        "Calibrated probability: mean of the success curve, fitted to the real trials of all policies together, on "
        "runs that it was not fitted to. Observed: how many of these succeed in the lab."
        + (f" {NONE} = not known." if model.corrected.source == "real" else "")
    )
    return Table(("the model says", "runs", "probability of real success", "observed"), rows, note)


def worth_words(model: ModelSummary) -> str:
    """How good the probabilities of single runs are."""
    calibration = model.corrected.calibration
    if calibration is None:
        return "Verdicts are not calibrated: too few real trials or other runs."
    text = f"Fitted to {calibration.fitted} real trials of all policies, applied to {calibration.count} other runs."
    if calibration.brier is None or calibration.brier_verdict is None or calibration.brier_rate is None:
        return text + " What happened in those is not known."
    best = min(calibration.brier_verdict, calibration.brier_rate)
    text += (
        " Brier score (mean squared error, 0 is perfect) of the calibrated probabilities "
        f"{number(calibration.brier, 3)}, of the verdicts as they are {number(calibration.brier_verdict, 3)}, of one "
        f"rate for all runs {number(calibration.brier_rate, 3)}: "
    )
    return text + ("calibrating helps." if calibration.brier < best else "calibrating does not help.")


def _width(interval: Interval) -> float:
    return interval.high - interval.low


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
