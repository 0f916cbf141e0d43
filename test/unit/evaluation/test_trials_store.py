"""The evaluation's folder: round trips, incomplete lines, other settings."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from kinema4d_ros.core.errors import ErrorCode, EvaluationError, FileFormatError
from kinema4d_ros.evaluation.campaign import Campaign
from kinema4d_ros.evaluation.settings import EvaluationSettings
from kinema4d_ros.evaluation.store import TrialStore
from kinema4d_ros.evaluation.trial import LabOutcome, ModelOutcome, Trial, TrialRecord


def record(policy: str = "expert", seed: int = 0, **models: ModelOutcome) -> TrialRecord:
    return TrialRecord(Trial(policy, "canonical", seed), LabOutcome(True, 1.0, 0.09, 4.2, 3, 1.5), models)


def settings(**changes: object) -> EvaluationSettings:
    return EvaluationSettings(**{"policies": ["expert"], "runs": 3, "scenarios": ["canonical"], **changes})  # type: ignore[arg-type]


def test_records_round_trip(tmp_path: Path) -> None:
    store = TrialStore(tmp_path)
    first = record(seed=0, nano=ModelOutcome(None, value_m=math.nan, error="[GENERATOR_FAILED] no"))
    store.add(first)
    store.add(record(seed=1))
    found = TrialStore(tmp_path).records()
    assert list(found) == ["expert|canonical|0", "expert|canonical|1"]
    back = found["expert|canonical|0"]
    assert back.lab == first.lab
    assert math.isnan(back.models["nano"].value_m)
    assert back.models["nano"].error == "[GENERATOR_FAILED] no"


def test_later_lines_add_models_and_keep_the_others(tmp_path: Path) -> None:
    store = TrialStore(tmp_path)
    store.add(record(a=ModelOutcome(True)))
    TrialStore(tmp_path).add(record(b=ModelOutcome(False)))
    models = store.records()["expert|canonical|0"].models
    assert {name: one.success for name, one in models.items()} == {"a": True, "b": False}


def test_an_incomplete_last_line_is_skipped_and_cut_by_the_next_record(tmp_path: Path) -> None:
    store = TrialStore(tmp_path)
    store.add(record(seed=0))
    path = tmp_path / "trials-0.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + whole[: len(whole) // 2])
    assert list(store.records()) == ["expert|canonical|0"]
    store.add(record(seed=5))
    assert list(store.records()) == ["expert|canonical|0", "expert|canonical|5"]
    assert path.read_bytes().startswith(whole)


def test_a_damaged_line_in_the_middle_is_named(tmp_path: Path) -> None:
    store = TrialStore(tmp_path)
    store.add(record(seed=0))
    path = tmp_path / "trials-0.jsonl"
    path.write_bytes(b'{"trial": 7}\n' + path.read_bytes())
    with pytest.raises(FileFormatError, match=r"line 1 of .*trials-0.jsonl is damaged"):
        store.records()


def test_a_second_call_must_have_the_same_or_larger_settings(tmp_path: Path) -> None:
    Campaign(settings(), tmp_path)
    Campaign(settings(policies=["near=expert:offset_m=0.01"], runs=5, models=["composite", "nano"]), tmp_path)
    known = TrialStore(tmp_path).settings()
    assert known["policies"] == {"expert": "expert", "near": "expert:offset_m=0.01"}
    assert (known["runs"], known["models"]) == (5, ["composite", "nano"])
    with pytest.raises(EvaluationError, match="task: pick in the folder, push requested") as caught:
        Campaign(settings(task="push"), tmp_path)
    assert caught.value.code == ErrorCode.ARGUMENT_INVALID
    assert TrialStore(tmp_path).settings() == known


@pytest.mark.parametrize(
    ("before", "now", "words"),
    [
        (
            {"policies": ["off=expert:offset_m=0.01"]},
            {"policies": ["off=expert:offset_m=0.03"]},
            "policies, off: expert:offset_m=0.01 in the folder, expert:offset_m=0.03 requested",
        ),
        (
            {"models": ["nano"], "checkpoints": {"nano": "a"}},
            {"models": ["nano"], "checkpoints": {"nano": "b"}},
            "checkpoints, nano: a in the folder, b requested",
        ),
        (
            {"models": ["nano"]},
            {"models": ["nano"], "checkpoints": {"nano": "b"}},
            "checkpoints, nano:  in the folder, b",
        ),
        (
            {"models": ["nano"], "checkpoints": {"nano": "a"}},
            {"models": ["nano"]},
            "checkpoints, nano: a in the folder,  requested",
        ),
        ({}, {"judge": "vlm:http://127.0.0.1:1/v1,m"}, "judge: geometric in the folder, vlm:http"),
        ({}, {"profile": "hidden"}, "profile: constant in the folder, hidden requested"),
    ],
)
def test_the_same_label_with_another_meaning_is_refused_by_name(
    tmp_path: Path, before: dict[str, object], now: dict[str, object], words: str
) -> None:
    Campaign(settings(**before), tmp_path)
    known = TrialStore(tmp_path).settings()
    with pytest.raises(EvaluationError) as caught:
        Campaign(settings(**now), tmp_path)
    assert words in caught.value.what
    assert caught.value.code == ErrorCode.ARGUMENT_INVALID
    assert TrialStore(tmp_path).settings() == known


def test_other_weights_of_the_same_name_are_refused(tmp_path: Path) -> None:
    asked = settings(models=["nano"])
    Campaign(asked, tmp_path, provenance={"weights": {"nano": "aa"}, "software": [{"numpy": "1"}]})
    Campaign(asked, tmp_path, provenance={"weights": {"nano": "aa"}, "software": [{"numpy": "2"}]})
    Campaign(asked, tmp_path)
    known = TrialStore(tmp_path).settings()
    assert known["weights"] == {"nano": "aa"}
    assert known["software"] == [{"numpy": "1"}, {"numpy": "2"}]
    with pytest.raises(EvaluationError, match="weights, nano: aa in the folder, bb requested"):
        Campaign(asked, tmp_path, provenance={"weights": {"nano": "bb"}})


@pytest.mark.parametrize(("name", "value"), [("judge", "geometric"), ("profile", "constant")])
def test_folders_without_a_newer_setting_can_be_resumed(tmp_path: Path, name: str, value: str) -> None:
    Campaign(settings(), tmp_path)
    document = TrialStore(tmp_path).settings()
    del document[name]
    (tmp_path / "evaluation.json").write_text(json.dumps(document))
    Campaign(settings(runs=4), tmp_path)
    assert TrialStore(tmp_path).settings()[name] == value


OUTAGE, FAULT = "[GENERATOR_UNAVAILABLE] no generator answers", "[POLICY_BAD_ACTION] NaN"


def test_outages_are_retried_and_other_failures_only_on_request(tmp_path: Path) -> None:
    asked = settings(runs=5, models=["composite", "nano"])
    good = {"composite/open": ModelOutcome(True), "nano/open": ModelOutcome(False)}
    store = TrialStore(tmp_path)
    store.add(record(seed=0, **good))
    store.add(record(seed=1, **{**good, "nano/open": ModelOutcome(None, error=OUTAGE)}))
    store.add(record(seed=2, **{**good, "nano/open": ModelOutcome(None, error=FAULT)}))
    lost = {label: ModelOutcome(None, error=f"no actions: {OUTAGE}") for label in good}
    store.add(TrialRecord(Trial("expert", "canonical", 3), LabOutcome(None, error=OUTAGE), lost))
    fault = {label: ModelOutcome(None, error=f"no actions: {FAULT}") for label in good}
    store.add(TrialRecord(Trial("expert", "canonical", 4), LabOutcome(None, error=FAULT), fault))
    again = dict(Campaign(asked, tmp_path).pending())
    assert [trial.seed for trial in again] == [1, 3]
    first, second = again.values()
    assert first is not None
    assert first.lab.success is True
    assert list(first.models) == ["composite/open"]
    assert second == TrialRecord(Trial("expert", "canonical", 3), LabOutcome(None, value_m=second.lab.value_m), {})
    everything = dict(Campaign(asked, tmp_path, retry_failed=True).pending())
    assert [trial.seed for trial in everything] == [1, 2, 3, 4]
    assert [r.trial.seed for r in Campaign(asked, tmp_path).outages()] == [1, 3]


def test_folders_without_an_evaluation(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FileFormatError) as caught:
        TrialStore(tmp_path / "file")
    assert caught.value.code == ErrorCode.FILE_NOT_WRITABLE
    with pytest.raises(FileFormatError, match="holds no evaluation"):
        TrialStore(tmp_path / "empty").settings()
    (tmp_path / "empty" / "evaluation.json").write_text("[1, 2")
    with pytest.raises(FileFormatError, match="cannot be read"):
        TrialStore(tmp_path / "empty").settings()


def test_trials_come_scene_by_scene_with_all_policies(tmp_path: Path) -> None:
    asked = settings(policies=["expert", "near=expert:offset_m=0.01"], runs=7, scenarios=["canonical", "dynamic"])
    trials = Campaign(asked, tmp_path).trials()
    assert sorted(trials) == sorted(asked.trials())
    assert len(trials) == len(set(trials)) == 28
    for first, second in zip(trials[::2], trials[1::2], strict=True):
        assert (first.scenario, first.seed) == (second.scenario, second.seed)
        assert {first.policy, second.policy} == {"expert", "near"}


def test_files_of_other_processes_are_read_too(tmp_path: Path) -> None:
    """Folders written by several ranks of an earlier version have several files."""
    campaign = Campaign(settings(models=["composite"]), tmp_path)
    campaign.store.add(record(seed=0, **{"composite/open": ModelOutcome(True)}))
    (tmp_path / "trials-0.jsonl").rename(tmp_path / "trials-1.jsonl")
    campaign.store.add(record(seed=1, **{"composite/open": ModelOutcome(False)}))
    assert [trial.seed for trial, _ in campaign.pending()] == [2]


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"policies": []}, "policies"),
        ({"policies": ["expert", "expert"]}, "policies"),
        ({"policies": ["telepathy"]}, "telepathy"),
        ({"scenarios": ["moon"]}, "moon"),
        ({"models": []}, "models"),
        ({"models": ["ros:a+nano"]}, "ros:a"),
        ({"models": ["ros:a+ros:a"]}, "ros:a"),
        ({"judge": "jury"}, "jury"),
        ({"judge": "vlm:ftp://there,model"}, "ftp"),
        ({"modes": ["ajar"]}, "ajar"),
        ({"task": "dance"}, "dance"),
        ({"runs": 0}, "runs"),
        ({"seed": -1}, "seed"),
        ({"width": 3}, "width"),
        ({"limit_s": math.nan}, "limit_s"),
    ],
)
def test_invalid_settings(changes: dict[str, object], word: str) -> None:
    with pytest.raises(EvaluationError, match=word) as caught:
        settings(**changes)
    assert caught.value.code == ErrorCode.ARGUMENT_INVALID
    assert caught.value.expected


def test_records_are_plain_json() -> None:
    document = json.loads(json.dumps(record(nano=ModelOutcome(None)).to_json(), allow_nan=False))
    assert document["models"]["nano"]["value_m"] is None
    assert TrialRecord.from_json(document).trial == Trial("expert", "canonical", 0)
