"""Evaluation report as one HTML file: no scripts, no external resources, all texts of records escaped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from kinema4d_ros.evaluation.rates import Interval
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
from kinema4d_ros.evaluation.report.text import (
    NONE,
    Value,
    correction_words,
    headline,
    percent,
    power_words,
    signed,
    verdict,
)
from kinema4d_ros.evaluation.summary import EvaluationSummary, ModelSummary
from kinema4d_ros.evaluation.summary.cells import Cell

__all__ = ["COLOURS", "SHAPES", "STYLE", "bias_plot", "html_report", "rates_plot", "symbol"]

# Style sheet for light and dark mode, print and small screens.

_LIGHT = """
--paper:#ffffff;--card:#f6f8fa;--ink:#1c2430;--soft:#5b6675;--line:#d8dee6;--accent:#1f6feb;
--good:#1a7f4b;--bad:#c0362c;--good-fill:#dcf3e5;--bad-fill:#fbe1de;--none-fill:#e9edf2;
--c0:#1f6feb;--c1:#d9660b;--c2:#1a8f5a;--c3:#8a4fd3;--c4:#c93a5e;--c5:#0b8793;--c6:#8a6a16;--c7:#5b6675;
"""
_DARK = """
--paper:#10151c;--card:#182029;--ink:#e4e9f0;--soft:#98a4b3;--line:#2d3743;--accent:#62a2ff;
--good:#4fc98a;--bad:#ff8378;--good-fill:#16382a;--bad-fill:#45211f;--none-fill:#26303b;
--c0:#62a2ff;--c1:#ff9a4d;--c2:#4fc98a;--c3:#bb8cff;--c4:#ff7d9b;--c5:#43c5d2;--c6:#d8b34d;--c7:#98a4b3;
"""

STYLE = (
    f":root{{color-scheme:light dark;{_LIGHT}}}"
    f"@media (prefers-color-scheme:dark){{:root{{{_DARK}}}}}"
    f"@media print{{:root{{color-scheme:light;{_LIGHT}}}}}"
    + """
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.55 system-ui,-apple-system,"Segoe UI",sans-serif}
main{max-width:1120px;margin:0 auto;padding:28px 20px 80px;overflow-wrap:anywhere}
h1{font-size:1.9rem;line-height:1.2;margin:0 0 6px}
h2{font-size:1.35rem;margin:52px 0 12px;padding-top:14px;border-top:1px solid var(--line)}
h3{font-size:1.02rem;margin:26px 0 8px}
p{margin:8px 0}
.lead,.note{color:var(--soft)}
.note{font-size:.84rem}
nav{display:flex;flex-wrap:wrap;gap:6px 18px;margin:16px 0 22px;font-size:.92rem}
nav a{color:var(--accent);text-decoration:none}
nav a:hover{text-decoration:underline}
.card{background:var(--card);border:1px solid var(--line);border-radius:12px;padding:16px 20px;margin:14px 0}
.card h3{margin-top:0}
.figures{display:flex;flex-wrap:wrap;gap:10px 26px;margin:6px 0 10px}
.figures div{min-width:110px;max-width:180px}
.figures b{display:block;font-size:1.55rem;line-height:1.2;font-variant-numeric:tabular-nums}
.figures span,.figures small{display:block;color:var(--soft);font-size:.8rem}
.bad{color:var(--bad)}.good{color:var(--good)}
.side{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,440px),1fr));gap:20px;align-items:start}
figure{margin:10px 0}
figcaption{color:var(--soft);font-size:.86rem;margin-top:6px}
.scroll{overflow-x:auto;margin:10px 0;-webkit-overflow-scrolling:touch}
table{border-collapse:collapse;width:100%;font-size:.86rem;font-variant-numeric:tabular-nums}
th,td{padding:6px 10px;border-bottom:1px solid var(--line);text-align:right;vertical-align:top;white-space:nowrap}
th{color:var(--soft);font-weight:600;vertical-align:bottom}
th.name,td.name{text-align:left;white-space:normal;min-width:96px;max-width:440px;overflow-wrap:break-word}
td small{display:block;color:var(--soft);font-size:.9em}
tr.strong td{font-weight:650;background:var(--card)}
tr.strong td small{font-weight:400}
.matrices{display:flex;flex-wrap:wrap;gap:18px}
.matrix{flex:0 1 300px;min-width:min(100%,260px)}
.matrix table{table-layout:fixed}
.matrix th,.matrix td{text-align:center;white-space:normal;padding:6px 4px}
.matrix th[scope=row]{text-align:left}
.matrix td{font-size:1.05rem;font-weight:600}
.hit{background:var(--good-fill)}.miss{background:var(--bad-fill)}.open{background:var(--none-fill)}
svg.plot{display:block;width:100%;max-width:520px;height:auto;font:13px system-ui,-apple-system,"Segoe UI",sans-serif}
svg .label{fill:var(--ink)}svg .strong{fill:var(--ink);font-weight:650}svg .faint{fill:var(--soft);font-size:12px}
svg .grid{stroke:var(--line);stroke-width:1}svg .axis{stroke:var(--soft);stroke-width:1.4}
svg .identity{stroke:var(--soft);stroke-width:1.4;stroke-dasharray:3 4}
svg .whisker{stroke:currentColor;stroke-width:2.2;stroke-linecap:round}svg .whisker.thin{stroke-width:1.2;opacity:.45}
svg g circle,svg g polygon,svg.key circle,svg.key polygon{fill:currentColor;stroke:currentColor}
svg .hollow,svg g .hollow,svg.key .hollow{fill:var(--paper);stroke-width:1.8}
svg.key{vertical-align:-3px;margin-right:5px}
"""
    + "".join(f".c{i}{{color:var(--c{i})}}" for i in range(8))
    + """
