"""Base class and main loop of all nodes: endpoints from `names`, diagnostics at 1 Hz, startup and shutdown."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import rclpy
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from rclpy.action import ActionClient, ActionServer
from rclpy.callback_groups import MutuallyExclusiveCallbackGroup
from rclpy.clock import Clock, ClockType
from rclpy.executors import ExternalShutdownException, MultiThreadedExecutor, SingleThreadedExecutor
from rclpy.impl.implementation_singleton import rclpy_implementation
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions

from kinema4d_ros.calibration import read_camera, read_pose
from kinema4d_ros.calibration.quality import Trust, rate_calibration
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import ErrorCode, KinemaError, SetupError
from kinema4d_ros.io.resources import calibration_path
from kinema4d_ros.previews.checks import WorldChanges, believed
from kinema4d_ros.robot import Robot
from kinema4d_ros.ros import names
from kinema4d_ros.ros.messages.stamps import nanoseconds
from kinema4d_ros.ros.names import Endpoint
from kinema4d_ros.ros.qos import profile
from kinema4d_ros.ros.streams import Streams
from kinema4d_ros.runtime.child import deadline_on_signal, end_with_launcher, exit_within, on_end_signal

__all__ = ["Health", "KinemaNode", "load_scene", "load_trust", "run_node", "security_explained"]


@contextlib.contextmanager
def security_explained() -> Iterator[None]:
    """Turn a failure of ROS security, such as a missing keystore, into a SetupError with instructions.

    Use it around the creation of a context or node.

    Raises:
        SetupError: ROS_SECURITY_ENABLE is set and ROS security failed; the node does not run unprotected instead.
    """
    try:
        yield
    except rclpy_implementation.RCLError as error:
        if os.environ.get("ROS_SECURITY_ENABLE", "").lower() != "true":
            raise
        raise SetupError(
            f"ROS security is enabled and failed: {error}",
            expected="a keystore with this node's enclave (ROS_SECURITY_KEYSTORE) and a DDS built with security",
            hint="see config/sros2/README.md; without ROS_SECURITY_ENABLE the graph runs unprotected",
        ) from None


DIAGNOSTICS_PERIOD_S = 1.0
LOG_EVERY_S = 5.0
"""Minimum period between log lines of the same error; diagnostics count every occurrence."""

CLOSE_S, LEAVE_S = 12.0, 8.0
"""Seconds for a node to close its threads and files, and for DDS and the interpreter to shut down."""

NOT_FOUND_YET = "client will not receive response"
"""Text of the rmw_fastrtps error for a dropped service response."""

OK, WARN, ERROR = DiagnosticStatus.OK, DiagnosticStatus.WARN, DiagnosticStatus.ERROR


@dataclass(frozen=True)
class Health:
    """Diagnostic status of a node, published once a second."""

    level: bytes = OK
    message: str = "ok"
    values: Mapping[str, object] = field(default_factory=dict)


_nodes: weakref.WeakSet[KinemaNode] = weakref.WeakSet()
"""All nodes of this process, including those whose constructor failed: every one must be destroyed in DDS."""


class KinemaNode(Node):  # type: ignore[misc]
    """Base class of nodes: endpoints from `names`, QoS from `qos`, health on /diagnostics."""

    def __init__(self, name: str) -> None:
        _nodes.add(self)
        super().__init__(name)
        self._diagnostics = self.publisher(names.DIAGNOSTICS)
        self._complaints: dict[str, tuple[float, int]] = {}
        self._complaints_lock = threading.Lock()
        # Steady clock: diagnostics must continue when the system clock is set back or simulated time is paused.
        self._diagnostics_timer = self.create_timer(
            DIAGNOSTICS_PERIOD_S,
            self._publish_health,
            callback_group=MutuallyExclusiveCallbackGroup(),
            clock=Clock(clock_type=ClockType.STEADY_TIME),
        )
        self._streams = Streams(self, self.complain)
        self.closing = threading.Event()
        """Set when the node shuts down; threads poll it."""

    def publisher(self, endpoint: Endpoint) -> Any:
        """Create a publisher for an endpoint."""
        return self.create_publisher(endpoint.interface(), endpoint.name, profile(endpoint))

    def subscription(self, endpoint: Endpoint, callback: Callable[[Any], None]) -> Any:
        """Create a subscription in its own callback group, so that a slow callback does not block others."""
        return self.create_subscription(
            endpoint.interface(),
            endpoint.name,
            callback,
            profile(endpoint),
            callback_group=MutuallyExclusiveCallbackGroup(),
        )

    def stream(self, endpoint: Endpoint, callback: Callable[[Any], None]) -> Any:
        """Create a polled subscription to a high-rate topic, outside the executor; its callback must only copy."""
        return self._streams.listen(endpoint, callback)

    def service(self, endpoint: Endpoint, callback: Callable[[Any, Any], Any]) -> Any:
        """Create a service for an endpoint."""
        return self.create_service(
            endpoint.interface(), endpoint.name, callback, callback_group=MutuallyExclusiveCallbackGroup()
        )

    def now_s(self) -> float:
        """Return monotonic seconds, for ages and timeouts, never for stamps."""
        return time.monotonic()

    def clock_ns(self) -> int:
        """Return the node's clock in nanoseconds; simulated time under `use_sim_time`."""
        return int(self.get_clock().now().nanoseconds)

    def hear_change(self, changes: WorldChanges, message: Any) -> int:
        """Record a `world_changed` message and return the stamp of the change; log stamps that are not plausible."""
        stamp_ns, now_ns = nanoseconds(message.stamp), self.clock_ns()
        if believed(stamp_ns, now_ns) != stamp_ns:
            ahead_s = (stamp_ns - now_ns) * 1e-9
            self.complain(
                KinemaError(
                    f"world_changed is stamped {ahead_s:+.0f} s from now: its arrival time is used instead",
                    expected="a stamp of this graph's clock",
                    code=ErrorCode.WORLD_CHANGED,
                )
            )
        return changes.hear(stamp_ns, now_ns)

    def complain(self, error: BaseException, prefix: str = "") -> None:
        """Log an error, the same one at most every `LOG_EVERY_S`; anything but a KinemaError with its traceback."""
        key = f"{prefix}{getattr(error, 'code', type(error).__name__)}"
        now = time.monotonic()
        with self._complaints_lock:
            last, suppressed = self._complaints.get(key, (-LOG_EVERY_S, 0))
            if now - last < LOG_EVERY_S:
                self._complaints[key] = (last, suppressed + 1)
                return
            self._complaints[key] = (now, 0)
        more = f" ({suppressed} more like it)" if suppressed else ""
        if isinstance(error, KinemaError):
            self.get_logger().warning(f"{prefix}{error}{more}")
        else:
            place = "".join(traceback.format_exception(error))
            self.get_logger().error(f"{prefix}internal error {type(error).__name__}{more}:\n{place}")

    def health(self) -> Health:
        """Return the node's status; nodes override this."""
        return Health()

    def close(self) -> None:
        """Stop threads and processes; nodes that have some extend this."""
        self.closing.set()
        self._streams.close()

    def _publish_health(self) -> None:
        health = self.health()
        status = DiagnosticStatus(
            level=health.level,
            name=f"{self.get_namespace().rstrip('/')}/{self.get_name()}".lstrip("/"),
            message=health.message,
            hardware_id="kinema4d",
            values=[KeyValue(key=key, value=str(value)) for key, value in health.values.items()],
        )
        array = DiagnosticArray(status=[status])
        array.header.stamp = self.get_clock().now().to_msg()
        self._diagnostics.publish(array)


