"""Plots as inline SVG; colours come from the page's style, so that they follow light, dark and print."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from kinema4d_ros.evaluation.proportions import Interval
from kinema4d_ros.trials.summary import ModelSummary
from kinema4d_ros.trials.summary.cells import Cell

__all__ = ["COLOURS", "SHAPES", "bias_plot", "rates_plot", "symbol"]

COLOURS = 8
"""Classes c0 to c7 of the page's style; more policies begin again."""

SHAPES = ("circle", "square", "triangle", "diamond")
_SIZE = 440.0
_LEFT, _TOP, _ROOM = 52.0, 12.0, 376.0
_ROW = 22.0


def rates_plot(model: ModelSummary) -> str:
    """Success rate in the lab against that in the model: small marks with thin lines on scenarios, large ones over all.

    On the dotted line the model is right, above it is optimistic.
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
    """Bias with its interval, a line for each policy and scenario; right of zero the model is optimistic."""
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
    """A mark for a legend."""
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
    """A filled circle for all scenarios, an outline for each scenario."""
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
