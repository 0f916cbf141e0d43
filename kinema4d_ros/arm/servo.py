"""The loop between a driver and trajectories: follows one motion at a time within limits, and holds otherwise."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.arm.driver import ArmDriver, Reading
from kinema4d_ros.core.errors import ErrorCode, KinemaError, TrajectoryError
from kinema4d_ros.core.trajectory import JointTrajectory
from kinema4d_ros.physics.controller import TrajectoryController
from kinema4d_ros.robot import Robot

__all__ = ["ArmServo", "ServoLimits"]

Array = NDArray[np.float64]

SAMPLE_S = 0.01
"""Step at which the speed of a plan is checked."""

BRAKED_S = 0.3
"""Duration of a stop: five time constants of the controller's."""


@dataclass(frozen=True)
class ServoLimits:
    """Limits of the loop.

    Attributes:
        rate_hz: commands per second.
        timeout_s: largest age of the arm's state, and longest delay of the loop itself.
        speed_share: largest speed of a plan as a share of the robot's velocity limits.
        path_tolerance_rad: largest distance of an arm joint from its command.
    """

    rate_hz: float = 100.0
    timeout_s: float = 0.1
    speed_share: float = 0.5
    path_tolerance_rad: float = 0.3


DEFAULTS = ServoLimits()