def load_scene(robot: str, calibration: str) -> tuple[Robot, PinholeCamera]:
    """Load a robot and its camera; a calibration without a path is a name in `calibration/`."""
    loaded = Robot.load(robot)
    return loaded, read_camera(calibration_path(calibration), base_frame=loaded.base_link)


def load_trust(calibration: str, warn_px: float, refuse_px: float) -> Trust:
    """Rate the quality of the calibration that `load_scene` reads."""
    return rate_calibration(read_pose(calibration_path(calibration)), warn_px=warn_px, refuse_px=refuse_px)


def _spin_once(executor: Any, node: KinemaNode) -> None:
    """Spin once; log an unexpected exception of a callback and keep the node running."""
    try:
        executor.spin_once(timeout_sec=0.2)
    except (ExternalShutdownException, KeyboardInterrupt):
        raise
    except Exception as error:
        if NOT_FOUND_YET in str(error):
            node.get_logger().warning("a response was dropped: its client has exited, or is not discovered yet")
        else:
            node.get_logger().error(f"a callback failed:\n{traceback.format_exc()}")


def _start_ros(argv: list[str]) -> None:
    """Initialise rclpy; without a log file where none can be written, since the node also logs to the terminal."""
    try:
        rclpy.init(args=argv, signal_handler_options=SignalHandlerOptions.NO)
    except RuntimeError as error:
        if "Failed opening file" not in str(error):
            raise
        print(f"no log file: {error}", file=sys.stderr, flush=True)
        rclpy.try_shutdown()
        without = [*argv, "--ros-args", "--disable-external-lib-logs"]
        rclpy.init(args=without, signal_handler_options=SignalHandlerOptions.NO)


