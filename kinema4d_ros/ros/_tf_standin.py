"""Stand-in for tf2_ros where it is not installed: broadcasters, listener and buffer with the same API."""

from __future__ import annotations

import threading
import time as clock
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from geometry_msgs.msg import TransformStamped
from numpy.typing import NDArray
from rclpy.duration import Duration
from rclpy.executors import ExternalShutdownException, ShutdownException, SingleThreadedExecutor
from rclpy.impl.implementation_singleton import rclpy_implementation
from rclpy.time import Time
from tf2_msgs.msg import TFMessage

from kinema4d_ros.core.errors import KinemaError
from kinema4d_ros.core.transforms import invert, slerp
from kinema4d_ros.ros import names, qos
from kinema4d_ros.ros.messages.poses import matrix_to_transform, transform_to_matrix
from kinema4d_ros.ros.messages.stamps import nanoseconds, time_from_ns

__all__ = [
    "Buffer",
    "ConnectivityException",
    "ExtrapolationException",
    "FrameTree",
    "InvalidArgumentException",
    "LookupException",
    "StaticTransformBroadcaster",
    "TimeoutException",
    "TransformBroadcaster",
    "TransformException",
    "TransformListener",
]

# Frame tree over time, with the rules of tf2: each frame has one parent and a history of limited length; between two
# samples the translation is interpolated linearly and the rotation by slerp; time 0 means the newest time that all
# frames of the path have in common; nothing is extrapolated.

Matrix = NDArray[np.float64]


class TransformException(Exception):  # noqa: N818 - the name in tf2
    """Base of all look-up errors."""


class LookupException(TransformException):
    """A frame that was never published."""


class ConnectivityException(TransformException):
    """Two frames in unconnected trees."""


class ExtrapolationException(TransformException):
    """A time before the oldest or after the newest sample."""


class InvalidArgumentException(TransformException):
    """An invalid frame name or transform."""


class TimeoutException(TransformException):
    """A look-up that timed out."""


@dataclass
class _History:
    """Samples of one frame, oldest first."""

    static: bool
    stamps: list[int] = field(default_factory=list)
    samples: list[tuple[str, Matrix]] = field(default_factory=list)

    def insert(self, stamp: int, parent: str, parent_T_child: Matrix, keep_ns: int) -> bool:
        if self.static:
            self.stamps, self.samples = [0], [(parent, parent_T_child)]
            return True
        if self.stamps and stamp < self.stamps[-1] - keep_ns:
            return False
        index = bisect_left(self.stamps, stamp)
        if index < len(self.stamps) and self.stamps[index] == stamp:
            self.samples[index] = (parent, parent_T_child)
        else:
            self.stamps.insert(index, stamp)
            self.samples.insert(index, (parent, parent_T_child))
        stale = bisect_left(self.stamps, self.stamps[-1] - keep_ns)
        if stale:
            del self.stamps[:stale], self.samples[:stale]
        return True

    def parent(self, stamp: int) -> str:
        """Return the parent at a time; 0 = newest; before the first sample, the parent of that sample."""
        if stamp == 0:
            return self.samples[-1][0]
        return self.samples[max(bisect_right(self.stamps, stamp) - 1, 0)][0]

    def at(self, child: str, stamp: int) -> tuple[str, Matrix]:
        """Return parent and parent_T_child at a time; 0 = newest."""
        if self.static:
            return self.samples[0]
        if stamp == 0:
            return self.samples[-1]
        index = bisect_left(self.stamps, stamp)
        if index < len(self.stamps) and self.stamps[index] == stamp:
            return self.samples[index]
        if index == 0 or index == len(self.stamps):
            side = ("past", "before the oldest") if index == 0 else ("future", "after the newest")
            nearest = self.stamps[0 if index == 0 else -1]
            raise ExtrapolationException(
                f"Lookup would require extrapolation into the {side[0]}. Requested time {stamp * 1e-9:.9f} is "
                f"{abs(stamp - nearest) * 1e-9:.6f} s {side[1]} data at time {nearest * 1e-9:.9f} of frame [{child}]"
            )
        (parent, T0), (next_parent, T1) = self.samples[index - 1], self.samples[index]
        if parent != next_parent:
            # No interpolation across a change of parent; the earlier one still holds.
            return parent, T0
        before, after = self.stamps[index - 1], self.stamps[index]
        return parent, slerp(T0, T1, (stamp - before) / (after - before))[0]


