"""Bags whose recorder was killed: an MCAP file without its end is read up to its last whole chunk, with a notice.

A finished bag has an index at its end and a metadata.yaml beside it. A recorder that is killed, or whose disk is full,
writes neither. Where a metadata.yaml says that the recording was finished, a missing end is damage and not read.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

from rosbags.rosbag2 import Reader
from rosbags.rosbag2.storage_mcap import ChunkInfo, McapReader, decompress

from kinema4d_ros.errors import FileFormatError
from kinema4d_ros.files import require_plain

__all__ = ["UnfinishedMcap", "opened_bag"]

MAGIC = b"\x89MCAP0\r\n"
_HEADER, _MESSAGE, _CHUNK, _DATA_END = 0x01, 0x05, 0x06, 0x0F
_RECORD = struct.Struct("<BQ")
_CHUNK_START = struct.Struct("<QQQII")
"""First and last stamp, size when unpacked, checksum, length of the compression's name."""

MAX_CHUNK_BYTES = 2**30


@contextmanager
def opened_bag(path: Path) -> Iterator[tuple[Reader, str]]:
    """A bag's reader, and in one sentence what is missing of it: empty for a finished one.

    Raises:
        FileFormatError: an unfinished recording in which nothing whole is left, or something that is no file.
    """
    require_plain(path)
    file = _unfinished_file(path)
    if file is None:
        with Reader(path) as reader:
            yield reader, ""
        return
    reader = Reader(file)
    storage = UnfinishedMcap(file)
    reader.storage = storage
    with reader:
        lost = file.stat().st_size - storage.data_end
        yield (
            reader,
            (
                f"{file.name} was never finished: its recorder was killed or its disk was full; "
                f"{storage.metadata.message_count} messages are whole, {lost:,} bytes after them are not read"
            ),
        )


def _unfinished_file(path: Path) -> Path | None:
    """The MCAP file of a recording that nobody finished, or None."""
    file = path
    if path.is_dir():
        found = sorted(path.glob("*.mcap"))
        if len(found) != 1:
            return None
        file = found[0]
    if file.suffix != ".mcap" or not file.is_file() or (file.parent / "metadata.yaml").exists():
        return None
    with file.open("rb") as stream:
        begin = stream.read(len(MAGIC))
        size = stream.seek(0, 2)
        stream.seek(max(0, size - len(MAGIC)))
        # A recorder that was killed in its first second may have left an empty file.
        return file if MAGIC.startswith(begin) and stream.read() != MAGIC else None


class UnfinishedMcap(McapReader):
    """Finds in the records themselves what a finished file's index would say."""

    def _open(self) -> None:
        stream = self.bio
        if stream is None:
            raise FileFormatError(f"{self.path} is not open")
        records = list(_whole_records(stream))
        if not records or records[0][0] != _HEADER:
            raise FileFormatError(f"{self.path} ends before its first record", expected="a recording with messages")
        # `meta_scan` below begins here and ends at `data_end`.
        self.data_start = records[0][1] + records[0][2]
        end = next((start - _RECORD.size for kind, start, _ in records if kind == _DATA_END), None)
        self.data_end = records[-1][1] + records[-1][2] if end is None else end
        # Messages are read chunk by chunk in the order of their stamps, which a clock that jumped may have shuffled.
        for kind, start, length in records:
            if kind == _CHUNK and self.data_start < start < self.data_end:
                self.chunks.append(_chunk(stream, start, length))
        self.meta_scan()
        statistics = self.statistics
        if statistics is None or not statistics.message_count:
            raise FileFormatError(f"{self.path} ends before its first message", expected="a recording with messages")
        counts = statistics.channel_message_counts
        self.connections = [one._replace(msgcount=counts.get(one.id, 0)) for one in self.connections]
        self.metadata = self.metadata._replace(
            duration=statistics.end_time - statistics.start_time + 1,
            start_time=statistics.start_time,
            end_time=statistics.end_time + 1,
            message_count=statistics.message_count,
        )


def _whole_records(stream: BinaryIO) -> Iterator[tuple[int, int, int]]:
    """Kind, start and length of the content of every record that is there to its last byte."""
    size = stream.seek(0, 2)
    at = len(MAGIC)
    while at + _RECORD.size <= size:
        stream.seek(at)
        kind, length = _RECORD.unpack(stream.read(_RECORD.size))
        start = at + _RECORD.size
        # A disk that lost power leaves zeros; what is no record ends the file.
        if not _HEADER <= kind <= _DATA_END or start + length > size:
            return
        yield kind, start, length
        at = start + length


def _chunk(stream: BinaryIO, start: int, length: int) -> ChunkInfo:
    stream.seek(start)
    content = stream.read(length)
    first, last, unpacked, checksum, letters = _CHUNK_START.unpack_from(content)
    name = content[_CHUNK_START.size : _CHUNK_START.size + letters].decode("ascii")
    data = content[_CHUNK_START.size + letters + 8 :]
    if unpacked > MAX_CHUNK_BYTES:
        raise FileFormatError(f"a chunk of {unpacked:,} bytes", expected=f"at most {MAX_CHUNK_BYTES:,}")
    counts: dict[int, int] = {}
    records = BytesIO(decompress(data, name, unpacked, checksum))
    while len(head := records.read(_RECORD.size)) == _RECORD.size:
        kind, size = _RECORD.unpack(head)
        body = records.read(size)
        if kind == _MESSAGE and len(body) >= 2:
            channel = int.from_bytes(body[:2], "little")
            counts[channel] = counts.get(channel, 0) + 1
    return ChunkInfo(first, last, start - _RECORD.size, _RECORD.size + length, {}, 0, name, len(data), unpacked, counts)
