"""Dataset folder on disk: shards by split and dataset.json.

DIR/dataset.json                 format, name, configuration, seed, number of episodes per split, versions
DIR/train/train-000000.tar ...   shards, each with its index
DIR/train/train-failures-000000.tar ...   failures synthesised from the demonstrations of train-000000.tar (optional)
DIR/val/..., DIR/ood/...
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kinema4d_model.data.episode import Episode
from kinema4d_model.data.shards import ShardIndex, open_index, read_episode
from kinema4d_ros.core.errors import DataError, ErrorCode
from kinema4d_ros.io.files import read_bytes, replacing_file, writing

__all__ = ["FORMAT", "DatasetFolder", "EpisodeList", "failure_shard_name", "lock_folder", "shard_name"]

FORMAT = "kinema4d-dataset-1"
_MAX_BYTES = 10_000_000


def shard_name(split: str, number: int) -> str:
    """Return the relative path of a shard, such as "train/train-000003.tar"."""
    return f"{split}/{split}-{number:06d}.tar"


def failure_shard_name(split: str, number: int) -> str:
    """Return the relative path of a failure shard, such as "train/train-failures-000003.tar"."""
    return f"{split}/{split}-failures-{number:06d}.tar"


@dataclass(frozen=True)
class DatasetFolder:
    """Dataset folder and its document.

    Attributes:
        path: the folder.
        document: the content of dataset.json.
    """

    path: Path
    document: Mapping[str, Any]

    @classmethod
    def open(cls, path: str | Path) -> DatasetFolder:
        """Open an existing dataset."""
        folder = Path(path)
        file = folder / "dataset.json"
        if not file.is_file():
            raise DataError(
                f"{folder} is not a dataset: dataset.json is missing",
                expected="a folder that `kinema4d data make` or `kinema4d data import` wrote",
                code=ErrorCode.FILE_MISSING,
            )
        try:
            document = json.loads(read_bytes(file, _MAX_BYTES).decode("utf-8"))
        except (ValueError, RecursionError) as error:
            raise DataError(f"{file} is not JSON: {error}"[:300], expected="a complete file") from None
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            found = document.get("format") if isinstance(document, dict) else type(document).__name__
            raise DataError(f"{file}: format {found!r}"[:300], expected=FORMAT, code=ErrorCode.FILE_UNSUPPORTED)
        if not isinstance(document.get("splits"), dict):
            raise DataError(f"{file}: splits are {document.get('splits')!r}"[:300], expected="a count by split")
        if not isinstance(document.get("failures", {}), dict):
            raise DataError(f"{file}: failures are {document['failures']!r}"[:300], expected="a count by split")
        return cls(folder, document)

    @classmethod
    def create(cls, path: str | Path, document: Mapping[str, Any]) -> DatasetFolder:
        """Create the folder and write dataset.json."""
        folder = Path(path)
        content = {"format": FORMAT, **document}
        with replacing_file(folder / "dataset.json") as temporary:
            temporary.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        return cls(folder, content)

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits."""
        return tuple(self.document["splits"])

    def promised(self, split: str) -> int:
        """Return the number of episodes that dataset.json states for a split, synthesised failures included."""
        try:
            return int(self.document["splits"][split]) + int(self.document.get("failures", {}).get(split, 0))
        except (TypeError, ValueError):
            raise DataError(f"{self.path}: split '{split}' has no episode count", expected="a whole number") from None

    def shards(self, split: str) -> list[Path]:
        """Return the existing shards of a split, in order."""
        if split not in self.splits:
            raise DataError(f"{self.path} has no split {split!r}", expected=f"one of {', '.join(self.splits)}")
        return sorted((self.path / split).glob(f"{split}-*.tar"))

    def indices(self, split: str) -> list[ShardIndex]:
        """Open the indices of a split's shards."""
        return [open_index(shard) for shard in self.shards(split)]

    def episodes(self, split: str) -> EpisodeList:
        """Return the existing episodes of a split, in order, each read when it is asked for."""
        return EpisodeList(self.indices(split))

    def count(self, split: str) -> int:
        """Count the existing episodes of a split."""
        return sum(len(index.episodes) for index in self.indices(split))


class EpisodeList:
    """Episodes of shards by number, for example as the dataset of a torch `DataLoader`.

    Attributes:
        keys: of the episodes.
    """

    def __init__(self, indices: Iterable[ShardIndex]) -> None:
        self._places = [(index, number) for index in indices for number in range(len(index.episodes))]
        self.keys = [index.episodes[number].key for index, number in self._places]

    def __len__(self) -> int:
        """Number of episodes."""
        return len(self._places)

    def __getitem__(self, number: int) -> Episode:
        """Read and verify an episode; DataError with its name if it is damaged."""
        return read_episode(*self._places[number])


@contextmanager
def lock_folder(path: str | Path) -> Iterator[None]:
    """Lock a dataset for one writing process; the lock is released when the process ends, even if killed."""
    folder = Path(path)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".lock").open("w")
    with lock as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise DataError(
                f"another process is writing to {folder}",
                expected="one writer at a time",
                hint="wait for it, or choose another --out",
                code=ErrorCode.FILE_NOT_WRITABLE,
            ) from None
        yield
