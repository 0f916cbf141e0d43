"""`Task`: a goal for one object, its instruction text, and the only success criterion of the package.

    "pick", "push", ... ─> make_task ─> Task: goal, target, instruction ─> outcome(poses) ─> success, progress, metres

Judges, the lab, labels of recorded data, policies and demonstrations all use `Task.outcome`; the limits are the
defaults of the goals below and are defined nowhere else.

>>> path = np.array([[0.3, 0, 0.02], [0.3, 0, 0.05], [0.3, 0, 0.10]])
>>> Lifted(0.04).value(path).round(2), Lifted(0.04).holds(path), Lifted(0.04).progress(path).round(2)
(array([0.  , 0.03, 0.08]), array([False, False,  True]), array([0.  , 0.75, 1.  ]))
>>> make_task("pick", "red_box").outcome(path).success
True
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kinema4d_ros.core.errors import ErrorCode, EvaluationError

__all__ = [
    "LAB_TASKS",
    "TASKS",
    "AtGoal",
    "Lifted",
    "Predicate",
    "PushedBy",
    "Task",
    "TaskOutcome",
    "make_task",
    "object_path",
]

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

LAB_TASKS = ("pick", "place", "push")
"""Tasks that a policy can get in any lab scene."""

_PICK = "pick up the {target}"
TASKS = {
    "pick": _PICK,
    "place": "pick up the {target} and put it down at its goal",
    "push": "push the {target} along the table",
    "stack": "stack the {target} on the box",
    # Recorded pick attempts: near misses, weak grasps, noise on the motion.
    "miss": _PICK,
    "slip": _PICK,
    "noise": _PICK,
}
"""Instruction by kind of task; `{target}` is replaced by the name of the object."""


class Predicate(Protocol):
    """Condition on an object's path; positions are (T, 3) metres in the base frame, NaN = unknown."""

    kind: ClassVar[str]
    """Kind of task in `LAB_TASKS` that this goal belongs to."""
    done: ClassVar[str]
    """State of the object when the condition holds, in one to three words."""

    @property
    def limit_m(self) -> float:
        """Limit of `value`, metres."""

    def value(self, position: Floats) -> Floats:
        """Return (T,) metres, NaN = unknown."""

    def holds(self, position: Floats) -> Bools:
        """Return (T,) bool, False = unknown or not fulfilled."""

    def progress(self, position: Floats) -> Floats:
        """Return (T,) 0 to 1, 1 = done, NaN = unknown."""

    def words(self) -> str:
        """Return the condition as a phrase for people and language models."""


@dataclass(frozen=True)
class Lifted:
    """Goal: the object is higher than at the start by more than `height_m`."""

    kind: ClassVar[str] = "pick"
    done: ClassVar[str] = "lifted"

    height_m: float = 0.04

    def __post_init__(self) -> None:
        _require_positive("height_m", self.height_m)

    @property
    def limit_m(self) -> float:
        """Height, metres."""
        return self.height_m

    def value(self, position: Floats) -> Floats:
        """Return (T,) metres above the start."""
        return np.asarray(position[:, 2] - _start(position)[2])

    def holds(self, position: Floats) -> Bools:
        """Return (T,) bool: higher than the limit."""
        return np.asarray(self.value(position) > self.height_m)

    def progress(self, position: Floats) -> Floats:
        """Return (T,) fraction of the height."""
        return np.clip(self.value(position) / self.height_m, 0.0, 1.0)

    def words(self) -> str:
        """Return the condition as a phrase."""
        return f"the object is at least {100 * self.height_m:g} cm higher at the end than at the start"


