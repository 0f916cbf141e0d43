"""Content of the evaluation report as plain data, which the templates render.

EvaluationSummary, disagreements ─> report_sections ─> Section ... ─> templates/report.html, templates/report.md

To add a section, write a function that returns a `Section` and list it in `report_sections`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from kinema4d_ros.evaluation.rates import Interval
from kinema4d_ros.evaluation.report import tables
from kinema4d_ros.evaluation.report.tables import Table
from kinema4d_ros.evaluation.report.text import (
    NONE,
    Value,
    corrected_words,
    correction_words,
    percent,
    power_words,
    probability_words,
    signed,
    verdict,
    worth_words,
)
from kinema4d_ros.evaluation.summary import EvaluationSummary, ModelSummary
from kinema4d_ros.evaluation.summary.cells import Cell
from kinema4d_ros.evaluation.trial import Trial, TrialRecord

__all__ = [
    "Disagreement",
    "Plot",
    "Section",
    "bias_plot",
    "calibration_plot",
    "choose",
    "disagreements",
    "rates_plot",
    "report_sections",
]


@dataclass(frozen=True)
class Section:
    """A titled part of the report, rendered in the order of these fields.

    Attributes:
        facts: key numbers with their names, on the page only; the text must not depend on them.
        text: paragraphs.
        plots: on the page only.
        strips: disagreements with their images.
        parts: subsections.
    """

    title: str
    facts: tuple[tuple[str, Value], ...] = ()
    text: tuple[str, ...] = ()
    plots: tuple[Plot, ...] = ()
    tables: tuple[Table, ...] = ()
    strips: tuple[Disagreement, ...] = ()
    parts: tuple[Section, ...] = ()


def report_sections(
    summary: EvaluationSummary, found: Sequence[Disagreement], shown: Sequence[Disagreement]
) -> list[Section]:
    """List the sections of the report in order.

    Args:
        summary: of the evaluation.
        found: all disagreements.
        shown: disagreements in the report.
    """
    return [
        Section("How far the models can be trusted", parts=tuple(_trust(model) for model in summary.models)),
        *(_against_lab(model) for model in summary.models),
        _correction(summary),
        Section("Comparison with the paper's Table 3", tables=(tables.paper_table(summary),)),
        _failed(summary),
        Section("Settings", tables=(tables.settings_table(summary),)),
        _disagreements(found, shown),
    ]


def _trust(model: ModelSummary) -> Section:
    cell, ranking = model.overall, model.ranking
    facts = [("pairs", Value(str(cell.count), f"{cell.undecided} the judge cannot tell"))]
    if cell.agreement is not None and cell.bias is not None:
        bias, same = cell.bias, cell.agreement
        side = "not significant" if 0 in bias else "optimistic" if bias.low > 0 else "pessimistic"
        detail = f"{side}, {signed(bias.low)}\u00a0to\u00a0{signed(bias.high)}"
        known = [(one.bias, one.policy) for one in model.policies if one.bias]
        largest, policy = max(known, key=lambda one: abs(one[0].estimate))
        agrees, tone = {True: ("yes", "good"), False: ("no", "bad"), None: (NONE, "")}[ranking.winner_agrees]
        spearman = Value.of(ranking.spearman)
        facts = [
            ("agreement with the lab", Value(percent(same.estimate), f"{percent(same.low)} to {percent(same.high)}")),
            ("bias of the success rate", Value(signed(bias.estimate), detail, "" if 0 in bias else "bad")),
            ("largest bias of a policy", Value(signed(largest.estimate), policy, "" if 0 in largest else "bad")),
            ("same best policy", Value(agrees, f"among {len(ranking.policies)} policies", tone)),
            ("rank correlation", Value(spearman.text, spearman.detail or "not defined")),
            *facts,
        ]
    return Section(model.label, tuple(facts), (verdict(model),))


def _against_lab(model: ModelSummary) -> Section:
    return Section(
        f"{model.label} against the lab",
        plots=(rates_plot(model), bias_plot(model)),
        parts=(
            Section("Success rates", tables=(tables.rates_table(model),)),
            Section("Wrong verdicts", tables=(tables.wrong_table(model),)),
            _probabilities(model),
            Section("Confusion", tables=(tables.confusion_table(model),)),
            Section("Ranking of the policies", tables=tables.ranking_table(model)),
            Section("What these runs can detect", text=(power_words(model),)),
        ),
    )


def _probabilities(model: ModelSummary) -> Section:
    calibrated = model.probabilities.calibration is not None
    return Section(
        "Probabilities",
        text=(probability_words(model),),
        plots=(calibration_plot(model),) if calibrated else (),
        tables=(tables.soft_table(model), *((tables.calibration_table(model),) if calibrated else ())),
    )


def _correction(summary: EvaluationSummary) -> Section:
    intro = (
        "A model with a consistent error can be corrected: run it often, run the robot a few times on the same scenes, "
        "and subtract the error of these pairs. Without real.csv, and in the check, lab runs serve as real trials."
    )
    parts = []
    for model in summary.models:
        for title, words, table in (
            ("corrected success rates", corrected_words(model), tables.corrected_table(model)),
            ("calibrated verdicts", worth_words(model), tables.worth_table(model)),
            ("check on held-out runs", correction_words(model), tables.correction_table(model)),
        ):
            parts.append(Section(f"{model.label}: {title}", text=(words,), tables=(table,) if table.rows else ()))
    return Section("Correction with a few real trials", text=(intro,), parts=tuple(parts))


def _failed(summary: EvaluationSummary) -> Section:
    table = tables.failures_table(summary)
    return Section("Failed runs", tables=(table,)) if table.rows else Section("Failed runs", text=("None.",))


def _disagreements(found: Sequence[Disagreement], shown: Sequence[Disagreement]) -> Section:
    if not found:
        return Section("Disagreements", text=("None.",))
    number = "; ".join(f"{label}: {count}" for label, count in Counter(one.label for one in found).items())
    left_out = len(found) - len(shown)
    text = f"{len(found)} predicted runs have another outcome than in the lab ({number}). "
    text += "The most confident mistakes come first. "
    text += f"{left_out} are left out here; trials.csv has all." if left_out else "All are shown."
    return Section("Disagreements", text=(text,), strips=tuple(shown))


# Disagreements.

_WORDS = {True: "success", False: "failure", None: "cannot tell"}


@dataclass(frozen=True)
class Disagreement:
    """A trial whose outcomes in the lab and in the model differ; verdict None = success that the judge cannot tell."""

    label: str
    trial: Trial
    lab: bool
    verdict: bool | None
    confidence: float
    reason: str
    picture: str

    @property
    def words(self) -> str:
        """Both outcomes as text."""
        sure = "" if self.verdict is None else f", confidence {self.confidence:.2f}"
        return f"lab: {_WORDS[self.lab]}; {self.label}: {_WORDS[self.verdict]}{sure}"


def disagreements(records: Iterable[TrialRecord]) -> list[Disagreement]:
    """List all disagreements: wrong verdicts by descending confidence, then those without a verdict."""
    found = [
        Disagreement(label, record.trial, record.lab.success, one.success, one.confidence, one.reason, one.picture)
        for record in records
        if record.lab.success is not None
        for label, one in record.models.items()
        if not one.error and (one.success is True) != record.lab.success
    ]
    return sorted(found, key=lambda one: (one.verdict is None, -one.confidence, one.label, one.trial))


def choose(found: Sequence[Disagreement], most: int) -> list[Disagreement]:
    """Select at most `most` disagreements in order, the same number for each model; unused shares go to the others."""
    seen: dict[str, int] = {}
    turns = []
    for one in found:
        seen[one.label] = seen.get(one.label, 0) + 1
        turns.append((seen[one.label], [*seen].index(one.label)))
    kept = set(sorted(turns)[: max(0, most)])
    return [one for one, turn in zip(found, turns, strict=True) if turn in kept]


# Plots as shapes in pixels; their colours are classes of the style sheet, so that they follow light and dark mode.

COLOURS = 8
"""Classes c0 to c7 of the style sheet; further policies reuse them from c0."""

CORNERS = (
    (),  # a circle
    ((-1, -1), (1, -1), (1, 1), (-1, 1)),
    ((0, -1.2), (1.1, 0.9), (-1.1, 0.9)),
    ((0, -1.35), (1.35, 0), (0, 1.35), (-1.35, 0)),
)
"""Outlines that mark scenarios, in units of the mark's radius."""

