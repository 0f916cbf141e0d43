"""Interactive markers: the server of the package interactive_markers where it is installed, otherwise a stand-in.

    from kinema4d_ros.ros.interactive import InteractiveMarkerServer

The stand-in has the calls that this package uses, with the same names and the same protocol: topics `<ns>/update` and
`<ns>/feedback`, service `<ns>/get_interactive_markers`. RViz counts the sequence numbers of the updates and asks the
service again when one is missing. The package also drops feedback of a second client within a second of the first
one's; the stand-in does not.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rclpy.node import Node
from visualization_msgs.msg import InteractiveMarkerFeedback, InteractiveMarkerUpdate
from visualization_msgs.srv import GetInteractiveMarkers

__all__ = ["USES_INTERACTIVE_MARKERS", "InteractiveMarkerServer"]

USES_INTERACTIVE_MARKERS = False

if not TYPE_CHECKING:
    try:
        from interactive_markers import InteractiveMarkerServer

        USES_INTERACTIVE_MARKERS = True
    except ImportError:
        pass

if TYPE_CHECKING or not USES_INTERACTIVE_MARKERS:

    class InteractiveMarkerServer:
        """Server of markers that RViz draws and that report what a person does with them. Thread-safe.

        Args:
            node: owner of topics and service.
            namespace: common part of their names.
            update_pub_qos, feedback_sub_qos: QoS profiles of the two topics.
        """

        def __init__(self, node: Node, namespace: str, *, update_pub_qos: Any, feedback_sub_qos: Any) -> None:
            self._node = node
            self._lock = threading.Lock()
            self._markers: dict[str, Any] = {}
            self._callbacks: dict[str, Callable[[Any], None]] = {}
            self._inserted: dict[str, Any] = {}
            self._erased: list[str] = []
            self._sequence = 0
            self._updates = node.create_publisher(InteractiveMarkerUpdate, f"{namespace}/update", update_pub_qos)
            self._feedback = node.create_subscription(
                InteractiveMarkerFeedback, f"{namespace}/feedback", self._hear, feedback_sub_qos
            )
            self._service = node.create_service(
                GetInteractiveMarkers, f"{namespace}/get_interactive_markers", self._answer
            )

        def insert(self, marker: Any, *, feedback_callback: Callable[[Any], None] | None = None) -> None:
            """Add or replace a marker; shown after `applyChanges`. The callback gets the feedback about it."""
            with self._lock:
                self._inserted[marker.name] = marker
                if feedback_callback is not None:
                    self._callbacks[marker.name] = feedback_callback

        def clear(self) -> None:
            """Remove all markers; shown after `applyChanges`."""
            with self._lock:
                self._inserted.clear()
                self._erased = list(self._markers)

        def applyChanges(self) -> None:
            """Publish the changes since the last call."""
            with self._lock:
                if not self._inserted and not self._erased:
                    return
                for name in self._erased:
                    del self._markers[name]
                self._markers.update(self._inserted)
                self._sequence += 1
                self._updates.publish(
                    InteractiveMarkerUpdate(
                        type=InteractiveMarkerUpdate.UPDATE,
                        seq_num=self._sequence,
                        markers=list(self._inserted.values()),
                        erases=self._erased,
                    )
                )
                self._inserted, self._erased = {}, []

        def shutdown(self) -> None:
            """Remove all markers and destroy topics and service."""
            self.clear()
            if self._node.context.ok():
                self.applyChanges()
            self._node.destroy_service(self._service)
            self._node.destroy_publisher(self._updates)
            self._node.destroy_subscription(self._feedback)

        def _hear(self, feedback: Any) -> None:
            with self._lock:
                callback = self._callbacks.get(feedback.marker_name) if feedback.marker_name in self._markers else None
            if callback is not None:
                callback(feedback)

        def _answer(self, _request: Any, response: Any) -> Any:
            with self._lock:
                response.sequence_number = self._sequence
                response.markers = list(self._markers.values())
            return response
