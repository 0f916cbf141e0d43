"""Regression tests against recorded results: rollouts, episodes, an evaluation, a calibration, the verbs' options.

Record again only after a deliberate change: `cd test && python -m support.golden golden/golden.json`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from support.golden import PARTS, options

RECORDED = json.loads((Path(__file__).parents[1] / "golden" / "golden.json").read_text())

TOLERANCE = 1e-3
"""Compilers and BLAS differ between machines."""
CONTACT_TOLERANCE = 0.08
"""Of what the judge reads from images of an object that the fingers knocked over. Contacts amplify rounding errors: a
grasp moved by 1e-12 to 1e-9 m changed its confidence by up to 0.064 and its height by up to 0.8 mm, while noise of one
level on 1 % of the pixels changed the confidence by 0.0001."""
_AFTER_CONTACT = re.compile(r".*/models/truth/open/(confidence|progress|reason)")


def differences(found: Any, recorded: Any, where: str = "") -> list[str]:
    """List the differences of two documents; numbers may differ by the tolerances above."""
    if isinstance(recorded, dict) and isinstance(found, dict):
        names = sorted(set(found) | set(recorded))
        return [d for n in names for d in differences(found.get(n), recorded.get(n), f"{where}/{n}")]
    if isinstance(recorded, list) and isinstance(found, list) and len(found) == len(recorded):
        return [
            d for i, pair in enumerate(zip(found, recorded, strict=True)) for d in differences(*pair, f"{where}/{i}")
        ]
    after_contact = _AFTER_CONTACT.fullmatch(where) is not None
    if isinstance(recorded, float) and isinstance(found, float):
        allowed = CONTACT_TOLERANCE if after_contact else TOLERANCE
        same = found == pytest.approx(recorded, rel=TOLERANCE, abs=allowed, nan_ok=True)
    elif after_contact and isinstance(recorded, str) and isinstance(found, str):
        same = _without_numbers(found) == _without_numbers(recorded)
    else:
        same = found == recorded
    return [] if same else [f"{where}: {found}, recorded {recorded}"]


def _without_numbers(text: str) -> str:
    return re.sub(r"-?\d+(\.\d+)?", "#", text)


def test_differences_are_found() -> None:
    recorded = {"a": [1.0, {"b": "x"}], "c": True}
    assert differences(recorded, recorded) == []
    assert differences({"a": [1.1, {"b": "y"}], "d": 0}, recorded) == [
        "/a/0: 1.1, recorded 1.0",
        "/a/1/b: y, recorded x",
        "/c: None, recorded True",
        "/d: 0, recorded None",
    ]


def test_only_readings_after_contact_have_the_wide_tolerance() -> None:
    def trial(model: str, confidence: float, reason: str, success: bool = False) -> dict[str, Any]:
        return {"models": {model: {"open": {"confidence": confidence, "reason": reason, "success": success}}}}

    recorded = trial("truth", 0.77, "higher? no: -0.7 cm")
    assert differences(trial("truth", 0.83, "higher? no: -0.6 cm"), recorded) == []
    assert differences(trial("truth", 0.86, "higher? no: -0.6 cm"), recorded)
    assert differences(trial("truth", 0.77, "higher? yes: -0.7 cm"), recorded)
    assert differences(trial("truth", 0.77, "higher? no: -0.7 cm", success=True), recorded)
    assert differences(trial("nano", 0.78, "lost"), trial("nano", 0.77, "lost"))


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