.total{color:var(--ink)}
.legend{display:flex;flex-wrap:wrap;gap:4px 16px;font-size:.86rem;margin:4px 0 0;padding:0;list-style:none}
.strip{margin:18px 0 26px}
.strip img{display:block;width:100%;height:auto;border-radius:8px;border:1px solid var(--line)}
.strip code{font-weight:650}
code{font-family:ui-monospace,SFMono-Regular,Menlo,monospace;font-size:.92em}
@media (max-width:600px){main{padding:18px 14px 60px}h1{font-size:1.5rem}th,td{padding:5px 6px}
th.name,td.name{min-width:86px;overflow-wrap:anywhere}table{font-size:.8rem}}
@media print{
body{font-size:10.5pt}main{max-width:none;padding:0}nav{display:none}
.scroll{overflow:visible}table{font-size:7.5pt}th,td{padding:2px 4px}th{white-space:normal}
.side{grid-template-columns:1fr 1fr}th.name,td.name{min-width:50px;overflow-wrap:anywhere}
figure,.card,.matrix,tr,.strip{break-inside:avoid}h2,h3{break-after:avoid}
*{-webkit-print-color-adjust:exact;print-color-adjust:exact}
}
"""
)


# Plots as inline SVG; colours come from the style sheet, so that they follow light and dark mode and print.

COLOURS = 8
"""Classes c0 to c7 of the style sheet; further policies reuse them from c0."""

SHAPES = ("circle", "square", "triangle", "diamond")
_SIZE = 440.0
_LEFT, _TOP, _ROOM = 52.0, 12.0, 376.0
_ROW = 22.0


def rates_plot(model: ModelSummary) -> str:
    """Plot the success rate in the model over that in the lab: small marks per scenario, large marks over all.

    On the dotted line both are equal; above it the model is optimistic.
    """
    parts = [_open(_SIZE, _SIZE - 6, f"Success rate in the lab against {model.label}")]
    for i in range(6):
        value = i / 5
        x, y = _x(value), _y(value)
        parts.append(_line(x, _y(0), x, _y(1), "grid") + _line(_x(0), y, _x(1), y, "grid"))
        parts.append(_text(x, _y(0) + 18, f"{value:.1f}", "middle") + _text(_LEFT - 8, y + 4, f"{value:.1f}", "end"))
    parts.append(_line(_x(0), _y(0), _x(1), _y(1), "identity"))
    parts.append(_text(_x(0.5), _y(0) + 38, "success rate in the lab", "middle"))
    parts.append(
        f'<text class="label" transform="translate(14 {_y(0.5):.1f}) rotate(-90)" text-anchor="middle">'
        f"success rate in {escape(_cut(model.label, 30))}</text>"
    )
    parts.append(_text(_x(0.03), _y(0.93), "optimistic", "start", "faint"))
    parts.append(_text(_x(0.97), _y(0.07), "pessimistic", "end", "faint"))
    scenarios = [cell.scenario for cell in model.scenarios]
    for number, policy in enumerate(model.policies):
        for cell in model.cells:
            if cell.policy == policy.policy:
                parts.append(_cross(cell, number, scenarios.index(cell.scenario)))
    for number, policy in enumerate(model.policies):
        parts.append(_cross(policy, number, None))
    return "".join(parts) + "</svg>"


def bias_plot(model: ModelSummary) -> str:
    """Plot the bias with its interval, one line per policy and scenario; right of zero the model is optimistic."""
    lines: list[tuple[Cell, int, str]] = []
    for number, policy in enumerate(model.policies):
        lines.append((policy, number, policy.policy))
        if len(model.scenarios) > 1:
            lines += [(c, number, c.scenario) for c in model.cells if c.policy == policy.policy]
    if len(model.policies) > 1:
        lines.append((model.overall, -1, "all policies"))
    height = _TOP + _ROW * len(lines) + 46
    left, right = 172.0, 418.0

    def at(value: float) -> float:
        return left + (right - left) * (value + 1) / 2

    bottom = _TOP + _ROW * len(lines)
    parts = [_open(_SIZE, height, f"Bias of {model.label}")]
    for i in range(5):
        value = -1 + i / 2
        parts.append(_line(at(value), _TOP, at(value), bottom, "axis" if value == 0 else "grid"))
        parts.append(_text(at(value), bottom + 18, f"{value:+.1f}" if value else "0", "middle"))
    parts.append(_text(left, bottom + 38, "pessimistic", "start", "faint"))
    parts.append(_text(at(0), bottom + 38, "bias, model - lab", "middle"))
    parts.append(_text(right, bottom + 38, "optimistic", "end", "faint"))
    for i, (cell, number, name) in enumerate(lines):
        y = _TOP + _ROW * (i + 0.5)
        whole = cell.scenario == "" or number < 0
        style = "strong" if whole else "label"
        parts.append(_text(left - 10, y + 4, _cut(name, 18), "end", style, name))
        parts.append(_whisker(cell.bias, at, y, f"c{number % COLOURS}" if number >= 0 else "total", whole))
    return "".join(parts) + "</svg>"


def symbol(shape: int | None, colour: int | None) -> str:
    """Draw a mark for a legend."""
    mark = _mark(8, 8, shape, 6.0 if shape is None else 4.5)
    return (
        f'<svg class="key {_colour(colour)}" viewBox="0 0 16 16" width="16" height="16" aria-hidden="true">{mark}</svg>'
    )


def _colour(colour: int | None) -> str:
    return "total" if colour is None else f"c{colour % COLOURS}"


def _whisker(bias: Interval | None, at: Callable[[float], float], y: float, colour: str, whole: bool) -> str:
    if bias is None:
        return _text(at(0), y + 4, "no pairs", "middle", "faint")
    words = f"{bias.estimate:+.2f} ({bias.low:+.2f} to {bias.high:+.2f})"
    mark = f'<circle cx="{at(bias.estimate):.1f}" cy="{y:.1f}" r="{5 if whole else 3.4}"/>'
    line = _line(at(bias.low), y, at(bias.high), y, "whisker" if whole else "whisker thin")
    return f'<g class="{colour}"><title>{words}</title>{line}{mark}</g>'


def _cross(cell: Cell, policy: int, scenario: int | None) -> str:
    if cell.lab is None or cell.model is None:
        return ""
    x, y = _x(cell.lab.estimate), _y(cell.model.estimate)
    thin = "" if scenario is None else " thin"
    title = f"{cell.policy} on {cell.scenario or 'all scenarios'}: lab {cell.lab.estimate:.2f}, "
    title += f"model {cell.model.estimate:.2f}, {cell.count} runs"
    return (
        f'<g class="{_colour(policy)}{thin}"><title>{escape(title)}</title>'
        + _line(_x(cell.lab.low), y, _x(cell.lab.high), y, f"whisker{thin}")
        + _line(x, _y(cell.model.low), x, _y(cell.model.high), f"whisker{thin}")
        + _mark(x, y, scenario, 7.0 if scenario is None else 4.5)
        + "</g>"
    )


def _mark(x: float, y: float, shape: int | None, r: float) -> str:
    """Draw a filled circle for all scenarios, an outlined shape for one scenario."""
    if shape is None:
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{r}"/>'
    name = SHAPES[shape % len(SHAPES)]
    if name == "circle":
        return f'<circle class="hollow" cx="{x:.1f}" cy="{y:.1f}" r="{r}"/>'
    corners: Sequence[tuple[float, float]] = {
        "square": ((-1, -1), (1, -1), (1, 1), (-1, 1)),
        "triangle": ((0, -1.2), (1.1, 0.9), (-1.1, 0.9)),
        "diamond": ((0, -1.35), (1.35, 0), (0, 1.35), (-1.35, 0)),
    }[name]
    points = " ".join(f"{x + a * r:.1f},{y + b * r:.1f}" for a, b in corners)
    return f'<polygon class="hollow" points="{points}"/>'


def _x(value: float) -> float:
    return _LEFT + _ROOM * value


def _y(value: float) -> float:
    return _TOP + _ROOM * (1 - value)


def _open(width: float, height: float, title: str) -> str:
    return f'<svg class="plot" viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{escape(title)}">'


def _line(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
    return f'<line class="{style}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(x: float, y: float, text: str, anchor: str, style: str = "label", title: str = "") -> str:
    more = f"<title>{escape(title)}</title>" if title and title != text else ""
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{more}{escape(text)}</text>'


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most // 2] + "…" + text[-(most - most // 2 - 1) :]


def html_report(
    summary: EvaluationSummary,
    found: Sequence[Disagreement],
    shown: Sequence[Disagreement],
    strip: Callable[[str], str],
) -> str:
    """Render the page.

    Args:
        summary: of the evaluation.
        found: all disagreements.
        shown: disagreements whose strips are on the page.
        strip: returns the data URI of an image by its name; "" = no image.
    """
    sections = [
        ("verdict", "How far the models can be trusted", _verdicts(summary)),
        *((f"model-{i}", f"{model.label} against the lab", _model(model)) for i, model in enumerate(summary.models)),
        ("correction", "Correction with a few real trials", _corrections(summary)),
        ("paper", "Comparison with the paper's Table 3", _table(paper_table(summary))),
        ("failed", "Failed runs", _failures(summary)),
        ("settings", "Settings", _table(settings_table(summary))),
        ("disagreements", "Disagreements", _strips(found, shown, strip)),
    ]
    links = "".join(f'<a href="#{name}">{escape(title)}</a>' for name, title, _ in sections)
    body = "".join(f'<section id="{name}"><h2>{escape(title)}</h2>{text}</section>' for name, title, text in sections)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>Policy evaluation</title><style>{STYLE}</style></head>\n<body><main>"
        f'<h1>Policy evaluation</h1><p class="lead">{escape(headline(summary))}</p><nav>{links}</nav>'
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
    side = "not significant" if not tone else "optimistic" if bias.low > 0 else "pessimistic"
    agrees = {True: ("yes", "good"), False: ("no", "bad"), None: (NONE, "")}[ranking.winner_agrees]
    spearman = Value.of(ranking.spearman)
    largest, policy = max(((c.bias, c.policy) for c in model.policies if c.bias), key=lambda one: abs(one[0].estimate))
    seen = "" if largest.low <= 0 <= largest.high else "bad"
    figures = (
        ("agreement with the lab", percent(same.estimate), f"{percent(same.low)} to {percent(same.high)}", ""),
        ("bias of the success rate", signed(bias.estimate), f"{side}, {signed(bias.low)} to {signed(bias.high)}", tone),
        ("largest bias of a policy", signed(largest.estimate), policy, seen),
        ("same best policy", agrees[0], f"among {len(ranking.policies)} policies", agrees[1]),
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
        "scenarios, outlines on each. On the dotted line model and lab are equal.</figcaption></figure>"
        f"<figure>{bias_plot(model)}<figcaption>Bias with its paired 95 % interval; an interval without 0 shows "
        "a bias.</figcaption></figure></div>"
        f"<h3>Success rates</h3>{_table(rates_table(model))}"
        f"<h3>Wrong verdicts</h3>{_table(wrong_table(model))}"
        f"<h3>Confusion</h3>{_matrices(model)}"
        f'<h3>Ranking of the policies</h3><div class="side">{_table(policies)}{_table(quality)}</div>'
        f"<h3>What these runs can detect</h3><p>{escape(power_words(model))}</p>"
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
        "<p>A model with a consistent error can be corrected: run it often, run the robot a few times on the same "
        "scenes, and subtract the error of these pairs. Without real.csv, and in the check, lab runs serve as real "
        "trials.</p>"
    ]
    for model in summary.models:
        parts.append(f"<h3>{escape(model.label)}: corrected success rates</h3><p>{escape(corrected_words(model))}</p>")
        if model.corrected.rates:
            parts.append(_table(corrected_table(model)))
        parts.append(f"<h3>{escape(model.label)}: calibrated verdicts</h3><p>{escape(worth_words(model))}</p>")
        if model.corrected.calibration is not None:
            parts.append(_table(worth_table(model)))
        parts.append(f"<h3>{escape(model.label)}: check on held-out runs</h3>")
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
    text = f"{len(found)} predicted runs have another outcome than in the lab ({number}). "
    text += "The most confident mistakes come first. "
    text += f"{left_out} are left out here; trials.csv has all." if left_out else "All are shown."
    return f"<p>{escape(text)}</p>" + "".join(_strip(one, strip(one.picture)) for one in shown)


def _strip(one: Disagreement, uri: str) -> str:
    words = f"{one.label}, {one.trial.key}"
    image = f'<img src="{escape(uri)}" alt="{escape(words)}">' if uri else '<p class="note">No image.</p>'
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
