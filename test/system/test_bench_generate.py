"""Smoke test of the generator benchmark, and of the error of the GPU benchmark without a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("diffusers", reason="needs the packages of requirements/model.in")

ROOT = Path(__file__).resolve().parents[2]


def run(*command: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT), str(ROOT / "model")])
    return subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


@pytest.mark.full
@pytest.mark.slow
def test_quick_benchmark_reports_stages_and_options() -> None:
    done = run("bench/generate.py", "--quick")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert set(result["stages"]) == {"inputs", "encode", "sample", "decode", "output"}
    assert result["rollout"]["frames"] == 10
    assert result["finite"]
    assert result["options"]["8 steps"]["passes"] == 8
    assert 0 < result["options"]["int8 weights"]["latent_difference"] < 0.1


@pytest.mark.full
def test_gpu_check_ranks_the_normalisations_on_one_clip() -> None:
    done = run("bench/gpu_check.py", "--preset", "tiny", "--random-weights", "--device", "cpu", "--rows", "none")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) < 60
    found = json.loads(lines[-1])["normalisations"]
    assert sorted(found["ranked"]) == ["one_scale", "per_axis", "per_frame"]
    assert all("error" not in row and row["residual_mm"] > 0 for row in found["by_normalisation"].values())
    assert "Random weights predict nothing" in done.stdout


def test_gpu_check_fails_without_a_gpu() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("checks a machine without CUDA")
    done = run("bench/gpu_check.py", "--preset", "tiny")
    assert done.returncode == 1
    assert "needs a CUDA device" in done.stderr
