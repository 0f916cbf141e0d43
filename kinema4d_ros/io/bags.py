"""Trajectories from ROS 2 bags without ROS: MCAP (also unfinished) and SQLite, joint states and plans.

sensor_msgs/JointState             one series per joint, interpolated at all stamps
trajectory_msgs/JointTrajectory    one plan
moveit_msgs/DisplayTrajectory      MoveIt's plan; its definition must be in the bag (MCAP: always)
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from rosbags.interfaces import Connection, MessageDefinitionFormat
from rosbags.rosbag2 import Reader
from rosbags.rosbag2.storage_mcap import ChunkInfo, McapReader, decompress
from rosbags.typesys import Stores, get_types_from_msg, get_typestore
from rosbags.typesys.store import Typestore

from kinema4d_ros.core.errors import ErrorCode, FileFormatError, KinemaError, TrajectoryError
from kinema4d_ros.core.trajectory import AT_REST, JointTrajectory
from kinema4d_ros.io.files import require_plain
from kinema4d_ros.io.joint_match import (
    MAX_JOINTS,
    MAX_SAMPLES,
    JointOptions,
    Reading,
    malformed,
    match_joints,
    to_robot,
)
from kinema4d_ros.robot.model import Robot

__all__ = ["JointSeries", "UnfinishedMcap", "opened_bag", "read_bag"]

# Joint states to one table.

Array = NDArray[np.float64]


class JointSeries:
    """Collector of joint states whose messages may contain different joints, in any order of names and stamps.

    Several publishers (an arm and a gripper driver) may share one topic: each joint is interpolated between its own
    samples, over the time range that all of them cover.
    """

    def __init__(self) -> None:
        """Create an empty collector."""
        self._samples: dict[str, list[tuple[int, float]]] = {}
        self._without_positions = 0
        self._last_ns: dict[str, int] = {}
        self._late = 0

    def add(self, stamp_ns: int, names: list[str], positions: Array) -> None:
        """Add one message; a message without positions (velocities only) is counted and skipped."""
        if not positions.size:
            self._without_positions += 1
            return
        if positions.shape != (len(names),):
            raise FileFormatError(
                f"the message at {stamp_ns} ns has {positions.size} positions for {len(names)} joints",
                expected="a position for every name",
            )
        for name, value in zip(names, positions.tolist(), strict=True):
            if name not in self._samples and len(self._samples) >= MAX_JOINTS:
                raise FileFormatError(f"more than {MAX_JOINTS} joints", expected=f"at most {MAX_JOINTS}")
            self._samples.setdefault(name, []).append((stamp_ns, value))
        if names:
            self._late += stamp_ns < self._last_ns.get(names[0], stamp_ns)
            self._last_ns[names[0]] = max(stamp_ns, self._last_ns.get(names[0], stamp_ns))

    @property
    def names(self) -> list[str]:
        """Joints that had a position so far."""
        return list(self._samples)

    def join(self, path: Path, keep: Collection[str] | None, notes: list[str]) -> tuple[list[str], Array, Array]:
        """Return names, times (T,) in seconds from 0 and positions (T, N); repairs are added to `notes`.

        `keep` selects joints: those of another machine must not shorten the common time range.
        """
        samples = self._samples if keep is None else {n: s for n, s in self._samples.items() if n in keep}
        if not samples:
            raise TrajectoryError(
                f"{path}: the topic has no joint positions",
                expected="at least one message with names and positions",
                code=ErrorCode.TRAJECTORY_EMPTY,
            )
        repeated = 0
        series: dict[str, tuple[NDArray[np.int64], Array]] = {}
        for name, entries in samples.items():
            stamps, values = np.array([e[0] for e in entries]), np.array([e[1] for e in entries])
            order = np.argsort(stamps, kind="stable")
            stamps, values = stamps[order], values[order]
            # Of samples with equal stamps, keep the last one written.
            last = np.append(stamps[1:] != stamps[:-1], True)
            repeated += int(np.sum(~last))
            series[name] = stamps[last], values[last]
        begin, end = max(s[0] for s, _ in series.values()), min(s[-1] for s, _ in series.values())
        if begin > end:
            raise malformed(
                path,
                f"joints {', '.join(series)} never overlap in time",
                "joint states that overlap in time",
                "use a robot that has only some of these joints",
            )
        stamps = np.unique(np.concatenate([s for s, _ in series.values()]))
        stamps = stamps[(stamps >= begin) & (stamps <= end)]
        table = [np.interp((stamps - begin) * 1e-9, (s - begin) * 1e-9, v) for s, v in series.values()]
        self._report(repeated, notes)
        return list(series), (stamps - begin) * 1e-9, np.stack(table, axis=1)

    def _report(self, repeated: int, notes: list[str]) -> None:
        if self._without_positions:
            notes.append(f"skipped {self._without_positions} messages without positions")
        if self._late:
            notes.append(f"sorted {self._late} messages with earlier stamps than the one before")
        if repeated:
            notes.append(f"dropped {repeated} samples with a repeated stamp and kept the last of each")


# Unfinished bags: an MCAP file without its end is read up to its last complete chunk, with a note.
#
# A finished bag has an index at its end and a metadata.yaml beside it. A recorder that is killed, or whose disk is
# full, writes neither. With a metadata.yaml the recording was finished; a missing end is then damage and is not read.

MAGIC = b"\x89MCAP0\r\n"
_HEADER, _MESSAGE, _CHUNK, _DATA_END = 0x01, 0x05, 0x06, 0x0F
_RECORD = struct.Struct("<BQ")
_CHUNK_START = struct.Struct("<QQQII")
"""First and last stamp, uncompressed size, checksum, length of the compression name."""

MAX_CHUNK_BYTES = 2**30


@contextmanager
def opened_bag(path: Path) -> Iterator[tuple[Reader, str]]:
    """Open a bag; yield its reader and one sentence about what is missing, "" for a finished bag.

    Raises:
        FileFormatError: an unfinished recording without a complete message, or a path that is not a plain file.
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
                f"{storage.metadata.message_count} messages are complete, {lost:,} bytes after them are not read"
            ),
        )


