"""An arm in memory with the protocol of `kinema4d_ros.arm.ArmDriver`: joints that follow, and faults on request."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np

from kinema4d_ros.arm import DriverOptions, Reading
from kinema4d_ros.core.errors import ErrorCode, KinemaError
from kinema4d_ros.robot import Robot

LAG_S = 0.03
"""Time constant with which the joints follow their command."""


class FakeArm:
    """Joints follow their command with a lag; without one they stay, as a floating arm does.

    `options.channel` names faults that begin after the first command: "breaks" (the driver stops), "blocked" (the
    first joint does not move), "silent" (no new states).
    """

    def __init__(self, robot: Robot, options: DriverOptions = DriverOptions()) -> None:  # noqa: B008
        self.description = "an arm in memory"
        self.robot = robot
        self.fault = ""
        self._later = options.channel if options.channel in ("breaks", "blocked", "silent") else ""
        self.commands: list[tuple[float, Any]] = []
        self.closed = 0
        self._lock = threading.Lock()
        self.q = np.array(robot.home_position())
        self._v = np.zeros_like(self.q)
        self._target: Any = None
        self._at_s = self._seen_s = time.monotonic()

    def read(self) -> Reading:
        """Advance the joints and return them."""
        with self._lock:
            now_s = time.monotonic()
            if self.fault == "breaks":
                raise KinemaError("motor 2 reported over current", code=ErrorCode.ARM_UNAVAILABLE)
            dt, self._at_s = now_s - self._at_s, now_s
            if self._target is not None and dt > 0:
                moved = (self._target - self.q) * (1 - np.exp(-dt / LAG_S))
                if self.fault == "blocked":
                    moved[0] = 0.0
                self.q, self._v = self.q + moved, moved / dt
            if self.fault != "silent":
                self._seen_s = now_s
            return Reading(self.q.copy(), self._v.copy(), np.zeros_like(self.q), self._seen_s)

    def command(self, positions: Any) -> None:
        """Remember the command; from now on the joints follow it."""
        with self._lock:
            assert not self.closed, "a command after close"
            if self._later and self.commands and np.abs(positions - self.commands[0][1]).max() > 0.05:
                self.fault, self._later = self._later, ""
            self.commands.append((time.monotonic(), positions.copy()))
            self._target = positions.copy()

    def close(self) -> None:
        """Count the calls."""
        self.closed += 1
