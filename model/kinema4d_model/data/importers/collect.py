"""`collect`: write imported episodes as a dataset, one recording at a time, resumable; rejections keep reasons.

DIR/import.json    options, and for every written shard its items and the reasons of rejected ones
DIR/dataset.json   written when all items are done

An interrupted import resumes with the first shard that is not in import.json. It does not resume with other options or
another source, because the existing shards would not match them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sized
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kinema4d_model.data.dataset_folder import DatasetFolder, lock_folder, shard_name
from kinema4d_model.data.episode import Episode, versions
from kinema4d_model.data.episode_files import encode_episode
from kinema4d_model.data.importers.recording import Unusable
from kinema4d_model.data.shards import ShardWriter, index_path, open_index
from kinema4d_ros.core.errors import DataError
from kinema4d_ros.io.files import read_bytes, replacing_file

__all__ = ["Item", "collect"]

Progress = Callable[[int, int], None]
FORMAT = "kinema4d-import-1"
_MAX_BYTES = 256 * 2**20


@dataclass(frozen=True)
class Item:
    """An episode to import: name in the source, split, and a function that loads it."""

    name: str
    split: str
    load: Callable[[], Episode]


def collect(
    items: Iterable[Item],
    folder: str | Path,
    name: str,
    shard_episodes: int = 32,
    progress: Progress | None = None,
    options: Mapping[str, Any] | None = None,
) -> tuple[DatasetFolder, dict[str, str]]:
    """Write a dataset of items; existing shards are kept.

    An item may hold its recording in memory, so each one is written before the next is requested. `progress` gets
    (done, total); total equals done while the number of items is unknown.

    Returns the dataset and the reason of each rejected item by name. A damaged source raises an error.
    """
    target = Path(folder)
    total = len(items) if isinstance(items, Sized) else 0
    stream = iter(items)
    item = next(stream, None)
    if item is None:
        raise DataError("nothing to import", expected="at least one episode")
    with lock_folder(target):
        ledger = _Ledger.begin(target, {"shard_episodes": shard_episodes, **(options or {})})
        shards: dict[str, _Shard] = {}
        numbers: dict[str, int] = {"train": 0, "val": 0}
        try:
            done = 0
            while item is not None:
                if item.split not in shards:
                    number = numbers.setdefault(item.split, 0)
                    numbers[item.split] += 1
                    shards[item.split] = _Shard(target, shard_name(item.split, number), ledger)
                shard = shards[item.split]
                shard.take(item)
                if len(shard.names) == shard_episodes:
                    shards.pop(item.split).finish()
                done += 1
                if progress is not None:
                    progress(done, max(total, done))
                item = None  # free its recording before the next item is made
                item = next(stream, None)
            while shards:
                shards.popitem()[1].finish()
        except BaseException as error:
            for shard in shards.values():
                shard.abandon(error)
            raise
        if not ledger.complete:
            ledger.complete = True
            ledger.save()
        counts = dict.fromkeys(numbers, 0)
        for shard_file, entry in ledger.shards.items():
            counts[shard_file.split("/")[0]] += int(entry["episodes"])
        refused = {n: why for entry in ledger.shards.values() for n, why in entry["refused"].items()}
        notes = list(dict.fromkeys(note for entry in ledger.shards.values() for note in entry["notes"]))
        document = {"name": name, "splits": counts, "refused": refused, "notes": notes, "options": ledger.options}
        return DatasetFolder.create(target, {**document, "versions": versions()}), refused


@dataclass
class _Ledger:
    """import.json: options and finished shards."""

    path: Path
    options: dict[str, Any]
    shards: dict[str, dict[str, Any]]
    complete: bool = False

    @classmethod
    def begin(cls, folder: Path, options: Mapping[str, Any]) -> _Ledger:
        """Open or create the ledger of a folder; raise DataError that names options which differ from its own."""
        path = folder / "import.json"
        wanted = json.loads(json.dumps(dict(options)))
        if not path.is_file():
            return cls(path, wanted, {})
        try:
            there = json.loads(read_bytes(path, _MAX_BYTES).decode("utf-8"))
            if there["format"] != FORMAT:
                raise ValueError(f"format {there['format']!r}")
            before = dict(there["options"])
            shards = {
                str(name): {
                    "items": int(entry["items"]),
                    "names": str(entry["names"]),
                    "episodes": int(entry["episodes"]),
                    "refused": {str(k): str(v) for k, v in entry["refused"].items()},
                    "notes": [str(note) for note in entry.get("notes", ())],
                }
                for name, entry in there["shards"].items()
            }
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DataError(
                f"{path} cannot be used: {error!r}"[:300],
                expected=f"the {FORMAT} of an import that was started here",
                hint="choose another --out",
            ) from None
        changed = sorted(k for k in {*before, *wanted} if before.get(k) != wanted.get(k))
        if changed:
            said = ", ".join(f"{k} ({_short(before.get(k))}, now {_short(wanted.get(k))})" for k in changed)
            raise DataError(
                f"{folder} was started with another {said}",
                expected="the same options, or another folder",
                hint="a dataset has one set of options: choose another --out",
            )
        return cls(path, before, shards, there.get("complete") is True)

    def save(self) -> None:
        """Write the file atomically."""
        document = {"format": FORMAT, "options": self.options, "complete": self.complete, "shards": self.shards}
        with replacing_file(self.path) as temporary:
            temporary.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


@dataclass
class _Shard:
    """One shard while its items arrive: either written, or existing and only compared."""

    folder: Path
    file: str
    ledger: _Ledger
    names: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.path = self.folder / self.file
        self.before = self.ledger.shards.get(self.file)
        if self.before is not None and self.before["episodes"] and not self._is_there(self.before["episodes"]):
            self.before = None
        self.writer: ShardWriter | None = None
        if self.ledger.complete and self.file not in self.ledger.shards:
            self._differs()

    def _is_there(self, episodes: int) -> bool:
        try:
            return len(open_index(self.path).episodes) == episodes
        except DataError:
            return False

    def take(self, item: Item) -> None:
        """Add an item's episode, or the reason for its rejection."""
        self.names.append(item.name)
        if self.before is not None:
            if len(self.names) > self.before["items"]:
                self._differs()
            return
        try:
            episode = item.load()
        except Unusable as error:
            self.refused[item.name] = error.what
            return
        self.notes += [note for note in episode.details.get("notes", ()) if note not in self.notes]
        if self.writer is None:
            self.writer = ShardWriter(self.path).__enter__()
        try:
            self.writer.add(episode.key, encode_episode(episode))
        except BaseException as error:
            # Close here, not in `abandon`, so that a full disk is reported as such.
            writer, self.writer = self.writer, None
            writer.__exit__(type(error), error, error.__traceback__)
            raise

    def finish(self) -> None:
        """Close the shard and add it to the ledger."""
        digest = hashlib.sha256("\n".join(self.names).encode()).hexdigest()[:16]
        if self.before is not None:
            if (self.before["items"], self.before["names"]) != (len(self.names), digest):
                self._differs()
            return
        episodes = 0
        if self.writer is not None:
            writer, self.writer = self.writer, None
            writer.__exit__(None, None, None)
            episodes = len(writer.entries)
        else:
            for path in (self.path, index_path(self.path)):
                with suppress(FileNotFoundError):
                    path.unlink()
        self.ledger.shards[self.file] = {
            "items": len(self.names), "names": digest, "episodes": episodes, "refused": self.refused,
            "notes": self.notes,
        }  # fmt: skip
        self.ledger.save()

    def abandon(self, error: BaseException) -> None:
        """Remove the unfinished shard."""
        if self.writer is not None:
            writer, self.writer = self.writer, None
            with suppress(BaseException):
                writer.__exit__(type(error), error, error.__traceback__)

    def _differs(self) -> None:
        raise DataError(
            f"{self.path} was made from other recordings than the source has now",
            expected="the same recordings in the same order",
            hint="import a changed source to another --out",
        )
