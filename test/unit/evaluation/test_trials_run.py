"""Trials with MuJoCo, the composite generator and processes; a failing policy does not affect other trials."""

from __future__ import annotations

from pathlib import Path

import pytest

from kinema4d_ros.core.errors import ErrorCode, EvaluationError, KinemaError
from kinema4d_ros.evaluation.campaign import Campaign, run_trials
from kinema4d_ros.evaluation.settings import EvaluationSettings
from kinema4d_ros.evaluation.store import TrialStore
from kinema4d_ros.evaluation.trial import TrialRecord
from kinema4d_ros.lab.scenario import ScenarioError

ODD = "python:support.odd_policies:"


def settings(*policies: str, **changes: object) -> EvaluationSettings:
    small = {"runs": 2, "scenarios": ["canonical"], "width": 96, "frames": 5, "act_timeout_s": 2.0}
    return EvaluationSettings(policies, **{**small, **changes})  # type: ignore[arg-type]


def outcomes(folder: Path) -> dict[str, TrialRecord]:
    return TrialStore(folder).records()


def test_an_expert_succeeds_in_the_lab_but_not_in_a_static_scene(tmp_path: Path) -> None:
    campaign = Campaign(settings("expert", "far=expert:offset_m=0.08", runs=1), tmp_path)
    assert campaign.run(workers=0) == 2
    found = outcomes(tmp_path)
    good, bad = found["expert|canonical|0"], found["far|canonical|0"]
    assert good.lab.success is True
    assert good.lab.value_m > 0.08
    assert good.lab.chunks > 2
    assert bad.lab.success is False
    assert good.models["composite/open"].success is not True
    assert not good.models["composite/open"].error
    picture = tmp_path / good.models["composite/open"].picture
    assert picture.read_bytes()[:2] == b"\xff\xd8"
    assert not bad.models["composite/open"].picture


def test_failures_are_recorded_and_other_trials_continue(tmp_path: Path) -> None:
    policies = [f"{name.lower()}={ODD}{name}" for name in ("Raises", "Garbage", "Wild", "Hangs", "Nod")]
    assert Campaign(settings(*policies), tmp_path).run(workers=0) == 10
    found = outcomes(tmp_path)
    for policy, seed, words in (
        ("raises", 0, "[POLICY_FAILED] policy 'raises' raised RuntimeError in 'act': the weights are upside down"),
        ("garbage", 1, "[POLICY_BAD_ACTION] policy 'garbage' answered with dict"),
        ("wild", 0, "the arm refuses the motion"),
        ("hangs", 1, "[POLICY_TIMEOUT] policy 'hangs' did not answer 'act' within 2 s"),
    ):
        outcome = found[f"{policy}|canonical|{seed}"]
        assert outcome.lab.success is None
        assert words in outcome.lab.error
        assert "no actions" in outcome.models["composite/open"].error
    for key in ("nod|canonical|0", "nod|canonical|1", "hangs|canonical|0"):
        assert found[key].lab.success is False, key
        assert not found[key].lab.error


def test_a_policy_that_kills_its_process_fails_one_trial(tmp_path: Path) -> None:
    campaign = Campaign(settings(f"dies={ODD}Dies", f"nod={ODD}Nod"), tmp_path)
    assert campaign.run(workers=1) == 4
    found = outcomes(tmp_path)
    lost = found["dies|canonical|1"]
    assert "the process died (exit code 3)" in lost.lab.error
    assert lost.models["composite/open"].error == lost.lab.error
    assert not campaign.pending()
    assert [found[k].lab.success for k in ("dies|canonical|0", "nod|canonical|0", "nod|canonical|1")] == [False] * 3


@pytest.mark.full
def test_a_trial_of_a_killed_process_is_retried(tmp_path: Path) -> None:
    asked = settings(f"fragile={ODD}Fragile,calls={tmp_path / 'calls'}", runs=1)
    assert Campaign(asked, tmp_path / "out").run(workers=1) == 1
    assert outcomes(tmp_path / "out")["fragile|canonical|0"].lab.success is False
    assert (tmp_path / "calls").read_text().split() == ["0", "0"]


@pytest.mark.full
def test_a_trial_is_ended_at_its_timeout(tmp_path: Path) -> None:
    asked = settings(f"hangs={ODD}Hangs", runs=1, seed=1, act_timeout_s=3600.0)
    records = list(
        run_trials(asked, TrialStore(tmp_path), [(t, None) for t in asked.trials()], workers=1, trial_timeout_s=15.0)
    )
    assert [r.lab.error for r in records] == ["[POLICY_FAILED] not finished after 15 s"]


