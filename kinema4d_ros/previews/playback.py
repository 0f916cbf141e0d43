"""Playback clock of a rollout: play, pause, seek, speed, loop, and which of its outcomes is shown."""

from __future__ import annotations

import math
import threading

import numpy as np
from numpy.typing import ArrayLike

from kinema4d_ros.core.errors import ErrorCode, KinemaError

__all__ = ["PlaybackClock"]

MAX_SPEED = 10.0
HOLD_S = 1.0
"""Time for which the last frame is held before the loop restarts."""


class PlaybackClock:
    """Clock that selects the current frame. The caller passes a monotonic time. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._times = np.zeros(0)
        self._anchor_s = 0.0
        self._position_s = 0.0
        self.playing = True
        self.speed = 1.0
        self._outcomes = 0
        self.outcome = 0
        """Number of the outcome that is shown; 0 = the most probable, which the rollout's own frames show."""

    def load(self, times: ArrayLike, now_s: float, outcomes: int = 0) -> None:
        """Load a rollout that states so many outcomes and seek to its first frame; it keeps playing state and speed."""
        with self._lock:
            self._outcomes, self.outcome = outcomes, 0
            self._times = np.asarray(times, dtype=np.float64) - (np.asarray(times)[0] if len(np.asarray(times)) else 0)
            self._anchor_s, self._position_s = now_s, 0.0

    @property
    def duration_s(self) -> float:
        """Duration of the rollout; 0 without one."""
        return float(self._times[-1]) if len(self._times) else 0.0

    def position_s(self, now_s: float) -> float:
        """Return the current position, seconds since the first frame."""
        with self._lock:
            return min(self._now(now_s), self.duration_s)

    def frame(self, now_s: float) -> int | None:
        """Return the index of the current frame; None without a rollout."""
        with self._lock:
            if not len(self._times):
                return None
            return max(int(np.searchsorted(self._times, self._now(now_s) + 1e-9, side="right")) - 1, 0)

    def _now(self, now_s: float) -> float:
        if not self.playing:
            return self._position_s
        elapsed = self._position_s + (now_s - self._anchor_s) * self.speed
        return elapsed % (self.duration_s + HOLD_S * self.speed)

    def play(self, now_s: float) -> None:
        """Continue from the current position."""
        with self._lock:
            self._hold(now_s)
            self.playing = True

    def pause(self, now_s: float) -> None:
        """Pause at the current position."""
        with self._lock:
            self._hold(now_s)
            self.playing = False

    def seek(self, position_s: float, now_s: float) -> None:
        """Seek to a time of the rollout."""
        with self._lock:
            if not (math.isfinite(position_s) and 0.0 <= position_s <= self.duration_s):
                raise _refuse(f"seek to {position_s} s", f"0 to {self.duration_s:g} s")
            self._position_s, self._anchor_s = position_s, now_s

    def set_speed(self, speed: float, now_s: float) -> None:
        """Set the speed as a multiple of the plan's own rate."""
        if not (math.isfinite(speed) and 0.0 < speed <= MAX_SPEED):
            raise _refuse(f"speed {speed}", f"more than 0, at most {MAX_SPEED:g}")
        with self._lock:
            self._hold(now_s)
            self.speed = speed

    def show_outcome(self, number: float) -> None:
        """Show another outcome of the rollout; position and speed are unchanged."""
        with self._lock:
            if not (math.isfinite(number) and number == int(number) and 0 <= number < max(self._outcomes, 1)):
                few = self._outcomes < 2
                raise _refuse(
                    f"outcome {number:g}",
                    "0 alone: the rollout states no others"
                    if few
                    else f"a whole number from 0 to {self._outcomes - 1}",
                )
            self.outcome = int(number)

    def _hold(self, now_s: float) -> None:
        self._position_s, self._anchor_s = min(self._now(now_s), self.duration_s), now_s


def _refuse(what: str, expected: str) -> KinemaError:
    return KinemaError(f"playback: {what}", expected=expected, code=ErrorCode.PLAYBACK_BAD_COMMAND)
