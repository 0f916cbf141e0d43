"""Smoke test of the calibration benchmark, with the accuracy of its few cameras."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.timeout(1000)
def test_quick_benchmark_measures_every_method() -> None:
    done = subprocess.run(
        [sys.executable, "bench/calibration.py", "--quick"], cwd=ROOT, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert set(result) == {"intrinsics", "handeye", "markerless", "segmented", "drift", "recon", "edges"}
    assert result["intrinsics"]["charuco"]["focal_percent"]["worst"] < 0.5
    assert result["handeye"]["pixels"]["mm"]["worst"] < 1.5
    assert result["markerless"]["failed"] == []
    assert result["markerless"]["cpu_s_each"] > 0
    assert result["segmented"]["mm"]["worst"] < 3.0
    assert result["segmented"]["iou_masks"]["least"] > 0.9
    assert result["drift"]["detected_5mm"] == 1.0
    assert result["recon"]["wrong"] == result["recon"]["refused"] == []
    assert result["edges"]["still"] == {"still": 1}
    assert result["edges"]["half_degree"] == {"moved": 1}
