"""`kinema4d evaluate` as a command: workers, Ray, failing models, and rejected setups."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[2]
SMALL = ("--scenarios", "canonical", "--runs", "2", "--width", "96", "--frames", "5")


def evaluate(*arguments: str | Path, launcher: tuple[str, ...] = (), **more: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **more}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "test"), environment.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, *launcher, "-m", "kinema4d_ros.cli", "evaluate", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        cwd=ROOT,
        env=environment,
    )


def records(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Read the records by file name."""
    return {
        path.name: [json.loads(line) for line in path.read_text().splitlines()]
        for path in sorted(folder.glob("trials-*.jsonl"))
    }


FAILING = "support.own_generator:Array"
ODD = "python:support.odd_policies:"


@pytest.mark.full
def test_two_workers_with_a_failing_model_report_the_others(tmp_path: Path) -> None:
    pytest.importorskip("kinema4d_model")
    out = tmp_path / "out"
    done = evaluate(
        "--policies", "expert", *SMALL, "--models", f"composite,nano,{FAILING}",
        "--workers", "2", "--judge-truth", "--out", out,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert f"no run has an outcome both in the lab and in {FAILING}/open" in done.stderr
    lines = records(out)["trials-0.jsonl"]
    assert [line["trial"]["seed"] for line in sorted(lines, key=lambda one: one["trial"]["seed"])] == [0, 1]
    for line in lines:
        assert line["lab"]["success"] is True
        assert line["models"]["composite/open"]["error"] == ""
        assert line["models"]["nano/open"]["error"] == ""
        assert line["models"]["truth/open"]["error"] == ""
        assert line["models"][f"{FAILING}/open"]["error"].startswith("[")
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["planned"], summary["finished"], summary["missing"]) == (2, 2, 0)
    assert {m["label"]: m["overall"]["failed"] for m in summary["models"]} == {
        "composite/open": 0, "nano/open": 0, f"{FAILING}/open": 2, "truth/open": 0,
    }  # fmt: skip
    assert len(summary["settings"]["weights"]["nano"]) == 64
    assert summary["settings"]["software"][0]["kinema4d_ros"]
    assert "<html" in (out / "report.html").read_text()
    changed = evaluate("--policies", "expert=expert:offset_m=0.03", *SMALL, "--models", "composite", "--out", out)
    assert changed.returncode == 2
    assert "policies, expert: expert in the folder, expert:offset_m=0.03 requested" in changed.stderr


def test_damaged_weights_are_rejected_before_the_first_trial(tmp_path: Path) -> None:
    pytest.importorskip("kinema4d_model")
    weights, out = tmp_path / "broken", tmp_path / "out"
    shutil.copytree(ROOT / "model" / "kinema4d_model" / "weights" / "nano", weights)
    for path in weights.rglob("*.safetensors"):
        path.write_bytes(b"\xff" * path.stat().st_size)  # the size of the manifest, but invalid content
    done = evaluate(
        "--policies", "expert", *SMALL, "--models", "composite,nano", "--checkpoint", f"nano={weights}", "--out", out
    )
    assert done.returncode == 2
    assert "[FILE_MALFORMED]" in done.stderr
    assert str(weights) in done.stderr
    assert not out.exists()


def test_missing_weights_are_rejected_and_nothing_is_written(tmp_path: Path) -> None:
    pytest.importorskip("kinema4d_model")
    out = tmp_path / "out"
    done = evaluate(
        "--policies", "expert", *SMALL, "--models", "composite,wan14b", "--out", out,
        KINEMA4D_CHECKPOINTS=str(tmp_path / "empty"),
    )  # fmt: skip
    assert done.returncode == 2
    assert "[FILE_MISSING] no weights for preset 'wan14b'" in done.stderr
    assert not out.exists()


@pytest.mark.full
def test_workers_on_ray_give_the_outcomes_of_local_ones(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="needs Ray")
    outcomes = []
    for engine in ("local", "ray"):
        out = tmp_path / engine
        command = ("--policies", f"expert,dies={ODD}Dies", *SMALL, "--models", "composite", "--out", out)
        done = evaluate(*command, "--workers", "2", "--engine", engine)
        assert done.returncode == 0, done.stderr
        lines = sorted(records(out)["trials-0.jsonl"], key=lambda one: sorted(one["trial"].items(), key=str))
        outcomes.append([(one["trial"], one["lab"]["success"], one["lab"]["value_m"]) for one in lines])
        dead = [one["lab"]["error"] for one in lines if one["lab"]["error"]]
        assert dead
        assert all(error.startswith("[POLICY_FAILED] the process died") for error in dead)
    assert outcomes[0] == outcomes[1]


def test_a_launcher_of_several_ranks_is_refused(tmp_path: Path) -> None:
    done = evaluate("--policies", "expert", *SMALL, "--out", tmp_path / "out", WORLD_SIZE="2", RANK="1")
    assert done.returncode == 2
    assert "WORLD_SIZE is 2" in done.stderr
    assert "--engine ray:ADDRESS" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.full
def test_evaluation_without_any_outcome_fails_and_can_be_retried(tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = ("--policies", "raises=python:support.odd_policies:Raises", *SMALL, "--models", "composite")
    done = evaluate(*command, "--workers", "0", "--out", out)
    assert done.returncode == 1
    assert "no run has an outcome both in the lab and in composite/open" in done.stderr
    assert len(records(out)["trials-0.jsonl"]) == 2
    again = evaluate(*command, "--workers", "0", "--out", out, "--retry-failed")
    assert again.returncode == 1
    assert "0 of them done before" in again.stdout
    assert len(records(out)["trials-0.jsonl"]) == 4


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--robot", "/nowhere.urdf"), "[FILE_MISSING] robot file '/nowhere.urdf'"),
        (("--judge", "jury"), "[ARGUMENT_INVALID] judge 'jury'"),
    ],
)
def test_setup_errors_stop_the_command_before_the_first_trial(
    tmp_path: Path, arguments: tuple[str, str], words: str
) -> None:
    out = tmp_path / "out"
    done = evaluate("--policies", "expert", *SMALL, "--models", "composite", "--out", out, *arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert not out.exists()