def _unfinished_file(path: Path) -> Path | None:
    """Return the MCAP file of an unfinished recording, or None."""
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
        # A recorder killed in its first second may leave an empty file.
        return file if MAGIC.startswith(begin) and stream.read() != MAGIC else None


class UnfinishedMcap(McapReader):
    """MCAP reader that rebuilds the missing index of an unfinished file from its records."""

    def _open(self) -> None:
        stream = self.bio
        if stream is None:
            raise FileFormatError(f"{self.path} is not open")
        records = list(_whole_records(stream))
        if not records or records[0][0] != _HEADER:
            raise FileFormatError(f"{self.path} ends before its first record", expected="a recording with messages")
        # `meta_scan` below reads from here to `data_end`.
        self.data_start = records[0][1] + records[0][2]
        end = next((start - _RECORD.size for kind, start, _ in records if kind == _DATA_END), None)
        self.data_end = records[-1][1] + records[-1][2] if end is None else end
        # Chunks are read in the order of their stamps, which may differ from the file order after a clock jump.
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
    """Yield kind, start and content length of every complete record."""
    size = stream.seek(0, 2)
    at = len(MAGIC)
    while at + _RECORD.size <= size:
        stream.seek(at)
        kind, length = _RECORD.unpack(stream.read(_RECORD.size))
        start = at + _RECORD.size
        # A power failure leaves zeros; the first invalid record ends the file.
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


JOINT_STATE = "sensor_msgs/msg/JointState"
PLAN = "trajectory_msgs/msg/JointTrajectory"
DISPLAY = "moveit_msgs/msg/DisplayTrajectory"
TYPES = (JOINT_STATE, PLAN, DISPLAY)
"""Supported message types, in order of preference if no topic is named: recorded motion before plans."""

MAX_MESSAGE_BYTES = 64 * 2**20


def read_bag(
    path: Path,
    robot: Robot | None = None,
    joints: JointOptions | None = None,
    *,
    topic: str | None = None,
    message: int = -1,
) -> Reading:
    """Read the trajectory on one topic of a bag: a folder with metadata.yaml, a .mcap or a .db3 file.

    An unfinished MCAP recording is read as far as it is complete, with a note.

    Args:
        path: the bag.
        robot: robot whose joints to keep.
        joints: joint map and gripper scale.
        topic: its name; by default the joint states with the most messages, else a plan.
        message: index of the message on a plan topic, from 0 or negative from the end; by default the last one.
    """
    try:
        return _read(path, robot, joints or JointOptions(), topic, message)
    except KinemaError:
        raise
    except Exception as error:  # a damaged file can raise any exception in its parser
        raise malformed(
            path,
            f"the bag cannot be read: {type(error).__name__}: {error}",
            "a complete ROS 2 bag",
            "it may be truncated: try 'ros2 bag reindex', or 'mcap recover' for an MCAP file",
        ) from error


