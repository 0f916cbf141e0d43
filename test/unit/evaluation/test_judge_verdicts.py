"""Verdicts: predicates, margins, deciding frames, lost objects, agreement, and the image."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.judge_scenes import RADIUS, RED, Ball, ball_mask, film, pick

from kinema4d_ros.core.errors import ErrorCode
from kinema4d_ros.evaluation import (
    AtGoal,
    Confusion,
    EvaluationError,
    GeometricJudge,
    Judge,
    Lifted,
    PushedBy,
    Task,
    TruthJudge,
    judge_track,
    verdict_picture,
)
from kinema4d_ros.evaluation.tracking import Track


def track(position, confidence=None) -> Track:
    position = np.asarray(position, float)
    sure = np.ones(len(position)) if confidence is None else np.asarray(confidence, float)
    return Track(position, sure, sure, 100)


def rise(heights) -> np.ndarray:
    heights = np.asarray(heights, float)
    return np.stack([np.full_like(heights, 0.3), np.zeros_like(heights), heights], axis=1)


@pytest.mark.parametrize("goal", [None, Lifted(0.04)])
def test_geometric_and_true_judges_agree_on_a_pick_and_a_miss(goal) -> None:
    goal = goal or PushedBy(0.03)
    for carried in (True, False):
        rollout, target, path = pick(carried=carried)
        for judge in (GeometricJudge(), TruthJudge(path)):
            verdict = judge.judge(rollout, Task(goal), target)
            assert verdict.success is (carried and isinstance(goal, Lifted))
            assert verdict.confidence > 0.6
            assert verdict.track is not None


def test_without_a_mask_the_judge_finds_the_object() -> None:
    rollout, _, path = pick()
    verdict = GeometricJudge().judge(rollout, Task(Lifted()))
    assert verdict.success is True
    assert verdict.progress == 1.0
    assert verdict.value_m == pytest.approx(path[-2, 2] - RADIUS, abs=0.005)
    assert 10 < verdict.deciding_frame < len(rollout)


def test_an_object_that_vanishes_is_neither_success_nor_failure() -> None:
    centre = np.tile([0.3, 0.0, RADIUS], (8, 1))
    centre[4:, 2] = -1.0
    rollout = film([Ball(centre, RED)], 8)
    verdict = GeometricJudge().judge(rollout, Task(Lifted()), ball_mask(centre[0], rollout))
    assert verdict.success is None
    assert (verdict.confidence, verdict.progress, verdict.deciding_frame) == (0.0, 0.0, 3)
    assert "lost" in verdict.reason


def test_low_confidence_at_the_end_gives_no_verdict() -> None:
    path, sure = rise([0, 0, 0.1, 0.1, 0.1, 0.1]), [1, 1, 1, 0.08, 0.05, 0.05]
    assert judge_track(track(path, sure), Task(Lifted())).success is None
    assert judge_track(track(path, sure), Task(Lifted()), least_confidence=0.01).success is True


def test_confidence_falls_to_zero_at_the_limit() -> None:
    sure = [judge_track(track(rise([0, h, h, h])), Task(Lifted(0.04))).confidence for h in (0.0401, 0.045, 0.05, 0.08)]
    assert sure == pytest.approx([0.01, 0.5, 1.0, 1.0])
    assert judge_track(track(rise([0, 0.035, 0.035, 0.035])), Task(Lifted(0.04))).confidence == pytest.approx(0.5)


def test_the_deciding_frame() -> None:
    # Up, dropped, up again: only the second time counts.
    path = rise([0, 0.06, 0.06, 0.0, 0.0, 0.05, 0.06, 0.06, 0.06])
    assert judge_track(track(path), Task(Lifted())).deciding_frame == 5
    dropped = judge_track(track(rise([0, 0.06, 0.06, 0.0, 0.0, 0.0])), Task(Lifted()))
    assert (dropped.success, dropped.deciding_frame, dropped.progress) == (False, 5, 0.0)
    assert judge_track(track(rise([0, 0.02, 0.02, 0.02])), Task(Lifted())).progress == pytest.approx(0.5)


def test_one_bad_frame_at_the_end_does_not_decide() -> None:
    path = rise([0, 0.06, 0.06, 0.06, 0.06, 0.0])
    assert judge_track(track(path), Task(Lifted())).success is True
    path[-1] = np.nan
    assert judge_track(track(path, [1, 1, 1, 1, 1, 0]), Task(Lifted())).success is True


def test_at_the_goal_and_put_down() -> None:
    way = np.array([[0.3, 0, 0.02], [0.3, 0.05, 0.10], [0.3, 0.1, 0.10], [0.3, 0.1, 0.02], [0.3, 0.1, 0.02]])
    goal = AtGoal((0.3, 0.11), 0.03)
    assert goal.holds(way).tolist() == [False, False, False, True, True]
    assert judge_track(track(way), Task(goal)).success is True
    assert judge_track(track(way), Task(goal)).deciding_frame == 3
    assert judge_track(track(way[:3]), Task(goal)).success is False
    assert AtGoal((0.3, 0.11), 0.03, height_m=np.inf).holds(way)[2]
    assert goal.progress(way)[[0, 3]] == pytest.approx([0.0, 1.0])


def test_pushed_in_a_direction() -> None:
    way = np.array([[0.3, 0, 0.02], [0.3, -0.05, 0.02]])
    assert PushedBy(0.04).holds(way).tolist() == [False, True]
    assert not PushedBy(0.04, (0.0, 1.0)).holds(way).any()
    assert PushedBy(0.04, (0.0, -2.0)).value(way)[1] == pytest.approx(0.05)


@settings(deadline=None)
@given(st.lists(st.floats(-0.2, 0.2), min_size=4, max_size=12), st.floats(0.01, 0.1))
def test_a_verdict_is_never_out_of_range(heights, limit) -> None:
    verdict = judge_track(track(rise(heights)), Task(Lifted(limit)))
    assert 0 <= verdict.progress <= 1
    assert 0 <= verdict.confidence <= 1
    assert 0 <= verdict.deciding_frame < len(heights)
    end = np.median(np.asarray(heights)[-3:] - heights[0])
    assert verdict.success == (end > limit)


def test_the_true_judge_takes_poses_episodes_and_refuses_others() -> None:
    poses = np.tile(np.eye(4), (6, 1, 1))
    poses[3:, 2, 3] = 0.1
    assert TruthJudge(poses).judge(None, Task(Lifted())).success is True
    thing = SimpleNamespace(name="cube", base_T_object=poses)
    episode = SimpleNamespace(key="e", outcome=SimpleNamespace(target="cube", objects=(thing,)))
    assert TruthJudge.of_episode(episode).judge(None, Task(Lifted())).success is True
    with pytest.raises(EvaluationError, match="'ball'"):
        TruthJudge.of_episode(episode, "ball")
    with pytest.raises(EvaluationError, match=r"\(6, 4\)"):
        TruthJudge(np.zeros((6, 4)))
    with pytest.raises(EvaluationError, match="not finite"):
        TruthJudge(np.full((6, 3), np.nan))
    rollout, target, _ = pick(7)
    with pytest.raises(EvaluationError, match="7 frames, the object's path 6"):
        TruthJudge(poses).judge(rollout, Task(Lifted()), target)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Lifted(0.0),
        lambda: Lifted(float("nan")),
        lambda: PushedBy(-1),
        lambda: PushedBy(0.1, (0, 0)),
        lambda: AtGoal((0.1, float("inf"))),
        lambda: AtGoal((0.1, 0.2), 0.0),
        lambda: judge_track(track(rise([0, 1])), Task(Lifted()), margin_m=0),
    ],
)
def test_bad_goals_are_refused(make) -> None:
    with pytest.raises(EvaluationError) as caught:
        make()
    assert caught.value.code == ErrorCode.ARGUMENT_INVALID


def test_agreement_counts_every_cell_and_cannot_tell_never_agrees() -> None:
    verdicts = [True, True, False, None, False, True, None, False]
    truths = [True, True, True, True, False, False, False, False]
    table = Confusion.of(verdicts, truths)
    assert (table.true_success, table.false_failure, table.unknown_success) == (2, 1, 1)
    assert (table.false_success, table.true_failure, table.unknown_failure) == (1, 2, 1)
    assert (table.total, table.unknown, table.agreement) == (8, 2, 0.5)
    assert (table.false_success_rate, table.false_failure_rate) == (0.25, 0.25)
    assert "| failure | 1 | 2 | 1 |" in table.table()
    assert np.isnan(Confusion().agreement)
    with pytest.raises(EvaluationError, match="1 verdicts for 2 truths"):
        Confusion.of([True], [True, False])


def test_the_image_marks_the_deciding_frame_and_the_path() -> None:
    rollout, target, _ = pick()
    verdict = GeometricJudge().judge(rollout, Task(Lifted()), target)
    picture = verdict_picture(rollout, verdict)
    assert picture.dtype == np.uint8
    assert picture.shape[1] > 3 * 360
    # The line is antialiased.
    magenta = (picture[..., 0] > 170) & (picture[..., 1] < 90) & (picture[..., 2] > 150)
    assert magenta.sum() > 100
    first = magenta[26 : 26 + 288, :432]
    last = magenta[26 : 26 + 288, -432:]
    assert last.sum() > first.sum(), "the path grows"
    assert (picture[:20] == (40, 160, 70)).all(-1).mean() > 0.5
    lost = judge_track(track(rise([0, 0, 0]), [0, 0, 0]), Task(Lifted()))
    short = rollout.__class__(
        rollout.rgb[:3], rollout.xyz[:3], rollout.robot_mask[:3], rollout.camera, rollout.times[:3], rollout.provenance
    )
    assert (verdict_picture(short, lost)[:20] == (130, 130, 130)).all(-1).mean() > 0.5
    with pytest.raises(EvaluationError, match="deciding frame is"):
        verdict_picture(short, verdict)


def test_all_judges_follow_the_protocol() -> None:
    judges: list[Judge] = [GeometricJudge(), TruthJudge(np.zeros((15, 3)))]
    rollout, target, _ = pick()
    for judge in judges:
        assert judge.judge(rollout, Task(Lifted()), target).reason
