"""Client of a running graph for commands and tests: send a plan, follow its preview, approve, execute."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

import rclpy
from rclpy.context import Context
from rclpy.executors import MultiThreadedExecutor

from kinema4d_msgs.msg import PreviewStatus
from kinema4d_ros.core.errors import ErrorCode, KinemaError
from kinema4d_ros.core.rollout import Rollout
from kinema4d_ros.core.trajectory import JointTrajectory, hash_trajectory
from kinema4d_ros.ros import names
from kinema4d_ros.ros.calls import ServiceCalls, execute_once
from kinema4d_ros.ros.messages.errors import raise_from_msg
from kinema4d_ros.ros.messages.rollout import rollout_from_msg
from kinema4d_ros.ros.messages.stamps import header
from kinema4d_ros.ros.messages.trajectories import trajectory_to_msg
from kinema4d_ros.ros.names import Endpoint
from kinema4d_ros.ros.qos import profile
from kinema4d_ros.ros.streams import Streams

__all__ = ["PreviewClient"]

DISCOVERY_S = 10.0
"""Timeout for discovering the graph."""

CALL_S = 10.0
ROLLOUT_S = 30.0
"""Timeout for a rollout, a few megabytes."""
_FAST = ("SENSOR_IN", "STREAM_OUT", "TF")
"""Profiles of topics that are polled; every message of the other topics goes through the executor."""

PHASES = ("idle", "checking", "rendering", "generating", "reporting", "done", "failed", "superseded")


class PreviewClient:
    """A ROS client with its own context and spin thread; use it in a `with` block."""

    def __init__(self, namespace: str = "") -> None:
        self._context = Context()
        rclpy.init(context=self._context)
        space = f"/{namespace.strip('/')}" if namespace else "/"
        self.node = rclpy.create_node("kinema4d_client", namespace=space, context=self._context)
        self._executor = MultiThreadedExecutor(num_threads=2, context=self._context)
        self._executor.add_node(self.node)
        self._lock = threading.Lock()
        self._newest: dict[str, Any] = {}
        self._statuses: list[Any] = []
        # Joint states and images through the executor would use most of a core while waiting for a preview.
        self._streams = Streams(self.node, lambda error, where: self.node.get_logger().error(f"{where}{error!r}"))
        self.listen(names.PREVIEW_STATUS, self._take_status)
        self.listen(names.PLAN_REPORT)
        self.listen(names.EXECUTION_STATUS)
        self._plans = self.node.create_publisher(names.PLAN.interface(), names.PLAN.name, profile(names.PLAN))
        self._closing = threading.Event()
        self._calls = ServiceCalls(self.node, self._closing)
        self._thread = threading.Thread(target=self._executor.spin, daemon=True)
        self._thread.start()

    def __enter__(self) -> PreviewClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop the threads and destroy the node."""
        self._closing.set()
        self._streams.close()
        self._executor.shutdown(timeout_sec=2.0)
        self._thread.join(timeout=5.0)
        self.node.destroy_node()
        rclpy.shutdown(context=self._context)

    @staticmethod
    def phase_name(phase: int) -> str:
        """Return the name of a PreviewStatus phase."""
        return PHASES[phase] if phase < len(PHASES) else str(phase)

    def listen(self, endpoint: Endpoint, callback: Callable[[Any], None] | None = None) -> None:
        """Keep the newest message of a topic, and call `callback` with each message."""

        def take(message: Any) -> None:
            with self._lock:
                self._newest[endpoint.name] = message
            if callback is not None:
                callback(message)

        if endpoint.qos in _FAST:
            self._streams.listen(endpoint, take)
        else:
            self.node.create_subscription(endpoint.interface(), endpoint.name, take, profile(endpoint))
            self._executor.wake()

    def newest(self, endpoint: Endpoint) -> Any:
        """Return the newest message of a topic passed to `listen`, or None."""
        with self._lock:
            return self._newest.get(endpoint.name)

    def wait_for(self, predicate: Callable[[], bool], timeout_s: float, what: str) -> None:
        """Wait until `predicate` holds; raise a KinemaError that names `what` after the timeout."""
        deadline = time.monotonic() + timeout_s
        while not predicate():
            if time.monotonic() > deadline:
                raise KinemaError(
                    f"{what} did not arrive within {timeout_s:g} s",
                    expected="a running graph in this ROS domain",
                    hint="start it: kinema4d sim, or ros2 launch kinema4d_ros sim.launch.py",
                    code=ErrorCode.GRAPH_UNAVAILABLE,
                )
            time.sleep(0.01)

    def _take_status(self, status: Any) -> None:
        with self._lock:
            self._statuses.append(status)

    def preview(
        self, plan: JointTrajectory, follow: Callable[[Any], None] | None = None, timeout_s: float = 60.0
    ) -> Any:
        """Send a plan and return its report; `follow` is called with each PreviewStatus of the plan.

        Raises:
            KinemaError: with the error code of the graph's refusal.
        """
        wanted = hash_trajectory(plan)
        self.wait_for(lambda: self._plans.get_subscription_count() > 0, DISCOVERY_S, "a preview node")
        with self._lock:
            self._statuses.clear()
        sent_ns = self.node.get_clock().now().nanoseconds
        stamp = self.node.get_clock().now().to_msg()
        self._plans.publish(trajectory_to_msg(plan, header(stamp)))
        deadline = time.monotonic() + timeout_s
        begun = False
        while time.monotonic() < deadline:
            with self._lock:
                statuses, self._statuses = self._statuses, []
            for status in statuses:
                # Latched statuses of earlier plans arrive first; those of this plan carry its stamp.
                if status.header.stamp != stamp:
                    if begun and status.phase == PreviewStatus.IDLE:
                        raise KinemaError(
                            "the preview node restarted and dropped the plan",
                            expected="a result of the preview",
                            hint="send the plan again",
                            code=ErrorCode.GRAPH_UNAVAILABLE,
                        )
                    continue
                begun = True
                if follow is not None:
                    follow(status)
                if status.phase == PreviewStatus.DONE:
                    return self._wait_for_report(wanted, status.rollout_id)
                if status.phase in (PreviewStatus.FAILED, PreviewStatus.SUPERSEDED):
                    raise_from_msg(status.error)
                    raise KinemaError("the plan was superseded by a newer one", code=ErrorCode.PLAN_SUPERSEDED)
            time.sleep(0.01)
        waited_s = (self.node.get_clock().now().nanoseconds - sent_ns) * 1e-9
        raise KinemaError(
            f"the preview is not complete after {waited_s:.0f} s",
            expected="a result from the preview node",
            code=ErrorCode.GENERATOR_TIMEOUT,
        )

    def _wait_for_report(self, plan_hash: str, rollout_id: str) -> Any:
        self.wait_for(lambda: self._report(plan_hash, rollout_id) is not None, CALL_S, "the report")
        return self._report(plan_hash, rollout_id)

    def _report(self, plan_hash: str, rollout_id: str) -> Any:
        report = self.newest(names.PLAN_REPORT)
        if report is not None and report.plan_hash == plan_hash and report.rollout_id == rollout_id:
            return report
        return None

    def rollout(self, rollout_id: str, timeout_s: float = ROLLOUT_S) -> Rollout:
        """Return the newest rollout, which must be this one; its topic is latched."""

        def arrived() -> Any:
            message = self.newest(names.PREDICTED_ROLLOUT)
            return message if message is not None and message.rollout_id == rollout_id else None

        if self.newest(names.PREDICTED_ROLLOUT) is None:
            self.listen(names.PREDICTED_ROLLOUT)
        self.wait_for(lambda: arrived() is not None, timeout_s, f"rollout {rollout_id}")
        return rollout_from_msg(arrived())

    def call(self, endpoint: Endpoint, request: Any, timeout_s: float = CALL_S) -> Any:
        """Call a service; raise GRAPH_UNAVAILABLE when it is not discovered or does not respond in time."""
        return self._calls.call(endpoint, request, timeout_s, timeout_s)

    def approve(self, plan_hash: str, approver: str) -> str:
        """Approve a previewed plan and return the token that executes it once; raise the gate's refusal."""
        request = names.APPROVE.interface().Request(plan_hash=plan_hash, approver=approver)
        response = self.call(names.APPROVE, request)
        raise_from_msg(response.error)
        return str(response.token)

    def execute(self, plan_hash: str, token: str) -> float:
        """Execute an approved plan and return the motion's duration in seconds; raise the gate's refusal."""
        return execute_once(self._calls, lambda: self.newest(names.EXECUTION_STATUS), plan_hash, token, CALL_S)
