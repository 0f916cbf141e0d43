"""Evaluation report as Markdown: the sentences and tables of the HTML page, without its plots."""

from __future__ import annotations

import re
from collections.abc import Sequence

from kinema4d_ros.evaluation.report.tables import (
    Disagreement,
    Entry,
    Table,
    corrected_table,
    corrected_words,
    correction_table,
    counts,
    failures_table,
    paper_table,
    ranking_table,
    rates_table,
    settings_table,
    worth_table,
    worth_words,
    wrong_table,
)
from kinema4d_ros.evaluation.report.text import Value, correction_words, headline, power_words, verdict
from kinema4d_ros.evaluation.summary import EvaluationSummary, ModelSummary
from kinema4d_ros.evaluation.summary.cells import Cell

__all__ = ["markdown_report"]


def markdown_report(summary: EvaluationSummary, found: Sequence[Disagreement], shown: Sequence[Disagreement]) -> str:
    """Render the report; strips are linked by their file names in the evaluation's folder."""
    parts = ["# Policy evaluation", _safe(headline(summary)), "## How far the models can be trusted"]
    parts += [f"**{_safe(model.label)}.** {_safe(verdict(model))}" for model in summary.models]
    for model in summary.models:
        parts += _model(model)
    parts.append("## Correction with a few real trials")
    for model in summary.models:
        parts += [f"### {_safe(model.label)}: corrected success rates", _safe(corrected_words(model))]
        parts += [_table(corrected_table(model))] if model.corrected.rates else []
        parts += [f"### {_safe(model.label)}: calibrated verdicts", _safe(worth_words(model))]
        parts += [_table(worth_table(model))] if model.corrected.calibration is not None else []
        parts += [f"### {_safe(model.label)}: check on held-out runs", _safe(correction_words(model))]
        parts += [_table(correction_table(model))] if model.correction.rows else []
    failures = failures_table(summary)
    parts += ["## Comparison with the paper's Table 3", _table(paper_table(summary))]
    parts += ["## Failed runs", _table(failures) if failures.rows else "None."]
    parts += ["## Settings", _table(settings_table(summary)), "## Disagreements", _disagreements(found, shown)]
    return "\n\n".join(parts) + "\n"


def _model(model: ModelSummary) -> list[str]:
    policies, quality = ranking_table(model)
    return [
        f"## {_safe(model.label)} against the lab",
        _table(rates_table(model)),
        _table(wrong_table(model)),
        _matrix(model.overall),
        "### Ranking of the policies",
        _table(policies),
        _table(quality),
        "### What these runs can detect",
        _safe(power_words(model)),
    ]


def _matrix(cell: Cell) -> str:
    return cell.confusion.table()


def _disagreements(found: Sequence[Disagreement], shown: Sequence[Disagreement]) -> str:
    if not found:
        return "None."
    number = "; ".join(f"{_safe(label)}: {count}" for label, count in counts(found).items())
    lines = [
        f"{len(found)} predicted runs have another outcome than in the lab ({number}). "
        f"{len(shown)} are listed, the most confident mistakes first."
    ]
    for one in shown:
        picture = f" ([strip]({one.picture}))" if re.fullmatch(r"[\w./=-]+", one.picture) else ""
        lines.append(f"- `{_code(one.trial.key)}`: {_safe(one.words)}{picture}")
    return "\n".join([lines[0], "", *lines[1:]])


def _table(table: Table) -> str:
    lines = ["| " + " | ".join(table.header) + " |", "|" + "---|" * len(table.header)]
    for number, row in enumerate(table.rows):
        cells = [_entry(value) for value in row]
        if number in table.strong:
            cells = [f"**{cell}**" if i < table.names else cell for i, cell in enumerate(cells)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + (f"\n\n{_safe(table.note)}" if table.note else "")


def _entry(value: Entry) -> str:
    if isinstance(value, Value):
        return _safe(f"{value.text} ({value.detail})" if value.detail else value.text)
    return _safe(value)


def _safe(text: str) -> str:
    """Put text on one line and escape the characters with which Markdown makes tables, tags and links."""
    return re.sub(r"([\\|<>*_`\[\]])", r"\\\1", " ".join(text.split()))


def _code(text: str) -> str:
    return text.replace("`", "'").replace("\n", " ")
