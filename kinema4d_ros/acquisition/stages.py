"""Cached pipeline stages: a run resumes after the last finished stage and redoes stages with changed inputs.

OUT/
  1_frames/ ... 6_links/, robot/   one folder per stage, complete or absent
    stamp.json   key (hash of the inputs, the options and the keys of earlier stages), seconds
    sheet.png    contact sheet of the stage's result

A folder gets its name only when the stage is done, so an interrupted run leaves no incomplete folder.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kinema4d_ros.core.errors import ErrorCode, FileFormatError, KinemaError
from kinema4d_ros.io.files import read_json, replacing_folder

__all__ = ["STAMP", "StageRunner", "hash_files", "read_json", "write_json"]

STAMP = "stamp.json"
_VERSION = 1

Work = Callable[[Path], None]


@dataclass
class StageRunner:
    """Runner of cached stages in one folder.

    Attributes:
        out: the folder; created when the first stage is done.
        say: called with a line of text for each stage, executed or reused.
        keys: of the stages so far, by name.
        made: names of the stages that this run executed.
    """

    out: Path
    say: Callable[[str], None] = lambda line: None
    keys: dict[str, str] = field(default_factory=dict)
    made: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Reject an output path that is a file."""
        if self.out.exists() and not self.out.is_dir():
            raise FileFormatError(f"{self.out} is a file", expected="a folder", code=ErrorCode.FILE_NOT_WRITABLE)

    def folder(self, number: int, name: str) -> Path:
        """Return the folder of a stage."""
        return self.out / f"{number}_{name}"

    def run(
        self,
        number: int,
        name: str,
        options: Mapping[str, Any],
        after: Iterable[str],
        work: Work,
        *,
        folder: Path | None = None,
    ) -> Path:
        """Run `work(folder)` unless the stage exists with the same key; return the stage's folder.

        Args:
            number, name: of the stage.
            options: everything the result depends on besides earlier stages; plain data.
            after: names of the stages it depends on.
            work: writes files into the (temporary) folder passed to it.
            folder: folder of the stage; None = OUT/NUMBER_NAME.
        """
        key = _key({"version": _VERSION, "stage": name, "options": options, "after": [self.keys[a] for a in after]})
        self.keys[name] = key
        target = self.folder(number, name) if folder is None else folder
        if _stamp(target).get("key") == key:
            self.say(f"{number} {name}: found in {target}")
            return target
        started = time.monotonic()
        with replacing_folder(target, lambda path: (path / STAMP).is_file()) as temporary:
            work(temporary)
            seconds = round(time.monotonic() - started, 2)
            write_json(temporary / STAMP, {"stage": name, "key": key, "options": options, "seconds": seconds})
        self.made.append(name)
        self.say(f"{number} {name}: {seconds:.1f} s")
        return target


def hash_files(paths: Iterable[Path]) -> str:
    """Compute one sha256 of files and folders, by name and content."""
    total = hashlib.sha256()
    for path in paths:
        for file in sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]:
            digest = hashlib.sha256()
            try:
                with file.open("rb") as stream:
                    while block := stream.read(1 << 20):
                        digest.update(block)
            except OSError as error:
                raise FileFormatError(
                    f"{file} cannot be read: {error.strerror}", expected="a file", code=ErrorCode.FILE_MISSING
                ) from None
            total.update(f"{file.name}\0{digest.hexdigest()}\n".encode())
    return total.hexdigest()


def write_json(path: Path, document: Any) -> None:
    """Write a JSON file; NaN raises ValueError."""
    path.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def _stamp(folder: Path) -> Mapping[str, Any]:
    try:
        found = read_json(folder / STAMP)
    except KinemaError:
        return {}
    return found if isinstance(found, dict) else {}


def _key(document: Any) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True, allow_nan=False).encode()).hexdigest()