def test_an_interrupted_evaluation_resumes_without_repeating_trials(tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    asked = settings(f"nod={ODD}Nod,calls={calls}", runs=3)
    done: list[str] = []
    first = Campaign(asked, tmp_path / "out")
    first.run(workers=0, progress=lambda r, n, total: done.append(r.trial.key), cancelled=lambda: len(done) == 2)
    assert done == ["nod|canonical|0", "nod|canonical|1"]
    again = Campaign(asked, tmp_path / "out")
    assert [trial.seed for trial, _ in again.pending()] == [2]
    assert again.run(workers=0) == 1
    assert again.run(workers=0) == 0
    # Another model later: the recorded actions are used, the policy is not called again.
    more = Campaign(settings(f"nod={ODD}Nod,calls={calls}", runs=3, modes=["open", "closed"]), tmp_path / "out")
    assert more.run(workers=0) == 3
    assert calls.read_text().split() == ["0", "1", "2", "0", "1", "2"]  # once in the lab, once in the closed loop
    assert {len(r.models) for r in outcomes(tmp_path / "out").values()} == {2}


def test_an_invalid_number_of_workers(tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match="workers is -1"):
        list(run_trials(settings("expert"), TrialStore(tmp_path), [], workers=-1))


def test_a_worker_that_cannot_start_ends_the_evaluation_without_records(tmp_path: Path) -> None:
    asked = settings("expert", robot="/nowhere.urdf")
    with pytest.raises(KinemaError, match="nowhere") as caught:
        Campaign(asked, tmp_path).run(workers=1)
    assert caught.value.code is ErrorCode.FILE_MISSING
    assert outcomes(tmp_path) == {}


@pytest.mark.full
def test_a_process_that_is_killed_twice_is_an_outage(tmp_path: Path) -> None:
    asked = settings(f"doomed={ODD}Doomed", runs=1)
    campaign = Campaign(asked, tmp_path)
    campaign.run(workers=1)
    assert outcomes(tmp_path)["doomed|canonical|0"].lab.error.startswith(
        "[WORKER_KILLED] the process died (signal SIGKILL,"
    )
    assert [(t.seed, known.lab.error) for t, known in campaign.pending() if known] == [(0, "")]


def test_a_scene_that_cannot_be_set_up_has_an_outcome_in_every_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*args: object, **options: object) -> None:
        raise ScenarioError("no stable layout", expected="ranges that leave room")

    monkeypatch.setattr("kinema4d_ros.evaluation.execute.LabWorld.of", no_room)
    campaign = Campaign(settings("expert", runs=1, modes=["open", "closed"]), tmp_path)
    campaign.run(workers=0)
    record = outcomes(tmp_path)["expert|canonical|0"]
    assert set(record.models) == {"composite/open", "composite/closed"}
    assert {one.error for one in record.models.values()} == {record.lab.error}
    assert "no stable layout" in record.lab.error
    assert not campaign.pending()


def test_a_run_with_a_lost_file_is_regenerated(tmp_path: Path) -> None:
    asked = settings(f"nod={ODD}Nod", runs=1)
    Campaign(asked, tmp_path).run(workers=0)
    before = outcomes(tmp_path)["nod|canonical|0"]
    next((tmp_path / "runs").glob("*.npz")).unlink()
    Campaign(settings(f"nod={ODD}Nod", runs=1, models=["composite", "truth"]), tmp_path).run(workers=0)
    after = outcomes(tmp_path)["nod|canonical|0"]
    assert (after.lab.success, after.lab.value_m) == (before.lab.success, before.lab.value_m)
    assert not after.models["truth/open"].error


def test_the_judge_is_right_about_the_labs_own_images(tmp_path: Path) -> None:
    asked = settings(
        "expert", "far=expert:offset_m=0.08", runs=1, width=180, frames=9, models=["truth"], modes=["closed"]
    )
    assert asked.labels() == ("truth/open",)
    Campaign(asked, tmp_path).run(workers=0)
    found = outcomes(tmp_path)
    good, bad = found["expert|canonical|0"], found["far|canonical|0"]
    assert (good.lab.success, good.models["truth/open"].success) == (True, True)
    assert (bad.lab.success, bad.models["truth/open"].success) == (False, False)
    assert good.models["truth/open"].value_m == pytest.approx(good.lab.value_m, abs=0.01)
    assert good.models["truth/open"].made_by == "truth"


def test_records_name_the_generator_of_the_rollout(tmp_path: Path) -> None:
    Campaign(settings(f"nod={ODD}Nod", runs=1), tmp_path).run(workers=0)
    assert outcomes(tmp_path)["nod|canonical|0"].models["composite/open"].made_by == "composite plane"
