"""A dataset of imported episodes: splits without leakage, refusals with their reasons, shard by shard, resumable."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from kinema4d_model.data.dataset_folder import DatasetFolder, lock_folder, shard_name
from kinema4d_model.data.episode import Episode
from kinema4d_model.data.episode_files import encode_episode
from kinema4d_model.data.errors import DataError
from kinema4d_model.data.importers.recording import Unusable
from kinema4d_model.data.shards import open_index, write_shard
from kinema4d_model.data.versions import versions

__all__ = ["Item", "collect", "split_of"]

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Item:
    """An episode to come: its name in the source, its split, and how to make it."""

    name: str
    split: str
    load: Callable[[], Episode]


def split_of(scene: str, val_share: float) -> str:
    """ "train" or "val" by the name of a scene: all episodes of one scene fall together, whatever their number."""
    value = int.from_bytes(hashlib.sha256(scene.encode()).digest()[:4], "big") / 2**32
    return "val" if value < val_share else "train"


def collect(
    items: Iterable[Item], folder: str | Path, name: str, shard_episodes: int = 32, progress: Progress | None = None
) -> tuple[DatasetFolder, dict[str, str]]:
    """Write a dataset of items; shards that are there already are kept.

    Returns the dataset and, by name, why an item was refused. Damaged sources stop the work with an error.
    """
    target = Path(folder)
    by_split: dict[str, list[Item]] = {"train": [], "val": []}
    for item in items:
        by_split.setdefault(item.split, []).append(item)
    total = sum(map(len, by_split.values()))
    if total == 0:
        raise DataError("there is nothing to import", expected="at least one episode")
    refused: dict[str, str] = {}
    counts: dict[str, int] = {}
    done = 0
    with lock_folder(target):
        for split, found in by_split.items():
            counts[split] = 0
            for number, first in enumerate(range(0, len(found), shard_episodes)):
                chosen = found[first : first + shard_episodes]
                path = target / shard_name(split, number)
                if not path.is_file():
                    write_shard(path, _encoded(chosen, refused))
                there = len(open_index(path).episodes)
                if there == 0:
                    path.unlink()
                counts[split] += there
                done += len(chosen)
                if progress is not None:
                    progress(done, total)
        document = {"name": name, "splits": counts, "refused": refused, "versions": versions()}
        return DatasetFolder.create(target, document), refused


def _encoded(items: list[Item], refused: dict[str, str]) -> Iterator[tuple[str, dict[str, bytes]]]:
    for item in items:
        try:
            episode = item.load()
        except Unusable as error:
            refused[item.name] = error.what
            continue
        yield episode.key, encode_episode(episode)