WIDTH = 440.0
_LEFT, _TOP, _SIDE, _ROW = 52.0, 12.0, 376.0, 22.0

Line = tuple[float, float, float, float, str]
"""x1, y1, x2, y2 and class."""


@dataclass(frozen=True)
class Label:
    """A text in a plot; `title` is its tooltip, `turn` its rotation in degrees."""

    x: float
    y: float
    text: str
    anchor: str = "middle"
    style: str = "label"
    title: str = ""
    turn: int = 0


@dataclass(frozen=True)
class Mark:
    """A filled circle, or an outline of CORNERS, with the lines of its intervals."""

    x: float
    y: float
    radius: float
    colour: str
    title: str = ""
    shape: int | None = None
    bars: tuple[Line, ...] = ()

    @property
    def points(self) -> str:
        """Corners of the outline for SVG; "" = a circle."""
        corners = CORNERS[(self.shape or 0) % len(CORNERS)]
        return " ".join(f"{self.x + a * self.radius:.1f},{self.y + b * self.radius:.1f}" for a, b in corners)


@dataclass(frozen=True)
class Plot:
    """A plot WIDTH pixels wide: grid lines, labels, marks, and the legend as rows of marks with their texts."""

    title: str
    caption: str
    height: float
    lines: tuple[Line, ...]
    labels: tuple[Label, ...]
    marks: tuple[Mark, ...] = ()
    legend: tuple[tuple[tuple[Mark, str], ...], ...] = ()
    width: float = WIDTH


