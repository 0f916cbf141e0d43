"""Verdicts over all outcomes of a rollout: the probability of success, and generators that cannot tell."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from support.scenes import overhead_camera

from kinema4d_ros.core.outcomes import FramePatch, Outcome
from kinema4d_ros.core.rollout import Provenance, Rollout
from kinema4d_ros.core.task import Task, make_task
from kinema4d_ros.evaluation.judges import Mask, Verdict, judge_outcomes, judge_track
from kinema4d_ros.evaluation.tracking import Track

PICK = make_task("pick")


@dataclass
class ByColour:
    """Judges by the first pixel of the last frame: 255 = success, 0 = failure, else it cannot tell."""

    seen: list[int] = field(default_factory=list)

    def judge(self, rollout: Rollout, task: Task, target_mask: Mask | None = None) -> Verdict:
        value = int(rollout.rgb[-1, 0, 0, 0])
        self.seen.append(value)
        return Verdict({255: True, 0: False}.get(value), 0.0, 0.5, 0, None, f"colour {value}")


def rollout(*outcomes: tuple[float, int], unknowns: tuple[str, ...] = ()) -> Rollout:
    """A rollout of outcomes given as (probability, colour)."""
    camera = overhead_camera(6, 4)
    first = outcomes[0][1] if outcomes else 255
    still = FramePatch(np.empty(0, np.uint32), np.empty((0, 3), np.uint8), np.empty((0, 3), np.float32))
    made = Rollout(
        np.full((2, 4, 6, 3), first, np.uint8),
        np.full((2, 4, 6, 3), np.nan, np.float32),
        np.zeros((2, 4, 6), np.bool_),
        camera,
        np.array([0.0, 1.0]),
        Provenance("draft"),
        unknowns=unknowns,
    )
    patches = [
        FramePatch(np.zeros(1, np.uint32), np.full((1, 3), colour, np.uint8), np.full((1, 3), np.nan, np.float32))
        for _, colour in outcomes[1:]
    ]
    stated = tuple(Outcome(p, f"outcome {i}") for i, (p, _) in enumerate(outcomes))
    return replace(made, outcomes=stated, alternatives=tuple((still, patch) for patch in patches))


@pytest.mark.parametrize(
    ("outcomes", "probability"),
    [
        ((), None),
        (((1.0, 255),), 1.0),
        (((0.75, 255), (0.25, 0)), 0.75),
        (((0.75, 0), (0.25, 255)), 0.25),
        (((0.5, 0), (0.3, 255), (0.2, 255)), 0.5),
        (((0.6, 255), (0.4, 7)), 0.8),
        (((0.9, 255),), 0.95),
        (((0.5, 7), (0.5, 9)), None),
    ],
)
def test_the_probability_weighs_the_outcomes(
    outcomes: tuple[tuple[float, int], ...], probability: float | None
) -> None:
    judge = ByColour()
    verdict = judge_outcomes(judge, rollout(*outcomes), PICK)
    assert verdict.probability == (None if probability is None else pytest.approx(probability))
    assert verdict.success is {255: True, 0: False}.get(outcomes[0][1] if outcomes else 255)
    assert judge.seen == ([colour for _, colour in outcomes] or [255])


def test_a_generator_that_cannot_tell_gives_no_verdict_but_a_forced_one() -> None:
    unsure = rollout((0.6, 255), (0.4, 0), unknowns=("object_1 is hidden; measured depth would help",))
    verdict = judge_outcomes(ByColour(), unsure, PICK)
    assert verdict.success is None
    assert verdict.forced is True
    assert verdict.confidence == 0.0
    assert verdict.probability == pytest.approx(0.6)
    assert "measured depth would help" in verdict.reason
    assert "colour 255" in verdict.reason


def test_a_lost_object_gives_a_forced_verdict_by_where_it_was_last_seen() -> None:
    position = np.zeros((8, 3))
    position[:, 2] = np.linspace(0, 0.14, 8)
    confidence = np.array([1.0, 1, 1, 1, 1, 0, 0, 0])
    verdict = judge_track(Track(position, confidence, confidence, 0), PICK)
    assert (verdict.success, verdict.forced, verdict.deciding_frame) == (None, True, 4)
    never = judge_track(Track(position * np.nan, np.zeros(8), np.zeros(8), 0), PICK)
    assert (never.success, never.forced) == (None, None)
