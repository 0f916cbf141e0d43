"""The folder of an evaluation: settings, one line per finished trial, recorded runs, images, real trials.

    evaluation.json         the settings; a second call must have the same ones, or larger ones
    trials-0.jsonl          one TrialRecord a line, written at once and never changed; later lines of a trial win
    runs/<key>.npz          commands and poses of a run in the lab
    pictures/<key>.jpg      of trials in which a model and the lab disagree
    real.csv                outcomes of real trials, if any are known

A killed process loses only the trial in progress: an incomplete last line is cut off by the next call.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from kinema4d_ros.core.errors import ErrorCode, EvaluationError, FileFormatError, KinemaError
from kinema4d_ros.evaluation.trial import Trial, TrialRecord
from kinema4d_ros.io.documents import parse_json
from kinema4d_ros.io.files import read_bytes, read_json, replacing_file

__all__ = ["REAL_FILE", "TrialStore", "keep_real", "read_real"]

_SETTINGS = "evaluation.json"


class TrialStore:
    """The folder of an evaluation. Records are read from every trials-*.jsonl file and written to trials-0.jsonl.

    Args:
        folder: created if it is missing.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        try:
            for name in ("runs", "pictures"):
                (self.folder / name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FileFormatError(
                f"{self.folder} cannot be written: {error.strerror}", code=ErrorCode.FILE_NOT_WRITABLE
            ) from None
        self._path = self.folder / "trials-0.jsonl"

    def check(
        self,
        settings: Mapping[str, Any],
        may_grow: tuple[str, ...] = (),
        absent: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Merge the settings of this call with those of earlier ones, without writing them.

        Args:
            settings: of this call.
            may_grow: names of lists, mappings and numbers that may be longer or larger than before. Earlier
                entries of a mapping must not change: a policy of the same label must be the same policy.
            absent: values of settings that did not exist when older folders were written.

        Raises:
            EvaluationError: the folder holds another evaluation; the settings that differ are named.
        """
        wanted: dict[str, Any] = json.loads(json.dumps(dict(settings)))
        if not (self.folder / _SETTINGS).exists():
            return wanted
        known = {**{name: value for name, value in (absent or {}).items() if name in wanted}, **self.settings()}
        different = [
            f"{name}: {known.get(name)} in the folder, {wanted.get(name)} requested"
            for name in sorted({*known, *wanted})
            if name not in may_grow and known.get(name) != wanted.get(name)
        ]
        for name in may_grow:
            before, now = known.get(name), wanted.get(name)
            if isinstance(before, dict) and isinstance(now, dict):
                different += [
                    f"{name}, {key}: {before[key]} in the folder, {now[key]} requested"
                    for key in sorted({*before} & {*now})
                    if before[key] != now[key]
                ]
                wanted[name] = {**before, **now}
            elif isinstance(before, list) and isinstance(now, list):
                wanted[name] = [*before, *(one for one in now if one not in before)]
            elif isinstance(before, int) and isinstance(now, int):
                wanted[name] = max(before, now)
            elif now is None and before is not None:
                wanted[name] = before
        if different:
            raise EvaluationError(
                f"{self.folder} holds another evaluation ({'; '.join(different)})",
                expected="the same settings",
                hint="choose another --out",
                code=ErrorCode.ARGUMENT_INVALID,
            )
        return wanted

    def agree(
        self,
        settings: Mapping[str, Any],
        may_grow: tuple[str, ...] = (),
        absent: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Merge the settings as `check` does, and write them."""
        wanted = self.check(settings, may_grow, absent)
        with replacing_file(self.folder / _SETTINGS) as temporary:
            temporary.write_text(json.dumps(wanted, indent=1) + "\n")
        return wanted

    def settings(self) -> dict[str, Any]:
        """Read the settings of the evaluation."""
        path = self.folder / _SETTINGS
        if not path.exists():
            raise FileFormatError(
                f"{self.folder} holds no evaluation", expected=f"a folder with {_SETTINGS}", code=ErrorCode.FILE_MISSING
            )
        try:
            document = read_json(path)
        except FileFormatError as error:
            raise FileFormatError(f"{path} cannot be read: {error.what}", expected="JSON") from None
        if not isinstance(document, dict):
            raise FileFormatError(f"{path} holds {type(document).__name__}", expected="an object")
        return document

    def records(self) -> dict[str, TrialRecord]:
        """Read all records, by trial key.

        Raises:
            FileFormatError: a line is not a record, with its number; an incomplete last line is skipped.
        """
        found: dict[str, TrialRecord] = {}
        for path in sorted(self.folder.glob("trials-*.jsonl")):
            lines = read_bytes(path).split(b"\n")
            for number, line in enumerate(lines[:-1], 1):
                try:
                    record = TrialRecord.from_json(parse_json(line, f"line {number}"))
                except KinemaError as error:
                    raise FileFormatError(
                        f"line {number} of {path} is damaged: {error.what}",
                        expected="a trial's record",
                        hint="delete that line to run the trial again",
                    ) from None
                known = found.get(record.trial.key)
                models = {**(known.models if known else {}), **record.models}
                found[record.trial.key] = TrialRecord(record.trial, record.lab, models)
        return found

    def add(self, record: TrialRecord) -> None:
        """Append a record and sync it to disk."""
        line = json.dumps(record.to_json(), allow_nan=False) + "\n"
        try:
            with self._path.open("ab+") as file:
                self._cut_torn_line(file)
                file.write(line.encode())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise FileFormatError(
                f"{self._path} cannot be written: {error.strerror}",
                expected="free disk space",
                hint="earlier trials are saved: free disk space and run the same command again",
                code=ErrorCode.FILE_NOT_WRITABLE,
            ) from None

    def run_path(self, trial: Trial) -> Path:
        """Return the path of a trial's recorded run."""
        return self.folder / "runs" / f"{file_name(trial)}.npz"

    def picture_name(self, trial: Trial, model: str) -> str:
        """Return the name of a trial's image, relative to the folder."""
        return f"pictures/{file_name(trial)}-{_safe(model)}.jpg"

    @staticmethod
    def _cut_torn_line(file: Any) -> None:
        end = file.seek(0, os.SEEK_END)
        if end == 0:
            return
        file.seek(end - 1)
        if file.read(1) == b"\n":
            return
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)


def file_name(trial: Trial) -> str:
    """Return a file name made from policy, scenario and seed.

    >>> file_name(Trial("a/b c", "canonical", 3))
    'a-b-c-canonical-00003'
    """
    return f"{_safe(trial.policy)}-{_safe(trial.scenario)}-{trial.seed:05d}"


def _safe(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.=]+", "-", text).strip("-.") or "x"


# Outcomes of real trials from a CSV file with policy, scenario, seed and success, kept in the folder.

REAL_FILE = "real.csv"
COLUMNS = ("policy", "scenario", "seed", "success")
MAX_BYTES = 20_000_000
WORDS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


def read_real(path: str | Path, trials: Iterable[str]) -> dict[str, bool]:
    """Read outcomes of real trials by trial key.

    Args:
        path: of the file.
        trials: keys of the evaluation's trials; others are refused.

    Raises:
        FileFormatError: columns are missing, or a line names an unknown trial or one that was listed before.
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
                    f"line {number} of {path} is trial {key} with success '{line['success']}'",
                    expected="a trial of this evaluation, once, with success 0 or 1",
                )
            found[key] = success
    except (UnicodeDecodeError, csv.Error) as error:
        raise FileFormatError(f"{path} is not a CSV file: {error}", expected="CSV, UTF-8") from None
    return found


def keep_real(folder: Path, real: dict[str, bool]) -> None:
    """Write the outcomes of real trials into the evaluation's folder for later reports."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for key, success in real.items():
        policy, scenario, seed = key.rsplit("|", 2)
        writer.writerow((policy, scenario, seed, int(success)))
    with replacing_file(folder / REAL_FILE) as temporary:
        temporary.write_text(out.getvalue())