def _read(path: Path, robot: Robot | None, joints: JointOptions, topic: str | None, message: int) -> Reading:
    notes: list[str] = []
    matched: dict[str, str] | None = None
    with opened_bag(path) as (reader, notice):
        if notice:
            notes.append(notice)
        connection = _choose(path, reader, topic, notes)
        messages = _messages(reader, connection)
        if connection.msgtype == JOINT_STATE:
            series = JointSeries()
            for stamp_ns, state in messages:
                series.add(stamp_ns, list(state.name), np.asarray(state.position, dtype=np.float64))
            joints.check(path, robot, series.names)
            if robot is not None and series.names:
                matched = match_joints(path, robot, series.names, joints, notes)
            names, times, positions = series.join(path, matched, notes)
            derivatives: Derivatives = {}
        else:
            plan = _pick(path, connection, messages, message, notes)
            names, times, positions, derivatives = _display(plan) if connection.msgtype == DISPLAY else _plan(plan)
            joints.check(path, robot, names)
    kept, columns = to_robot(path, robot, names, positions, joints, notes, matched)
    if derivatives:
        sources = _sources(positions, columns)
        if sources is None:
            notes.append("the plan's velocities were dropped: a column was converted to another unit")
            derivatives = {}
        derivatives = {what: table[:, sources] for what, table in derivatives.items()}
    return Reading(JointTrajectory(kept, times, columns, **derivatives), tuple(notes))


def _sources(positions: Array, columns: Array) -> list[int] | None:
    """Return the column of (T, N) positions that each of (T, K) columns is, in the same order; None if one is none."""
    found: list[int] = []
    for column in columns.T:
        after = found[-1] + 1 if found else 0
        equal = (i for i in range(after, positions.shape[1]) if np.array_equal(positions[:, i], column))
        if (source := next(equal, None)) is None:
            return None
        found.append(source)
    return found


def _choose(path: Path, reader: Reader, topic: str | None, notes: list[str]) -> Connection:
    usable = [c for c in reader.connections if c.msgtype in TYPES]
    found = [c for c in usable if topic is None or c.topic == topic]
    if not found:
        there = ", ".join(f"{c.topic} ({c.msgtype})" for c in reader.connections) or "none"
        raise FileFormatError(
            f"{path}: " + (f"topic {topic} has no joints" if topic else "no topic has joints"),
            expected=f"a topic of type {', '.join(TYPES)}; the bag's topics are: {there}",
            code=ErrorCode.FILE_UNSUPPORTED,
        )
    best = min(found, key=lambda c: (c.msgcount == 0, TYPES.index(c.msgtype), -c.msgcount, c.topic))
    if topic is None:
        notes.append(f"took topic {best.topic} ({best.msgtype}, {best.msgcount} messages)")
    return best


@lru_cache(maxsize=1)
def _standard_types() -> Typestore:
    return get_typestore(Stores.ROS2_JAZZY)


def _messages(reader: Reader, connection: Connection) -> Iterator[tuple[int, Any]]:
    store = _standard_types()
    if connection.msgtype not in store.fielddefs:
        if connection.msgdef.format != MessageDefinitionFormat.MSG:
            raise FileFormatError(
                f"the bag has no definition of {connection.msgtype}",
                expected="message definitions in the bag",
                hint="record with the MCAP storage, which keeps them",
                code=ErrorCode.FILE_UNSUPPORTED,
            )
        store = get_typestore(Stores.ROS2_JAZZY)  # keep the types of this bag separate
        definitions = get_types_from_msg(connection.msgdef.data, connection.msgtype)
        store.register({name: d for name, d in definitions.items() if name not in store.fielddefs})
    for count, (_, received_ns, data) in enumerate(reader.messages(connections=[connection])):
        if count >= MAX_SAMPLES or len(data) > MAX_MESSAGE_BYTES:
            raise FileFormatError(
                f"topic {connection.topic} has message {count} of {len(data):,} bytes",
                expected=f"at most {MAX_SAMPLES:,} messages of at most {MAX_MESSAGE_BYTES:,} bytes",
            )
        decoded: Any = store.deserialize_cdr(data, connection.msgtype)
        stamp = getattr(getattr(decoded, "header", None), "stamp", None)
        stamp_ns = 0 if stamp is None else stamp.sec * 1_000_000_000 + stamp.nanosec
        yield stamp_ns or received_ns, decoded


