"""`check_dataset` finds defects in folders, shards and episodes and leaks between splits; `dataset_warnings`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from kinema4d_model.data.check_episode import check_episode
from kinema4d_model.data.dataset_folder import DatasetFolder
from kinema4d_model.data.shards import ShardIndex, index_path, open_index, read_document, read_episode, scan_shard
from kinema4d_ros.core.errors import DataError, KinemaError

__all__ = ["Defect", "check_dataset", "dataset_warnings"]

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Defect:
    """One defect.

    Attributes:
        where: folder, shard or "shard:key".
        name: short, stable identifier: "shard", "index", "json", "stream", "times", "bounds", "outcome", ...
        what: description of the defect.
    """

    where: str
    name: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: [{self.name}] {self.what}"


def check_dataset(
    path: str | Path, *, limit: int | None = None, redraw: bool = True, progress: Progress | None = None
) -> list[Defect]:
    """Return all defects; `limit` checks at most that many episodes of each shard, evenly spread."""
    try:
        dataset = DatasetFolder.open(path)
    except DataError as error:
        return [Defect(str(path), "dataset", error.what)]
    found: list[Defect] = []
    keys: dict[str, str] = {}
    scenes: dict[str, str] = {}
    shards = [(split, shard) for split in dataset.splits for shard in dataset.shards(split)]
    there = dict.fromkeys(dataset.splits, 0)
    for number, (split, shard) in enumerate(shards):
        if progress is not None:
            progress(number, len(shards))
        try:
            index = open_index(shard, rebuild=False)
        except DataError as error:
            named = "index" if index_path(shard).name in error.what else "shard"
            found.append(Defect(shard.name, named, error.what))
            try:
                index = scan_shard(shard)
            except DataError as deeper:
                if named == "index":
                    found.append(Defect(shard.name, "shard", deeper.what))
                continue
        there[split] += len(index.episodes)
        found += _check_shard(index, split, limit, redraw, keys, scenes)
    for split, count in there.items():
        try:
            promised = dataset.promised(split)
        except DataError as error:
            found.append(Defect(f"{dataset.path.name}/{split}", "dataset", error.what))
            continue
        if count != promised:
            what = f"{count} episodes, dataset.json states {promised}"
            found.append(Defect(f"{dataset.path.name}/{split}", "count", what))
    if progress is not None:
        progress(len(shards), len(shards))
    return found


def _check_shard(
    index: ShardIndex, split: str, limit: int | None, redraw: bool, keys: dict[str, str], scenes: dict[str, str]
) -> Iterator[Defect]:
    count = len(index.episodes)
    if count == 0:
        yield Defect(index.path.name, "shard", "the shard is empty")
    chosen = set(range(count)) if limit is None else {round(i * (count - 1) / max(limit - 1, 1)) for i in range(limit)}
    for number, entry in enumerate(index.episodes):
        where = f"{index.path.name}:{entry.key}"
        if entry.key in keys:
            yield Defect(where, "duplicate", f"the key is also in {keys[entry.key]}")
        keys[entry.key] = index.path.name
        if number not in chosen:
            continue
        try:
            episode = read_episode(index, number)
        except DataError as error:
            yield Defect(where, _kind(error.what), error.what)
            continue
        except KinemaError as error:
            yield Defect(where, "json", error.what)
            continue
        if episode.key != entry.key:
            yield Defect(where, "key", f"the key in the JSON is '{episode.key}'")
        scene = hashlib.sha256(episode.rgb[0].tobytes()).hexdigest()
        if scenes.setdefault(scene, split) != split:
            yield Defect(where, "leak", f"its first image is also in split '{scenes[scene]}'")
        for finding in check_episode(episode, redraw=redraw):
            yield Defect(where, finding.name, finding.what)


def _kind(what: str) -> str:
    if "JSON" in what or "format" in what:
        return "json"
    if "not what was written" in what:
        return "damaged"
    if ".mkv" in what or "video" in what:
        return "stream"
    return "fields"


# Warnings: valid data that is still a poor choice for training. Reads the JSON files only.

_CONDITION = {
    "measured": "the condition is rendered from measured joints because the source has no commands: fingers that stop "
    "at an object reveal the outcome",
    "masked": "the condition is cut out of the images because joints or camera are missing: it shows what happened, "
    "not what was commanded",
}
_SCENE = "every recording counts as its own scene because the source names none: one location may be in two splits"


def dataset_warnings(path: str | Path) -> list[str]:
    """Return one line per kind of warning, with the number of affected episodes and the key of the first.

    Unreadable shards are skipped; `check_dataset` reports them.
    """
    try:
        dataset = DatasetFolder.open(path)
    except DataError:
        return []
    found: dict[str, list[str]] = {}
    episodes = 0
    for split in dataset.splits:
        for shard in dataset.shards(split):
            try:
                index = open_index(shard)
                documents = [read_document(index, i) for i in range(len(index.episodes))]
            except DataError:
                continue
            for document in documents:
                episodes += 1
                details = document.get("details")
                if not isinstance(details, dict):
                    continue
                key = str(document.get("key"))
                kind = str(details.get("condition", ""))
                if kind in _CONDITION:
                    found.setdefault(_CONDITION[kind], []).append(key)
                if details.get("scene_key") == "episode":
                    found.setdefault(_SCENE, []).append(key)
    return [f"{len(keys)} of {episodes} episodes ({keys[0]} ...): {what}" for what, keys in found.items()]
