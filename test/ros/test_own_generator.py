"""One spec for worker and commands, with the documented class; nothing that comes from outside can name a class.

`assess` is in unit/model/test_assessment.py, which has a dataset; the whole node with a class is in
test_generator_faults.py.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml
from rclpy.serialization import deserialize_message, serialize_message
from support.own_generator import documented
from support.recordings import joint_trajectory, write_bag
from support.requests import robot_of_a_square
from support.sim_graph import small_camera

from kinema4d_msgs.action import EvaluatePolicy, GenerateRollout
from kinema4d_ros.cli import main
from kinema4d_ros.core.errors import KinemaError
from kinema4d_ros.core.rollout import Rollout
from kinema4d_ros.generators import GenerateRequest, best_without_draft, load_generator
from kinema4d_ros.io.resources import share_path
from kinema4d_ros.robot import Robot
from kinema4d_ros.ros.messages.request import request_to_goal
from kinema4d_ros.ros.messages.rollout import rollout_from_msg
from kinema4d_ros.ros.messages.stamps import header
from kinema4d_ros.ros.nodes.evaluation import Evaluation
from kinema4d_ros.ros.nodes.evaluation import Settings as EvaluationNodeSettings
from kinema4d_ros.ros.nodes.generator import Settings, worker_command
from kinema4d_ros.ros.nodes.generator_worker import Handler
from kinema4d_ros.ros.params import check, descriptors
from kinema4d_ros.runtime import Worker, WorkerTimes

pytestmark = pytest.mark.timeout(300)

BOMB = "kinema4d_test_bomb"
SPEC = f"{BOMB}:Bomb"


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    return documented(tmp_path, monkeypatch)


def goal() -> Any:
    image = np.random.default_rng(0).integers(60, 200, (48, 72, 3), dtype=np.uint8)
    request = GenerateRequest(image, robot_of_a_square(), plan_hash="d" * 64)
    return request_to_goal(request, header(1).stamp, header(1).stamp, ["base", "arm", "hand"])


def test_the_node_s_worker_runs_it(spec: str) -> None:
    worker = Worker(worker_command(check(Settings, {"preset": spec})), WorkerTimes(load_s=240.0, run_s=120.0))
    try:
        result = deserialize_message(worker.run(bytes(serialize_message(goal()))), GenerateRollout.Result)
    finally:
        worker.stop()
    assert rollout_from_msg(result.rollout).provenance.generator == "grey"


def test_generate_runs_it(spec: str, tmp_path: Path) -> None:
    plan = str(share_path("config/demo/pick_and_place.csv"))
    arguments = ["--camera", small_camera(tmp_path), "--frames", "3", "--out", str(tmp_path / "out")]
    assert main(["generate", "--trajectory", plan, "--preset", spec, *arguments]) == 0
    assert Rollout.load(tmp_path / "out").provenance.generator == "grey"


@pytest.fixture
def bag(tmp_path: Path) -> str:
    robot = Robot.load("yam")
    q = np.stack([robot.home_position(), robot.home_position()])
    q[1, 0] += 0.3
    write_bag(tmp_path / "bag", [(1.0, "/kinema4d/plan", joint_trajectory(robot.joint_names, np.array([0, 2.0]), q))])
    return str(tmp_path / "bag")


def replayed(bag: str, tmp_path: Path, *arguments: str) -> Rollout:
    camera = small_camera(tmp_path, 96, 64)
    assert main(["replay", bag, "--camera", camera, "--out", str(tmp_path / "out"), *arguments]) == 0
    return Rollout.load(tmp_path / "out" / "plan_000")


def test_replay_runs_it(spec: str, bag: str, tmp_path: Path) -> None:
    assert replayed(bag, tmp_path, "--preset", spec).provenance.generator == "grey"


@pytest.mark.skipif(best_without_draft() != "nano", reason="needs torch and the nano model's weights")
def test_replay_runs_presets(bag: str, tmp_path: Path) -> None:
    assert replayed(bag, tmp_path, "--preset", "nano", "--device", "cpu").provenance.preset == "nano"


def test_replay_lists_what_there_is(bag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", bag, "--preset", "giant"]) == 2
    told = capsys.readouterr().err
    assert "'giant'" in told
    assert "nano" in told
    assert "package.module:Class" in told


SMALL = ["--scenarios", "canonical", "--runs", "1", "--width", "96", "--frames", "5", "--workers", "0"]


def test_evaluate_runs_it(spec: str, tmp_path: Path) -> None:
    # The world at rest decides no pick, so there is nothing to compare: exit code 1 says that, the record the rest.
    main(["evaluate", "--policies", "expert", *SMALL, "--models", spec, "--out", str(tmp_path / "out")])
    (line,) = (tmp_path / "out" / "trials-0.jsonl").read_text().splitlines()
    outcome = json.loads(line)["models"][f"{spec}/open"]
    assert outcome["error"] == ""
    assert outcome["made_by"].startswith("grey")


def test_evaluate_refuses_a_class_that_cannot_be_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    models = ["--models", "support.own_generator:Stillborn", "--out", str(tmp_path / "out")]
    assert main(["evaluate", "--policies", "expert", *SMALL, *models]) == 2
    assert "'support.own_generator:Stillborn': its constructor raised ZeroDivisionError" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.fixture
def bomb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A class that can be imported, and must not be."""
    (tmp_path / "bomb").mkdir()
    (tmp_path / "bomb" / f"{BOMB}.py").write_text("from support.own_generator import Wrong as Bomb\n")
    monkeypatch.syspath_prepend(str(tmp_path / "bomb"))
    monkeypatch.delitem(sys.modules, BOMB, raising=False)
    yield
    assert BOMB not in sys.modules


