"""Unfinished MCAP recordings, cut at every byte: complete messages are read, with a note."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pytest
from rosbags.rosbag2 import ReaderError, StoragePlugin, Writer
from rosbags.rosbag2.storage_mcap import McapWriter
from rosbags.typesys import Stores, get_typestore

from kinema4d_ros.core.errors import FileFormatError, KinemaError
from kinema4d_ros.io.bags import opened_bag
from kinema4d_ros.io.trajectories import read_with_notes

STORE = get_typestore(Stores.ROS2_JAZZY)
KIND = "sensor_msgs/msg/JointState"


def state(time_s: int, value: float) -> bytes:
    stamp = STORE.types["builtin_interfaces/msg/Time"](sec=time_s, nanosec=0)
    header = STORE.types["std_msgs/msg/Header"](stamp=stamp, frame_id="")
    none = np.empty(0)
    message = STORE.types[KIND](header=header, name=["a"], position=np.array([value]), velocity=none, effort=none)
    return bytes(STORE.serialize_cdr(message, KIND))


def record(folder: Path, chunks: int, finish: bool = False) -> list[int]:
    """Write two messages per chunk; return the size of the file after each chunk."""
    writer = Writer(folder, version=9, storage_plugin=StoragePlugin.MCAP)
    writer.open()
    connection = writer.add_connection("/joint_states", KIND, typestore=STORE)
    ends = []
    for number in range(2 * chunks):
        # The clock jumps back once: recorder stamps are not always in order.
        received_ns = (1000 + number - (5 if number >= 4 else 0)) * 1_000_000_000
        writer.write(connection, received_ns, state(100 + number, 0.1 * number))
        if number % 2:
            assert isinstance(writer.storage, McapWriter)
            writer.storage.close_chunk()
            writer.storage.bio.flush()
            ends.append(writer.storage.bio.tell())
    writer.close() if finish else writer.abort()
    return ends


def count(path: Path) -> int:
    with opened_bag(path) as (reader, _):
        return sum(1 for _ in reader.messages())


def test_complete_messages_are_read_with_a_note(tmp_path: Path) -> None:
    record(tmp_path / "bag", 3)
    for path in (tmp_path / "bag", tmp_path / "bag" / "bag.mcap"):
        reading = read_with_notes(path)
        np.testing.assert_allclose(reading.trajectory.positions[:, 0], 0.1 * np.arange(6))
        (notice,) = [note for note in reading.notes if "never finished" in note]
        assert "6 messages are complete" in notice


def test_cut_anywhere(tmp_path: Path) -> None:
    ends = record(tmp_path / "bag", 3)
    file = tmp_path / "bag" / "bag.mcap"
    whole = file.read_bytes()
    assert ends[-1] == len(whole)
    counts = set()
    for size in range(0, len(whole) + 1, 7):
        file.write_bytes(whole[:size] + bytes(50))
        found = 0
        # Fewer than eight bytes are not an MCAP file; the reader of finished files rejects them.
        with contextlib.suppress(KinemaError) if size >= 8 else contextlib.suppress(ReaderError):
            found = count(file)
        # A complete chunk counts, with or without its index.
        assert found >= 2 * sum(end <= size for end in ends)
        assert found <= 2 * sum(end <= size for end in ends) + 2
        counts.add(found)
    assert counts == {0, 2, 4, 6}


def test_messages_come_in_the_order_of_their_stamps(tmp_path: Path) -> None:
    record(tmp_path / "bag", 3)
    with opened_bag(tmp_path / "bag") as (reader, _):
        stamps = [stamp_ns for _, stamp_ns, _ in reader.messages()]
        assert [c.msgcount for c in reader.connections] == [6]
        assert reader.message_count == 6
    assert stamps == sorted(stamps)


def test_a_finished_bag_has_no_notice_and_its_lost_end_is_damage(tmp_path: Path) -> None:
    record(tmp_path / "bag", 3, finish=True)
    with opened_bag(tmp_path / "bag") as (reader, notice):
        assert notice == ""
        assert reader.message_count == 6
    file = tmp_path / "bag" / "bag.mcap"
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(FileFormatError, match="cannot be read"):
        read_with_notes(tmp_path / "bag")


def test_no_complete_message_is_an_error(tmp_path: Path) -> None:
    record(tmp_path / "bag", 0)
    with pytest.raises(FileFormatError, match="ends before its first message"):
        read_with_notes(tmp_path / "bag")
    for content in (b"\x89MCAP0\r\n" + bytes(100), b"\x89MC", b""):
        (tmp_path / "bag" / "bag.mcap").write_bytes(content)
        with pytest.raises(FileFormatError, match="ends before its first record"):
            read_with_notes(tmp_path / "bag")
