"""Generator node: action server with one worker process, a short queue, feedback and cancellation."""

from __future__ import annotations

import json
import math
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any

from rclpy.action import CancelResponse, GoalResponse
from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.serialization import deserialize_message, serialize_message

from kinema4d_msgs.action import GenerateRollout
from kinema4d_ros.core.errors import Cancelled, ErrorCode, GeneratorError, KinemaError
from kinema4d_ros.core.rollout import WARNING
from kinema4d_ros.generators.spec import SPECS
from kinema4d_ros.ros import names
from kinema4d_ros.ros.calls import GoalServer
from kinema4d_ros.ros.messages.errors import error_to_msg
from kinema4d_ros.ros.nodes.common import ERROR, WARN, Health, KinemaNode, run_node
from kinema4d_ros.ros.params import declare, parameter
from kinema4d_ros.runtime import Worker, WorkerTimes

__all__ = ["Eta", "GeneratorNode", "main", "said_by", "worker_command"]

KEEP_RESULT_S = 10
"""Seconds that a goal and its result, both megabytes, are kept for a late result request; rclpy keeps 15 minutes."""


GONE_S = 5.0
"""Seconds without a connected client before a goal is aborted: the client or the network has failed."""


@dataclass(frozen=True)
class Settings:
    """Parameters of the generator."""

    preset: str = parameter(
        "auto",
        f"The generator: {SPECS}. auto: for every request a draft where depth is measured or a detector is installed, "
        "otherwise nano where it can run, otherwise composite.",
        read_only=True,
    )
    robot: str = parameter(
        "yam",
        "Robot whose commands are accepted: a name, or the path of a .urdf or .xacro file. Goals with commands for "
        "another robot are refused.",
        read_only=True,
    )
    checkpoint: str = parameter("", "Folder of the model's weights; empty: those of the preset.", read_only=True)
    allow_base: bool = parameter(
        False, "Run the base model alone if the adapter is missing; results and diagnostics warn.", read_only=True
    )
    warm_start: bool = parameter(True, "Run one empty step after loading a model.", read_only=True)
    device: str = parameter("auto", "Device of the model.", choices=("auto", "cpu", "cuda"), read_only=True)
    queue: int = parameter(1, "Maximum number of queued goals behind the running one.", low=0, high=16, read_only=True)
    timeout_s: float = parameter(1800.0, "Timeout of one rollout, seconds.", low=0.1, high=86400.0)
    load_timeout_s: float = parameter(600.0, "Timeout of loading the back-end, seconds.", low=1.0, high=7200.0)
    cancel_grace_s: float = parameter(
        5.0, "Seconds to stop after a cancellation before the worker is killed.", low=0.1, high=600.0
    )
    table_height_m: float = parameter(0.0, "Height of the table above the robot's base.", low=-5.0, high=5.0)


def worker_command(settings: Settings) -> list[str]:
    """Return the worker's command line; `{fd}` is its socket. Spec and options come from the node's parameters."""
    offered = {name: getattr(settings, name) for name in ("table_height_m", "device", "warm_start")}
    chosen = {"checkpoint": settings.checkpoint, "allow_base": settings.allow_base or None}
    options = json.dumps({"offered": offered, **chosen})
    module = "kinema4d_ros.ros.nodes.generator_worker"
    return [sys.executable, "-m", module, "{fd}", settings.preset, options, settings.robot]


REPORTED = ("auto", "hypothesis", "variant", "weights", "flow shift", "normalisation")
"""Keys of the last rollout's provenance that the diagnostics repeat, for generators that have them."""


def said_by(result: Any) -> dict[str, str]:
    """Return the versions in the rollout's provenance, by name."""
    return dict(text.partition("=")[::2] for text in result.rollout.provenance.versions)


class Eta:
    """Estimate of the seconds to the end of a phase from its completed steps; NaN before the first step."""

    def __init__(self) -> None:
        self._phase = ""
        self._started = 0.0

    def update(self, phase: str, step: int, steps: int) -> float:
        """Record a step and return the estimate."""
        now = time.monotonic()
        if phase != self._phase:
            self._phase, self._started = phase, now
        return (now - self._started) / step * (steps - step) if step > 0 else math.nan


class Callers:
    """Detection of lost clients: every action client subscribes to the feedback topic."""

    def __init__(self, node: KinemaNode) -> None:
        self._node = node
        self._topic = node.resolve_topic_name(f"{names.GENERATE.name}/_action/feedback")
        self._seen_s = self._looked_s = time.monotonic()

    def gone(self) -> bool:
        """Return whether there has been no client for GONE_S; the graph is polled once a second."""
        now = time.monotonic()
        if now - self._looked_s >= 1.0:
            self._looked_s = now
            if self._node.count_subscribers(self._topic) > 0:
                self._seen_s = now
        return now - self._seen_s > GONE_S


