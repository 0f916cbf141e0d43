"""Plots of a report: clearance over time, and success over the offset of the grasp."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from kinema4d_ros.core.errors import RolloutError
from kinema4d_ros.previews.report.plan_report import BASIS_TEXT, PlanReport

if TYPE_CHECKING:
    from kinema4d_ros.generators.draft.robustness import Robustness

__all__ = ["clearance_plot", "robustness_svg"]

_FINE = 2
"""Supersampling factor for smooth lines."""

_LIGHT = {
    "paper": "#ffffff",
    "grid": "#e4e7ec",
    "axis": "#98a2b3",
    "text": "#344054",
    "line": "#1570ef",
    "fill": "#d9e8fc",
    "bad": "#d92d20",
    "bad_fill": "#fbdedb",
    "cursor": "#101828",
}
_DARK = {
    "paper": "#14181f",
    "grid": "#262c36",
    "axis": "#667085",
    "text": "#d0d5dd",
    "line": "#53b1fd",
    "fill": "#183350",
    "bad": "#f97066",
    "bad_fill": "#471f1f",
    "cursor": "#f2f4f7",
}


def clearance_plot(
    report: PlanReport,
    width: int = 640,
    height: int = 260,
    *,
    theme: Literal["light", "dark"] = "light",
    cursor_s: float | None = None,
) -> NDArray[np.uint8]:
    """Plot clearance, contact threshold and minimum: (height, width, 3) uint8 RGB.

    Args:
        report: to plot.
        width, height: pixels, at least 240 x 140.
        theme: "light" or "dark".
        cursor_s: time to mark, seconds since the first frame.
    """
    if width < 240 or height < 140 or theme not in ("light", "dark"):
        raise RolloutError(
            f"a plot of {width} x {height} in theme {theme!r}", expected="at least 240 x 140, 'light' or 'dark'"
        )
    colours = _LIGHT if theme == "light" else _DARK
    plot = _Axes(report, width, height, colours)
    plot.frame()
    plot.curve()
    plot.labels()
    if cursor_s is not None and math.isfinite(cursor_s):
        plot.cursor(cursor_s)
    small = plot.image.resize((width, height), Image.Resampling.LANCZOS)
    return np.asarray(small, dtype=np.uint8)


class _Axes:
    """Axes in seconds and millimetres, and drawing functions."""

    def __init__(self, report: PlanReport, width: int, height: int, colours: dict[str, str]) -> None:
        self.report, self.colours = report, colours
        self.image = Image.new("RGB", (width * _FINE, height * _FINE), colours["paper"])
        self.draw = ImageDraw.Draw(self.image)
        self.font = ImageFont.load_default(12 * _FINE)
        self.bold = ImageFont.load_default(14 * _FINE)
        self.left, self.right = 52 * _FINE, (width - 16) * _FINE
        self.top, self.bottom = 40 * _FINE, (height - 38) * _FINE
        known = 1000 * report.clearance_m[np.isfinite(report.clearance_m)]
        low = min(0.0, float(known.min())) if len(known) else 0.0
        high = max(2000 * report.contact_threshold_m, float(known.max()) if len(known) else 0.0)
        self.mm = _ticks(low, high, max(3, height // 55))
        self.seconds = _ticks(0.0, max(float(report.times[-1]), 1e-3), max(4, width // 90), within=True)
        self.end_s = max(float(report.times[-1]), 1e-3)

    def x(self, seconds: float) -> float:
        return self.left + (self.right - self.left) * seconds / self.end_s

    def y(self, mm: float) -> float:
        return self.bottom - (self.bottom - self.top) * (mm - self.mm[0]) / (self.mm[-1] - self.mm[0])

    def text(self, x: float, y: float, text: str, anchor: str, colour: str = "text", bold: bool = False) -> None:
        self.draw.text((x, y), text, self.colours[colour], self.bold if bold else self.font, anchor)

    def frame(self) -> None:
        gap = 6 * _FINE
        for mm in self.mm:
            zero = mm == 0
            self.draw.line(
                [(self.left, self.y(mm)), (self.right, self.y(mm))],
                self.colours["axis" if zero else "grid"],
                _FINE if zero else 1,
            )
            self.text(self.left - gap, self.y(mm), f"{mm:g}", "rm")
        for s in self.seconds:
            self.draw.line([(self.x(s), self.bottom), (self.x(s), self.bottom + gap / 2)], self.colours["axis"], _FINE)
            self.text(self.x(s), self.bottom + gap, f"{s:g}", "mt")
        self.text(self.right, self.bottom + gap + 15 * _FINE, "seconds", "rt")

    def curve(self) -> None:
        threshold = 1000 * self.report.contact_threshold_m
        mm = 1000 * self.report.clearance_m
        for start, end in _runs(np.isfinite(mm)):
            line = self._points(start, end)
            base = self.y(max(self.mm[0], 0.0))
            self.draw.polygon([(line[0][0], base), *line, (line[-1][0], base)], self.colours["fill"])
        self._dashes(self.y(threshold))
        for start, end in _runs(np.isfinite(mm)):
            line = self._points(start, end)
            self.draw.line(line, self.colours["line"], 2 * _FINE, joint="curve")
        for start, end in _runs(np.isfinite(mm) & (mm < threshold)):
            line = self._points(start, end)
            base = self.y(0.0)
            self.draw.polygon([(line[0][0], base), *line, (line[-1][0], base)], self.colours["bad_fill"])
            self.draw.line(line, self.colours["bad"], 3 * _FINE, joint="curve")

    def _points(self, start: int, end: int) -> list[tuple[float, float]]:
        """Return the curve between two frames, at least two points, so that a single frame is visible too."""
        times, mm = self.report.times, 1000 * self.report.clearance_m
        line = [(self.x(float(times[t])), self.y(float(mm[t]))) for t in range(start, end)]
        return line if len(line) > 1 else [(line[0][0] - _FINE, line[0][1]), (line[0][0] + _FINE, line[0][1])]

    def labels(self) -> None:
        report = self.report
        top = 12 * _FINE
        self.text(self.left - 36 * _FINE, top, "Clearance, mm", "lt", bold=True)
        if not math.isfinite(report.min_clearance_m):
            self.text(self.right, top, "unknown", "rt")
            return
        colour = "bad" if report.contact else "text"
        mm = 1000 * report.min_clearance_m
        what = f"{-mm:.0f} mm inside" if mm < 0 else f"least {mm:.0f} mm"
        basis = "" if report.clearance_basis == "measured" else f" {BASIS_TEXT[report.clearance_basis]}"
        text = f"{what}{basis}, {report.min_clearance_link}, {report.min_clearance_s:.2f} s"
        self.text(self.right, top, text, "rt", colour)
        x, y, r = self.x(report.min_clearance_s), self.y(mm), 4 * _FINE
        self.draw.ellipse([x - r, y - r, x + r, y + r], self.colours["paper"], self.colours[_dot(report)], 2 * _FINE)

    def cursor(self, seconds: float) -> None:
        x = self.x(min(max(seconds, 0.0), self.end_s))
        self.draw.line([(x, self.top), (x, self.bottom)], self.colours["cursor"], _FINE)

    def _dashes(self, y: float) -> None:
        step = 8 * _FINE
        for x in range(self.left, self.right, step):
            self.draw.line([(x, y), (min(x + step / 2, self.right), y)], self.colours["bad"], _FINE)


def _dot(report: PlanReport) -> str:
    return "bad" if report.contact else "line"


def _runs(which: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Return start and end (exclusive) of every run of True."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], which, [False]]).astype(np.int8)))
    return [(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def _ticks(low: float, high: float, count: int, *, within: bool = False) -> list[float]:
    """Return about `count` round numbers that cover [low, high], or lie within it."""
    raw = max(high - low, 1e-9) / count
    size = 10.0 ** math.floor(math.log10(raw))
    step = size * next(factor for factor in (1.0, 2.0, 5.0, 10.0) if factor * size >= raw * (1 - 1e-9))
    first, last = low / step, high / step
    if within:
        numbers = range(math.ceil(first - 1e-9), math.floor(last + 1e-9) + 1)
    else:
        numbers = range(math.floor(first + 1e-9), math.ceil(last - 1e-9) + 1)
    return [round(number * step, 9) for number in numbers]


def robustness_svg(robustness: Robustness, width: int = 320) -> str:
    """Plot the share of successes over the offset as an SVG document: one curve for each axis.

    The first curve is along the closing axis. Without margins (cannot tell) the document says so.
    """
    colours, row, left = _LIGHT, 96, 14
    pairs = [robustness.margins[i : i + 2] for i in range(0, len(robustness.margins), 2)]
    height = row * max(len(pairs), 1)
    half = width / 2 - left
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="{colours["paper"]}"/>',
    ]

    def text(x: float, y: float, words: str, anchor: str = "middle", colour: str = "text") -> None:
        out.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colours[colour]}">{words}</text>')

    if not pairs:
        text(width / 2, row / 2, "Robustness: cannot tell", colour="bad")
    for number, (plus, minus) in enumerate(pairs):
        top, base = row * number + 22, row * number + 72
        sides = [(-1.0, minus), (1.0, plus)]
        points = sorted(
            {
                (side * d, s)
                for side, one in sides
                for d, s in zip(one.offsets_m.tolist(), one.share.tolist(), strict=True)
            }
        )
        at = [(width / 2 + half * d / robustness.reach_m, base - (base - top) * s) for d, s in points]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
        area = f"{at[0][0]:.1f},{base} {line} {at[-1][0]:.1f},{base}"
        out.append(f'<polygon points="{area}" fill="{colours["fill"]}"/>')
        out.append(f'<line x1="{left}" y1="{base}" x2="{width - left}" y2="{base}" stroke="{colours["axis"]}"/>')
        middle = (top + base) / 2
        out.append(
            f'<line x1="{left}" y1="{middle}" x2="{width - left}" y2="{middle}" stroke="{colours["bad"]}" '
            'stroke-dasharray="4 4"/>'
        )
        out.append(f'<polyline points="{line}" fill="none" stroke="{colours["line"]}" stroke-width="2"/>')
        axis = "closing axis" if plus.closing else "across it"
        text(width / 2, row * number + 13, f"success over offset, {axis}")
        text(width / 2, base + 14, "0 mm")
        for side, one in sides:
            beyond = math.isinf(one.offset_m)
            mm = f"{'&gt; ' if beyond else ''}{1000 * min(one.offset_m, robustness.reach_m):.0f} mm {one.name}"
            text(left if side < 0 else width - left, base + 14, mm, "start" if side < 0 else "end")
    return "\n".join([*out, "</svg>\n"])
