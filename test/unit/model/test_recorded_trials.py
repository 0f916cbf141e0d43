"""Evaluation of recorded runs in a world model: policy, task, outcome, and runs that cannot be judged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kinema4d_model.assessment.recorded import RecordedWorld, commands_of, evaluate_recordings, task_of, trial_of
from kinema4d_model.assessment.run import episodes_of
from kinema4d_model.data.episode import Episode, Outcome, load_robot
from kinema4d_model.data.lab_config import load_config, parse_config
from kinema4d_model.data.make import make_dataset
from kinema4d_ros.core.errors import DataError, EvaluationError
from kinema4d_ros.core.task import AtGoal, Lifted, PushedBy
from kinema4d_ros.evaluation.report import write_report
from kinema4d_ros.evaluation.store import TrialStore
from kinema4d_ros.kinematics import choose_kinematics


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a dataset of four tiny lab episodes: picks and misses."""
    changes = {"frames": 13, "width": 96, "height": 64, "kinds": {"pick": 0.5, "miss": 0.5}}
    config = parse_config({**load_config("nano").document, **changes}, "tiny")
    folder = tmp_path_factory.mktemp("data") / "tiny"
    make_dataset(config, folder, {"val": 4}, seed=8)
    return folder


@pytest.fixture
def episode(data: Path) -> Episode:
    return next(episodes_of(data, "val", 1))


def test_every_recording_is_judged_once_and_reported(data: Path, tmp_path: Path) -> None:
    done: list[str] = []
    assert (
        evaluate_recordings(data, "val", tmp_path, models=["composite"], progress=lambda r, n: done.append(r.trial.key))
        == 4
    )
    assert evaluate_recordings(data, "val", tmp_path, models=["composite"]) == 0
    before = TrialStore(tmp_path).records()
    with pytest.raises(EvaluationError, match="split: val in the folder, ood requested"):
        evaluate_recordings(data, "ood", tmp_path, models=["composite"])
    with pytest.raises(EvaluationError, match="judge: geometric in the folder"):
        evaluate_recordings(data, "val", tmp_path, models=["composite"], judge="vlm:http://127.0.0.1:1/v1,m")
    assert TrialStore(tmp_path).records() == before
    records = TrialStore(tmp_path).records()
    assert sorted(records) == sorted(done)
    truths = {e.key: e.outcome.success for e in episodes_of(data, "val")}
    assert sorted(r.lab.success for r in records.values()) == sorted(truths.values())
    assert {True, False} == set(truths.values())
    for record in records.values():
        assert not record.models["composite/open"].error
        assert record.models["composite/open"].success is not True
    heights = {won: [r.lab.value_m for r in records.values() if r.lab.success is won] for won in (True, False)}
    assert min(heights[True]) > 0.02 > max(heights[False])
    page = next(p for p in write_report(tmp_path) if p.suffix == ".md").read_text()
    assert "4 recorded runs" in page


def test_an_earlier_record_is_relabelled_with_current_thresholds(data: Path, tmp_path: Path) -> None:
    evaluate_recordings(data, "val", tmp_path, models=["composite"], limit=1)
    store = TrialStore(tmp_path)
    [record] = store.records().values()
    store.add(replace(record, lab=replace(record.lab, success=not record.lab.success)))
    assert evaluate_recordings(data, "val", tmp_path, models=["composite"], limit=1) == 1
    assert list(TrialStore(tmp_path).records().values()) == [record]


def test_trial_names_policy_and_task(episode: Episode) -> None:
    assert trial_of(episode, 3).policy == "lab/nano"
    assert trial_of(replace(episode, details={"policy": "pi0"}), 3).key == f"pi0|{episode.task}|3"


def test_task_of_a_recording(episode: Episode) -> None:
    assert task_of(episode).goal == Lifted()
    assert task_of(replace(episode, task="push")).goal == PushedBy()
    assert task_of(replace(episode, task="place", details={"goal_xy": [0.3, 0.1]})).goal == AtGoal((0.3, 0.1))
    box = {"goal_xy": [0.3, 0.1], "support_height_m": 0.04}
    assert task_of(replace(episode, task="stack", details=box)).goal == AtGoal((0.3, 0.1), support_m=0.04)
    assert task_of(episode).target == episode.outcome.target
    assert task_of(episode).instruction == episode.captions["instruction"]
    with pytest.raises(DataError, match="has no goal position"):
        task_of(replace(episode, task="place", details={}))


def test_target_mask_is_recorded_or_left_to_the_judge(episode: Episode) -> None:
    kinematics = choose_kinematics(load_robot(episode.robot))
    world = RecordedWorld(episode, kinematics)
    target = world.scene.target_mask
    assert target is not None
    np.testing.assert_array_equal(target, episode.object_mask(episode.outcome.target)[0])
    unknown = RecordedWorld(replace(episode, outcome=Outcome(True)), kinematics)
    assert unknown.scene.target_mask is None


def test_a_recording_gives_its_outcome_and_does_not_react(episode: Episode) -> None:
    world = RecordedWorld(episode, choose_kinematics(load_robot(episode.robot)))
    run = world.run(world.commands, world.task)
    assert run.verdict.success is episode.outcome.success
    with pytest.raises(EvaluationError, match="is a recording and does not react"):
        world.run(commands_of(episode), world.task)


def test_recordings_without_actions_or_camera_are_refused_by_name(episode: Episode) -> None:
    assert commands_of(episode).positions.shape == episode.actions.shape  # type: ignore[union-attr]
    with pytest.raises(DataError, match=rf"'{episode.key}' has no actions"):
        commands_of(replace(episode, actions=None))
    with pytest.raises(DataError, match="not calibrated"):
        commands_of(replace(episode, missing=("base_T_camera",)))


def test_a_split_without_outcomes_is_refused(data: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="'ood'"):
        evaluate_recordings(data, "ood", tmp_path, models=["composite"])
