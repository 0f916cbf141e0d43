"""Where a robot's tool can go while it points down, learned once: asking again costs nothing, a failed search much."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.kinematics.protocol import Kinematics, NoSolution
from kinema4d_ros.lab.scripted import tool_down

__all__ = ["Reach", "reach_of"]

Array = NDArray[np.float64]

_RADII = np.array([0.20, 0.25, 0.30, 0.35, 0.40, 0.45, 0.50])
_TURNS = np.radians(np.arange(-180, 180, 15))
_STEP_M = 0.01
_HIGHEST_M = 0.40


class Reach:
    """Heights and turns of a downward tool that inverse kinematics found, by distance from the base."""

    def __init__(self, kinematics: Kinematics) -> None:
        self._kinematics = kinematics
        self._turns = np.array([self._can(0.30, 0.10, turn) for turn in _TURNS])
        if not self._turns.any():
            self._turns[:] = True
        turn = float(_TURNS[int(np.flatnonzero(self._turns)[self._turns.sum() // 2])])
        self._highest = np.array([self._search(radius, turn) for radius in _RADII])

    def ceiling(self, x: float, y: float) -> float:
        """The highest z in metres that is surely reachable over x, y; 0 if none is."""
        radius = float(np.hypot(x, y))
        i = int(np.clip(np.searchsorted(_RADII, radius), 1, len(_RADII) - 1))
        return float(min(self._highest[i - 1], self._highest[i]))

    def turns(self, x: float, y: float, yaw: float) -> bool:
        """Whether fingers may close along `yaw` there; the wrist's limits turn with the arm's bearing."""
        relative = (yaw - np.arctan2(y, x) - _TURNS[0]) % (2 * np.pi)
        i = int(relative / (_TURNS[1] - _TURNS[0]))
        return bool(self._turns[i % len(_TURNS)] and self._turns[(i + 1) % len(_TURNS)])

    def _can(self, radius: float, z: float, turn: float) -> bool:
        try:
            self._kinematics.inverse(tool_down(radius, 0.0, z, turn), seed=self._kinematics.robot.home_position())
        except NoSolution:
            return False
        return True

    def _search(self, radius: float, turn: float) -> float:
        low, high = 0.0, _HIGHEST_M
        while high - low > _STEP_M:
            middle = (low + high) / 2
            low, high = (middle, high) if self._can(radius, middle, turn) else (low, middle)
        return low


_REACHES: WeakKeyDictionary[Kinematics, Reach] = WeakKeyDictionary()


def reach_of(kinematics: Kinematics) -> Reach:
    """The reach of a kinematics, found at the first call: about a second."""
    if kinematics not in _REACHES:
        _REACHES[kinematics] = Reach(kinematics)
    return _REACHES[kinematics]
