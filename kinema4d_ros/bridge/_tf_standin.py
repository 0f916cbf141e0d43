"""tf2_ros's broadcasters, listener and buffer for machines without it: same names, same calls, numpy inside."""

from __future__ import annotations

import threading
import time as clock
from collections.abc import Sequence
from typing import Any

from geometry_msgs.msg import TransformStamped
from rclpy.duration import Duration
from rclpy.executors import ExternalShutdownException, ShutdownException, SingleThreadedExecutor
from rclpy.impl.implementation_singleton import rclpy_implementation
from rclpy.time import Time
from tf2_msgs.msg import TFMessage

from kinema4d_ros.bridge import names, qos
from kinema4d_ros.bridge._tf_tree import FrameTree, InvalidArgumentException, TransformException
from kinema4d_ros.bridge.poses import matrix_to_transform, transform_to_matrix
from kinema4d_ros.bridge.stamps import nanoseconds, time_from_ns
from kinema4d_ros.core.errors import KinemaError

__all__ = ["Buffer", "StaticTransformBroadcaster", "TransformBroadcaster", "TransformListener"]


class TransformBroadcaster:
    """Publishes frames that move."""

    def __init__(self, node: Any, qos: Any = qos.TF) -> None:
        self.pub_tf = node.create_publisher(TFMessage, names.TF.name, qos)

    def sendTransform(self, transform: Any) -> None:
        """Publish one TransformStamped or a list of them."""
        self.pub_tf.publish(TFMessage(transforms=_as_list(transform)))


class StaticTransformBroadcaster:
    """Publishes frames that do not move; every message repeats all of them, for whoever joins late."""

    def __init__(self, node: Any, qos: Any = qos.TF_STATIC) -> None:
        self.pub_tf = node.create_publisher(TFMessage, names.TF_STATIC.name, qos)
        self._frames: dict[str, Any] = {}

    def sendTransform(self, transform: Any) -> None:
        """Add or replace one TransformStamped or a list of them, and publish them all."""
        self._frames.update({entry.child_frame_id: entry for entry in _as_list(transform)})
        self.pub_tf.publish(TFMessage(transforms=list(self._frames.values())))


class Buffer:
    """Answers where a frame was in another; safe to use from several threads."""

    def __init__(self, cache_time: Any = None, node: Any = None) -> None:
        keep_ns = 10 * 10**9 if cache_time is None else cache_time.nanoseconds
        self._tree = FrameTree(keep_ns * 1e-9)
        self._changed = threading.Condition()

    def set_transform(self, transform: Any, authority: str = "default_authority") -> bool:
        """Add a TransformStamped; False when it is too old to be kept."""
        return self._insert(transform, static=False)

    def set_transform_static(self, transform: Any, authority: str = "default_authority") -> bool:
        """Add a TransformStamped that holds for all times."""
        return self._insert(transform, static=True)

    def clear(self) -> None:
        """Forget every frame that moves."""
        with self._changed:
            self._tree.clear()

    def lookup_transform(
        self,
        target_frame: str,
        source_frame: str,
        time: Any,
        timeout: Any = Duration(),  # noqa: B008 - as tf2_ros
    ) -> Any:
        """TransformStamped with target_T_source at a time (0 = newest), waiting for it up to the time-out."""
        stamp = _stamp_ns(time)
        deadline = clock.monotonic() + timeout.nanoseconds * 1e-9
        with self._changed:
            while True:
                try:
                    target_T_source, found = self._tree.lookup(target_frame, source_frame, stamp)
                    break
                except InvalidArgumentException:
                    raise
                except TransformException:
                    left = deadline - clock.monotonic()
                    if left <= 0:
                        raise
                    self._changed.wait(left)
        message = TransformStamped(child_frame_id=source_frame, transform=matrix_to_transform(target_T_source))
        message.header.frame_id = target_frame
        message.header.stamp = time_from_ns(found)
        return message

    def can_transform(
        self,
        target_frame: str,
        source_frame: str,
        time: Any,
        timeout: Any = Duration(),  # noqa: B008 - as tf2_ros
        return_debug_tuple: bool = False,
    ) -> Any:
        """True when `lookup_transform` would answer; with the reason when asked for the tuple."""
        reason = ""
        try:
            self.lookup_transform(target_frame, source_frame, time, timeout)
        except TransformException as error:
            reason = str(error)
        return (not reason, reason) if return_debug_tuple else not reason

    def lookup_transform_full(
        self,
        target_frame: str,
        target_time: Any,
        source_frame: str,
        source_time: Any,
        fixed_frame: str,
        timeout: Any = Duration(),  # noqa: B008 - as tf2_ros
    ) -> Any:
        """Where the source was at its time, seen from the target at its own, through a frame that does not move."""
        first = self.lookup_transform(fixed_frame, source_frame, source_time, timeout)
        second = self.lookup_transform(target_frame, fixed_frame, target_time, timeout)
        target_T_source = transform_to_matrix(second.transform) @ transform_to_matrix(first.transform)
        second.child_frame_id = source_frame
        second.transform = matrix_to_transform(target_T_source)
        return second

    def all_frames_as_string(self) -> str:
        """One line for each frame and its parent."""
        with self._changed:
            return "".join(f"Frame {c} exists with parent {p}.\n" for c, p in self._tree.frames().items())

    def _insert(self, transform: Any, *, static: bool) -> bool:
        try:
            parent_T_child = transform_to_matrix(transform.transform)
        except KinemaError as error:
            raise InvalidArgumentException(f"transform of [{transform.child_frame_id}]: {error}") from error
        with self._changed:
            kept = self._tree.insert(
                transform.header.frame_id,
                transform.child_frame_id,
                parent_T_child,
                nanoseconds(transform.header.stamp),
                static=static,
            )
            self._changed.notify_all()
        return kept


