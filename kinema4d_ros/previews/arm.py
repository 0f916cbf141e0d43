"""Current arm state: joint states merged, ordered by stamp, checked for age, and counted."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kinema4d_ros.core.errors import ErrorCode, KinemaError, TrajectoryError
from kinema4d_ros.robot.model import Robot

__all__ = ["ArmState", "JointStateMonitor", "MonitorCounts"]

RATE_WINDOW = 100
"""Messages over which the rate is measured."""

HISTORY = 200
"""Number of merged states kept to look up the arm at the stamp of an image."""

CLOCK_JUMP_S = 5.0
"""A stamp this far from its source's extrapolated clock counts as from another clock."""

OTHERS, OTHER_LENGTH = 16, 64
"""Maximum number and length of stored names of unknown joints, so that memory stays bounded."""


@dataclass(frozen=True, eq=False)
class ArmState:
    """State of the arm at one time.

    Attributes:
        positions: (J,) float64 in `robot.joint_names` order, radians or metres.
        velocities: (J,) float64 per second, from the two newest positions; NaN = unknown: fewer than two positions, or
            a gap or a clock jump between them.
        stamp_s: newest source stamp used, seconds.
        age_s: age of the joint with the oldest position.
    """

    positions: NDArray[np.float64]
    velocities: NDArray[np.float64]
    stamp_s: float
    age_s: float


@dataclass(frozen=True)
class MonitorCounts:
    """Counts of accepted and discarded messages.

    Attributes:
        accepted: messages that updated at least one joint.
        out_of_order: messages older than the stored state.
        other_clock: messages stamped far from the clock of the joint's source.
        invalid: messages that could not be read.
        unknown_joints: names of joints of other devices, at most `OTHERS`.
        rate_hz: rate of accepted messages.
    """

    accepted: int = 0
    out_of_order: int = 0
    other_clock: int = 0
    invalid: int = 0
    unknown_joints: tuple[str, ...] = ()
    rate_hz: float = 0.0


