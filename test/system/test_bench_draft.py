"""Smoke test of the draft benchmark: stages, both peers, and what was not measured."""

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
def test_quick_benchmark_reports_stages_and_peers() -> None:
    pytest.importorskip("diffusers", reason="needs the packages of requirements/model.in")
    done = subprocess.run(
        [sys.executable, "bench/draft.py", "--quick"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "model")])},
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert set(result["stages_cpu_s"]["draft, depth"]) == {"rest", "fit", "build", "simulate", "scene", "draw"}
    assert result["ratio"] == pytest.approx(result["motion_s"] / result["wall_s"]["draft, depth"], rel=0.02)
    assert {"plain MuJoCo", "nano"} < set(result["cpu_s"])
    assert ("draft, RGB" in result["cpu_s"]) != ("not_measured" in result)
