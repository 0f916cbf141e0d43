"""Shards: episodes in plain tar files (WebDataset layout) with an index for random access.

    train-000000.tar         key.json, key.rgb.mkv, key.depth.mkv, ... episode by episode
    train-000000.index.json  offset, size and SHA-256 of every file of every episode

A shard is written under a temporary name and renamed when complete, so it is complete or absent. The index can be
rebuilt from the tar. No pickle is used.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from kinema4d_model.data.episode import Episode
from kinema4d_model.data.episode_files import decode_episode, parse_document
from kinema4d_ros.core.errors import DataError, ErrorCode
from kinema4d_ros.io.files import read_bytes, replacing_file

__all__ = [
    "Member",
    "ShardEntry",
    "ShardIndex",
    "ShardWriter",
    "index_path",
    "open_index",
    "read_document",
    "read_episode",
    "scan_shard",
    "write_shard",
]

INDEX_FORMAT = "kinema4d-shard-index-1"
_MAX_MEMBER_BYTES = 4 * 2**30
_MAX_INDEX_BYTES = 512 * 2**20


@dataclass(frozen=True)
class Member:
    """One file in a shard: offset, size in bytes, SHA-256."""

    offset: int
    size: int
    sha256: str


@dataclass(frozen=True)
class ShardEntry:
    """One episode in a shard; `files` by extension."""

    key: str
    files: dict[str, Member]


@dataclass(frozen=True)
class ShardIndex:
    """A shard and its episodes, in file order."""

    path: Path
    size: int
    episodes: tuple[ShardEntry, ...]


def index_path(shard: Path) -> Path:
    """Return the path of a shard's index."""
    return shard.with_suffix(".index.json")


def write_shard(path: str | Path, episodes: Iterable[tuple[str, dict[str, bytes]]]) -> ShardIndex:
    """Write (key, files by extension) as a shard with its index, atomically.

    Equal episodes give equal bytes: the tar contains no times and no users.
    """
    with ShardWriter(path) as writer:
        for key, files in episodes:
            writer.add(key, files)
    return writer.index


