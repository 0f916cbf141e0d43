"""Regression tests against recorded results: rollouts, episodes, an evaluation, a calibration, the verbs' options.

Record again only after a deliberate change: `cd test && python -m support.golden golden/golden.json`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.golden import PARTS, options

RECORDED = json.loads((Path(__file__).parents[1] / "golden" / "golden.json").read_text())


def differences(found: Any, recorded: Any, where: str = "") -> list[str]:
    """List the differences of two documents; numbers may differ by 0.001, because compilers and BLAS differ."""
    if isinstance(recorded, dict) and isinstance(found, dict):
        names = sorted(set(found) | set(recorded))
        return [d for n in names for d in differences(found.get(n), recorded.get(n), f"{where}/{n}")]
    if isinstance(recorded, list) and isinstance(found, list) and len(found) == len(recorded):
        return [
            d for i, pair in enumerate(zip(found, recorded, strict=True)) for d in differences(*pair, f"{where}/{i}")
        ]
    if isinstance(recorded, float) and isinstance(found, float):
        same = found == pytest.approx(recorded, rel=1e-3, abs=1e-3, nan_ok=True)
    else:
        same = found == recorded
    return [] if same else [f"{where}: {found}, recorded {recorded}"]


def test_differences_are_found() -> None:
    recorded = {"a": [1.0, {"b": "x"}], "c": True}
    assert differences(recorded, recorded) == []
    assert differences({"a": [1.1, {"b": "y"}], "d": 0}, recorded) == [
        "/a/0: 1.1, recorded 1.0",
        "/a/1/b: y, recorded x",
        "/c: None, recorded True",
        "/d: 0, recorded None",
    ]


def test_options_and_defaults_of_all_verbs_are_unchanged() -> None:
    now = options()
    for verb, recorded in RECORDED["options"].items():
        kept = {name: now.get(verb, {}).get(name, "gone") for name in recorded}
        assert kept == recorded, verb


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize("part", sorted(PARTS))
def test_results_match_the_recorded_ones(part: str, tmp_path: Path) -> None:
    if part != "markerless":
        pytest.importorskip("kinema4d_model", reason="needs the learned generator")
    _, figures = PARTS[part](tmp_path)
    assert differences(figures, RECORDED["figures"][part]) == []
