"""`draft+nano` and `auto`: the draft's geometry and outcomes stay, colours change, and every fallback is stated."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.streaming import check_stream

from kinema4d_model.shipped import shipped_weights
from kinema4d_ros.calibration import read_camera
from kinema4d_ros.core.errors import ErrorCode, GeneratorError
from kinema4d_ros.core.rollout import WARNING
from kinema4d_ros.core.trajectory import JointTrajectory
from kinema4d_ros.generators import CommandedMotion, GenerateRequest, load_generator
from kinema4d_ros.io.resources import share_path
from kinema4d_ros.kinematics import choose_kinematics
from kinema4d_ros.lab.scripted import pick_plan
from kinema4d_ros.render import render_pointmaps
from kinema4d_ros.robot import Robot
from kinema4d_ros.worlds import LabWorld

pytestmark = pytest.mark.skipif(shipped_weights("nano") is None, reason="the weights are not in this copy")


@pytest.fixture(scope="module")
def request_(yam: Robot) -> GenerateRequest:
    """A pick at 144 x 96 that passes a little beside the object, so that the members of the draft disagree."""
    camera = read_camera(share_path("calibration/demo_lab.yaml")).rectified().scaled(144, 96)
    world = LabWorld.of("canonical", 3, camera, choose_kinematics(yam))
    aimed = pick_plan(world.start, world.start.target, world.kinematics)
    moved = aimed.positions.copy()
    moved[:, 0] += 0.07 * np.clip(np.arange(len(moved)) / (0.3 * len(moved)), 0.0, 1.0)
    plan = JointTrajectory(aimed.names, aimed.times, moved)
    drawn = render_pointmaps(yam, plan.resample(9), camera, rgb=True)
    return GenerateRequest(world.scene.image, drawn, world.scene.depth_m, motion=CommandedMotion.of(yam, plan))


def test_the_draft_decides_and_the_network_colours(request_: GenerateRequest) -> None:
    draft = load_generator("draft", members=6).generate(request_)
    made = load_generator("draft+nano", members=6, device="cpu").generate(request_)
    made.check_points()
    assert np.array_equal(made.xyz, draft.xyz, equal_nan=True)
    assert np.array_equal(made.robot_mask, draft.robot_mask)
    assert (made.outcomes, made.unknowns) == (draft.outcomes, draft.unknowns)
    assert np.array_equal(made.basis, draft.basis)
    assert np.array_equal(made.rgb[0], request_.image)
    assert np.array_equal(made.rgb[made.robot_mask], draft.rgb[made.robot_mask])
    assert (made.rgb != draft.rgb).any()
    assert len(draft.outcomes) > 1, "nothing to compare below"
    for index in range(1, len(draft.outcomes)):
        shown, drafted = made.with_outcome(index), draft.with_outcome(index)
        assert np.array_equal(shown.rgb, drafted.rgb)
        assert np.array_equal(shown.xyz, drafted.xyz, equal_nan=True)
        assert np.array_equal(shown.basis, drafted.basis)
    said = made.provenance
    assert (said.generator, said.preset, said.depth) == ("draft+nano", "nano", "measured")
    assert len(said.checkpoint_sha256) == 64
    assert said.versions["hypothesis"].startswith("draft")
    assert "agrees with the draft" in said.versions["frames"]
    assert WARNING not in said.versions


@pytest.mark.parametrize("missing", ["commands", "depth", "objects"])
def test_without_a_draft_both_fall_back_to_nano_and_say_why(
    missing: str, request_: GenerateRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kinema4d_ros.generators.draft.generator.has_detector", lambda: False)
    empty = np.full_like(request_.depth, np.nan)  # type: ignore[arg-type]
    changes = {"commands": {"motion": None}, "depth": {"depth": None}, "objects": {"depth": empty}}[missing]
    word = {"commands": "no commands", "depth": "neither measured depth", "objects": "no object can be fitted"}[missing]
    asked = replace(request_, **changes)  # type: ignore[arg-type]
    nano = load_generator("nano", device="cpu").generate(asked)
    refined, auto = (load_generator(spec, device="cpu").generate(asked) for spec in ("draft+nano", "auto"))
    for made in (refined, auto):
        assert np.array_equal(made.rgb, nano.rgb)
        assert made.outcomes == ()
        assert (made.provenance.generator, made.provenance.preset) == ("diffusion", "nano")
    assert word in refined.provenance.versions["hypothesis"]
    assert "fell back" in refined.provenance.versions[WARNING]
    assert auto.provenance.versions["auto"].startswith("nano: ")
    assert word in auto.provenance.versions["auto"]


@pytest.mark.parametrize(
    ("spec", "wanted"),
    [
        ("nano", [("still", False), ("refined", True)]),
        ("draft+nano", [("still", False), ("draft", False), ("refined", True)]),
    ],
)
def test_frames_are_delivered_as_they_are_refined(
    spec: str, wanted: list[tuple[str, bool]], request_: GenerateRequest
) -> None:
    stages, _ = check_stream(load_generator(spec, device="cpu"), request_)
    assert stages == wanted


def test_auto_with_depth_is_the_draft(request_: GenerateRequest) -> None:
    made, draft = (load_generator(spec).generate(request_) for spec in ("auto", "draft"))
    assert np.array_equal(made.rgb, draft.rgb)
    assert made.outcomes == draft.outcomes
    assert made.provenance.versions["auto"] == "draft: measured depth"


def test_presets_that_cannot_refine_and_wrong_options_are_refused() -> None:
    with pytest.raises(GeneratorError, match="cannot refine a draft") as caught:
        load_generator("draft+tiny", random_weights=True, device="cpu")
    assert caught.value.code is ErrorCode.GENERATOR_BAD_REQUEST
    with pytest.raises(GeneratorError, match="no option colour"):
        load_generator("draft+nano", colour="red")
    with pytest.raises(GeneratorError, match="no option colour"):
        load_generator("auto", colour="red")