@dataclass(frozen=True)
class AtGoal:
    """Goal: the object is within `radius_m` of `goal_xy`, measured horizontally, and is put down there.

    Attributes:
        goal_xy: metres, base frame.
        radius_m: of the goal.
        height_m: an object at least this much higher than the goal's surface is not put down; infinite = not checked.
        support_m: height of the support at the goal, metres above the surface that the object started on. The object
            must be higher than half of it, otherwise it is beside the support. Below 0 for an object that starts in
            the gripper or on another object, and is put down lower.
    """

    kind: ClassVar[str] = "place"
    done: ClassVar[str] = "at its goal"

    goal_xy: tuple[float, float]
    radius_m: float = 0.03
    height_m: float = 0.03
    support_m: float = 0.0

    def __post_init__(self) -> None:
        _require_positive("radius_m", self.radius_m)
        if not self.height_m > 0:
            raise EvaluationError(
                f"height_m is {self.height_m}", expected="metres above 0, or infinite", code=ErrorCode.ARGUMENT_INVALID
            )
        if not np.isfinite(self.support_m):
            raise EvaluationError(
                f"support_m is {self.support_m}", expected="finite metres", code=ErrorCode.ARGUMENT_INVALID
            )
        if len(self.goal_xy) != 2 or not np.all(np.isfinite(self.goal_xy)):
            raise EvaluationError(
                f"goal_xy is {self.goal_xy}", expected="two finite metres", code=ErrorCode.ARGUMENT_INVALID
            )

    @property
    def limit_m(self) -> float:
        """Radius, metres."""
        return self.radius_m

    def value(self, position: Floats) -> Floats:
        """Return (T,) metres from the goal, horizontally."""
        return np.asarray(np.linalg.norm(position[:, :2] - np.asarray(self.goal_xy), axis=1))

    def holds(self, position: Floats) -> Bools:
        """Return (T,) bool: inside the radius and put down."""
        rise = position[:, 2] - _start(position)[2]
        down = rise < self.support_m + self.height_m
        if self.support_m > 0:
            down &= rise > 0.5 * self.support_m
        return np.asarray((self.value(position) <= self.radius_m) & down)

    def progress(self, position: Floats) -> Floats:
        """Return (T,) fraction of the distance from the start to the edge of the goal."""
        distance = self.value(position)
        way = max(float(np.linalg.norm(_start(position)[:2] - np.asarray(self.goal_xy))) - self.radius_m, 1e-6)
        return np.clip(1.0 - (distance - self.radius_m) / way, 0.0, 1.0)

    def words(self) -> str:
        """Return the condition as a phrase."""
        where = ", on what stands there," if self.support_m > 0 else ""
        return f"the object lies within {100 * self.radius_m:g} cm of its goal{where} at the end"


@dataclass(frozen=True)
class PushedBy:
    """Goal: the object has moved horizontally by more than `distance_m`; with `direction_xy`, in that direction."""

    kind: ClassVar[str] = "push"
    done: ClassVar[str] = "pushed"

    distance_m: float = 0.03
    direction_xy: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        _require_positive("distance_m", self.distance_m)
        if self.direction_xy is not None and not np.linalg.norm(self.direction_xy) > 0:
            raise EvaluationError(
                f"direction_xy is {self.direction_xy}", expected="not zero, finite", code=ErrorCode.ARGUMENT_INVALID
            )

    @property
    def limit_m(self) -> float:
        """Distance, metres."""
        return self.distance_m

    def value(self, position: Floats) -> Floats:
        """Return (T,) metres from the start, horizontally."""
        moved = position[:, :2] - _start(position)[:2]
        if self.direction_xy is None:
            return np.asarray(np.linalg.norm(moved, axis=1))
        way = np.asarray(self.direction_xy, dtype=np.float64)
        return np.asarray(moved @ (way / np.linalg.norm(way)))

    def holds(self, position: Floats) -> Bools:
        """Return (T,) bool: farther than the limit."""
        return np.asarray(self.value(position) > self.distance_m)

    def progress(self, position: Floats) -> Floats:
        """Return (T,) fraction of the distance."""
        return np.clip(self.value(position) / self.distance_m, 0.0, 1.0)

    def words(self) -> str:
        """Return the condition as a phrase."""
        return f"the object has been pushed along the table by at least {100 * self.distance_m:g} cm"