class GeneratorNode(KinemaNode):
    """Server of `kinema4d/generate`."""

    def __init__(self) -> None:
        super().__init__("generator")
        self._settings = settings = declare(self, Settings)
        self._preset = settings.preset
        self._worker = Worker(
            worker_command(settings),
            WorkerTimes(settings.load_timeout_s, settings.timeout_s, settings.cancel_grace_s),
        )
        self._turn = threading.Lock()
        self._admission = threading.Lock()
        self._admitted = 0
        self._served = self._failed = 0
        self._last_error = self._warning = ""
        self._model: dict[str, str] = {}
        self._peak_bytes = 0
        threading.Thread(target=self._load, name="load", daemon=True).start()
        self._server = GoalServer(
            self,
            GenerateRollout,
            names.GENERATE.name,
            execute_callback=self._execute,
            goal_callback=self._admit,
            cancel_callback=lambda _goal: CancelResponse.ACCEPT,
            callback_group=ReentrantCallbackGroup(),
            result_timeout=KEEP_RESULT_S,
        )

    def _load(self) -> None:
        try:
            self._worker.start()
            self.get_logger().info(f"{self._preset} is loaded (pid {self._worker.pid})")
        except KinemaError as error:
            self._last_error = str(error)
            self.get_logger().error(f"{self._preset} could not be loaded: {error}")

    def _admit(self, _goal: Any) -> Any:
        with self._admission:
            if self._admitted > self._settings.queue or self.closing.is_set():
                return GoalResponse.REJECT
            self._admitted += 1
            return GoalResponse.ACCEPT

    def _execute(self, handle: Any) -> Any:
        try:
            return self._answer(handle)
        finally:
            with self._admission:
                self._admitted -= 1

    def _answer(self, handle: Any) -> Any:
        arrived = time.monotonic()
        result = GenerateRollout.Result()
        try:
            self._wait_for_turn(handle)
            try:
                queued_s = time.monotonic() - arrived
                result = self._generate(handle)
                result.queued_s = queued_s
            finally:
                self._turn.release()
        except Cancelled as error:
            result.error = error_to_msg(error)
            if handle.is_cancel_requested:
                handle.canceled()
            else:
                if not self.closing.is_set():
                    self.get_logger().warning(f"goal aborted: no client was connected for {GONE_S:g} s")
                handle.abort()
            return result
        except Exception as error:
            self._failed += 1
            self._last_error = str(error)
            self.get_logger().error(f"generation failed: {error}")
            result.error = error_to_msg(error)
            handle.abort()
            return result
        self._served += 1
        said = said_by(result)
        self._warning = said.get(WARNING, "")
        self._model = {name: said[name] for name in REPORTED if name in said}
        self._peak_bytes = max(self._peak_bytes, result.peak_memory_bytes)
        handle.succeed()
        return result

    def _wait_for_turn(self, handle: Any) -> None:
        self._tell(handle, "queued", 0, 0, math.nan)
        while not self._turn.acquire(timeout=0.02):
            self._raise_if_unwanted(handle)
        if handle.is_cancel_requested or self.closing.is_set():
            self._turn.release()
            self._raise_if_unwanted(handle)

    def _raise_if_unwanted(self, handle: Any) -> None:
        if handle.is_cancel_requested:
            raise Cancelled("cancelled by the client while queued")
        if self.closing.is_set():
            raise Cancelled("the generator is shutting down")

    def _generate(self, handle: Any) -> Any:
        eta = Eta()
        callers = Callers(self)
        timeout_s = handle.request.timeout_s
        if not (math.isfinite(timeout_s) and timeout_s >= 0):
            raise GeneratorError(
                f"timeout_s is {timeout_s}", expected="0 or more seconds", code=ErrorCode.GENERATOR_BAD_REQUEST
            )
        payload = self._worker.run(
            bytes(serialize_message(handle.request)),
            lambda phase, step, steps: self._tell(handle, phase, step, steps, eta.update(phase, step, steps)),
            lambda: handle.is_cancel_requested or self.closing.is_set() or callers.gone(),
            min(timeout_s or self._settings.timeout_s, self._settings.timeout_s),
        )
        return deserialize_message(payload, GenerateRollout.Result)

    @staticmethod
    def _tell(handle: Any, phase: str, step: int, steps: int, eta_s: float) -> None:
        handle.publish_feedback(GenerateRollout.Feedback(phase=phase, step=step, steps=steps, eta_s=eta_s))

    def health(self) -> Health:
        """Report load, failures and memory."""
        values = {
            "preset": self._preset,
            "worker": self._worker.pid or "not running",
            "worker starts": self._worker.starts,
            "goals running or queued": self._admitted,
            "rollouts": self._served,
            "failures": self._failed,
            "last error": self._last_error or "none",
            "peak memory": f"{self._peak_bytes / 1e6:.0f} MB",
            "warning": self._warning or ("a missing adapter is allowed" if self._settings.allow_base else "none"),
            **self._model,
        }
        if self._worker.pid is None and self._last_error:
            return Health(ERROR, self._last_error, values)
        if self._warning:
            return Health(WARN, self._warning, values)
        return Health(message="generating" if self._admitted else "waiting for goals", values=values)

    def close(self) -> None:
        """Cancel the running goal and stop the worker."""
        super().close()
        deadline = time.monotonic() + self._settings.cancel_grace_s + 2.0
        while self._admitted and time.monotonic() < deadline:
            time.sleep(0.02)
        self._worker.stop()


def main() -> int:
    """Run the node: threads for the running goal, the queued goals and the action's services."""
    return run_node(GeneratorNode, threads=24)


if __name__ == "__main__":
    raise SystemExit(main())
