"""HTML fragments of the page, with every value escaped."""

from __future__ import annotations

import base64
import math
from html import escape
from typing import TYPE_CHECKING, Literal

import cv2
import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.previews.report import PlanReport, robustness_svg
from kinema4d_ros.previews.report.plan_report import BASIS_TEXT
from kinema4d_ros.web.prediction import ASSUMED_RGB, FITTED_RGB, NETWORK_RGB

if TYPE_CHECKING:
    from kinema4d_ros.generators.draft.robustness import Robustness

__all__ = [
    "Tone",
    "chip",
    "headline",
    "headline_of",
    "message_line",
    "picture",
    "report_table",
    "robustness_section",
    "status_rows",
    "tint_legend",
    "warning_list",
]

Tone = Literal["good", "busy", "bad", "quiet"]

_COLOURS: dict[Tone, tuple[str, str]] = {
    "good": ("#067647", "#ecfdf3"),
    "busy": ("#175cd3", "#eff8ff"),
    "bad": ("#b42318", "#fef3f2"),
    "quiet": ("#475467", "#f2f4f7"),
}
_BODY = "font-size:0.82em;line-height:1.45;color:#344054;"
_MAX_TEXT = 400
_MAX_ROWS = 6
_SHOWN_OUTCOMES = 3


def headline(robot: str) -> str:
    """Return the title of the main page."""
    return _headline("See the plan before the robot moves", f"Predicted in 4D for <b>{escape(robot)}</b>")


def headline_of(title: str, below: str) -> str:
    """Return the title of another page."""
    return _headline(escape(title), escape(below))


def _headline(title: str, below: str) -> str:
    return (
        '<div style="padding:0.35em 0.75em 0.1em 0.75em">'
        f'<div style="font-size:1.15em;font-weight:650;color:#101828">{title}</div>'
        f'<div style="{_BODY}color:#667085">{below}</div></div>'
    )


def chip(tone: Tone, text: str) -> str:
    """Return a coloured word."""
    ink, paper = _COLOURS[tone]
    return (
        f'<span style="background:{paper};color:{ink};border-radius:1em;padding:0.1em 0.6em;'
        f'font-weight:600;white-space:nowrap">{escape(text)}</span>'
    )


def status_rows(rows: list[tuple[str, Tone, str, str]]) -> str:
    """Return a table of rows (name, tone, word, detail)."""
    cells = "".join(
        f'<div style="display:flex;gap:0.5em;align-items:baseline;margin:0.18em 0">'
        f'<span style="width:4.6em;flex:none;color:#667085">{escape(name)}</span>{chip(tone, word)}'
        f'<span style="color:#667085;overflow-wrap:anywhere">{escape(detail[:_MAX_TEXT])}</span></div>'
        for name, tone, word, detail in rows
    )
    return f'<div style="{_BODY}padding:0.2em 0.75em">{cells}</div>'


def message_line(tone: Tone, text: str) -> str:
    """Return one line about the last event or the next step."""
    ink, paper = _COLOURS[tone]
    return (
        f'<div style="{_BODY}margin:0.2em 0.75em;padding:0.4em 0.7em;border-radius:0.5em;background:{paper};'
        f'color:{ink};overflow-wrap:anywhere">{escape(text[:_MAX_TEXT])}</div>'
    )


def picture(label: str, rgb: NDArray[np.uint8], suffix: Literal[".jpg", ".png"] = ".jpg") -> str:
    """Return an image (H, W, 3) uint8 with its title, embedded in the HTML: nothing to load or to go stale."""
    done, data = cv2.imencode(suffix, rgb[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, 82] if suffix == ".jpg" else [])
    if not done:
        return message_line("bad", f"{label}: the image cannot be encoded")
    kind = "jpeg" if suffix == ".jpg" else "png"
    source = f"data:image/{kind};base64,{base64.b64encode(data.tobytes()).decode()}"
    height, width = rgb.shape[:2]
    return (
        f'<div style="padding:0.15em 0.75em 0.4em 0.75em"><div style="font-size:0.85em;color:#344054">{escape(label)}'
        f'</div><img decoding="sync" alt="{escape(label)}" width="{width}" height="{height}" src="{source}"'
        ' style="width:100%;height:auto;display:block;border-radius:0.35em"/></div>'
    )