def rates_plot(model: ModelSummary) -> Plot:
    """Plot the success rate in the model over that in the lab: small marks per scenario, large marks over all.

    On the dotted line both are equal; above it the model is optimistic.
    """
    square = _square("success rate in the lab", f"success rate in {_cut(model.label, 30)}")
    words = (_at(0.03, 0.93), "optimistic", "start"), (_at(0.97, 0.07), "pessimistic", "end")
    colours = {cell.policy: f"c{i % COLOURS}" for i, cell in enumerate(model.policies)}
    shapes = {cell.scenario: i for i, cell in enumerate(model.scenarios)}
    return replace(
        square,
        title=f"Success rate in the lab against {model.label}",
        caption="Success rates with 95 % intervals: filled marks over all scenarios, outlines on each. On the dotted "
        "line model and lab are equal.",
        labels=(*square.labels, *(Label(*at, text, anchor, "faint") for at, text, anchor in words)),
        marks=tuple(
            _rates_mark(cell, cell.lab, cell.model, colours[cell.policy], shapes.get(cell.scenario))
            for cell in (*model.cells, *model.policies)
            if cell.lab and cell.model
        ),
        legend=(
            tuple((Mark(8, 8, 6, colour), policy) for policy, colour in colours.items()),
            tuple((Mark(8, 8, 4.5, "total", shape=shape), scenario) for scenario, shape in shapes.items()),
        ),
    )


def calibration_plot(model: ModelSummary) -> Plot:
    """Plot how often runs succeed in the lab over the probability that the model states, by bins."""
    square = _square(f"probability stated by {_cut(model.label, 30)}", "share that succeeds in the lab")
    calibration = model.probabilities.calibration
    marks = []
    for one in calibration.bins if calibration else ():
        x, seen = one.stated, one.observed
        title = f"stated {x:.2f}, observed {seen.estimate:.2f} ({seen.low:.2f} to {seen.high:.2f}), {one.count} runs"
        bar = (*_at(x, seen.low), *_at(x, seen.high), "whisker")
        marks.append(Mark(*_at(x, seen.estimate), 5, "c0", title, bars=(bar,)))
    return replace(
        square,
        title=f"Calibration of {model.label}",
        caption="Observed success over stated probability, with 95 % intervals. On the dotted line the probabilities "
        "are calibrated; below it the model is optimistic.",
        marks=tuple(marks),
    )


