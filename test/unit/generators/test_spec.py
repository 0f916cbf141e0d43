"""Generator specs: names, options, users' classes, and where specs may come from."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import own_generator
from support.requests import robot_of_a_square

import kinema4d_ros
from kinema4d_ros.core.errors import ErrorCode, GeneratorError, KinemaError
from kinema4d_ros.core.rollout import Rollout
from kinema4d_ros.generators import (
    GenerateRequest,
    Generator,
    GeneratorSpec,
    best_preset,
    best_without_draft,
    load_generator,
)
from kinema4d_ros.generators.spec import preset_names

OWN = "support.own_generator:"


def request() -> GenerateRequest:
    image = np.random.default_rng(0).integers(60, 200, (48, 72, 3), dtype=np.uint8)
    return GenerateRequest(image, robot_of_a_square(), plan_hash="d" * 64)


def refusal(spec: str, **options: Any) -> GeneratorError:
    with pytest.raises(GeneratorError) as caught:
        load_generator(spec, **options)
    assert spec in caught.value.what
    return caught.value


def test_the_composite_is_available() -> None:
    generator = load_generator("composite", table_height_m=-0.02)
    assert isinstance(generator, Generator)
    assert generator.name == "composite"


@pytest.mark.parametrize(
    ("text", "kind", "nodes"),
    [
        ("composite", "composite", ()),
        ("auto", "auto", ()),
        ("carry", "carry", ()),
        ("draft", "draft", ()),
        ("draft+nano", "refined", ()),
        ("draft+runs/mine.yaml", "refined", ()),
        ("nano", "preset", ()),
        ("wan14b", "preset", ()),
        ("runs/mine.yaml", "preset", ()),
        ("mine.yml", "preset", ()),
        ("runs/mine", "preset", ()),
        ("ros", "ros", ("",)),
        ("ros:gpu1", "ros", ("gpu1",)),
        ("ros:/site/gpu1/", "ros", ("site/gpu1",)),
        ("ros+ros:gpu1", "ros", ("", "gpu1")),
        ("mine:Physics", "class", ()),
        ("package.module:Class", "class", ()),
    ],
)
def test_kinds_of_specs(text: str, kind: str, nodes: tuple[str, ...]) -> None:
    assert GeneratorSpec.parse(text) == GeneratorSpec(kind, text, nodes)  # type: ignore[arg-type]


def test_a_spec_names_the_preset_whose_weights_it_uses() -> None:
    named = {
        text: GeneratorSpec.parse(text).preset for text in ("nano", "draft+nano", "draft+a/b.yaml", "draft", "ros")
    }
    assert named == {"nano": "nano", "draft+nano": "nano", "draft+a/b.yaml": "a/b.yaml", "draft": "", "ros": ""}


def test_auto_drafts_with_depth_and_with_a_detector(monkeypatch: pytest.MonkeyPatch) -> None:
    assert best_preset(depth=True) == "draft"
    for detector, wanted in ((True, "draft"), (False, best_without_draft())):
        monkeypatch.setattr("kinema4d_ros.generators.spec.has_detector", lambda there=detector: there)
        assert best_preset() == wanted
    assert best_without_draft() in ("nano", "composite")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "crystal ball",
        "giant",
        "diffusion",
        "ros:my gpu",
        "ros:a+ros:a",
        "ros:a+nano",
        "draft+",
        "draft+ros",
        "draft+draft+nano",
        "nano+draft",
        "os.path:join.x",
        ":C",
        "m:",
    ],
)
def test_unknown_specs_list_the_known_ones(text: str) -> None:
    error = refusal(text)
    assert error.code is ErrorCode.GENERATOR_UNAVAILABLE
    for name in (
        "auto",
        "composite",
        "carry",
        "draft+PRESET",
        *preset_names(),
        "ros:NAMESPACE",
        "package.module:Class",
    ):
        assert name in error.expected


@pytest.mark.parametrize(("spec", "module"), [("nano", "kinema4d_model.pipeline.backend"), ("ros", "rclpy")])
def test_a_layer_that_is_not_installed_is_named(spec: str, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [
        name for name in sys.modules if name.startswith(("kinema4d_ros.ros.", "kinema4d_model.pipeline.backend"))
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    error = refusal(spec)
    assert error.code is ErrorCode.GENERATOR_UNAVAILABLE
    assert "make setup" in error.hint


def test_unknown_options_are_refused_and_unknown_offers_ignored() -> None:
    assert "colour" in refusal("composite", colour="red").what
    error = refusal("composite", checkpoint="weights", offered={"device": "cpu"})
    assert error.code is ErrorCode.GENERATOR_BAD_REQUEST
    assert "has no option checkpoint" in error.what
    assert "table_height_m" in error.expected
    given = load_generator("composite", checkpoint="", sampler={}, lora=None, offered={"device": "cpu"})
    assert given.name == "composite"
    assert "needs depth_server" in refusal(f"{OWN}Demanding").what


def test_a_class_gets_the_options_it_has() -> None:
    offered = {"device": "cpu", "table_height_m": 0.1}
    made = load_generator(f"{OWN}Wrong", offered=offered, checkpoint="weights")._made  # type: ignore[attr-defined]
    assert isinstance(made, own_generator.Wrong)
    assert (made.device, made.more) == ("cpu", {"checkpoint": "weights"})


def test_the_documented_class_generates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = request()
    rollout = load_generator(own_generator.documented(tmp_path, monkeypatch)).generate(asked)
    assert rollout.provenance.generator == "grey"
    world = rollout.rgb[~rollout.robot_mask]
    assert (world == world[:, :1]).all()
    assert (rollout.rgb[asked.robot.mask] != rollout.rgb[asked.robot.mask][:, :1]).any()


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("Mute", "no method generate"),
        ("Nameless", "no name"),
        ("Blunt", "generate cannot be called"),
        ("Stillborn", "its constructor raised ZeroDivisionError: no luck"),
        ("NOT_A_CLASS", "is not a class"),
        ("Missing", "has no 'Missing'"),
    ],
)
def test_classes_that_cannot_generate(name: str, word: str) -> None:
    error = refusal(f"{OWN}{name}")
    assert error.code is ErrorCode.GENERATOR_UNAVAILABLE
    assert word in error.what


def test_modules_that_cannot_be_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "No module named 'no_such_package'" in refusal("no_such_package.mine:C").what
    (tmp_path / "torn_module.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "importing torn_module raised ZeroDivisionError" in refusal("torn_module:C").what


@pytest.mark.parametrize(("how", "word"), [("array", "ndarray"), ("frames", "frames 2"), ("plan", "plan_hash 'eee")])
def test_results_that_do_not_match_the_request(how: str, word: str) -> None:
    generator = load_generator(f"{OWN}Wrong", how=how)
    with pytest.raises(GeneratorError, match=word) as caught:
        generator.generate(request())
    assert f"{OWN}Wrong" in caught.value.what
    assert caught.value.code is ErrorCode.GENERATOR_FAILED


def test_a_class_is_closed() -> None:
    generator: Any = load_generator(f"{OWN}Wrong")
    assert isinstance(generator.generate(request()), Rollout)
    generator.close()
    assert generator._made.closed


def test_an_error_of_a_class_keeps_its_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "refusing.py").write_text(
        "from kinema4d_ros.core.errors import FileFormatError\n"
        "class Refusing:\n"
        "    name = 'refusing'\n"
        "    def __init__(self): raise FileFormatError('no map')\n"
        "    def generate(self, request, progress=None, cancel=None): ...\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(KinemaError, match="refusing:Refusing: no map") as caught:
        load_generator("refusing:Refusing")
    assert caught.value.code is ErrorCode.FILE_MALFORMED


def test_few_callers_choose_a_generator() -> None:
    """A spec can name code. Add a file here only if its specs come from the command line or a start-up parameter."""
    root = Path(kinema4d_ros.__file__).parents[1]
    paths = [*(root / "kinema4d_ros").rglob("*.py"), *(root / "model").rglob("*.py")]
    chosen = re.compile(r"^(?!.*(def |>>> )).*\bload_generator(\((?!\s*f?\")|,)", re.MULTILINE)
    found = {str(path.relative_to(root)) for path in paths if chosen.search(path.read_text())}
    assert found == {
        "kinema4d_ros/cli/assess.py",
        "kinema4d_ros/cli/generate.py",
        "kinema4d_ros/cli/replay.py",
        "kinema4d_ros/generators/spec.py",
        "kinema4d_ros/ros/nodes/generator_worker.py",
        "kinema4d_ros/evaluation/execute.py",
        "kinema4d_ros/evaluation/preflight.py",
        "kinema4d_ros/worlds/gym_env.py",
        "model/kinema4d_model/assessment/recorded.py",
    }
