"""Smoke test of the metrics benchmark; it agrees with its peers and reports both."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("open3d", reason="the peer is installed by `make bench`")
pytest.importorskip("torchmetrics", reason="needs the learned generator's packages")

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.full
def test_quick_benchmark_reports_ours_and_the_peer() -> None:
    done = subprocess.run(
        [sys.executable, "bench/metrics.py", "--quick"], cwd=ROOT, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads(done.stdout.splitlines()[-1])
    for name in ("pictures", "clouds", "steady"):
        ours, peer = result[name]["ours_ms"], result[name]["peer_ms"]
        assert ours > 0
        assert result[f"{name}_ratio"] == pytest.approx(peer / ours, rel=0.05)
