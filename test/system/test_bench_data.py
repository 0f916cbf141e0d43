"""Smoke test of the data benchmark; it reports ours and the peer, or why the peer is missing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mujoco")

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.full
def test_quick_benchmark_reports_ours_and_the_peer() -> None:
    done = subprocess.run(
        [sys.executable, "bench/data.py", "--quick"], cwd=ROOT, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["episodes"] == 2
    assert result["make_s"] > 0
    assert result["episodes_per_cpu_minute"] == pytest.approx(60 / (result["make_s"] + result["encode_s"]), rel=0.05)
    if "not_measured" not in result:
        assert result["times_faster_than_peer"] == pytest.approx(result["peer_total_s"] / result["make_s"], rel=0.05)
        assert result["tuned_triangles"] < result["peer_triangles"]
