"""`PlanHandout`: a whole motion, given out chunk by chunk as it is asked for."""

from __future__ import annotations

import numpy as np

from kinema4d_ros.core.errors import ErrorCode
from kinema4d_ros.core.trajectory import JointTrajectory
from kinema4d_ros.policies.protocol import ActionChunk, PolicyError

__all__ = ["PlanHandout"]

MAX_CHUNK_S = 600.0
_SAME_S = 1e-6


class PlanHandout:
    """Hands out a trajectory whose columns are `robot.joint_names`.

    Whoever executes only part of a chunk gets the rest again; whoever waits in between misses nothing.

    Args:
        chunk_s: seconds in one chunk; 0 = the whole motion at once.
    """

    def __init__(self, chunk_s: float) -> None:
        if isinstance(chunk_s, bool) or not isinstance(chunk_s, int | float) or not 0.0 <= chunk_s <= MAX_CHUNK_S:
            raise PolicyError(
                f"chunk_s is {chunk_s!r}",
                expected=f"0 (everything at once) to {MAX_CHUNK_S:g} seconds",
                code=ErrorCode.ARGUMENT_INVALID,
            )
        self._chunk_s = chunk_s or np.inf
        self.clear()

    def clear(self) -> None:
        """Forget the motion."""
        self._plan: JointTrajectory | None = None
        self._first_s: float | None = None
        self._given_s = 0.0

    def load(self, plan: JointTrajectory) -> None:
        """Begin a motion; its first sample is where the arm is."""
        self.clear()
        self._plan = plan

    def next_chunk(self, time_s: float) -> ActionChunk:
        """What comes next at this time of the episode; the chunk with the last sample is `done`.

        Raises:
            PolicyError: no episode was begun.
        """
        if self._plan is None:
            raise PolicyError("there is no episode", expected="reset before act")
        if self._first_s is None:
            self._first_s = time_s
        # Time that passed without motion is not taken out of the plan: the arm would jump.
        now = min(time_s - self._first_s, self._given_s)
        times = self._plan.times - self._plan.times[0]
        end = now + self._chunk_s
        chosen = (times > now + _SAME_S) & (times <= end + _SAME_S)
        if not np.any(chosen) and now < times[-1] - _SAME_S:
            chosen = np.arange(len(times)) == int(np.argmax(times > now + _SAME_S))
        rows = self._plan.positions[chosen]
        self._given_s = float(times[chosen][-1]) if np.any(chosen) else now
        return ActionChunk(times[chosen] - now, rows, done=bool(self._given_s >= times[-1] - _SAME_S))