def _square(across: str, up: str) -> Plot:
    """Draw the axes of two rates from 0 to 1 and the dotted line on which they are equal."""
    lines: list[Line] = []
    labels = [Label(*_at(0.5, 0, 38), across), Label(14, _at(0, 0.5)[1], up, turn=-90)]
    for value in (i / 5 for i in range(6)):
        lines += [(*_at(value, 0), *_at(value, 1), "grid"), (*_at(0, value), *_at(1, value), "grid")]
        (x, y), text = _at(0, value, 4), f"{value:.1f}"
        labels += [Label(*_at(value, 0, 18), text), Label(x - 8, y, text, "end")]
    return Plot("", "", WIDTH - 6, (*lines, (*_at(0, 0), *_at(1, 1), "identity")), tuple(labels))


def _at(x: float, y: float, below: float = 0) -> tuple[float, float]:
    return _LEFT + _SIDE * x, _TOP + _SIDE * (1 - y) + below


def _rates_mark(cell: Cell, lab: Interval, model: Interval, colour: str, shape: int | None) -> Mark:
    title = f"{cell.policy} on {cell.scenario or 'all scenarios'}: lab {lab.estimate:.2f}, "
    title += f"model {model.estimate:.2f}, {cell.count} runs"
    style = "whisker" if shape is None else "whisker thin"
    bars = (
        (*_at(lab.low, model.estimate), *_at(lab.high, model.estimate), style),
        (*_at(lab.estimate, model.low), *_at(lab.estimate, model.high), style),
    )
    return Mark(*_at(lab.estimate, model.estimate), 7 if shape is None else 4.5, colour, title, shape, bars)


def bias_plot(model: ModelSummary) -> Plot:
    """Plot the bias with its interval, one line per policy and scenario; right of zero the model is optimistic."""
    rows: list[tuple[Cell, str, str]] = []
    for i, policy in enumerate(model.policies):
        rows.append((policy, f"c{i % COLOURS}", policy.policy))
        if len(model.scenarios) > 1:
            rows += [(one, f"c{i % COLOURS}", one.scenario) for one in model.cells if one.policy == policy.policy]
    if len(model.policies) > 1:
        rows.append((model.overall, "total", "all policies"))
    left, right, bottom = 172.0, 418.0, _TOP + _ROW * len(rows)

    def at(value: float) -> float:
        return left + (right - left) * (value + 1) / 2

    lines: list[Line] = []
    labels = [
        Label(at(0), bottom + 38, "bias, model - lab"),
        Label(left, bottom + 56, "pessimistic", "start", "faint"),
        Label(right, bottom + 56, "optimistic", "end", "faint"),
    ]
    marks = []
    for value in (-1.0, -0.5, 0.0, 0.5, 1.0):
        lines.append((at(value), _TOP, at(value), bottom, "grid" if value else "axis"))
        labels.append(Label(at(value), bottom + 18, f"{value:+.1f}" if value else "0"))
    for i, (cell, colour, name) in enumerate(rows):
        y, whole, bias, short = _TOP + _ROW * (i + 0.5), cell.scenario == "", cell.bias, _cut(name, 18)
        style, title = "strong" if whole else "label", name if name != short else ""
        labels.append(Label(left - 10, y + 4, short, "end", style, title))
        if bias is None:
            labels.append(Label(at(0), y + 4, "no pairs", style="faint"))
            continue
        title = f"{bias.estimate:+.2f} ({bias.low:+.2f} to {bias.high:+.2f})"
        bar = (at(bias.low), y, at(bias.high), y, "whisker" if whole else "whisker thin")
        marks.append(Mark(at(bias.estimate), y, 5 if whole else 3.4, colour, title, bars=(bar,)))
    caption = "Bias with its paired 95 % interval; an interval without 0 shows a bias."
    return Plot(f"Bias of {model.label}", caption, bottom + 62, tuple(lines), tuple(labels), tuple(marks))


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most // 2] + "…" + text[-(most - most // 2 - 1) :]
