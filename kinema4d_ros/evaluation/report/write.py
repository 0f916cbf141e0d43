"""Write report.html, report.md, trials.csv and summary.json of an evaluation's folder.

The page has no scripts and no external resources. Both templates escape every value that they print.
"""

from __future__ import annotations

import base64
import csv
import io
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import cv2
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from kinema4d_ros.core.errors import ErrorCode, FileFormatError
from kinema4d_ros.evaluation.report.sections import choose, disagreements, report_sections
from kinema4d_ros.evaluation.report.text import headline
from kinema4d_ros.evaluation.store import REAL_FILE, TrialStore, keep_real, read_real
from kinema4d_ros.evaluation.summary import summarise
from kinema4d_ros.evaluation.trial import LabOutcome, ModelOutcome, TrialRecord
from kinema4d_ros.io.files import replacing_file

__all__ = ["CSV_COLUMNS", "strip_uri", "trials_csv", "write_report"]

MAX_STRIPS = 60
STRIP_PX, STRIP_QUALITY = 1080, 60

CSV_COLUMNS = (
    "policy", "scenario", "seed", "model", "lab_success", "model_success", "agree", "confidence",
    "lab_progress", "model_progress", "lab_value_m", "model_value_m", "lab_motion_s", "lab_chunks", "model_chunks",
    "lab_seconds", "model_seconds", "reason", "lab_error", "model_error", "made_by", "p_success",
    "probability", "forced", "picture",
)  # fmt: skip


def write_report(
    folder: str | Path, *, max_strips: int | None = MAX_STRIPS, real: str | Path | None = None
) -> list[Path]:
    """Write the report of the trials finished so far and return the paths, report.html first.

    Args:
        folder: of the evaluation.
        max_strips: images of disagreements on the page, the most confident mistakes first; None = all.
        real: CSV file of real trials, see `store.read_real`; copied into the folder for later reports.

    Raises:
        FileFormatError: the folder holds no evaluation, or one of its files is damaged.
    """
    if not (Path(folder) / "evaluation.json").is_file():  # TrialStore would create the folder
        raise FileFormatError(
            f"{folder} holds no evaluation",
            expected="a folder with evaluation.json",
            hint="create one with kinema4d evaluate --policies ... --out FOLDER",
            code=ErrorCode.FILE_MISSING,
        )
    store = TrialStore(folder)
    settings = store.settings()
    records = store.records()
    known = store.folder / REAL_FILE
    outcomes = read_real(real or known, records) if real is not None or known.is_file() else {}
    if real is not None:
        keep_real(store.folder, outcomes)
    summary = summarise(settings, records, real=outcomes)
    found = disagreements(records.values())
    shown = choose(found, len(found) if max_strips is None else max_strips)
    likely = {model.label: model.corrected.probabilities for model in summary.models}
    document = summary.to_json() | {"disagreements": len(found)}
    content = {"headline": headline(summary), "sections": report_sections(summary, found, shown)}
    texts = {
        "report.html": _render("report.html", _pixels, image=partial(strip_uri, store.folder), **content),
        "report.md": _render("report.md", _markdown, **content),
        "trials.csv": trials_csv(records.values(), store.folder, likely),
        "summary.json": json.dumps(document, indent=1, allow_nan=False, ensure_ascii=False) + "\n",
    }
    paths = []
    for name, text in texts.items():
        path = store.folder / name
        with replacing_file(path) as temporary:
            temporary.write_bytes(text.encode("utf-8", "backslashreplace"))
        paths.append(path)
    return paths


