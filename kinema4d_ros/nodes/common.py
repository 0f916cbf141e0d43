"""What every node shares: endpoints from the table, diagnostics once a second, one way to start and to end."""

from __future__ import annotations

import faulthandler
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import rclpy
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from rclpy.callback_groups import MutuallyExclusiveCallbackGroup
from rclpy.clock import Clock, ClockType
from rclpy.executors import ExternalShutdownException, MultiThreadedExecutor, SingleThreadedExecutor
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions

from kinema4d_ros.bridge import names
from kinema4d_ros.bridge.names import Endpoint
from kinema4d_ros.bridge.qos import profile
from kinema4d_ros.bridge.security import security_explained
from kinema4d_ros.bridge.stamps import nanoseconds
from kinema4d_ros.bridge.streams import Streams
from kinema4d_ros.calibration import read_camera, read_pose
from kinema4d_ros.calibration.trust import Trust, rate_calibration
from kinema4d_ros.camera import PinholeCamera
from kinema4d_ros.errors import ErrorCode, KinemaError
from kinema4d_ros.live import WorldChanges, believed
from kinema4d_ros.resources import share_directory
from kinema4d_ros.robot import Robot

__all__ = ["Health", "KinemaNode", "calibration_path", "load_scene", "load_trust", "run_node"]

DIAGNOSTICS_PERIOD_S = 1.0
LOG_EVERY_S = 5.0
"""The same complaint is logged at most this often; diagnostics count every one."""

LEAVE_S = 8.0
"""How long DDS may take to say goodbye."""

OK, WARN, ERROR = DiagnosticStatus.OK, DiagnosticStatus.WARN, DiagnosticStatus.ERROR


@dataclass(frozen=True)
class Health:
    """What a node says of itself once a second."""

    level: bytes = OK
    message: str = "ok"
    values: Mapping[str, object] = field(default_factory=dict)