class FrameTree:
    """Relative poses of frames over time. Not thread-safe: the caller locks.

    >>> tree = FrameTree()
    >>> tree.insert("base", "tool", np.eye(4), 0, static=True)
    True
    >>> tree.lookup("base", "tool", 0)[0].shape
    (4, 4)
    """

    def __init__(self, keep_s: float = 10.0) -> None:
        self._keep_ns = int(keep_s * 1e9)
        self._frames: dict[str, _History] = {}
        self._known: set[str] = set()

    def insert(self, parent: str, child: str, parent_T_child: Matrix, stamp_ns: int, *, static: bool) -> bool:
        """Add a sample; return False when it is older than the history."""
        if parent == child:
            raise InvalidArgumentException(f"frame [{child}] cannot be its own parent")
        for name in (parent, child):
            _require_name(name)
        if not np.all(np.isfinite(parent_T_child)):
            raise InvalidArgumentException(f"transform of [{child}] in [{parent}] contains NaN or infinity")
        history = self._frames.get(child)
        if history is None or history.static != static:
            history = self._frames[child] = _History(static)
        self._known.update((parent, child))
        return history.insert(stamp_ns, parent, parent_T_child, self._keep_ns)

    def clear(self) -> None:
        """Discard all moving frames; keep the static ones."""
        self._frames = {name: history for name, history in self._frames.items() if history.static}
        self._known = {n for child, history in self._frames.items() for n in (child, history.samples[0][0])}

    def frames(self) -> dict[str, str]:
        """Return the parent of every frame that has one."""
        return {child: history.samples[-1][0] for child, history in self._frames.items()}

    def lookup(self, target: str, source: str, stamp_ns: int) -> tuple[Matrix, int]:
        """Return target_T_source and its time; stamp 0 = the newest time common to all frames of the path."""
        for name in (target, source):
            _require_name(name)
            if name not in self._known:
                raise LookupException(f'"{name}" passed to lookupTransform does not exist.')
        if target == source:
            return np.eye(4), stamp_ns
        up_target, up_source = self._ancestors(target, stamp_ns), self._ancestors(source, stamp_ns)
        common = next((frame for frame in up_source if frame in up_target), None)
        if common is None:
            raise ConnectivityException(
                f"Could not find a connection between '{target}' and '{source}' because they are not part of the same "
                f"tree. Tf has two or more unconnected trees."
            )
        way = up_target[: up_target.index(common)] + up_source[: up_source.index(common)]
        stamp = stamp_ns or self._newest_common(way)
        common_T_target = self._chain(up_target, common, stamp)
        common_T_source = self._chain(up_source, common, stamp)
        return invert(common_T_target) @ common_T_source, stamp

    def _ancestors(self, frame: str, stamp_ns: int) -> list[str]:
        """Return the frame and its ancestors at that time, root last; outside the history by the nearest sample."""
        line = [frame]
        while (history := self._frames.get(line[-1])) is not None:
            parent = history.parent(stamp_ns)
            if parent in line:
                raise ConnectivityException(f"The tf tree contains a loop: {' -> '.join([*line, parent])}")
            line.append(parent)
        return line

    def _newest_common(self, way: list[str]) -> int:
        moving = [self._frames[frame].stamps[-1] for frame in way if not self._frames[frame].static]
        return min(moving, default=0)

    def _chain(self, line: list[str], end: str, stamp: int) -> Matrix:
        end_T_frame = np.eye(4)
        for frame in line[: line.index(end)]:
            _, parent_T_frame = self._frames[frame].at(frame, stamp)
            end_T_frame = parent_T_frame @ end_T_frame
        return end_T_frame


