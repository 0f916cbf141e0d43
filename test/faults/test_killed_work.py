"""Long work that is killed with SIGKILL at random moments: it goes on, and ends as if nothing had happened.

Recordings are in test_killed_nodes.py. Training and datasets are killed a few times by the unit tests as well, so that
`make test` kills only rollouts here.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.figures import Figures
from support.killed_graph import MARK, marked
from support.proc import family
from support.ros_graph import ROOT, wait_for
from support.sim_graph import process_environment

from kinema4d_ros.evaluation.store import TrialStore

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

KILLS = 20
ENOUGH_S = 1800.0
SUPPORT = ROOT / "test" / "support"


def told_by(script: str, *arguments: str) -> dict[str, Any]:
    """What one of the killing scripts prints."""
    environment = process_environment({"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "model")})
    done = subprocess.run(
        [sys.executable, str(SUPPORT / script), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=ENOUGH_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


def check_and_note(told: dict[str, Any], kills: int, row: str, figures: Figures) -> None:
    assert told["kills"] == kills
    assert told["mismatches"] == told["damaged"] == told["left at the end"] == 0, told
    # A killed writer's neighbour goes with the next one: they never pile up.
    assert told["leftovers"] <= 3, told
    figures.note(row, "kills", told["kills"])
    figures.note(row, "results unlike those of undisturbed work", told["mismatches"])
    figures.note(row, "corrupt files", told["damaged"])
    figures.note(row, "leftovers at once, max", told["leftovers"])


def test_saving_rollouts(tmp_path: Path, full: Callable[[int, int], int], figures: Figures) -> None:
    """The same folder saved anew and anew: an acknowledged rollout, or the one after it, is always there and whole."""
    kills = full(5 * KILLS, 4)
    told = told_by("killed_work.py", "rollouts", str(tmp_path), "--kills", str(kills), "--seed", "1")
    check_and_note(told, kills, "kill -9 while a rollout is saved", figures)


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "row"), [("demos", "kill -9 of policy demonstrations"), ("data", "kill -9 of data make")]
)
def test_making_demonstrations_and_datasets(tmp_path: Path, figures: Figures, kind: str, row: str) -> None:
    told = told_by("killed_work.py", kind, str(tmp_path), "--kills", str(KILLS), "--seed", "2")
    check_and_note(told, KILLS, row, figures)


@pytest.mark.long
def test_training(tmp_path: Path, figures: Figures) -> None:
    """Losses of a run that was killed are those of one that was not, to the last bit."""
    from support.training_runs import make_run

    from kinema4d_model.training.metrics_log import read_log
    from kinema4d_model.training.stages import run_stages

    config = make_run(tmp_path / "run")
    told = told_by("training_processes.py", "kill", str(tmp_path / "run"), "--kills", str(KILLS), "--seed", "3")
    whole = tmp_path / "whole"
    whole.mkdir()
    shutil.copytree(tmp_path / "run" / "codec", whole / "codec")
    run_stages(config, whole, stages=("network",), bar=False)
    kept = ("step", "loss", "validation")

    def numbers(folder: Path) -> list[dict[str, Any]]:
        return [{k: line[k] for k in kept if k in line} for line in read_log(folder / "metrics.jsonl")]

    expected, found = numbers(whole), numbers(tmp_path / "run" / "killed")
    assert told["kills"] == KILLS
    assert len(expected) >= 12
    assert any("loss" in line for line in expected)
    assert found == expected
    assert not list((tmp_path / "run" / "killed" / "checkpoints").glob(".*"))
    figures.note("kill -9 of training", "kills", told["kills"])
    figures.note("kill -9 of training", "lines of the log unlike an undisturbed run's", 0)


class Evaluating:
    """`kinema4d evaluate` with two workers, in processes that are found again after a kill."""

    policies = ("expert", "off=expert:offset_m=0.05")
    runs = 6

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mark = f"{os.getpid()}-{time.monotonic_ns()}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> subprocess.Popen[bytes]:
        options = ["--policies", ",".join(self.policies), "--runs", str(self.runs), "--scenarios", "canonical"]
        options += ["--models", "composite", "--width", "96", "--frames", "5", "--workers", "2"]
        with (self.folder.parent / f"{self.folder.name}.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "kinema4d_ros.cli", "evaluate", *options, "--out", str(self.folder)],
                env=process_environment({MARK: self.mark}),
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        return self.process

    def workers(self) -> list[int]:
        assert self.process is not None
        found = []
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # one that ended meanwhile
            for pid in family(self.process.pid)[1:]:
                if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(pid)
        return found

    def lines(self) -> list[dict[str, Any]]:
        path = self.folder / "trials-0.jsonl"
        return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]] if path.is_file() else []

    def results(self) -> dict[str, Any]:
        """What the trials came to, without how long they took."""
        found = {}
        for key, record in TrialStore(self.folder).records().items():
            document = record.to_json()
            document["lab"].pop("seconds", None)
            for model in document["models"].values():
                model.pop("seconds", None)
            found[key] = document
        return found


@pytest.mark.long
def test_evaluations(tmp_path: Path, figures: Figures) -> None:
    """Each life loses a worker, then its parent: no trial is lost, repeated or changed."""
    whole = Evaluating(tmp_path / "whole")
    assert whole.start().wait(ENOUGH_S) == 0
    expected = whole.results()
    assert len(expected) == len(whole.policies) * whole.runs
    rng = random.Random(4)  # noqa: S311 - moments, not secrets
    killed = {"parent": 0, "worker": 0}
    mismatches = repeated = refused = 0
    number = 0
    run = Evaluating(tmp_path / "killed-0")
    while min(killed.values()) < KILLS:
        before = len(run.lines())
        process = run.start()
        wait_for(lambda p=process, r=run: p.poll() is not None or len(r.workers()) >= 1, ENOUGH_S, "workers")
        _until(process, run, before, rng.uniform(0.0, 6.0))
        workers = run.workers()
        if process.poll() is None and workers and killed["worker"] < KILLS:
            with contextlib.suppress(ProcessLookupError):
                os.kill(rng.choice(workers), signal.SIGKILL)
                killed["worker"] += 1
        _until(process, run, before + rng.randint(0, 2), rng.uniform(0.0, 6.0))
        if process.poll() is None:
            process.kill()
            killed["parent"] += 1
        process.wait(60)
        # Workers end with their parent.
        wait_for(lambda r=run: not marked(r.mark), 300, "the end of the workers")
        keys = [tuple(sorted(line["trial"].items())) for line in run.lines()]
        repeated += len(keys) - len(set(keys))
        mismatches += sum(expected[key] != found for key, found in run.results().items())
        if process.returncode == 0:
            mismatches += run.results() != expected
            number += 1
            run = Evaluating(tmp_path / f"killed-{number}")
        elif process.returncode != -signal.SIGKILL:
            # The worker that was killed was the one that tries policies and models before the first trial.
            log = (tmp_path / f"{run.folder.name}.log").read_text()
            assert process.returncode == 2, log
            died = "[POLICY_FAILED] the check of policies and models: the process died (signal SIGKILL"
            assert died in log.splitlines()[-1], log
            refused += 1
    assert run.start().wait(ENOUGH_S) == 0
    assert run.results() == expected
    wait_for(lambda: not marked(run.mark), 300, "the end of the workers")
    hidden = [path for path in tmp_path.rglob(".*") if path.is_file()]
    assert mismatches == repeated == 0, (mismatches, repeated)
    assert len(hidden) <= 2 * (number + 1), "leftovers of killed workers pile up"
    row = "kill -9 of an evaluation"
    for who, count in killed.items():
        figures.note(row, f"kills of the {who}", count)
    figures.note(row, "kills before the first trial, told as such", refused)
    figures.note(row, "trials unlike those of an undisturbed run", mismatches)
    figures.note(row, "trials run twice", repeated)
    figures.note(row, "evaluations finished on the way", number + 1)


def _until(process: subprocess.Popen[bytes], run: Evaluating, lines: int, seconds: float) -> None:
    """Until there are more trials than that, and a random time more; or until it ends."""
    wait_for(lambda: process.poll() is not None or len(run.lines()) >= lines, ENOUGH_S, "trials")
    end = time.monotonic() + seconds
    while time.monotonic() < end and process.poll() is None:
        time.sleep(0.01)