class ShardWriter:
    """Writer that adds one episode at a time; the shard exists only if the `with` block ends without an error.

    Attributes:
        path: path of the finished shard.
        entries: episodes added so far.
        index: of the finished shard.
    """

    index: ShardIndex

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.entries: list[ShardEntry] = []

    def __enter__(self) -> ShardWriter:
        with ExitStack() as stack:
            self._temporary = stack.enter_context(replacing_file(self.path))
            self._outer = stack.pop_all()
        try:
            with ExitStack() as stack:
                file = stack.enter_context(self._temporary.open("wb"))
                self._tar = stack.enter_context(tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT))
                self._inner = stack.pop_all()
        except BaseException as error:
            self._outer.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def add(self, key: str, files: dict[str, bytes]) -> None:
        """Append an episode's files by extension."""
        members = {}
        for extension, data in files.items():
            header = tarfile.TarInfo(f"{key}.{extension}")
            header.size, header.mode = len(data), 0o644
            self._tar.addfile(header, io.BytesIO(data))
            # tar pads members to whole blocks: subtract the padding to find the data.
            offset = self._tar.offset - (-(-len(data) // 512)) * 512
            members[extension] = Member(offset, len(data), hashlib.sha256(data).hexdigest())
        self.entries.append(ShardEntry(key, members))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        size = 0
        try:
            self._inner.__exit__(kind, error, trace)
            if kind is None:
                with self._temporary.open("rb") as written:
                    os.fsync(written.fileno())
                size = self._temporary.stat().st_size
                _require_unique(self.path, self.entries)
        except BaseException as worse:
            self._outer.__exit__(type(worse), worse, worse.__traceback__)
            raise
        self._outer.__exit__(kind, error, trace)
        if kind is None:
            self.index = ShardIndex(self.path, size, tuple(self.entries))
            _write_index(self.index)


def _require_unique(path: Path, entries: list[ShardEntry]) -> None:
    keys = [entry.key for entry in entries]
    twice = sorted({key for key in keys if keys.count(key) > 1}) if len(set(keys)) < len(keys) else []
    if twice:
        raise DataError(f"{path}: keys appear twice: {', '.join(twice[:3])}", expected="every key once")


def _write_index(index: ShardIndex) -> None:
    document = {
        "format": INDEX_FORMAT,
        "shard": index.path.name,
        "bytes": index.size,
        "episodes": [
            {"key": e.key, "files": {name: [m.offset, m.size, m.sha256] for name, m in e.files.items()}}
            for e in index.episodes
        ],
    }
    with replacing_file(index_path(index.path)) as temporary:
        temporary.write_text(json.dumps(document, separators=(",", ":")) + "\n", encoding="utf-8")


def open_index(shard: str | Path, *, rebuild: bool = True) -> ShardIndex:
    """Read the index of a shard; with `rebuild`, a missing or mismatching index is rebuilt from the tar."""
    path = Path(shard)
    if not path.is_file():
        raise DataError(f"{path} does not exist", expected="a shard", code=ErrorCode.FILE_MISSING)
    try:
        return _read_index(path)
    except DataError:
        if not rebuild:
            raise
    index = scan_shard(path)
    with suppress(DataError, OSError):
        _write_index(index)
    return index


def _read_index(path: Path) -> ShardIndex:
    where = index_path(path)
    data = read_bytes(where, _MAX_INDEX_BYTES) if where.is_file() else b""
    if not data:
        raise DataError(f"{where} does not exist", expected="the index of the shard", code=ErrorCode.FILE_MISSING)
    size = path.stat().st_size
    try:
        document = json.loads(data.decode("utf-8"))
        entries = tuple(
            ShardEntry(str(e["key"]), {str(n): Member(int(o), int(s), str(h)) for n, (o, s, h) in e["files"].items()})
            for e in document["episodes"]
        )
        fits = document["format"] == INDEX_FORMAT and document["bytes"] == size
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise DataError(f"{where} is not an index: {error}"[:300], expected=INDEX_FORMAT) from None
    inside = all(m.offset >= 0 and 0 <= m.size <= size - m.offset for e in entries for m in e.files.values())
    if not fits or not inside:
        raise DataError(f"{where} does not match {path.name} ({size} bytes)", expected="the index of this tar")
    return ShardIndex(path, size, entries)


def scan_shard(path: Path) -> ShardIndex:
    """Build the index of a tar by reading it completely."""
    entries: list[ShardEntry] = []
    for name, data, offset in _members(path):
        key, extension = _split(path, name)
        if not entries or entries[-1].key != key:
            entries.append(ShardEntry(key, {}))
        entries[-1].files[extension] = Member(offset, len(data), hashlib.sha256(data).hexdigest())
    _require_unique(path, entries)
    return ShardIndex(path, path.stat().st_size, tuple(entries))


def _split(path: Path, name: str) -> tuple[str, str]:
    base = name.removeprefix("./")
    key, dot, extension = base.partition(".")
    if not key or not dot or "/" in base:
        raise DataError(f"{path}: invalid file name {name!r}"[:300], expected="key.extension")
    return key, extension


def _members(path: Path) -> Iterator[tuple[str, bytes, int]]:
    """Yield (name, bytes, offset) of the files in a tar."""
    try:
        with tarfile.open(path, "r:") as tar:
            for header in tar:
                if not header.isreg() or header.size > _MAX_MEMBER_BYTES:
                    raise DataError(f"{path}: {header.name!r} is not a plain file", expected="key.extension files")
                file: Any = tar.extractfile(header)
                data = file.read()
                if len(data) != header.size:
                    raise DataError(f"{path} ends within {header.name}", expected="a complete tar")
                yield header.name, data, header.offset_data
            # tarfile accepts a truncated file that ends between two members.
            end = tar.offset
        size = path.stat().st_size
        if size % 512 or size < end:
            raise DataError(f"{path} has {size} bytes", expected="whole blocks of 512 with an end mark")
        with path.open("rb") as raw:
            raw.seek(max(0, size - 1024))
            if raw.read() != bytes(1024):
                raise DataError(f"{path} has no end mark: it was cut off", expected="a complete tar")
    except (tarfile.TarError, OSError, EOFError) as error:
        raise DataError(f"{path} cannot be read: {error}"[:300], expected="a complete tar") from None


def read_episode(index: ShardIndex, number: int, streams: Collection[str] | None = None) -> Episode:
    """Read episode `number` of a shard and verify the SHA-256 of every file."""
    entry = index.episodes[number]
    where = f"{index.path.name}:{entry.key}"
    wanted = None if streams is None else {"json", "rgb.mkv", *(f"{name}.mkv" for name in streams)}
    files = {}
    with index.path.open("rb") as file:
        for name, member in entry.files.items():
            if wanted is not None and name not in wanted:
                continue
            file.seek(member.offset)
            data = file.read(member.size)
            if hashlib.sha256(data).hexdigest() != member.sha256:
                raise DataError(
                    f"{where}: {name} is not what was written",
                    expected="the SHA-256 in the index",
                    hint="the shard was damaged or replaced: run `kinema4d data check`",
                )
            files[name] = data
    return decode_episode(files, where, streams)


def read_document(index: ShardIndex, number: int) -> dict[str, Any]:
    """Read only the JSON of episode `number`, not its videos."""
    entry = index.episodes[number]
    where = f"{index.path.name}:{entry.key}"
    member = entry.files.get("json")
    if member is None:
        raise DataError(f"{where}: there is no JSON", expected="key.json", code=ErrorCode.FILE_MISSING)
    with index.path.open("rb") as file:
        file.seek(member.offset)
        return parse_document(file.read(member.size), where)