def tint_legend() -> str:
    """Return what the tints of guessed points mean."""
    rows = (
        (FITTED_RGB, "shape fitted to the image"),
        (ASSUMED_RGB, "assumed table, or not stated"),
        (NETWORK_RGB, "estimated by a network"),
    )
    lines = "".join(
        f'<div><span style="color:rgb{rgb};font-weight:700">\u25a0</span> {escape(text)}</div>' for rgb, text in rows
    )
    return f'<div style="{_BODY}padding:0 0.75em 0.3em 0.75em">{lines}</div>'


def report_table(report: PlanReport) -> str:
    """Return a table of the report's numbers."""
    rows: list[tuple[str, Tone, str, str]] = _outcome_rows(report)
    if math.isfinite(report.min_clearance_m):
        measured = report.clearance_basis == "measured"
        tone: Tone = "bad" if report.contact else "good" if measured else "busy"
        where = f"{report.min_clearance_link or '?'} at {report.min_clearance_s:.1f} s"
        if not measured:
            where = f"{BASIS_TEXT[report.clearance_basis]}; {where}"
        rows.append(("Nearest", tone, f"{1000 * report.min_clearance_m:.0f} mm", where))
    else:
        rows.append(("Nearest", "quiet", "unknown", BASIS_TEXT["unknown"]))
    if report.contact:
        rows.append(("Contact", "bad", f"at {report.first_contact_s:.1f} s", report.first_contact_link))
    elif report.clearance_basis == "unknown":
        rows.append(("Contact", "quiet", "unknown", "the scene is not fully known"))
    else:
        rows.append(("Contact", "good", "none", f"nothing within {1000 * report.contact_threshold_m:.0f} mm"))
    if math.isfinite(report.grasp_s):
        until = f"until {report.release_s:.1f} s" if math.isfinite(report.release_s) else "to the end"
        rows.append(("Grasp", "busy", f"at {report.grasp_s:.1f} s", until))
    if len(report.joint_names):
        tightest = int(np.argmin(report.position_margin))
        margin = float(report.position_margin[tightest])
        tone = "bad" if margin < 0 else "good"
        rows.append(("Limits", tone, f"{margin:.3f}", f"least margin: {report.joint_names[tightest]}"))
        fastest = int(np.argmax(report.velocity_ratio))
        ratio = float(report.velocity_ratio[fastest])
        rows.append(
            (
                "Speed",
                "bad" if ratio > 1 else "good",
                f"{100 * ratio:.0f} %",
                f"of the limit: {report.joint_names[fastest]}",
            )
        )
    if report.moved:
        farthest = max(region.displacement_m for region in report.moved)
        count = len(report.moved)
        rows.append(("Moved", "busy", f"{count} object{'s' if count > 1 else ''}", f"up to {1000 * farthest:.0f} mm"))
    else:
        rows.append(("Moved", "quiet", "nothing", "in the predicted scene"))
    extra = "" if report.robustness is None else robustness_section(report.robustness)
    return status_rows(rows) + extra


def robustness_section(robustness: Robustness) -> str:
    """Return the sentence and the plot of a robustness."""
    tone: Tone = "quiet" if not robustness.known else "good" if robustness.probability > 0.5 else "bad"
    source = base64.b64encode(robustness_svg(robustness).encode()).decode()
    return (
        f'{message_line(tone, robustness.sentence())}<img alt="Success over the offset of the grasp" '
        f'src="data:image/svg+xml;base64,{source}" style="width:100%;height:auto;display:block"/>'
    )


def _outcome_rows(report: PlanReport) -> list[tuple[str, Tone, str, str]]:
    """Return a row for each of the most probable outcomes, and one if the generator cannot tell."""
    rows: list[tuple[str, Tone, str, str]] = []
    if report.unknowns:
        rows.append(("Outcome", "bad", "cannot tell", "; ".join(report.unknowns)))
    for outcome in report.outcomes[:_SHOWN_OUTCOMES]:
        title = "" if rows else "Outcome"
        rows.append((title, "busy", f"{100 * outcome.probability:.0f} %", outcome.label))
    return rows


def warning_list(report: PlanReport) -> str:
    """Return the report's warnings as a list, "" for none."""
    if not report.warnings:
        return ""
    more = len(report.warnings) - _MAX_ROWS
    items = [escape(text[:_MAX_TEXT]) for text in report.warnings[:_MAX_ROWS]]
    if more > 0:
        items.append(f"and {more} more")
    lines = "".join(f'<li style="margin:0.15em 0">{item}</li>' for item in items)
    return (
        f'<ul style="{_BODY}color:#93370d;background:#fffaeb;margin:0.2em 0.75em;padding:0.4em 0.7em 0.4em 1.6em;'
        f'border-radius:0.5em">{lines}</ul>'
    )
