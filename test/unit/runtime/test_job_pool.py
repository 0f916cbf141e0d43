"""Batches of jobs in worker processes, local and on a real Ray cluster of this machine."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kinema4d_ros.core.errors import ErrorCode, KinemaError, SetupError
from kinema4d_ros.runtime.child import how_it_ended
from kinema4d_ros.runtime.pool import Finished, Lost, Recipe, run_jobs

BUILD = "support.pool_jobs:build"


@pytest.fixture(params=["local", pytest.param("ray", marks=[pytest.mark.full, pytest.mark.slow])])
def engine(request: pytest.FixtureRequest) -> str:
    if request.param == "ray":
        pytest.importorskip("ray", reason="needs Ray")
    return str(request.param)


def values(results: Iterator[Finished | Lost]) -> list[Any]:
    return sorted(result.value for result in results if isinstance(result, Finished))


def test_results_arrive_and_workers_use_one_thread(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    jobs = [("double", n) for n in range(5)]
    assert values(run_jobs(Recipe(BUILD), jobs, workers=2, engine=engine)) == [0, 2, 4, 6, 8]
    assert values(run_jobs(Recipe(BUILD), [("threads", 0)], engine=engine)) == ["1"]


def test_killed_and_crashed_workers_cost_at_most_their_job(engine: str, tmp_path: Path) -> None:
    jobs = [("kill once", 0), ("kill", 1), ("crash", 2), ("double", 3), ("double", 4)]
    found = list(run_jobs(Recipe(BUILD, (str(tmp_path),)), jobs, workers=2, engine=engine))
    assert {r.job: r.value for r in found if isinstance(r, Finished)} == {
        ("kill once", 0): "survived", ("double", 3): 6, ("double", 4): 8,
    }  # fmt: skip
    lost = {r.job: r for r in found if isinstance(r, Lost)}
    assert set(lost) == {("kill", 1), ("crash", 2)}
    assert lost["crash", 2].reason == "exited"
    if engine == "local":
        assert lost["kill", 1].reason == "killed"
        assert "SIGKILL" in lost["kill", 1].text
        assert "exit code 1" in lost["crash", 2].text


def test_without_retries_a_killed_job_is_lost_at_once(tmp_path: Path) -> None:
    found = list(run_jobs(Recipe(BUILD, (str(tmp_path),)), [("kill once", 0)], retries=0))
    assert found == [Lost(("kill once", 0), "killed", f"the process died ({how_it_ended(-signal.SIGKILL)})")]


def test_a_job_that_exceeds_its_time_is_lost_and_the_others_run(engine: str) -> None:
    jobs = [("hang", 0), ("double", 1), ("double", 2)]
    # Long enough for a worker to start: the limit counts from when the job is given.
    limit_s = 20.0 if engine == "ray" else 6.0
    found = list(run_jobs(Recipe(BUILD), jobs, workers=1, engine=engine, timeout_s=limit_s))
    assert [(r.job, r.reason) for r in found if isinstance(r, Lost)] == [(("hang", 0), "timeout")]
    assert values(iter(found)) == [2, 4]


def test_errors_of_this_package_end_the_batch(engine: str) -> None:
    with pytest.raises(KinemaError, match="the disk is full") as caught:
        list(run_jobs(Recipe(BUILD), [("refuse", 0), ("double", 1)], engine=engine))
    assert (caught.value.code, caught.value.expected) == (ErrorCode.FILE_NOT_WRITABLE, "room")
    with pytest.raises(KinemaError, match="no robot for worker 0"):
        list(run_jobs(Recipe("support.pool_jobs:cannot_build"), [("double", 1)], engine=engine))


def test_cancelling_ends_the_batch_early(engine: str) -> None:
    began = time.monotonic()
    found = []
    for result in run_jobs(
        Recipe(BUILD), [("double", 1), ("hang", 2)], engine=engine, cancelled=lambda: bool(found) or late(began)
    ):
        found.append(result)
    assert [r.job for r in found] == [("double", 1)]


def late(began: float) -> bool:
    return time.monotonic() - began > 120


def test_a_worker_that_dies_while_it_is_built_is_an_error() -> None:
    with pytest.raises(SetupError, match=r"could not start \(exit code 3\)"):
        list(run_jobs(Recipe("support.pool_jobs:dies_while_building"), [("double", 1)]))


def test_a_worker_finishes_its_group_before_it_takes_jobs_of_another() -> None:
    jobs = [("who", (table, policy)) for policy in range(3) for table in range(3)]
    found = [r.value for r in run_jobs(Recipe(BUILD), jobs, workers=2, group=lambda job: job[1][0])]
    assert len(found) == 9
    for worker in {pid for _, pid, _ in found}:
        tables = [table for (table, _), pid, _ in found if pid == worker]
        changes = [table for table, before in zip(tables, [None, *tables], strict=False) if table != before]
        assert len(changes) == len(set(changes)), tables


def test_without_workers_jobs_run_here_and_are_closed(tmp_path: Path) -> None:
    recipe = Recipe("support.pool_jobs:Closing", (str(tmp_path),))
    assert [r.value for r in run_jobs(recipe, [1, 2], workers=0) if isinstance(r, Finished)] == [1, 2]
    assert (tmp_path / "closed-0").exists()
    (tmp_path / "closed-0").unlink()
    assert values(run_jobs(recipe, [1, 2], workers=1)) == [1, 2]
    assert (tmp_path / "closed-0").exists()
    assert list(run_jobs(recipe, [], workers=3)) == []


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"engine": "slurm"}, "expected local, ray, or ray:ADDRESS"),
        ({"engine": "ray:"}, "ray:"),
        ({"workers": -1}, "-1"),
        ({"workers": 0, "engine": "ray"}, "engine 'ray' with 0 workers"),
    ],
)
def test_wrong_arguments_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(KinemaError) as caught:
        list(run_jobs(Recipe(BUILD), [("double", 1)], **options))
    assert caught.value.code == ErrorCode.ARGUMENT_INVALID
    assert text in str(caught.value)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "somewhere"])
def test_a_cluster_that_does_not_answer_is_a_setup_error(address: str) -> None:
    pytest.importorskip("ray", reason="needs Ray")
    with pytest.raises(SetupError, match=f"no Ray cluster at '{re.escape(address)}'"):
        list(run_jobs(Recipe(BUILD), [("double", 1)], engine=f"ray:{address}"))
