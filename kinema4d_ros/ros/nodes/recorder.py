"""Recorder node for machines without rosbag2: writes serialised messages and their definitions to an MCAP bag.

Messages are handed to the kernel every second (no fsync): a killed recorder loses no more than that, and
`kinema4d_ros.io.bags` reads the unfinished file. A restarted recorder starts a new bag.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ament_index_python.packages import get_package_share_directory
from rclpy.callback_groups import MutuallyExclusiveCallbackGroup
from rosbags.rosbag2 import StoragePlugin, Writer
from rosbags.rosbag2.storage_mcap import McapWriter
from rosbags.typesys import Stores, get_types_from_msg, get_typestore

from kinema4d_ros.core.errors import ErrorCode, FileFormatError
from kinema4d_ros.ros.names import ENDPOINTS, RECORDED, Endpoint
from kinema4d_ros.ros.nodes.common import ERROR, Health, KinemaNode, run_node
from kinema4d_ros.ros.params import declare, parameter
from kinema4d_ros.ros.qos import profile

__all__ = ["FLUSH_S", "Recorder", "main"]

FLUSH_S = 1.0
"""Flush period; the writer alone would keep up to a megabyte in memory for any time."""

_BAGS_A_SECOND = 100


@dataclass(frozen=True)
class Settings:
    """Parameters of the recorder."""

    folder: str = parameter("runs", "Folder of the bags; each bag is a subfolder.", read_only=True)


class Recorder(KinemaNode):
    """Writer of all topics in `RECORDED` to one bag."""

    def __init__(self) -> None:
        super().__init__("recorder")
        settings = declare(self, Settings)
        self._lock = threading.Lock()
        self._store = get_typestore(Stores.ROS2_JAZZY)
        self._written = self._bytes = 0
        self._error = ""
        self._writer = _new_bag(Path(settings.folder))
        self.path = self._writer.path
        self._whole_bytes = 0
        """Size of the file up to its last complete chunk."""
        for endpoint in ENDPOINTS:
            if endpoint.name in RECORDED:
                self._record(endpoint)
        self._flusher = threading.Thread(target=self._flush_forever, name="flush", daemon=True)
        self._flusher.start()
        self.get_logger().info(f"recording to {self.path}")

    def _record(self, endpoint: Endpoint) -> None:
        try:
            interface = endpoint.interface()
        except ImportError:
            return  # the topic's type is not installed here
        self._learn(endpoint.type)
        topic = self.resolve_topic_name(endpoint.name)
        connection = self._writer.add_connection(topic, endpoint.type, typestore=self._store)

        def write(data: bytes) -> None:
            with self._lock:
                if self._error or self.closing.is_set():
                    return
                try:
                    self._writer.write(connection, self.get_clock().now().nanoseconds, data)
                except OSError as error:
                    self._stop(error)
                    return
                self._written += 1
                self._bytes += len(data)

        self.create_subscription(
            interface, topic, write, profile(endpoint), raw=True, callback_group=MutuallyExclusiveCallbackGroup()
        )

    def _flush_forever(self) -> None:
        # Not a ROS timer: simulated time may be paused.
        while not self.closing.wait(FLUSH_S):
            with self._lock:
                if not self._error:
                    self._flush()

    def _flush(self) -> None:
        """Write all messages so far to the file as complete chunks."""
        storage = self._writer.storage
        if not isinstance(storage, McapWriter):
            return
        try:
            if storage.chunk.msgs:
                storage.close_chunk()
            storage.bio.flush()
            self._whole_bytes = storage.bio.tell()
        except OSError as error:
            self._stop(error)

    def _stop(self, error: OSError) -> None:
        """Stop recording after a write error, and truncate the file to its last complete chunk."""
        self._error = f"recording stopped: {error}"
        self.get_logger().error(self._error)
        with suppress(OSError):
            self._writer.abort()
        with suppress(OSError), (self.path / f"{self.path.name}.mcap").open("r+b") as file:
            file.truncate(self._whole_bytes)

    def _learn(self, name: str) -> None:
        """Register a message type and the types of its fields with the writer, from the installed definitions."""
        if name in self._store.fielddefs:
            return
        package, _, kind = name.split("/")
        text = (Path(get_package_share_directory(package)) / "msg" / f"{kind}.msg").read_text()
        found = get_types_from_msg(text, name)
        for needed in sorted(_parts(found)):
            if needed not in found:
                self._learn(needed)
        self._store.register({k: v for k, v in found.items() if k not in self._store.fielddefs})

    def health(self) -> Health:
        """Report how much was written."""
        values = {"bag": self.path, "messages": self._written, "megabytes": f"{self._bytes / 1e6:.1f}"}
        return Health(ERROR, self._error, values) if self._error else Health(message="recording", values=values)

    def close(self) -> None:
        """Finish the bag; without its index only repair tools could read it."""
        super().close()
        self._flusher.join(timeout=FLUSH_S + 1.0)
        with self._lock:
            if not self._error:
                self._flush()
            if not self._error:
                try:
                    self._writer.close()
                except OSError as error:
                    self._stop(error)


def _new_bag(folder: Path) -> Writer:
    """Open a bag named by the current time; further bags of the same second get a number."""
    stem = time.strftime("session_%Y%m%d_%H%M%S")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in (stem, *(f"{stem}_{number}" for number in range(2, _BAGS_A_SECOND))):
            path = folder / name
            if not path.exists():
                writer = Writer(path, version=9, storage_plugin=StoragePlugin.MCAP)
                writer.open()
                return writer
        raise OSError(f"{_BAGS_A_SECOND} bags of this second already exist")
    except Exception as error:
        raise FileFormatError(
            f"cannot write a bag to {folder / stem}: {error}",
            expected="a folder that this user can write to",
            code=ErrorCode.FILE_NOT_WRITABLE,
        ) from error


def _parts(definitions: Any) -> set[str]:
    """Return the names of the message types of all fields."""
    out: set[str] = set()

    def visit(kind: Any) -> None:
        if isinstance(kind, str):
            if "/" in kind:
                out.add(kind)
        elif isinstance(kind, tuple):
            for part in kind:
                visit(part)

    for _constants, fields in definitions.values():
        for _name, kind in fields:
            visit(kind)
    return out


def main() -> int:
    """Run the node."""
    return run_node(Recorder)


if __name__ == "__main__":
    raise SystemExit(main())
