"""A report as one HTML file: no script, nothing to load, every text of a record escaped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from kinema4d_ros.trials.report.corrected import corrected_table, corrected_words, worth_table, worth_words
from kinema4d_ros.trials.report.disagreements import Disagreement, counts
from kinema4d_ros.trials.report.plots import bias_plot, rates_plot, symbol
from kinema4d_ros.trials.report.style import STYLE
from kinema4d_ros.trials.report.tables import (
    Entry,
    Table,
    correction_table,
    failures_table,
    paper_table,
    ranking_table,
    rates_table,
    settings_table,
    wrong_table,
)
from kinema4d_ros.trials.report.text import (
    NONE,
    Value,
    correction_words,
    headline,
    percent,
    power_words,
    signed,
    verdict,
)
from kinema4d_ros.trials.summary import EvaluationSummary, ModelSummary
from kinema4d_ros.trials.summary.cells import Cell

__all__ = ["html_report"]


def html_report(
    summary: EvaluationSummary,
    found: Sequence[Disagreement],
    shown: Sequence[Disagreement],
    strip: Callable[[str], str],
) -> str:
    """The page.

    Args:
        summary: of the evaluation.
        found: all disagreements.
        shown: those whose strips are on the page.
        strip: the data URI of a picture's name; "" = there is none.
    """
    sections = [
        ("verdict", "How far to trust the models", _verdicts(summary)),
        *((f"model-{i}", f"{model.label} against the lab", _model(model)) for i, model in enumerate(summary.models)),
        ("correction", "Correcting the optimism with a few real trials", _corrections(summary)),
        ("paper", "Beside the paper's Table 3", _table(paper_table(summary))),
        ("failed", "Failed runs", _failures(summary)),
        ("settings", "Settings", _table(settings_table(summary))),
        ("disagreements", "Disagreements", _strips(found, shown, strip)),
    ]
    links = "".join(f'<a href="#{name}">{escape(title)}</a>' for name, title, _ in sections)
    body = "".join(f'<section id="{name}"><h2>{escape(title)}</h2>{text}</section>' for name, title, text in sections)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>Policies on trial</title><style>{STYLE}</style></head>\n<body><main>"
        f'<h1>Policies on trial</h1><p class="lead">{escape(headline(summary))}</p><nav>{links}</nav>'
        f"{body}</main></body></html>\n"
    )


def _verdicts(summary: EvaluationSummary) -> str:
    return "".join(
        f'<div class="card"><h3>{escape(model.label)}</h3>{_figures(model)}<p>{escape(verdict(model))}</p></div>'
        for model in summary.models
    )


def _figures(model: ModelSummary) -> str:
    cell, ranking = model.overall, model.ranking
    if cell.agreement is None or cell.bias is None:
        return ""
    bias, same = cell.bias, cell.agreement
    tone = "" if bias.low <= 0 <= bias.high else "bad"
    side = "no bias seen" if not tone else "optimistic" if bias.low > 0 else "pessimistic"
    agrees = {True: ("yes", "good"), False: ("no", "bad"), None: (NONE, "")}[ranking.winner_agrees]
    spearman = Value.of(ranking.spearman)
    largest, policy = max(((c.bias, c.policy) for c in model.policies if c.bias), key=lambda one: abs(one[0].estimate))
    seen = "" if largest.low <= 0 <= largest.high else "bad"
    figures = (
        ("agreement with the lab", percent(same.estimate), f"{percent(same.low)} to {percent(same.high)}", ""),
        ("bias of the success rate", signed(bias.estimate), f"{side}, {signed(bias.low)} to {signed(bias.high)}", tone),
        ("largest bias of a policy", signed(largest.estimate), policy, seen),
        ("same winner", agrees[0], f"among {len(ranking.policies)} policies", agrees[1]),
        ("rank correlation", spearman.text, spearman.detail or "not defined", ""),
        ("pairs", str(cell.count), f"{cell.undecided} the judge cannot tell", ""),
    )
    return (
        '<div class="figures">'
        + "".join(
            f'<div><span>{escape(name)}</span><b class="{tone}">{escape(text)}</b><small>{escape(detail)}</small></div>'
            for name, text, detail, tone in figures
        )
        + "</div>"
    )


def _model(model: ModelSummary) -> str:
    policies, quality = ranking_table(model)
    scenarios = "".join(f"<li>{symbol(i, None)}{escape(cell.scenario)}</li>" for i, cell in enumerate(model.scenarios))
    names = "".join(f"<li>{symbol(None, i)}{escape(cell.policy)}</li>" for i, cell in enumerate(model.policies))
    legend = f'<ul class="legend">{names}</ul><ul class="legend">{scenarios}</ul>'
    return (
        '<div class="side">'
        f"<figure>{rates_plot(model)}{legend}<figcaption>Success rates with 95 % intervals: filled marks over all "
        "scenarios, outlines on each. On the dotted line the model is right.</figcaption></figure>"
        f"<figure>{bias_plot(model)}<figcaption>Bias with its paired 95 % interval; one that does not reach 0 shows "
        "a bias.</figcaption></figure></div>"
        f"<h3>Success rates</h3>{_table(rates_table(model))}"
        f"<h3>Wrong verdicts</h3>{_table(wrong_table(model))}"
        f"<h3>Confusion</h3>{_matrices(model)}"
        f'<h3>Order of the policies</h3><div class="side">{_table(policies)}{_table(quality)}</div>'
        f"<h3>What these runs can show</h3><p>{escape(power_words(model))}</p>"
    )


def _matrices(model: ModelSummary) -> str:
    cells = [model.overall, *(model.policies if len(model.policies) > 1 else ())]
    return '<div class="matrices">' + "".join(_matrix(cell) for cell in cells) + "</div>"


def _matrix(cell: Cell) -> str:
    one = cell.confusion
    rows = (
        ("lab success", (one.true_success, "hit"), (one.false_failure, "miss"), (one.unknown_success, "open")),
        ("lab failure", (one.false_success, "miss"), (one.true_failure, "hit"), (one.unknown_failure, "open")),
    )
    body = "".join(
        f'<tr><th scope="row">{name}</th>'
        + "".join(f'<td class="{style if value else ""}">{value}</td>' for value, style in values)
        + "</tr>"
        for name, *values in rows
    )
    return (
        f'<figure class="matrix"><table><tr><th></th><th>model success</th><th>model failure</th><th>cannot tell</th>'
        f"</tr>{body}</table><figcaption>{escape(cell.policy or 'all policies')}</figcaption></figure>"
    )


def _corrections(summary: EvaluationSummary) -> str:
    parts = [
        "<p>A model that is wrong in a steady way can be corrected: run it often, run the robot a few times on the "
        "same tables, and take off what the pairs show. Below, lab runs stand for the real ones.</p>"
    ]
    for model in summary.models:
        parts.append(f"<h3>{escape(model.label)}: success rates, corrected</h3><p>{escape(corrected_words(model))}</p>")
        if model.corrected.rates:
            parts.append(_table(corrected_table(model)))
        parts.append(f"<h3>{escape(model.label)}: what a verdict is worth</h3><p>{escape(worth_words(model))}</p>")
        if model.corrected.calibration is not None:
            parts.append(_table(worth_table(model)))
        parts.append(f"<h3>{escape(model.label)}: checked on runs held out</h3>")
        parts.append(f"<p>{escape(correction_words(model))}</p>")
        if model.correction.rows:
            parts.append(_table(correction_table(model)))
    return "".join(parts)


def _failures(summary: EvaluationSummary) -> str:
    table = failures_table(summary)
    return _table(table, names=len(table.header)) if table.rows else "<p>None.</p>"


def _strips(found: Sequence[Disagreement], shown: Sequence[Disagreement], strip: Callable[[str], str]) -> str:
    if not found:
        return "<p>None.</p>"
    number = "; ".join(f"{label}: {count}" for label, count in counts(found).items())
    left_out = len(found) - len(shown)
    text = f"{len(found)} predicted runs end otherwise than in the lab ({number}). "
    text += "The most confident mistakes come first. "
    text += f"{left_out} are left out here; trials.csv has all." if left_out else "All are shown."
    return f"<p>{escape(text)}</p>" + "".join(_strip(one, strip(one.picture)) for one in shown)


def _strip(one: Disagreement, uri: str) -> str:
    words = f"{one.label}, {one.trial.key}"
    image = f'<img src="{escape(uri)}" alt="{escape(words)}">' if uri else '<p class="note">No picture.</p>'
    return (
        f'<figure class="strip">{image}<figcaption><code>{escape(one.trial.key)}</code> · {escape(one.words)} · '
        f"{escape(one.reason or 'no reason given')}</figcaption></figure>"
    )


def _table(table: Table, names: int | None = None) -> str:
    first = table.names if names is None else names
    if table.header == ("setting", "value"):
        first = 2

    def entry(value: Entry, column: int) -> str:
        style = ' class="name"' if column < first else ""
        if isinstance(value, Value):
            detail = f"<small>{escape(value.detail)}</small>" if value.detail else ""
            return f"<td{style}>{escape(value.text)}{detail}</td>"
        return f"<td{style}>{escape(value)}</td>"

    head = "".join(
        f'<th class="name">{escape(name)}</th>' if i < first else f"<th>{escape(name)}</th>"
        for i, name in enumerate(table.header)
    )
    rows = "".join(
        f"<tr{' class=strong' if i in table.strong else ''}>{''.join(entry(v, c) for c, v in enumerate(row))}</tr>"
        for i, row in enumerate(table.rows)
    )
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    return f'<div><div class="scroll"><table><tr>{head}</tr>{rows}</table></div>{note}</div>'