def _render(name: str, finalize: Callable[[Any], Any], **content: Any) -> str:
    """Render a template, with `finalize` applied to every value that it prints."""
    environment = Environment(
        loader=PackageLoader(__package__),
        autoescape=True,
        finalize=finalize,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["link"] = _link
    return environment.get_template(name).render(content)


def _pixels(value: Any) -> Any:
    """Round the coordinates of plots, which are the only floats in a report."""
    return f"{value:.1f}" if isinstance(value, float) else value


def _markdown(value: Any) -> Markup:
    """Put text on one line and escape the characters with which Markdown makes tables, tags and links."""
    if isinstance(value, Markup):  # what a macro has rendered
        return value
    text = re.sub(r"([\\|<>*_`\[\]])", r"\\\1", " ".join(str(value).split()))
    return Markup(text)  # noqa: S704  # nosec B704 - escaped for Markdown, not for HTML


def _link(name: str) -> str:
    """Return a file name that can be the target of a Markdown link, or ""."""
    return name if re.fullmatch(r"[\w./=-]+", name) else ""


def strip_uri(folder: Path, name: str) -> str:
    """Encode an image strip as a data URI, downsized so that a page can hold many; "" = it cannot be read.

    Args:
        folder: of the evaluation.
        name: of the image file; paths outside the folder are not read.
    """
    path = (folder / name).resolve()
    if not name or not path.is_relative_to(folder.resolve()) or not path.is_file():
        return ""
    image = cv2.imread(str(path), cv2.IMREAD_COLOR)
    if image is None:
        return ""
    if image.shape[1] > STRIP_PX:
        size = (STRIP_PX, max(1, round(image.shape[0] * STRIP_PX / image.shape[1])))
        image = cv2.resize(image, size, interpolation=cv2.INTER_AREA)
    good, data = cv2.imencode(".webp", image, [cv2.IMWRITE_WEBP_QUALITY, STRIP_QUALITY])
    return f"data:image/webp;base64,{base64.b64encode(data.tobytes()).decode()}" if good else ""


def trials_csv(
    records: Iterable[TrialRecord],
    folder: Path | None = None,
    likely: Mapping[str, Mapping[str, float]] | None = None,
) -> str:
    """Format one line per trial and model; empty = not known, a trial without a model's outcome has an empty model.

    Args:
        records: to write.
        folder: of the evaluation; names of missing image files are left empty. None = no check.
        likely: calibrated probabilities of real success by label and trial key.
    """
    out = io.StringIO()
    writer = csv.DictWriter(out, CSV_COLUMNS, lineterminator="\n")
    writer.writeheader()
    for record in sorted(records, key=lambda one: one.trial):
        for label, outcome in sorted(record.models.items()) or [("", ModelOutcome(None))]:
            line = _line(record, record.lab, label, outcome)
            if folder is not None and outcome.picture and not (folder / outcome.picture).is_file():
                line["picture"] = ""
            probability = (likely or {}).get(label, {}).get(record.trial.key)
            line["p_success"] = "" if probability is None else round(probability, 4)
            writer.writerow(line)
    return out.getvalue()


def _line(record: TrialRecord, lab: LabOutcome, label: str, model: ModelOutcome) -> dict[str, object]:
    known = lab.success is not None and bool(label) and not model.error
    return {
        "policy": record.trial.policy,
        "scenario": record.trial.scenario,
        "seed": record.trial.seed,
        "model": label,
        "lab_success": _flag(lab.success),
        "model_success": _flag(model.success),
        "agree": _flag((model.success is True) == lab.success if known else None),
        "confidence": model.confidence if known and model.success is not None else "",
        "lab_progress": lab.progress,
        "model_progress": model.progress if label else "",
        "lab_value_m": _number(lab.value_m),
        "model_value_m": _number(model.value_m),
        "lab_motion_s": lab.motion_s,
        "lab_chunks": lab.chunks,
        "model_chunks": model.chunks if label else "",
        "lab_seconds": lab.seconds,
        "model_seconds": model.seconds if label else "",
        "reason": model.reason,
        "lab_error": lab.error,
        "model_error": model.error,
        "made_by": model.made_by,
        "probability": "" if model.probability is None else model.probability,
        "forced": _flag(model.forced),
        "picture": model.picture,
    }


def _flag(value: bool | None) -> str:
    return "" if value is None else str(int(value))


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else ""