def test_the_bomb_would_go_off(bomb: None) -> None:
    assert load_generator(SPEC).name == "wrong"
    del sys.modules[BOMB]


def texts(message: Any) -> list[tuple[Any, str]]:
    """Every text field of a message and of the messages in it: owner and name."""
    found = []
    for name, kind in message.get_fields_and_field_types().items():
        value = getattr(message, name)
        if kind == "string":
            found.append((message, name))
        for one in value if isinstance(value, list) else [value]:
            if hasattr(one, "get_fields_and_field_types"):
                found += texts(one)
    return found


def test_a_generate_goal_cannot_name_a_class(bomb: None) -> None:
    handler = Handler(load_generator("composite"))
    job: Any = SimpleNamespace(progress=lambda *_: None, cancelled=lambda: False)
    fields = len(texts(goal()))
    assert fields >= 4
    for index in range(fields):
        asked = goal()
        setattr(*texts(asked)[index], SPEC)
        with suppress(KinemaError):
            result = deserialize_message(handler(bytes(serialize_message(asked)), job), GenerateRollout.Result)
            assert result.rollout.provenance.generator == "composite"


@pytest.mark.parametrize("prefix", ["", "replay:", "expert:generator=", "lerobot:"])
def test_an_evaluation_goal_cannot_name_a_class(prefix: str, bomb: None) -> None:
    node: Any = SimpleNamespace(_settings=check(EvaluationNodeSettings, {}), get_namespace=lambda: "/")
    fields = [name for _, name in texts(EvaluatePolicy.Goal())]
    assert fields == ["policy", "task", "scenario"]
    good = {"policy": "expert", "task": "pick", "scenario": "canonical", "episodes": 1}
    for name in fields:
        with suppress(KinemaError):
            assert Evaluation._asked(node, EvaluatePolicy.Goal(**{**good, name: prefix + SPEC})).models == ["ros"]


def test_parameters_that_name_generators_are_given_at_start_only() -> None:
    assert descriptors(Settings)["preset"].read_only
    assert descriptors(EvaluationNodeSettings)["model"].read_only


def test_a_stored_evaluation_cannot_name_a_class(bomb: None, tmp_path: Path) -> None:
    from kinema4d_ros.evaluation.campaign import Campaign
    from kinema4d_ros.evaluation.settings import EvaluationSettings

    asked = EvaluationSettings(["expert"], ["canonical"], runs=1, models=[SPEC], checkpoints={SPEC: "weights"})
    Campaign(asked, tmp_path)
    (stored,) = tmp_path.glob("*.json")
    assert SPEC in stored.read_text()
    with suppress(KinemaError):
        main(["evaluate", "--report", str(tmp_path)])
    with suppress(KinemaError):
        Campaign(EvaluationSettings(["expert"], ["canonical"], runs=1), tmp_path).run(workers=0)


def changed(document: Any, path: tuple[Any, ...] = ()) -> Iterator[Any]:
    """Copies of a document, in each of which one text says a class."""
    items = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in items:
        if isinstance(value, dict | list):
            for inner in changed(value):
                copy = dict(document) if isinstance(document, dict) else list(document)
                copy[key] = inner
                yield copy
        elif isinstance(value, str):
            copy = dict(document) if isinstance(document, dict) else list(document)
            copy[key] = SPEC
            yield copy


def test_presets_and_checkpoints_cannot_name_a_class(bomb: None, tmp_path: Path) -> None:
    bundle = pytest.importorskip(
        "kinema4d_model.checkpoints.bundle", reason="needs the packages of requirements/model.in"
    )
    folder = tmp_path / "weights"
    bundle.ModelBundle.from_preset("tiny", seed=1).save_pretrained(folder)
    preset = yaml.safe_load((folder / "preset.yaml").read_text())
    more = [{**preset, "class": SPEC}, {**preset, "extends": SPEC}, {**preset, "generator": SPEC}]
    for document in [*changed(preset), *more]:
        (tmp_path / "mine.yaml").write_text(yaml.safe_dump(document))
        with suppress(Exception):  # how it is refused is not the question here
            load_generator(str(tmp_path / "mine.yaml"), random_weights=True, device="cpu")
    files = sorted(folder.rglob("*.json"))
    assert files
    for path in files:
        whole = path.read_text()
        for document in changed(json.loads(whole)):
            path.write_text(json.dumps(document))
            with suppress(Exception):  # how it is refused is not the question here
                load_generator("tiny", checkpoint=str(folder), device="cpu")
        path.write_text(whole)
