from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinema4d_ros.calibration.drift import Drift, DriftState, DriftWatch


def check(verdict: str, px: float = 0.0) -> Drift:
    return Drift(verdict, 0.9, 0.3, px, 0.0, 0.0, 20.0, np.eye(4), f"{verdict} {px}", px, px)  # type: ignore[arg-type]


def states(verdicts: str) -> list[DriftState]:
    watch = DriftWatch(agree=3, blind=4)
    names = {"s": "still", "m": "moved", "u": "unknown"}
    return [watch.take(check(names[letter], 4.0 * (letter == "m"))) for letter in verdicts]


@pytest.mark.parametrize(
    ("verdicts", "held"),
    [
        ("ss", "unknown"),
        ("sss", "still"),
        ("sssm", "still"),
        ("sssmm", "still"),
        ("sssmsmm", "still"),
        ("sssmmm", "moved"),
        ("sssmumm", "still"),
        ("mmms", "moved"),
        ("mmmss", "moved"),
        ("mmmsss", "still"),
        ("sssuuu", "still"),
        ("sssuuuu", "unknown"),
    ],
)
def test_verdict_changes_after_consecutive_checks(verdicts: str, held: str) -> None:
    assert states(verdicts)[-1].verdict == held


def test_numbers_belong_to_the_current_verdict() -> None:
    *_, before, doubt = states("sssm")
    assert before.sure
    assert not doubt.sure
    assert doubt.text == "still 0.0"
    moved = states("sssmmm")[-1]
    assert (moved.seen_px, moved.checks, moved.sure, moved.text) == (4.0, 6, True, "moved 4.0")


@given(st.text("su", max_size=40), st.integers(0, 2))
def test_fewer_bad_images_than_needed_do_not_change_the_verdict(quiet: str, bad: int) -> None:
    for at in range(len(quiet) + 1):
        assert all(state.verdict != "moved" for state in states(quiet[:at] + "m" * bad + quiet[at:]))