class TransformListener:
    """Fills a buffer from /tf and /tf_static; `spin_thread` gives it a node's worth of spinning of its own."""

    def __init__(
        self, buffer: Any, node: Any, *, spin_thread: bool = False, qos: Any = qos.TF, static_qos: Any = None
    ) -> None:
        self.buffer = buffer
        self.node = node
        static = static_qos if static_qos is not None else _static_in()
        self.tf_sub = node.create_subscription(TFMessage, names.TF.name, self.callback, qos)
        self.tf_static_sub = node.create_subscription(TFMessage, names.TF_STATIC.name, self.static_callback, static)
        self.executor: Any = None
        if spin_thread:
            self.executor = SingleThreadedExecutor(context=node.context)
            self.executor.add_node(node)
            self.dedicated_listener_thread = threading.Thread(target=self._spin, name="tf_listener", daemon=True)
            self.dedicated_listener_thread.start()

    def unregister(self) -> None:
        """Stop listening."""
        if self.executor is not None:
            self.executor.shutdown()
            self.dedicated_listener_thread.join(timeout=5.0)
            self.executor = None
        self.node.destroy_subscription(self.tf_sub)
        self.node.destroy_subscription(self.tf_static_sub)

    def callback(self, data: Any) -> None:
        """Take frames that move."""
        for transform in data.transforms:
            self._take(self.buffer.set_transform, transform)

    def static_callback(self, data: Any) -> None:
        """Take frames that do not move."""
        for transform in data.transforms:
            self._take(self.buffer.set_transform_static, transform)

    def _take(self, insert: Any, transform: Any) -> None:
        try:
            insert(transform, "default_authority")
        except TransformException as error:
            # Another node's bad frame must not end this one.
            self.node.get_logger().error(f"frame ignored: {error}", throttle_duration_sec=5.0)

    def _spin(self) -> None:
        executor = self.executor
        while executor is self.executor and self.node.context.ok():
            try:
                executor.spin_once(timeout_sec=0.1)
            except (ExternalShutdownException, ShutdownException, rclpy_implementation.RCLError):
                # Shutting the context down between the question above and the wait is an ordinary end.
                if executor is self.executor and self.node.context.ok():
                    raise


def _static_in() -> Any:
    # Latched with depth 1 a listener would keep only one of several broadcasters' messages.
    return type(qos.TF_STATIC)(
        depth=100,
        history=qos.TF_STATIC.history,
        reliability=qos.TF_STATIC.reliability,
        durability=qos.TF_STATIC.durability,
    )


def _as_list(transform: Any) -> list[Any]:
    return list(transform) if isinstance(transform, Sequence) else [transform]


def _stamp_ns(time: Any) -> int:
    if isinstance(time, Time):
        return int(time.nanoseconds)
    return nanoseconds(time)
