"""An evaluation's folder: what is written is read back, what is torn is cut, what differs is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from kinema4d_ros.errors import ErrorCode, FileFormatError
from kinema4d_ros.evaluation.errors import EvaluationError
from kinema4d_ros.trials.campaign import Campaign, Share
from kinema4d_ros.trials.settings import EvaluationSettings
from kinema4d_ros.trials.store import TrialStore
from kinema4d_ros.trials.trial import LabOutcome, ModelOutcome, Trial, TrialRecord


def record(policy: str = "expert", seed: int = 0, **models: ModelOutcome) -> TrialRecord:
    return TrialRecord(Trial(policy, "canonical", seed), LabOutcome(True, 1.0, 0.09, 4.2, 3, 1.5), models)


def settings(**changes: object) -> EvaluationSettings:
    return EvaluationSettings(**{"policies": ["expert"], "runs": 3, "scenarios": ["canonical"], **changes})  # type: ignore[arg-type]


def test_records_come_back_as_they_were(tmp_path: Path) -> None:
    store = TrialStore(tmp_path)
    first = record(seed=0, nano=ModelOutcome(None, value_m=math.nan, error="[GENERATOR_FAILED] no"))
    store.add(first)
    store.add(record(seed=1))
    found = TrialStore(tmp_path, rank=1).records()
    assert list(found) == ["expert|canonical|0", "expert|canonical|1"]
    back = found["expert|canonical|0"]
    assert back.lab == first.lab
    assert math.isnan(back.models["nano"].value_m)
    assert back.models["nano"].error == "[GENERATOR_FAILED] no"


def test_later_lines_add_models_and_keep_the_others(tmp_path: Path) -> None:
    store = TrialStore(tmp_path)
    store.add(record(a=ModelOutcome(True)))
    TrialStore(tmp_path, rank=3).add(record(b=ModelOutcome(False)))
    models = store.records()["expert|canonical|0"].models
    assert {name: one.success for name, one in models.items()} == {"a": True, "b": False}


def test_a_torn_last_line_is_lost_alone_and_cut_by_the_next_record(tmp_path: Path) -> None:
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


def test_a_second_call_must_ask_for_the_same_or_for_more(tmp_path: Path) -> None:
    Campaign(settings(), tmp_path)
    Campaign(settings(policies=["near=expert:offset_m=0.01"], runs=5, models=["composite", "nano"]), tmp_path)
    known = TrialStore(tmp_path).settings()
    assert known["policies"] == {"expert": "expert", "near": "expert:offset_m=0.01"}
    assert (known["runs"], known["models"]) == (5, ["composite", "nano"])
    with pytest.raises(EvaluationError, match="task: pick there, push asked for") as caught:
        Campaign(settings(task="push"), tmp_path)
    assert caught.value.code == ErrorCode.ARGUMENT_INVALID
    assert TrialStore(tmp_path).settings() == known


def test_folders_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FileFormatError) as caught:
        TrialStore(tmp_path / "file")
    assert caught.value.code == ErrorCode.FILE_NOT_WRITABLE
    with pytest.raises(FileFormatError, match="holds no evaluation"):
        TrialStore(tmp_path / "empty").settings()
    (tmp_path / "empty" / "evaluation.json").write_text("[1, 2")
    with pytest.raises(FileFormatError, match="cannot be read"):
        TrialStore(tmp_path / "empty").settings()


def test_every_table_belongs_to_one_rank(tmp_path: Path) -> None:
    asked = settings(policies=["expert", "near=expert:offset_m=0.01"], runs=7, scenarios=["canonical", "dynamic"])
    shares = [Campaign(asked, tmp_path, Share(rank, 3)).trials() for rank in range(3)]
    together = [trial for share in shares for trial in share]
    assert sorted(together) == sorted(asked.trials())
    assert len(together) == len(set(together)) == 28
    for share in shares:
        assert {t.policy for t in share} == {"expert", "near"}
        assert len({(t.scenario, t.seed) for t in share}) * 2 == len(share)


def test_ranks_are_read_from_the_launcher() -> None:
    assert Share.from_environment({"RANK": "2", "WORLD_SIZE": "4"}) == Share(2, 4)
    assert Share.from_environment({}) == Share(0, 1)
    for wrong in ({"RANK": "4", "WORLD_SIZE": "4"}, {"RANK": "one"}):
        with pytest.raises(EvaluationError):
            Share.from_environment(wrong)


def test_rank_0_says_which_trials_never_came(tmp_path: Path) -> None:
    campaign = Campaign(settings(models=["composite"]), tmp_path, Share(0, 2))
    campaign.store.add(record(seed=0, **{"composite/open": ModelOutcome(True)}))
    with pytest.raises(EvaluationError, match=r"2 trials of other ranks are missing .* expert\|canonical\|1"):
        campaign.wait_for_others(timeout_s=0.0)
    other = TrialStore(tmp_path, rank=1)
    for seed in (1, 2):
        other.add(record(seed=seed, **{"composite/open": ModelOutcome(False)}))
    assert len(campaign.wait_for_others(timeout_s=0.0)) == 3


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"policies": []}, "policies"),
        ({"policies": ["expert", "expert"]}, "policies"),
        ({"policies": ["telepathy"]}, "telepathy"),
        ({"scenarios": ["moon"]}, "moon"),
        ({"models": []}, "models"),
        ({"modes": ["ajar"]}, "ajar"),
        ({"task": "dance"}, "dance"),
        ({"runs": 0}, "runs"),
        ({"seed": -1}, "seed"),
        ({"width": 3}, "width"),
        ({"limit_s": math.nan}, "limit_s"),
    ],
)
def test_settings_that_cannot_be_run(changes: dict[str, object], word: str) -> None:
    with pytest.raises(EvaluationError, match=word) as caught:
        settings(**changes)
    assert caught.value.code == ErrorCode.ARGUMENT_INVALID
    assert caught.value.expected


def test_records_are_plain_json() -> None:
    document = json.loads(json.dumps(record(nano=ModelOutcome(None)).to_json(), allow_nan=False))
    assert document["models"]["nano"]["value_m"] is None
    assert TrialRecord.from_json(document).trial == Trial("expert", "canonical", 0)