class KinemaNode(Node):  # type: ignore[misc]
    """A node whose endpoints come from the table of names and which reports its health."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._diagnostics = self.publisher(names.DIAGNOSTICS)
        self._complaints: dict[str, tuple[float, int]] = {}
        self._complaints_lock = threading.Lock()
        # On a clock that nobody sets: one that is set back, or a simulation's that stands still, must silence no node.
        self._diagnostics_timer = self.create_timer(
            DIAGNOSTICS_PERIOD_S,
            self._publish_health,
            callback_group=MutuallyExclusiveCallbackGroup(),
            clock=Clock(clock_type=ClockType.STEADY_TIME),
        )
        self._streams = Streams(self, self.complain)
        self.closing = threading.Event()
        """Set when the node is about to end: threads look at it."""

    def publisher(self, endpoint: Endpoint) -> Any:
        """A publisher for an endpoint of the table."""
        return self.create_publisher(endpoint.interface(), endpoint.name, profile(endpoint))

    def subscription(self, endpoint: Endpoint, callback: Callable[[Any], None]) -> Any:
        """A subscription in a callback group of its own, so that a slow one holds up no other."""
        return self.create_subscription(
            endpoint.interface(),
            endpoint.name,
            callback,
            profile(endpoint),
            callback_group=MutuallyExclusiveCallbackGroup(),
        )

    def stream(self, endpoint: Endpoint, callback: Callable[[Any], None]) -> Any:
        """A subscription to a fast topic, whose callback copies and is done: it costs the executor nothing."""
        return self._streams.listen(endpoint, callback)

    def service(self, endpoint: Endpoint, callback: Callable[[Any, Any], Any]) -> Any:
        """A service of the table."""
        return self.create_service(
            endpoint.interface(), endpoint.name, callback, callback_group=MutuallyExclusiveCallbackGroup()
        )

    def now_s(self) -> float:
        """Monotonic seconds: for ages and time-outs, never for stamps."""
        return time.monotonic()

    def clock_ns(self) -> int:
        """The node's own clock, nanoseconds: the simulation's under `use_sim_time`."""
        return int(self.get_clock().now().nanoseconds)

    def hear_change(self, changes: WorldChanges, message: Any) -> int:
        """Since when the world is another, by a message of `world_changed`; says so where its stamp is no use."""
        stamp_ns, now_ns = nanoseconds(message.stamp), self.clock_ns()
        if believed(stamp_ns, now_ns) != stamp_ns:
            ahead_s = (stamp_ns - now_ns) * 1e-9
            self.complain(
                KinemaError(
                    f"a change of the world is stamped {ahead_s:+.0f} s from now: it counts from its arrival",
                    expected="a stamp of this graph's clock",
                    code=ErrorCode.WORLD_CHANGED,
                )
            )
        return changes.hear(stamp_ns, now_ns)

    def complain(self, error: BaseException, prefix: str = "") -> None:
        """Log an error, but the same one only every few seconds; one that was not raised on purpose with its place."""
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
            self.get_logger().error(f"{prefix}unforeseen {type(error).__name__}{more}:\n{place}")

    def health(self) -> Health:
        """What to report; nodes say more."""
        return Health()

    def close(self) -> None:
        """End threads and processes; nodes that have some extend this."""
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
    """The robot and its camera; a calibration without a path is a name in `calibration/`."""
    loaded = Robot.load(robot)
    return loaded, read_camera(calibration_path(calibration), base_frame=loaded.base_link)


def load_trust(calibration: str, warn_px: float, refuse_px: float) -> Trust:
    """How far the calibration that `load_scene` reads can be trusted."""
    return rate_calibration(read_pose(calibration_path(calibration)), warn_px=warn_px, refuse_px=refuse_px)


def calibration_path(calibration: str) -> Path:
    """The file of a calibration; without a path it is a name in `calibration/`."""
    path = Path(calibration)
    if not path.suffix and len(path.parts) == 1:
        return share_directory() / "calibration" / f"{calibration}.yaml"
    return path


def _spin_once(executor: Any, node: KinemaNode) -> None:
    """One round; a callback that fails in an unforeseen way is logged, and the node goes on serving."""
    try:
        executor.spin_once(timeout_sec=0.2)
    except (ExternalShutdownException, KeyboardInterrupt):
        raise
    except Exception:
        node.get_logger().error(f"a callback failed:\n{traceback.format_exc()}")


def _start_ros(argv: list[str]) -> None:
    """rclpy; without a log file where none can be written, because what a node says is in the terminal all the same."""
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
    """Spin a node until it is told to end. Exit codes: 0 told to end, 2 cannot work with what it was given.

    One thread is enough for callbacks that only enqueue, and costs half the CPU of several; a node whose
    callbacks wait (the generator's goals) asks for more.
    """
    try:
        with security_explained():
            _start_ros(list(sys.argv if argv is None else argv))
    except KinemaError as error:
        print(f"cannot start: {error}", file=sys.stderr, flush=True)
        return 2
    ending = threading.Event()

    def end(_number: int, _frame: object) -> None:
        ending.set()

    for which in (signal.SIGINT, signal.SIGTERM):
        signal.signal(which, end)
    executor = SingleThreadedExecutor() if threads == 1 else MultiThreadedExecutor(num_threads=threads)
    node: KinemaNode | None = None
    try:
        with security_explained():
            node = make()
        executor.add_node(node)
        node.get_logger().info("ready")
        while rclpy.ok() and not ending.is_set():
            _spin_once(executor, node)
    except KinemaError as error:
        print(f"cannot start: {error}", file=sys.stderr, flush=True)
        return 2
    except ExternalShutdownException:
        pass
    finally:
        if node is not None:
            node.close()
        executor.shutdown(timeout_sec=2.0)
        # Fast DDS has been seen to spin for ever in here, holding the interpreter: only a thread in C can end that.
        faulthandler.dump_traceback_later(LEAVE_S, exit=True)
        if node is not None:
            node.destroy_node()
        rclpy.try_shutdown()
        faulthandler.cancel_dump_traceback_later()
    return 0
