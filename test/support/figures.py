"""Measurements of the fault suite: tests record them, `tools/fault_report.py` writes the table."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path

from support.ros_graph import ROOT

FOLDER = Path(os.environ.get("KINEMA4D_FAULTS_OUT", ROOT / "out" / "faults"))


@dataclass
class Figures:
    """What one test module measured; each note is on disk at once, so that an interrupted run keeps the others'.

    >>> figures.note("kill -9", "times each", 20)
    """

    module: str
    full: bool
    notes: dict[str, dict[str, object]] = field(default_factory=dict)

    def note(self, fault: str, figure: str, value: float | int | str, unit: str = "") -> None:
        """`fault` is the row, `figure` what was measured of it: "kill -9 of the twin", "recovered after, p95"."""
        self.notes.setdefault(fault, {})[f"{figure} [{unit}]" if unit else figure] = value
        FOLDER.mkdir(parents=True, exist_ok=True)
        path = FOLDER / f"{self.module}.json"
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps({"full": self.full, "notes": self.notes}, indent=1))
        temporary.replace(path)
