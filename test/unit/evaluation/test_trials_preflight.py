"""Checks before the first trial of everything that would fail every trial."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kinema4d_ros.cli import main
from kinema4d_ros.core.errors import ErrorCode, KinemaError
from kinema4d_ros.evaluation.preflight import check_apart, check_setup
from kinema4d_ros.evaluation.settings import EvaluationSettings
from kinema4d_ros.lab.scenario import ScenarioError

ODD = "python:support.odd_policies:"


def settings(*policies: str, **changes: Any) -> EvaluationSettings:
    return EvaluationSettings(
        policies or ["expert"], **{"scenarios": ["canonical"], "runs": 4, "width": 96, "frames": 5, **changes}
    )


def test_a_complete_setup_has_its_provenance() -> None:
    setup = check_setup(settings("expert", f"nod={ODD}Nod", models=["composite", "truth"]))
    assert setup.notes == ()
    assert setup.weights == {}
    assert {"kinema4d_ros", "numpy", "mujoco"} <= set(setup.software)


@pytest.mark.parametrize(
    ("policies", "changes", "code"),
    [
        ((), {"robot": "/nowhere.urdf"}, ErrorCode.FILE_MISSING),
        ((), {"camera": "/nowhere.yaml"}, ErrorCode.FILE_MISSING),
        (("replay:/nowhere.npz",), {}, ErrorCode.POLICY_UNAVAILABLE),
        (("expert:wings=2",), {}, ErrorCode.POLICY_UNAVAILABLE),
        ((f"{ODD}Missing",), {}, ErrorCode.POLICY_UNAVAILABLE),
    ],
)
def test_errors_keep_their_own_code(policies: tuple[str, ...], changes: dict[str, Any], code: ErrorCode) -> None:
    with pytest.raises(KinemaError) as caught:
        check_setup(settings(*policies, **changes))
    assert caught.value.code is code


def test_profiles_are_those_of_the_lab() -> None:
    assert settings(profile="hidden").to_json()["profile"] == "hidden"
    with pytest.raises(KinemaError, match="profile secret") as caught:
        settings(profile="secret")
    assert caught.value.expected == "one of constant, hidden"
    assert main(["evaluate", "--recordings", "somewhere", "--profile", "hidden"]) == 2


def test_one_scene_without_room_is_accepted_but_not_all(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def lay(name: str, seed: int, *rest: Any, **options: Any) -> object:
        tried.append(seed)
        if len(tried) <= crowded:
            raise ScenarioError("no stable layout", expected="ranges that leave room")
        return object()

    monkeypatch.setattr("kinema4d_ros.evaluation.preflight.LabSimulation", lay)
    crowded = 2
    check_setup(settings())
    assert tried == [0, 1, 2]
    tried.clear()
    crowded = 3
    with pytest.raises(ScenarioError):
        check_setup(settings())


@pytest.mark.full
def test_a_policy_that_kills_the_check_or_hangs_does_no_harm(tmp_path: Path) -> None:
    with pytest.raises(
        KinemaError, match=r"the check of policies and models: the process died \(exit code 3\)"
    ) as caught:
        check_apart(settings(f"{ODD}StillbornDies"))
    assert caught.value.code is ErrorCode.POLICY_FAILED
    with pytest.raises(KinemaError, match="took too long") as caught:
        check_apart(settings(f"{ODD}StillbornHangs"), timeout_s=15.0)
    assert caught.value.code is ErrorCode.POLICY_TIMEOUT


def test_errors_of_the_check_process_are_complete() -> None:
    with pytest.raises(KinemaError) as caught:
        check_apart(settings(robot="/nowhere.urdf"))
    assert caught.value.code is ErrorCode.FILE_MISSING
    assert caught.value.expected


def test_weights_have_the_hash_of_their_rollouts(tmp_path: Path) -> None:
    identity = pytest.importorskip("kinema4d_model.checkpoints.loading")
    loading = pytest.importorskip("kinema4d_model.checkpoints.loading")
    sha256 = check_setup(settings(models=["nano"])).weights["nano"]
    assert sha256 == loading.load_bundle("nano").sha256
    with pytest.raises(KinemaError, match="no weights for preset 'nano'") as caught:
        identity.weights_sha256("nano", tmp_path)
    assert caught.value.code is ErrorCode.FILE_MISSING
