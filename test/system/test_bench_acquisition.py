"""Smoke tests of the segmentation and acquisition benchmarks."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.full, pytest.mark.slow, pytest.mark.timeout(1000)]


def quick(script: str, *arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, f"bench/{script}.py", "--quick", *arguments],
        cwd=ROOT, capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))


def test_segmentation() -> None:
    result = quick("segmentation")
    assert result["pictures"] == 3
    assert result["rendered"]["mean"] > 0.98
    assert result["background_and_prompt"]["worst"] > 0.85
    assert result["prompt"]["mean"] > result["the_prompt_itself"]["mean"] + 0.1
    assert result["ratio"]["background over mog2"] > 1.0


def test_acquisition(tmp_path: Path) -> None:
    result = quick("acquire", "--data", str(tmp_path), "--only", "masks")
    assert result["masks"]["views"] >= 8
    assert result["masks"]["iou_masks"]["mean"] > 0.85
    assert result["masks"]["held_out"]["mean"] > 0.8
    assert result["masks"]["chamfer_mm"] < 8.0


@pytest.mark.skipif(find_spec("open3d") is None, reason="the peer, Open3D, is not installed")
def test_carving_against_open3d(tmp_path: Path) -> None:
    result = quick("acquire", "--data", str(tmp_path), "--only", "peer")
    assert result["peer"]["agree"] > 0.9
    assert result["peer"]["chamfer_ratio"] > 1.0


@pytest.mark.skipif(find_spec("open3d") is None, reason="the peer, Open3D, is not installed")
def test_every_step_against_open3d() -> None:
    result = quick("open3d_parity")
    for kind in ("whole", "partial", "hull"):
        refined = result["refine"][kind]
        assert refined["ours"]["found"] == refined["open3d"]["found"] == 1
        assert refined["mm_ratio"] == pytest.approx(
            refined["open3d"]["median_mm"] / refined["ours"]["median_mm"], rel=1e-2
        )
    assert result["search"]["whole"]["ours"]["found"] == 1
    # Ours closes what no depth image shows; Open3D keeps the measured surface only.
    assert result["fuse"]["noisy"]["completeness_ratio"] > 1.0
    assert result["links"]["noisy_1"]["open3d"]["accuracy_mm"] < 4.0
    assert result["clean"]["normals"]["agree"] > 0.99
    assert (
        result["clean"]["decimate"]["after"]["accuracy_mm"] < result["clean"]["decimate"]["before"]["accuracy_mm"] + 1
    )
