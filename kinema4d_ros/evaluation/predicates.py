"""What a task asks of an object's path: lifted, at a goal, pushed; how far it got, and when it was done.

A predicate turns positions (T, 3) into one number a frame, `value`, that has to be on the right side of `limit`.

>>> path = np.array([[0.3, 0, 0.02], [0.3, 0, 0.05], [0.3, 0, 0.10]])
>>> Lifted(0.04).value(path).round(2), Lifted(0.04).holds(path), Lifted(0.04).progress(path).round(2)
(array([0.  , 0.03, 0.08]), array([False, False,  True]), array([0.  , 0.75, 1.  ]))
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.errors import ErrorCode
from kinema4d_ros.evaluation.errors import EvaluationError

__all__ = ["AtGoal", "Lifted", "Predicate", "PushedBy"]

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


class Predicate(Protocol):
    """A condition on an object's path; positions are (T, 3) metres in the base frame, NaN = unknown."""

    @property
    def limit_m(self) -> float:
        """What `value` is compared with."""

    def value(self, position: Floats) -> Floats:
        """(T,) metres, NaN where unknown."""

    def holds(self, position: Floats) -> Bools:
        """(T,) bool, False where unknown."""

    def progress(self, position: Floats) -> Floats:
        """(T,) 0 to 1, 1 = done, NaN where unknown."""

    def words(self) -> str:
        """The condition as a phrase for people and language models."""


@dataclass(frozen=True)
class Lifted:
    """The object is higher than at the start by more than `height_m`."""

    height_m: float = 0.04

    def __post_init__(self) -> None:
        _require_positive("height_m", self.height_m)

    @property
    def limit_m(self) -> float:
        """The height."""
        return self.height_m

    def value(self, position: Floats) -> Floats:
        """(T,) metres above the start."""
        return np.asarray(position[:, 2] - _start(position)[2])

    def holds(self, position: Floats) -> Bools:
        """(T,) bool: higher than the limit."""
        return np.asarray(self.value(position) > self.height_m)

    def progress(self, position: Floats) -> Floats:
        """(T,) share of the height."""
        return np.clip(self.value(position) / self.height_m, 0.0, 1.0)

    def words(self) -> str:
        """The condition as a phrase."""
        return f"the object is at least {100 * self.height_m:g} cm higher at the end than at the start"


@dataclass(frozen=True)
class AtGoal:
    """The object lies within `radius_m` of `goal_xy`, measured along the table; higher than `height_m` does not count.

    Attributes:
        goal_xy: metres, base frame.
        radius_m: of the goal.
        height_m: an object that is still this much higher than at the start is not put down; infinite = no matter.
    """

    goal_xy: tuple[float, float]
    radius_m: float = 0.03
    height_m: float = 0.03

    def __post_init__(self) -> None:
        _require_positive("radius_m", self.radius_m)
        if not self.height_m > 0:
            raise EvaluationError(f"height_m is {self.height_m}", expected="metres above 0, or infinite")
        if len(self.goal_xy) != 2 or not np.all(np.isfinite(self.goal_xy)):
            raise EvaluationError(f"goal_xy is {self.goal_xy}", expected="two finite metres", code=_ARGUMENT)

    @property
    def limit_m(self) -> float:
        """The radius."""
        return self.radius_m

    def value(self, position: Floats) -> Floats:
        """(T,) metres from the goal."""
        return np.asarray(np.linalg.norm(position[:, :2] - np.asarray(self.goal_xy), axis=1))

    def holds(self, position: Floats) -> Bools:
        """(T,) bool: inside the radius and down."""
        down = position[:, 2] - _start(position)[2] < self.height_m
        return np.asarray((self.value(position) <= self.radius_m) & down)

    def progress(self, position: Floats) -> Floats:
        """(T,) share of the way from the start to the goal's rim."""
        distance = self.value(position)
        way = max(float(np.linalg.norm(_start(position)[:2] - np.asarray(self.goal_xy))) - self.radius_m, 1e-6)
        return np.clip(1.0 - (distance - self.radius_m) / way, 0.0, 1.0)

    def words(self) -> str:
        """The condition as a phrase."""
        return f"the object lies within {100 * self.radius_m:g} cm of its goal at the end"


@dataclass(frozen=True)
class PushedBy:
    """The object has moved along the table by more than `distance_m`; with `direction_xy`, in that direction."""

    distance_m: float = 0.03
    direction_xy: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        _require_positive("distance_m", self.distance_m)
        if self.direction_xy is not None and not np.linalg.norm(self.direction_xy) > 0:
            raise EvaluationError(f"direction_xy is {self.direction_xy}", expected="not zero, finite", code=_ARGUMENT)

    @property
    def limit_m(self) -> float:
        """The distance."""
        return self.distance_m

    def value(self, position: Floats) -> Floats:
        """(T,) metres along the table from the start."""
        moved = position[:, :2] - _start(position)[:2]
        if self.direction_xy is None:
            return np.asarray(np.linalg.norm(moved, axis=1))
        way = np.asarray(self.direction_xy, dtype=np.float64)
        return np.asarray(moved @ (way / np.linalg.norm(way)))

    def holds(self, position: Floats) -> Bools:
        """(T,) bool: farther than the limit."""
        return np.asarray(self.value(position) > self.distance_m)

    def progress(self, position: Floats) -> Floats:
        """(T,) share of the distance."""
        return np.clip(self.value(position) / self.distance_m, 0.0, 1.0)

    def words(self) -> str:
        """The condition as a phrase."""
        return f"the object has been pushed along the table by at least {100 * self.distance_m:g} cm"


_ARGUMENT = ErrorCode.ARGUMENT_INVALID


def _require_positive(name: str, value: float) -> None:
    if not (np.isfinite(value) and value > 0):
        raise EvaluationError(f"{name} is {value}", expected="metres above 0", code=_ARGUMENT)


def _start(position: Floats) -> Floats:
    """The first known position (3,); NaN if there is none."""
    known = np.isfinite(position).all(axis=1)
    return np.asarray(position[int(known.argmax())])
