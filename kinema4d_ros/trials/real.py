"""Real trials that somebody tells of: a CSV file with policy, scenario, seed and success, kept in the folder."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from pathlib import Path

from kinema4d_ros.core.errors import FileFormatError
from kinema4d_ros.io.files import read_bytes, replacing_file
from kinema4d_ros.trials.trial import Trial

__all__ = ["REAL_FILE", "keep_real", "read_real"]

REAL_FILE = "real.csv"
COLUMNS = ("policy", "scenario", "seed", "success")
MAX_BYTES = 20_000_000
WORDS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


def read_real(path: str | Path, trials: Iterable[str]) -> dict[str, bool]:
    """Outcomes by trial key.

    Args:
        path: of the file.
        trials: keys that the evaluation has; others are refused.

    Raises:
        FileFormatError: columns are missing, or a line tells of no trial of the evaluation, or twice of one.
    """
    known = set(trials)
    try:
        lines = csv.DictReader(io.StringIO(read_bytes(path, MAX_BYTES).decode("utf-8-sig")))
        if not set(COLUMNS) <= set(lines.fieldnames or ()):
            raise FileFormatError(f"{path} has columns {lines.fieldnames}", expected=", ".join(COLUMNS))
        found: dict[str, bool] = {}
        for number, line in enumerate(lines, 2):
            success = WORDS.get((line["success"] or "").strip().lower())
            seed = (line["seed"] or "").strip()
            key = Trial(line["policy"] or "", line["scenario"] or "", int(seed) if seed.isdigit() else -1).key
            if success is None or key not in known or key in found:
                raise FileFormatError(
                    f"line {number} of {path} tells of {key} ({line['success']})",
                    expected="a trial of this evaluation, once, with success 0 or 1",
                )
            found[key] = success
    except (UnicodeDecodeError, csv.Error) as error:
        raise FileFormatError(f"{path} is no table: {error}", expected="CSV, UTF-8") from None
    return found


def keep_real(folder: Path, real: dict[str, bool]) -> None:
    """Write them into the evaluation's folder, where the next report finds them."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for key, success in real.items():
        policy, scenario, seed = key.rsplit("|", 2)
        writer.writerow((policy, scenario, seed, int(success)))
    with replacing_file(folder / REAL_FILE) as temporary:
        temporary.write_text(out.getvalue())