def run_node(make: Callable[[], KinemaNode], argv: Sequence[str] | None = None, threads: int = 1) -> int:
    """Spin a node until shutdown. Exit codes: 0 regular shutdown, 1 crash, 2 cannot run with its configuration.

    A regular shutdown is Ctrl-C, SIGTERM, SIGHUP, or the exit of the launching process. The process always exits
    within a bounded time, with its exit code.

    One thread is enough for callbacks that only enqueue, and uses half the CPU of several; a node whose callbacks
    block (the generator's goals) needs more.
    """
    ending = threading.Event()

    # Set before the node exists: this deadline also ends a constructor or callback that never returns.
    deadline_on_signal(CLOSE_S + LEAVE_S)
    on_end_signal(ending.set)
    end_with_launcher()
    code, node, executor = 1, None, None
    try:
        with security_explained():
            _start_ros(list(sys.argv if argv is None else argv))
            node = make()
        executor = SingleThreadedExecutor() if threads == 1 else MultiThreadedExecutor(num_threads=threads)
        executor.add_node(node)
        node.get_logger().info("ready")
        while rclpy.ok() and not ending.is_set():
            _spin_once(executor, node)
        code = 0
    except KinemaError as error:
        print(f"cannot start: {error}", file=sys.stderr, flush=True)
        code = 2
    except ExternalShutdownException:
        code = 0
    except Exception:
        traceback.print_exc()
    finally:
        _leave(code, node, executor)
    return code


def _leave(code: int, whole: KinemaNode | None, executor: Any) -> None:
    """Destroy every node and shut ROS down; a deadline stays active until the process exits.

    Fast DDS was observed to spin forever while a node is destroyed and, when a node was not destroyed, in a
    destructor after the interpreter's end.
    """
    exit_within(CLOSE_S + LEAVE_S, code)
    nodes = list(_nodes)
    for node in nodes:
        with _told("close"):
            # A node whose constructor failed may lack attributes that its `close` needs; its threads poll `closing`.
            node.close() if node is whole else KinemaNode.close(node)
    if executor is not None:
        executor.shutdown(timeout_sec=2.0)
    exit_within(LEAVE_S, code)
    for node in nodes:
        with _told("destroy"):
            # Actions are not destroyed with their node and would keep it alive in DDS.
            for action in [w for w in node.waitables if isinstance(w, ActionClient | ActionServer)]:
                action.destroy()
            node.destroy_node()
    rclpy.try_shutdown()
    gc.collect()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()


@contextlib.contextmanager
def _told(step: str) -> Iterator[None]:
    """Print an exception of a shutdown step and continue with the next step."""
    try:
        yield
    except Exception:
        print(f"could not {step} a node:", file=sys.stderr)
        traceback.print_exc()
