"""Records a session as an MCAP bag, for machines without rosbag2: messages as they came, definitions included."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ament_index_python.packages import get_package_share_directory
from rclpy.callback_groups import MutuallyExclusiveCallbackGroup
from rosbags.rosbag2 import StoragePlugin, Writer
from rosbags.typesys import Stores, get_types_from_msg, get_typestore

from kinema4d_ros.bridge.names import ENDPOINTS, RECORDED, Endpoint
from kinema4d_ros.bridge.params import declare, parameter
from kinema4d_ros.bridge.qos import profile
from kinema4d_ros.errors import ErrorCode, FileFormatError
from kinema4d_ros.nodes.common import ERROR, Health, KinemaNode, run_node

__all__ = ["Recorder", "main"]


@dataclass(frozen=True)
class Settings:
    """Parameters of the recorder."""

    folder: str = parameter("runs", "Where bags are written, one folder each.", read_only=True)


class Recorder(KinemaNode):
    """Writes every recorded topic of the table into one bag."""

    def __init__(self) -> None:
        super().__init__("recorder")
        settings = declare(self, Settings)
        self.path = Path(settings.folder) / time.strftime("session_%Y%m%d_%H%M%S")
        self._lock = threading.Lock()
        self._store = get_typestore(Stores.ROS2_JAZZY)
        self._written = self._bytes = 0
        self._error = ""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = Writer(self.path, version=9, storage_plugin=StoragePlugin.MCAP)
            self._writer.open()
        except Exception as error:
            raise FileFormatError(
                f"no bag can be written to {self.path}: {error}",
                expected="a folder this user may write to",
                code=ErrorCode.FILE_NOT_WRITABLE,
            ) from error
        for endpoint in ENDPOINTS:
            if endpoint.name in RECORDED:
                self._record(endpoint)
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
                    self._error = f"recording stopped: {error}"
                    self.get_logger().error(self._error)
                    return
                self._written += 1
                self._bytes += len(data)

        self.create_subscription(
            interface, topic, write, profile(endpoint), raw=True, callback_group=MutuallyExclusiveCallbackGroup()
        )

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
        with self._lock:
            if not self._error:
                self._writer.close()


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