def _pick(path: Path, connection: Connection, messages: Iterator[tuple[int, Any]], index: int, notes: list[str]) -> Any:
    plans = [plan for _, plan in messages]
    if not -len(plans) <= index < len(plans):
        raise malformed(path, f"topic {connection.topic} has no message {index}", f"one of its {len(plans)} messages")
    if len(plans) > 1:
        notes.append(f"took message {index % len(plans)} of {len(plans)} on {connection.topic}")
    return plans[index]


Derivatives = dict[str, Array]
Table = tuple[list[str], Array, Array, Derivatives]
"""Names, times (T,), positions (T, N), and velocities and accelerations (T, N) where every point has them."""


def _plan(plan: Any) -> Table:
    names = list(plan.joint_names)
    rows = [np.asarray(point.positions, dtype=np.float64) for point in plan.points]
    bad = next((i for i, row in enumerate(rows) if row.shape != (len(names),)), None)
    if bad is not None or len(names) > MAX_JOINTS:
        raise FileFormatError(
            f"point {bad} of the plan has {rows[bad or 0].size} positions for {len(names)} joints",
            expected=f"a position for every joint, and at most {MAX_JOINTS} joints",
        )
    times = [p.time_from_start.sec + 1e-9 * p.time_from_start.nanosec for p in plan.points]
    derivatives: Derivatives = {}
    for what in ("velocities", "accelerations"):
        tables = [np.asarray(getattr(point, what), dtype=np.float64) for point in plan.points]
        if not tables or any(table.shape != (len(names),) for table in tables):
            break  # accelerations are of no use without velocities
        derivatives[what] = np.array(tables)
    return names, np.array(times), np.array(rows).reshape(-1, len(names)), derivatives


def _display(display: Any) -> Table:
    """Return MoveIt's plan: its parts concatenated, and joints at rest (the gripper) at their start positions.

    Several parts keep their velocities only if each begins and ends at rest, and no accelerations: where two meet there
    are two.
    """
    parts = [_plan(part.joint_trajectory) for part in display.trajectory]
    parts = [part for part in parts if len(part[1])]
    if not parts:
        raise FileFormatError("the displayed plan is empty", expected="at least one point")
    names, times, positions, derivatives = parts[0]
    ends = [part[3].get("velocities", np.full((1, 1), np.inf))[[0, -1]] for part in parts]
    if len(parts) > 1:
        at_rest = all(np.all(np.abs(velocities) <= AT_REST) for velocities in ends)
        derivatives = {"velocities": derivatives["velocities"]} if at_rest else {}
    for part_names, part_times, part_positions, part_derivatives in parts[1:]:
        if sorted(part_names) != sorted(names):
            raise FileFormatError(
                f"the plan moves {', '.join(names)}, then {', '.join(part_names)}",
                expected="the same joints throughout",
            )
        order = [part_names.index(name) for name in names]
        ordered = part_positions[:, order]
        # The first point of a part repeats the last point of the previous part.
        later = part_times > part_times[0] if part_times[0] <= 0 else np.ones(len(part_times), dtype=bool)
        times = np.concatenate([times, times[-1] + part_times[later]])
        positions = np.concatenate([positions, ordered[later]])
        for what, table in derivatives.items():
            derivatives[what] = np.concatenate([table, part_derivatives[what][:, order][later]])
    start = display.trajectory_start.joint_state
    resting = {n: float(p) for n, p in zip(start.name, start.position, strict=False) if n not in names}
    rest = np.tile(np.array(list(resting.values())), (len(times), 1))
    still = np.zeros_like(rest)
    derivatives = {what: np.hstack([table, still]) for what, table in derivatives.items()}
    return [*names, *resting], times, np.hstack([positions, rest]), derivatives
