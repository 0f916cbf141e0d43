"""A small client of a running graph: send a plan, follow its preview, approve, execute. For commands and tests."""

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
from kinema4d_ros.core.trajectory import JointTrajectory, hash_trajectory
from kinema4d_ros.ros import names
from kinema4d_ros.ros.calls import ServiceCalls, execute_once
from kinema4d_ros.ros.messages.errors import raise_from_msg
from kinema4d_ros.ros.messages.stamps import header
from kinema4d_ros.ros.messages.trajectories import trajectory_to_msg
from kinema4d_ros.ros.names import Endpoint
from kinema4d_ros.ros.qos import profile
from kinema4d_ros.ros.streams import Streams

__all__ = ["PreviewClient"]

DISCOVERY_S = 10.0
"""How long to look for the graph."""

CALL_S = 10.0
_FAST = ("SENSOR_IN", "STREAM_OUT", "TF")
"""Profiles of topics whose newest message is enough; of steps and results every one is seen, by the executor."""

PHASES = ("idle", "checking", "rendering", "generating", "reporting", "done", "failed", "superseded")


class PreviewClient:
    """An ordinary ROS client with a context and a thread of its own; use it in a `with` block."""

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
        # Joint states and pictures through the executor would cost most of a core while a preview is waited for.
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
        """Leave the graph."""
        self._closing.set()
        self._streams.close()
        self._executor.shutdown(timeout_sec=2.0)
        self._thread.join(timeout=5.0)
        self.node.destroy_node()
        rclpy.shutdown(context=self._context)

    @staticmethod
    def phase_name(phase: int) -> str:
        """A word for a PreviewStatus phase."""
        return PHASES[phase] if phase < len(PHASES) else str(phase)

    def listen(self, endpoint: Endpoint, callback: Callable[[Any], None] | None = None) -> None:
        """Keep the newest message of a topic, and tell the callback."""

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
        """The newest message of a topic that is listened to, or None."""
        with self._lock:
            return self._newest.get(endpoint.name)

    def wait_for(self, predicate: Callable[[], bool], timeout_s: float, what: str) -> None:
        """Wait until something is true; a KinemaError names what did not come."""
        deadline = time.monotonic() + timeout_s
        while not predicate():
            if time.monotonic() > deadline:
                raise KinemaError(
                    f"{what} did not come within {timeout_s:g} s",
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
        """Send a plan and wait for its report; `follow` sees every PreviewStatus of it.

        Raises:
            KinemaError: with the code that the graph refused the plan with.
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
                # A latched status of an earlier plan arrives first; ours carry the stamp we sent.
                if status.header.stamp != stamp:
                    if begun and status.phase == PreviewStatus.IDLE:
                        raise KinemaError(
                            "the preview node was started again and does not know the plan",
                            expected="its answer",
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
                    raise KinemaError("a newer plan took its place", code=ErrorCode.PLAN_SUPERSEDED)
            time.sleep(0.01)
        waited_s = (self.node.get_clock().now().nanoseconds - sent_ns) * 1e-9
        raise KinemaError(
            f"the preview is not done after {waited_s:.0f} s",
            expected="an answer from the preview node",
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

    def call(self, endpoint: Endpoint, request: Any, timeout_s: float = CALL_S) -> Any:
        """Call a service of the table; raises when it is not there or does not answer in time."""
        return self._calls.call(endpoint, request, timeout_s, timeout_s)

    def approve(self, plan_hash: str, approver: str) -> str:
        """The token that executes the plan once; raises the gate's refusal."""
        request = names.APPROVE.interface().Request(plan_hash=plan_hash, approver=approver)
        response = self.call(names.APPROVE, request)
        raise_from_msg(response.error)
        return str(response.token)

    def execute(self, plan_hash: str, token: str) -> float:
        """Seconds the motion takes; raises the gate's refusal."""
        return execute_once(self._calls, lambda: self.newest(names.EXECUTION_STATUS), plan_hash, token, CALL_S)