class JointStateMonitor:
    """Merges joint states that may be partial, late, reordered or broken. Thread-safe.

    A joint's position is replaced only by one with a newer stamp, so a late message cannot move the arm back.
    Ages are measured on the receiver's clock, so a source with a wrong clock cannot look fresh. Joints of other
    devices on the same topic are counted and ignored.

    A stamp that jumps to the past or the future relative to the clock of the joint's source is discarded while that
    clock is active: one stray message can neither replace the arm's position nor make all correct ones late. Once
    the joint is stale (`max_age_s` without a message), the new clock is accepted: a simulation was restarted, or a
    machine's clock was set.
    """

    def __init__(self, robot: Robot, max_age_s: float = 0.5) -> None:
        self.robot = robot
        self.max_age_s = max_age_s
        self._lock = threading.Lock()
        self._index = {name: i for i, name in enumerate(robot.joint_names)}
        # Mimic joints follow their leader and fixed joints do not move: both are ignored.
        self._followers = {j.name for j in robot.joints if j.mimic is not None or not j.moves}
        count = len(robot.joint_names)
        self._positions = np.full(count, np.nan)
        self._velocities = np.full(count, np.nan)
        self._stamps = np.full(count, -np.inf)
        self._received = np.full(count, -np.inf)
        self._arrivals: deque[float] = deque(maxlen=RATE_WINDOW)
        self._history: deque[tuple[float, NDArray[np.float64]]] = deque(maxlen=HISTORY)
        self._counts = MonitorCounts()

    def update(self, names: Sequence[str], positions: ArrayLike, stamp_s: float, now_s: float) -> None:
        """Process one message: positions (N,) of joints `names`, its stamp, and the receiver's clock."""
        values = np.asarray(positions, dtype=np.float64)
        if values.shape != (len(names),) or not np.all(np.isfinite(values)):
            self.reject()
            raise TrajectoryError(
                f"a joint state has {len(names)} names and positions {values.tolist()[:8]}",
                expected="one finite position for each name",
                code=ErrorCode.JOINT_STATES_INVALID,
            )
        with self._lock:
            used = late = jumped = False
            unknown = set(self._counts.unknown_joints)
            for name, value in zip(names, values, strict=True):
                column = self._index.get(name)
                if column is None:
                    if name not in self._followers and len(unknown) < OTHERS:
                        unknown.add(name[:OTHER_LENGTH])
                    continue
                jump = self._jumps(column, stamp_s, now_s)
                if jump and now_s - self._received[column] <= self.max_age_s:
                    jumped = True
                elif not jump and stamp_s <= self._stamps[column]:
                    late = True
                else:
                    self._take(column, value, stamp_s, now_s)
                    used = True
                    if jump:
                        self._history.clear()
            if used:
                self._arrivals.append(now_s)
                # The history is ordered for look-up by stamp: two sources of one arm may have two clocks.
                if np.all(np.isfinite(self._positions)) and (not self._history or stamp_s > self._history[-1][0]):
                    self._history.append((stamp_s, self._positions.copy()))
            self._counts = replace(
                self._counts,
                accepted=self._counts.accepted + int(used),
                out_of_order=self._counts.out_of_order + int(late),
                other_clock=self._counts.other_clock + int(jumped),
                unknown_joints=tuple(sorted(unknown)),
            )

    def _jumps(self, column: int, stamp_s: float, now_s: float) -> bool:
        """Return whether a stamp is far from the extrapolated clock of the joint's source."""
        if not np.isfinite(self._received[column]):
            return False
        expected_s = self._stamps[column] + (now_s - self._received[column])
        return bool(abs(stamp_s - expected_s) > CLOCK_JUMP_S)

    def _take(self, column: int, value: float, stamp_s: float, now_s: float) -> None:
        elapsed = stamp_s - self._stamps[column]
        if np.isfinite(elapsed) and 0.0 < elapsed < self.max_age_s:
            self._velocities[column] = (value - self._positions[column]) / elapsed
        else:
            self._velocities[column] = np.nan
        self._positions[column] = value
        self._stamps[column] = stamp_s
        self._received[column] = now_s

    def reject(self) -> None:
        """Count a message that could not be read."""
        with self._lock:
            self._counts = replace(self._counts, invalid=self._counts.invalid + 1)

    def counts(self, now_s: float) -> MonitorCounts:
        """Return the counts, with the rate over the last messages."""
        with self._lock:
            arrivals = list(self._arrivals)
            counts = self._counts
        if len(arrivals) < 2 or now_s - arrivals[-1] > self.max_age_s or arrivals[-1] <= arrivals[0]:
            return counts
        return replace(counts, rate_hz=(len(arrivals) - 1) / (arrivals[-1] - arrivals[0]))

    def at(self, stamp_s: float) -> NDArray[np.float64] | None:
        """Interpolate positions (J,) linearly at a source stamp.

        A stamp up to `max_age_s` after the newest state gets that state; None outside the history.
        """
        with self._lock:
            history = list(self._history)
        if not history or stamp_s < history[0][0] or stamp_s > history[-1][0] + self.max_age_s:
            return None
        times = np.array([entry[0] for entry in history])
        after = int(np.searchsorted(times, stamp_s))
        if after == len(history):
            return np.array(history[-1][1])
        (t1, q1) = history[after]
        (t0, q0) = history[max(after - 1, 0)]
        share = 1.0 if t1 <= t0 else (stamp_s - t0) / (t1 - t0)
        between: NDArray[np.float64] = q0 + share * (q1 - q0)
        return between

    def state(self, now_s: float) -> ArmState:
        """Return the current state, or raise JOINT_STATES_STALE with the names of the stale joints."""
        with self._lock:
            positions, velocities = self._positions.copy(), self._velocities.copy()
            stamp_s = float(np.max(self._stamps))
            ages = now_s - self._received
        silent = [name for name, age in zip(self.robot.joint_names, ages, strict=True) if age > self.max_age_s]
        if silent:
            never = not np.any(np.isfinite(ages))
            raise KinemaError(
                "no joint state has arrived" if never else f"joint states of {', '.join(silent)} are stale",
                expected=f"every joint of '{self.robot.name}' at least every {self.max_age_s:g} s",
                hint="check that the arm's driver is running and publishes on this graph's joint_states",
                code=ErrorCode.JOINT_STATES_STALE,
            )
        return ArmState(positions, velocities, stamp_s, float(np.max(ages)))