@dataclass(frozen=True)
class TaskOutcome:
    """Result of a task.

    Attributes:
        success: the goal holds at the end; None = the object's pose at the end is unknown.
        progress: 0 to 1 at the end; 0 if unknown.
        value_m: the goal's `value` at the end, NaN = unknown.
    """

    success: bool | None
    progress: float = 0.0
    value_m: float = float("nan")


@dataclass(frozen=True)
class Task:
    """Goal for one object.

    Attributes:
        goal: success condition with its limits.
        target: the object's name; "" = not named.
        instruction: text for policies and judges that use language.
    """

    goal: Predicate
    target: str = ""
    instruction: str = ""

    @property
    def kind(self) -> str:
        """Kind of task that a policy is told, one of `LAB_TASKS`."""
        return self.goal.kind

    def outcome(self, poses: ArrayLike, *, known: Bools | None = None, end_frames: int = 1) -> TaskOutcome:
        """Evaluate the goal at the end of an object's path.

        Args:
            poses: (T, 4, 4) base_T_object or (T, 3) positions, metres; start and end suffice. NaN = unknown.
            known: (T,) bool, frames that count at the end; None = all that are not NaN.
            end_frames: the known frames among this many last ones vote by majority, so that one bad estimate does not
                decide; 1 for poses that are measured or simulated.
        """
        position = object_path(poses)
        counts = np.asarray(np.isfinite(position).all(axis=1))
        if known is not None:
            counts = counts & known
        end = np.flatnonzero(counts[-end_frames:]) + max(0, len(position) - end_frames)
        if not end.size:
            return TaskOutcome(None)
        success = bool(self.goal.holds(position)[end].mean() > 0.5)
        progress = 1.0 if success else float(np.median(self.goal.progress(position)[end]))
        return TaskOutcome(success, progress, float(np.median(self.goal.value(position)[end])))


def make_task(
    kind: str,
    target: str = "",
    *,
    goal_xy: Sequence[float] | Floats | None = None,
    support_m: float = 0.0,
    called: str = "",
) -> Task:
    """Build a task of a kind from `TASKS`.

    Args:
        kind: such as "pick".
        target: name of the object.
        goal_xy: goal of "place" and "stack", metres, base frame.
        support_m: height of the support at the goal above the one that it starts on, metres.
        called: name of the object in the instruction; by default `target`.

    Raises:
        EvaluationError: the kind is unknown, or its goal is missing.
    """
    if kind not in TASKS:
        raise EvaluationError(
            f"task '{kind}' is not known", expected=f"one of {', '.join(TASKS)}", code=ErrorCode.ARGUMENT_INVALID
        )
    instruction = TASKS[kind].format(target=called or target.replace("_", " ") or "object")
    if kind == "push":
        return Task(PushedBy(), target, instruction)
    if kind not in ("place", "stack"):
        return Task(Lifted(), target, instruction)
    if goal_xy is None or np.shape(goal_xy) != (2,):
        raise EvaluationError(
            f"task '{kind}' has the goal {goal_xy}", expected="two metres, base frame", code=ErrorCode.ARGUMENT_INVALID
        )
    goal = AtGoal((float(goal_xy[0]), float(goal_xy[1])), support_m=support_m)
    return Task(goal, target, instruction)


def object_path(poses: ArrayLike) -> Floats:
    """Return (T, 3) positions of (T, 4, 4) poses or of (T, 3) positions, metres."""
    given = np.asarray(poses, dtype=np.float64)
    position = given[:, :3, 3] if given.ndim == 3 and given.shape[1:] == (4, 4) else given
    if position.ndim != 2 or position.shape[1] != 3 or not len(position):
        raise EvaluationError(f"the object's path has shape {given.shape}", expected="(T, 4, 4) or (T, 3)")
    return position


def _require_positive(name: str, value: float) -> None:
    if not (np.isfinite(value) and value > 0):
        raise EvaluationError(f"{name} is {value}", expected="metres above 0", code=ErrorCode.ARGUMENT_INVALID)


def _start(position: Floats) -> Floats:
    """Return the first known position (3,); NaN if there is none."""
    known = np.isfinite(position).all(axis=1)
    return np.asarray(position[int(known.argmax())])
