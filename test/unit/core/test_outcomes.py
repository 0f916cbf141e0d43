"""Outcomes of a rollout: accepted and refused values, and the frames of each outcome."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.scenes import cast_world, overhead_camera

from kinema4d_ros.core.errors import ErrorCode, RolloutError
from kinema4d_ros.core.outcomes import FramePatch, Outcome, PointBasis, patches_between
from kinema4d_ros.core.rollout import Frames, Provenance, Rollout

CAMERA = overhead_camera(18, 12)


def rollout(**change: Any) -> Rollout:
    xyz = np.stack([cast_world(CAMERA)] * 3)
    xyz[:, 0, 0] = np.nan
    fields: dict[str, Any] = {
        "rgb": np.zeros((3, 12, 18, 3), np.uint8),
        "xyz": xyz,
        "robot_mask": np.zeros((3, 12, 18), np.bool_),
        "camera": CAMERA,
        "times": np.arange(3) * 0.1,
        "provenance": Provenance("draft"),
    }
    return Rollout(**{**fields, **change})


def moved(main: Frames) -> Frames:
    other = main.copy()
    other.rgb[1, 3:5, 4:8] = 200
    other.xyz[2, 6, 7] = [0.1, 0.2, 0.3]
    other.robot_mask[2, 6, 8] = True
    return other


def patch(*index: int) -> FramePatch:
    n = len(index)
    return FramePatch(np.array(index, np.uint32), np.zeros((n, 3), np.uint8), np.ones((n, 3), np.float32))


def test_patches_hold_only_what_differs_and_compose_exactly() -> None:
    main = rollout()
    other = moved(main)
    patches = patches_between(main, other)
    assert [len(one) for one in patches] == [0, 8, 2]
    both = replace(main, outcomes=(Outcome(0.7, "lifted"), Outcome(0.3, "stays")), alternatives=(patches,))
    assert both.with_outcome(0) is both
    found = both.with_outcome(1)
    for mine, wanted in zip(found.arrays, other.arrays, strict=True):
        assert mine.tobytes() == wanted.tobytes()
    assert found.outcomes == (Outcome(0.3, "stays"),)
    assert found.alternatives == ()
    assert found.rollout_id != both.rollout_id
    assert not both.rgb.any()


def test_the_basis_goes_with_the_pixels() -> None:
    main = rollout(basis=np.full((3, 12, 18), PointBasis.PLANE, np.uint8))
    patches = patches_between(main, moved(main))
    both = replace(main, outcomes=(Outcome(0.5, "a"), Outcome(0.5, "b")), alternatives=(patches,))
    found = both.with_outcome(1).basis
    assert found is not None
    assert (found == PointBasis.UNKNOWN).sum() == 10
    fitted = np.full((3, 12, 18), PointBasis.PLANE, np.uint8)
    fitted[2, 0] = PointBasis.FITTED
    patches = patches_between(main, moved(main), main.basis, fitted)
    found = replace(both, alternatives=(patches,)).with_outcome(1).basis
    assert np.array_equal(found, fitted)


@pytest.mark.parametrize("index", [-1, 2])
def test_outcomes_that_do_not_exist(index: int) -> None:
    both = rollout(outcomes=[Outcome(0.5, "a"), Outcome(0.5, "b")], alternatives=[[patch(), patch(), patch()]])
    with pytest.raises(RolloutError, match=f"outcome {index} of 2"):
        both.with_outcome(index)
    with pytest.raises(RolloutError, match="outcome 1 of 0"):
        rollout().with_outcome(1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"outcomes": [Outcome(0.6, "a"), Outcome(0.5, "b")], "alternatives": [()]}, "a sum of at most 1"),
        ({"outcomes": [Outcome(0.2, "a"), Outcome(0.5, "b")], "alternatives": [()]}, "the most probable one first"),
        ({"outcomes": [Outcome(0.1, "a")] * 9}, "9 outcomes"),
        ({"outcomes": ["lifted"]}, "a sequence of Outcome"),
        ({"outcomes": [Outcome(0.5, "a"), Outcome(0.5, "b")]}, "frames of 0 alternatives for 2 outcomes"),
        ({"alternatives": [()]}, "frames of 1 alternatives for 0 outcomes"),
        ({"outcomes": [Outcome(0.5, "a"), Outcome(0.5, "b")], "alternatives": [[patch()]]}, "has 1 patches"),
        (
            {"outcomes": [Outcome(0.5, "a"), Outcome(0.5, "b")], "alternatives": [[patch(), patch(216), patch()]]},
            "outcome 1 in frame 1 has pixel 216",
        ),
        ({"basis": np.zeros((3, 12, 17), np.uint8)}, "basis is uint8 of shape (3, 12, 17)"),
        ({"basis": np.full((3, 12, 18), 7, np.uint8)}, "basis holds the value 7"),
        ({"unknowns": "one sentence"}, "unknowns are 'one sentence'"),
        ({"unknowns": ["x" * 501]}, "1 to 500 letters"),
    ],
)
def test_bad_statements_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(RolloutError) as caught:
        rollout(**change)
    assert message in str(caught.value)
    assert caught.value.expected
    assert caught.value.code == ErrorCode.ROLLOUT_INVALID


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ((1.1, "a"), "probability of an outcome is 1.1"),
        ((float("nan"), "a"), "probability of an outcome is nan"),
        ((True, "a"), "probability of an outcome is True"),
        ((0.5, " "), "label of an outcome"),
        ((0.5, "a", ((0.2, "x"), (0.1, "y"))), "not in order"),
        ((0.5, "a", ((0.2,),)), "events of an outcome"),
        ((0.5, "a", ((float("inf"), "x"),)), "time of an event is inf"),
        ((0.5, "a", ((0.1, ""),)), "text of an event"),
        ((0.5, "a", ((0.1, "x"),) * 65), "65 events"),
    ],
)
def test_bad_outcomes_are_refused(fields: tuple[Any, ...], message: str) -> None:
    with pytest.raises(RolloutError) as caught:
        Outcome(*fields)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"index": np.array([3, 3], np.uint32)}, "not in order"),
        ({"index": np.array([1, 2])}, "index of a patch is int64"),
        ({"rgb": np.zeros((3, 3), np.uint8)}, "rgb of a patch is uint8 of shape (3, 3)"),
        ({"xyz": np.zeros((2, 3))}, "xyz of a patch is float64"),
        ({"robot_mask": np.zeros(1, np.bool_)}, "robot_mask of a patch"),
        ({"basis": np.array([1, 9], np.uint8)}, "basis holds the value 9"),
    ],
)
def test_bad_patches_are_refused(change: dict[str, Any], message: str) -> None:
    good = patch(1, 2)
    with pytest.raises(RolloutError) as caught:
        FramePatch(**{"index": good.index, "rgb": good.rgb, "xyz": good.xyz, **change})
    assert message in str(caught.value)