def _require_name(name: str) -> None:
    if not name:
        raise InvalidArgumentException("a frame name is empty")
    if name.startswith("/"):
        raise InvalidArgumentException(f'frame "{name}" starts with a "/"; tf2 names do not')


class TransformBroadcaster:
    """Publisher of moving frames."""

    def __init__(self, node: Any, qos: Any = qos.TF) -> None:
        self.pub_tf = node.create_publisher(TFMessage, names.TF.name, qos)

    def sendTransform(self, transform: Any) -> None:
        """Publish one TransformStamped or a list of them."""
        self.pub_tf.publish(TFMessage(transforms=_as_list(transform)))


class StaticTransformBroadcaster:
    """Publisher of static frames; every message repeats all of them, for late joiners."""

    def __init__(self, node: Any, qos: Any = qos.TF_STATIC) -> None:
        self.pub_tf = node.create_publisher(TFMessage, names.TF_STATIC.name, qos)
        self._frames: dict[str, Any] = {}

    def sendTransform(self, transform: Any) -> None:
        """Add or replace one TransformStamped or a list of them, and publish all frames."""
        self._frames.update({entry.child_frame_id: entry for entry in _as_list(transform)})
        self.pub_tf.publish(TFMessage(transforms=list(self._frames.values())))


class Buffer:
    """Buffer of transforms over time. Thread-safe."""

    def __init__(self, cache_time: Any = None, node: Any = None) -> None:
        keep_ns = 10 * 10**9 if cache_time is None else cache_time.nanoseconds
        self._tree = FrameTree(keep_ns * 1e-9)
        self._changed = threading.Condition()

    def set_transform(self, transform: Any, authority: str = "default_authority") -> bool:
        """Add a TransformStamped; return False when it is older than the history."""
        return self._insert(transform, static=False)

    def set_transform_static(self, transform: Any, authority: str = "default_authority") -> bool:
        """Add a TransformStamped that is valid at all times."""
        return self._insert(transform, static=True)

    def clear(self) -> None:
        """Discard all moving frames."""
        with self._changed:
            self._tree.clear()

    def lookup_transform(
        self,
        target_frame: str,
        source_frame: str,
        time: Any,
        timeout: Any = Duration(),  # noqa: B008 - as tf2_ros
    ) -> Any:
        """Return a TransformStamped with target_T_source at a time (0 = newest); wait for it up to the timeout."""
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
        """Return whether `lookup_transform` would succeed; with `return_debug_tuple` also why not."""
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
        """Return target_T_source between the source at its time and the target at its time, through a fixed frame."""
        first = self.lookup_transform(fixed_frame, source_frame, source_time, timeout)
        second = self.lookup_transform(target_frame, fixed_frame, target_time, timeout)
        target_T_source = transform_to_matrix(second.transform) @ transform_to_matrix(first.transform)
        second.child_frame_id = source_frame
        second.transform = matrix_to_transform(target_T_source)
        return second

    def all_frames_as_string(self) -> str:
        """Return one line for each frame and its parent."""
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
    """Subscriber that fills a buffer from /tf and /tf_static; `spin_thread` spins the node in its own thread."""

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
        """Insert moving frames."""
        for transform in data.transforms:
            self._take(self.buffer.set_transform, transform)

    def static_callback(self, data: Any) -> None:
        """Insert static frames."""
        for transform in data.transforms:
            self._take(self.buffer.set_transform_static, transform)

    def _take(self, insert: Any, transform: Any) -> None:
        try:
            insert(transform, "default_authority")
        except TransformException as error:
            # An invalid frame from another node must not end this one.
            self.node.get_logger().error(f"frame ignored: {error}", throttle_duration_sec=5.0)

    def _spin(self) -> None:
        executor = self.executor
        while executor is self.executor and self.node.context.ok():
            try:
                executor.spin_once(timeout_sec=0.1)
            except (ExternalShutdownException, ShutdownException, rclpy_implementation.RCLError):
                # A shutdown between the check above and the wait is not an error.
                if executor is self.executor and self.node.context.ok():
                    raise


def _static_in() -> Any:
    # With depth 1 a listener would keep the latched message of only one of several broadcasters.
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