class ArmServo:
    """Thread that reads an arm and, if motion is enabled, commands it. Thread-safe.

    Without motion it never commands anything. With motion it holds the position at which it started, follows one
    trajectory at a time and holds its end. A motion ends early, and the arm holds, when

    - `stop` is called;
    - the arm's state is older than `timeout_s`, or the loop itself was delayed longer: it then holds the measured
      position instead of catching up;
    - an arm joint is farther than `path_tolerance_rad` from its command: it hit something, or cannot follow.

    When the driver itself fails nothing more is commanded: `failure` has the reason, until the node is restarted.

    Args:
        driver: the arm.
        robot: its description.
        motion: whether the arm may move.
        limits: of the loop.
        ended: called from the loop's thread with the reason why a motion ended, "" for a completed one.
    """

    def __init__(
        self,
        driver: ArmDriver,
        robot: Robot,
        *,
        motion: bool,
        limits: ServoLimits = DEFAULTS,
        ended: Callable[[str], None] = lambda why: None,
    ) -> None:
        self._driver = driver
        self._robot = robot
        self.motion = motion
        self._limits = limits
        self._ended = ended
        self._lock = threading.RLock()
        self._closing = threading.Event()
        self._newest: Reading | None = None
        self.failure: KinemaError | None = None
        self.delays = 0
        """Times that the arm's state was too old or the loop was delayed."""
        self._controller: TrajectoryController | None = None
        self._commanded: Array = np.zeros(len(robot.joint_names))
        self._following = False
        self._why = ""
        """Reason of the stop that is under way."""
        self._rest_s = 0.0
        self._lost = False
        """Whether the arm's state was too old at the last tick."""
        self._max_speed = np.array([joint.limits.velocity for joint in robot.actuated])
        self._tolerance = np.array(
            [np.inf if joint.kind == "prismatic" else limits.path_tolerance_rad for joint in robot.actuated]
        )
        if robot.gripper is not None:  # an object keeps the fingers open
            self._tolerance[robot.joint_names.index(robot.gripper.joint)] = np.inf
        self._thread = threading.Thread(target=self._run, name="servo", daemon=True)

    def start(self) -> None:
        """Start the loop."""
        self._thread.start()

    @property
    def moving(self) -> bool:
        """Whether a motion has not ended yet."""
        return self._following

    def reading(self) -> Reading | None:
        """Return the newest state that is not older than `timeout_s`; None without one."""
        newest = self._newest
        if newest is None or self.failure is not None or time.monotonic() - newest.seen_s > self._limits.timeout_s:
            return None
        return newest

    def follow(self, plan: JointTrajectory) -> None:
        """Start a motion.

        Raises:
            KinemaError: ARM_UNAVAILABLE without motion, without a current state or after a failure; ARM_BUSY.
            TrajectoryError: limits, speed or start of the plan.
        """
        with self._lock:
            reading = self.reading()
            if not self.motion:
                raise _refuse("motion is off", "start the node with enable_motion:=true")
            if self.failure is not None:
                raise _refuse(self.failure.what, "restart the node after the arm was checked")
            if reading is None or self._controller is None:
                raise _refuse(f"no state of the arm within {self._limits.timeout_s:g} s", "check the arm's bus")
            if self._following:
                raise KinemaError(
                    "a motion has not ended yet", expected="one motion at a time", code=ErrorCode.ARM_BUSY
                )
            self._require_slow(plan, reading)
            self._controller.follow(plan, time.monotonic(), reading.positions)
            self._following, self._why = True, ""

    def _require_slow(self, plan: JointTrajectory, reading: Reading) -> None:
        first = self._robot.positions(plan.names, plan.positions[:1], fill=reading.positions)[0]
        trial = TrajectoryController(self._robot, first)
        trial.follow(plan, 0.0, first)
        speed = np.abs(trial.targets(np.arange(0.0, plan.duration_s + SAMPLE_S, SAMPLE_S))[1]).max(axis=0)
        limit = self._limits.speed_share * self._max_speed
        worst = int(np.argmax(speed / limit))
        if speed[worst] > limit[worst] + 1e-6:
            raise TrajectoryError(
                f"joint '{self._robot.joint_names[worst]}' moves at {speed[worst]:.2f} per second",
                expected=f"at most {limit[worst]:.2f}: {self._limits.speed_share:g} of its limit (speed_share)",
                hint="plan more slowly",
                code=ErrorCode.TRAJECTORY_TOO_FAST,
            )

    def stop(self, why: str) -> None:
        """Brake and hold; the motion ends with this reason. Nothing happens without a motion."""
        with self._lock:
            if self._following and self._controller is not None and not self._why:
                now_s = time.monotonic()
                self._controller.stop(now_s)
                self._why, self._rest_s = why, now_s + BRAKED_S

    def close(self) -> None:
        """Brake, hold, and release the driver; also after a failure."""
        self.stop("the node was stopped")
        deadline = time.monotonic() + 2 * BRAKED_S
        while self._following and self._thread.is_alive() and time.monotonic() < deadline:
            time.sleep(1.0 / self._limits.rate_hz)
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(timeout=2.0)
        self._driver.close()

    def _run(self) -> None:
        period_s = 1.0 / self._limits.rate_hz
        before_s = due_s = time.monotonic()
        while not self._closing.is_set():
            now_s = time.monotonic()
            try:
                why = self._tick(now_s, now_s - before_s)
                if why is not None:
                    self._ended(why)
            except Exception as error:  # the driver's code may raise anything
                self._fail(error)
                return
            before_s = now_s
            due_s = max(due_s + period_s, time.monotonic())
            self._closing.wait(max(0.0, due_s - time.monotonic()))

    def _fail(self, error: Exception) -> None:
        what = error.what if isinstance(error, KinemaError) else f"{type(error).__name__}: {error}"
        hint = error.hint if isinstance(error, KinemaError) else "check the arm, and restart the node"
        with self._lock:
            self.failure = KinemaError(
                f"the arm's driver failed: {what}", expected="", hint=hint, code=ErrorCode.ARM_UNAVAILABLE
            )
            moving, self._following = self._following, False
        if moving:
            self._ended(self.failure.what)

    def _tick(self, now_s: float, elapsed_s: float) -> str | None:
        """Read and command once; return why a motion ended, "" for a completed one, None when none ended."""
        reading = self._driver.read()
        late = elapsed_s > self._limits.timeout_s
        stale = now_s - reading.seen_s > self._limits.timeout_s
        with self._lock:
            self._newest = reading
            if not self.motion:
                return None
            if self._controller is None:
                if not stale:
                    self._hold(reading)
                return None
            if late or stale or self._lost:
                self.delays += int(not self._lost)
                self._lost = stale
                if not stale:
                    self._hold(reading)
                what = "the arm's state is" if stale else "the control loop was"
                return self._finish(f"{what} {max(elapsed_s, now_s - reading.seen_s):.2f} s late")
            target, _ = self._controller.target(now_s)
            step = self._max_speed * min(elapsed_s, self._limits.timeout_s)
            self._commanded = np.clip(target, self._commanded - step, self._commanded + step)
            off = np.abs(reading.positions - self._commanded) / self._tolerance
            if np.any(off > 1.0):
                worst = self._robot.joint_names[int(np.argmax(off))]
                self._hold(reading)
                return self._finish(f"joint '{worst}' did not follow: it is {np.max(off):.1f} times the tolerance away")
            self._driver.command(self._commanded)
            if self._why:
                return self._finish(self._why) if now_s >= self._rest_s else None
            return self._finish("") if not self._controller.busy(now_s) else None

    def _hold(self, reading: Reading) -> None:
        """Hold the measured position, and forget the trajectory."""
        held = np.clip(reading.positions, self._robot.lower, self._robot.upper)
        if self._controller is None:
            self._controller = TrajectoryController(self._robot, held)
        self._controller.hold(held)
        self._commanded = held
        self._driver.command(held)

    def _finish(self, why: str) -> str | None:
        if not self._following:
            return None
        self._following, self._why = False, ""
        return why


def _refuse(what: str, hint: str) -> KinemaError:
    return KinemaError(
        f"the arm stays where it is: {what}", expected="an arm that may move", hint=hint, code=ErrorCode.ARM_UNAVAILABLE
    )
