"""Smoke test of the kinematics benchmark, with the documented accuracy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.full
@pytest.mark.slow
def test_quick_benchmark_meets_the_documented_accuracy() -> None:
    run = subprocess.run(
        [sys.executable, "bench/kinematics.py", "--quick"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=280,
        check=True,
    )
    results = json.loads(run.stdout.splitlines()[-1])
    for key in ("fk_49", "fk_2000"):
        assert results[key]["max_difference_to_pinocchio"] < 1e-12
        assert results[key]["max_distance_to_mujoco_m"] < 1e-5
    for suite in ("followable", "leaves and comes back"):
        ours = results[f"{suite}: kinema4d"]
        assert (ours["flips"], ours["violations"], ours["lost"]) == (0, 0, 0)
    assert results["followable: kinema4d"]["reached"] == 1.0
    assert results["cold: kinema4d"]["success"] >= 0.995
