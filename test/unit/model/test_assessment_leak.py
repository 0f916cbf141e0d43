"""Leak test: detects commands that reveal the outcome, and only those."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.scenes import overhead_camera

from kinema4d_model.assessment.leak import leak_table
from kinema4d_ros.core.errors import KinemaError


def motions(count: int, told: float, seed: int = 0) -> list[Any]:
    """Make random commands; for lifts the last joint is offset by `told` of its spread, as for measured fingers."""
    rng = np.random.default_rng(seed)
    camera = overhead_camera(72, 48)
    made = []
    for index in range(count):
        lifted = bool(rng.random() < 0.6)
        actions = rng.normal(size=(25, 1)) * 0.1 + rng.normal(size=(1, 7))
        actions[15:, 6] += told * (1.0 if lifted else -1.0)
        outcome = SimpleNamespace(success=lifted)
        episode = {"key": f"e{index}", "task": "pick" if lifted else "miss", "actions": actions, "camera": camera}
        made.append(SimpleNamespace(**episode, outcome=outcome))
    return made


@pytest.mark.parametrize("seed", range(4))
def test_uninformative_commands_are_at_chance(seed: int) -> None:
    table = leak_table(motions(400, 0.0, seed))
    assert not table.leaks, table.text()
    assert "no better than chance" in table.text()


def test_fingers_that_stop_at_the_object_are_a_leak() -> None:
    table = leak_table(motions(400, 0.7))
    assert table.leaks
    assert table.accuracies["linear"] > 0.9


def test_pushes_are_skipped_and_too_few_episodes_are_refused() -> None:
    some = motions(120, 0.0)
    pushed = motions(50, 0.0, 1)
    for episode in pushed:
        episode.task = "push"
    assert leak_table([*some, *pushed]).episodes == 120
    with pytest.raises(KinemaError, match="at least 40"):
        leak_table(motions(60, 0.0))


def test_episodes_without_commands_are_refused_by_name() -> None:
    some = motions(100, 0.0)
    some[7].actions = None
    with pytest.raises(KinemaError, match="e7"):
        leak_table(some)
