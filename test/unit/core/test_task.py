"""`Task` outcomes: limits, end frames and invalid tasks."""

from __future__ import annotations

import numpy as np
import pytest

from kinema4d_ros.core.errors import ErrorCode, EvaluationError
from kinema4d_ros.core.task import LAB_TASKS, TASKS, AtGoal, Lifted, Task, make_task
from kinema4d_ros.evaluation import TruthJudge

START = np.array([0.3, 0.0, 0.02])
HIGH, HALF = START + np.array([0, 0, 0.1]), START + np.array([0, 0, 0.02])


@pytest.mark.parametrize(
    ("kind", "end", "done"),
    [
        ("push", [0.3, 0.025, 0.02], False),
        ("push", [0.3, -0.031, 0.02], True),
        ("pick", [0.3, 0.0, 0.059], False),
        ("pick", [0.3, 0.0, 0.061], True),
        ("miss", [0.3, 0.0, 0.061], True),
        ("place", [0.3, 0.129, 0.02], True),
        ("place", [0.3, 0.131, 0.02], False),
        ("place", [0.3, 0.1, 0.06], False),
        ("stack", [0.3, 0.1, 0.06], True),
        ("stack", [0.3, 0.1, 0.035], False),
        ("stack", [0.3, 0.1, 0.10], False),
    ],
)
def test_start_and_end_suffice_and_the_pose_judge_agrees(kind: str, end: list[float], done: bool) -> None:
    task = make_task(kind, "red_box", goal_xy=(0.3, 0.1), support_m=0.04 if kind == "stack" else 0.0)
    assert task.outcome([START, end]).success is done
    poses = np.tile(np.eye(4), (4, 1, 1))
    poses[:, :3, 3] = [START, START, START, end]
    assert task.outcome(poses) == task.outcome([START, end])
    verdict = TruthJudge(poses).judge(None, task)
    assert (verdict.success, verdict.value_m) == (done, task.outcome(poses).value_m)


def test_end_frames_vote_by_majority_and_may_be_unknown() -> None:
    task = Task(Lifted())
    path = np.array([START, START, HIGH, HIGH, START])
    assert task.outcome(path).success is False
    assert task.outcome(path, end_frames=3).success is True
    assert task.outcome(path, end_frames=3, known=np.array([1, 1, 0, 0, 1], bool)).success is False
    path[-1] = np.nan
    assert task.outcome(path).success is None
    assert task.outcome(path, end_frames=2).success is True
    assert task.outcome([START, HALF]).progress == pytest.approx(0.5)


def test_every_kind_has_an_instruction_and_includes_the_lab_tasks() -> None:
    assert set(LAB_TASKS) <= set(TASKS)
    for kind in TASKS:
        task = make_task(kind, "red_box", goal_xy=(0.3, 0.1))
        assert "the red box" in task.instruction
        assert task.target == "red_box"
    assert make_task("push", "thing_0", called="blue cup").instruction == "push the blue cup along the table"


@pytest.mark.parametrize(
    "make",
    [
        lambda: make_task("juggle"),
        lambda: make_task("place", "red_box"),
        lambda: make_task("stack", "red_box", goal_xy=(0.1, 0.2, 0.3)),
        lambda: AtGoal((0.1, 0.2), support_m=float("nan")),
        lambda: AtGoal((0.1, 0.2), height_m=0.0),
    ],
)
def test_invalid_tasks_are_refused(make: object) -> None:
    with pytest.raises(EvaluationError) as caught:
        make()  # type: ignore[operator]
    assert caught.value.code == ErrorCode.ARGUMENT_INVALID


def test_invalid_path_shapes_are_refused() -> None:
    for bad in (np.zeros((4, 2)), np.zeros((0, 3)), np.zeros(3)):
        with pytest.raises(EvaluationError, match="path has shape"):
            Task(Lifted()).outcome(bad)
