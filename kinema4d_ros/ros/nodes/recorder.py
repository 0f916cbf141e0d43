"""Records a session as an MCAP bag, for machines without rosbag2: messages as they came, definitions included.

What came is on its way to the disk within a second: a recorder that is killed loses no more than that, and
`readers.unfinished` reads what it left. A recorder that starts again begins another bag.
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
"""Messages wait at most this long in memory; the writer by itself would keep a megabyte, however long that takes."""

_BAGS_A_SECOND = 100


@dataclass(frozen=True)
class Settings:
    """Parameters of the recorder."""

    folder: str = parameter("runs", "Where bags are written, one folder each.", read_only=True)


class Recorder(KinemaNode):
    """Writes every recorded topic of the table into one bag."""

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
        """Of the file: up to here it consists of whole chunks."""
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
            return  # a topic whose type is not installed here cannot be heard here
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
        # Not a timer: a simulation's clock may stand still.
        while not self.closing.wait(FLUSH_S):
            with self._lock:
                if not self._error:
                    self._flush()

    def _flush(self) -> None:
        """Hand everything that came so far to the kernel, as whole chunks."""
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
        """The disk takes no more: say so, and leave a file that ends with its last whole chunk."""
        self._error = f"recording stopped: {error}"
        self.get_logger().error(self._error)
        with suppress(OSError):
            self._writer.abort()
        with suppress(OSError), (self.path / f"{self.path.name}.mcap").open("r+b") as file:
            file.truncate(self._whole_bytes)

    def _learn(self, name: str) -> None:
        """Teach the writer a type it does not know, and what that is made of, from the installed definitions."""
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
        """How much was written."""
        values = {"bag": self.path, "messages": self._written, "megabytes": f"{self._bytes / 1e6:.1f}"}
        return Health(ERROR, self._error, values) if self._error else Health(message="recording", values=values)

    def close(self) -> None:
        """Finish the bag: without its index it could only be read by tools that mend it."""
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
    """A bag named by the time; the second one of a second gets a number."""
    stem = time.strftime("session_%Y%m%d_%H%M%S")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in (stem, *(f"{stem}_{number}" for number in range(2, _BAGS_A_SECOND))):
            path = folder / name
            if not path.exists():
                writer = Writer(path, version=9, storage_plugin=StoragePlugin.MCAP)
                writer.open()
                return writer
        raise OSError(f"{_BAGS_A_SECOND} bags of this second are there already")
    except Exception as error:
        raise FileFormatError(
            f"no bag can be written to {folder / stem}: {error}",
            expected="a folder this user may write to",
            code=ErrorCode.FILE_NOT_WRITABLE,
        ) from error


def _parts(definitions: Any) -> set[str]:
    """Names of the message types that fields are made of."""
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
