"""Topics of a bag and their messages in the order of recording, with the stamp of each."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

from rosbags.rosbag2 import Reader
from rosbags.typesys import Stores, get_typestore
from rosbags.typesys.store import Typestore

from kinema4d_model.data.errors import DataError
from kinema4d_ros.core.errors import ErrorCode

__all__ = ["Stamped", "bag_messages", "find_topic", "topic_types"]


class Stamped(NamedTuple):
    """A message.

    Attributes:
        stamp_ns: of its header; 0 if it was not stamped.
        received_ns: when it was recorded.
        message: its content.
    """

    stamp_ns: int
    received_ns: int
    message: Any

    @property
    def time_ns(self) -> int:
        """Its stamp, or when it was received."""
        return self.stamp_ns or self.received_ns


@lru_cache(maxsize=1)
def _store() -> Typestore:
    return get_typestore(Stores.ROS2_JAZZY)


def topic_types(reader: Reader) -> dict[str, str]:
    """Type by topic."""
    return {c.topic: c.msgtype for c in reader.connections}


def find_topic(reader: Reader, types: tuple[str, ...], within: str = "", without: tuple[str, ...] = ()) -> str:
    """Of the topics of these types, with a word in their names and without others, the fullest one; or ""."""
    counts = {c.topic: c.msgcount for c in reader.connections}
    fits = [
        topic
        for topic, kind in topic_types(reader).items()
        if counts[topic] and kind in types and within in topic and not any(word in topic for word in without)
    ]
    return max(fits, key=lambda topic: counts[topic], default="")


def bag_messages(reader: Reader, topic: str) -> Iterator[Stamped]:
    """The messages of a topic, one after the other."""
    connections = [c for c in reader.connections if c.topic == topic]
    if not connections:
        there = ", ".join(c.topic for c in reader.connections)
        raise DataError(f"the bag has no topic {topic}", expected=f"one of {there}", code=ErrorCode.FILE_UNSUPPORTED)
    for connection, received_ns, data in reader.messages(connections=connections):
        message: Any = _store().deserialize_cdr(data, connection.msgtype)
        stamp = message.header.stamp
        yield Stamped(stamp.sec * 1_000_000_000 + stamp.nanosec, received_ns, message)
