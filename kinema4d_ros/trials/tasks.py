"""Tasks by name: what is asked for in words, and when it is done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kinema4d_ros.errors import ErrorCode
from kinema4d_ros.evaluation.errors import EvaluationError
from kinema4d_ros.evaluation.predicates import AtGoal, Lifted, Predicate, PushedBy
from kinema4d_ros.lab.simulation import LabState

__all__ = ["TASKS", "TaskKind", "task_kind"]


@dataclass(frozen=True)
class TaskKind:
    """A task that can be set on any table.

    Attributes:
        name: "pick", "place" or "push".
        words: the instruction; `{target}` is the object's name.
        goal: the condition, for the state before the motion.
    """

    name: str
    words: str
    goal: Callable[[LabState], Predicate]

    def instruction(self, state: LabState) -> str:
        """The instruction for a table."""
        return self.words.format(target=state.target.replace("_", " "))


def _at_goal(state: LabState) -> Predicate:
    return AtGoal((float(state.goal[0]), float(state.goal[1])))


TASKS: dict[str, TaskKind] = {
    kind.name: kind
    for kind in (
        TaskKind("pick", "pick up the {target}", lambda _: Lifted()),
        TaskKind("place", "pick up the {target} and put it down at its goal", _at_goal),
        TaskKind("push", "push the {target} along the table", lambda _: PushedBy()),
    )
}


def task_kind(name: str) -> TaskKind:
    """A task by name."""
    if name not in TASKS:
        raise EvaluationError(
            f"task '{name}' is not known", expected=f"one of {', '.join(TASKS)}", code=ErrorCode.ARGUMENT_INVALID
        )
    return TASKS[name]
