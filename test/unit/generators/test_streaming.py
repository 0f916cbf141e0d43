"""Frames are delivered as soon as they exist, those that are final are the rollout's, and the rollout is the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.requests import robot_of_a_square
from support.streaming import check_stream, same

from kinema4d_ros.calibration import read_camera
from kinema4d_ros.core.errors import Cancelled
from kinema4d_ros.core.rollout import Rollout
from kinema4d_ros.generators import (
    Cancel,
    CommandedMotion,
    GenerateRequest,
    ReadyFrames,
    ReportProgress,
    load_generator,
    stream_frames,
)
from kinema4d_ros.generators.composite import CarryGenerator, CompositeGenerator
from kinema4d_ros.generators.draft.generator import DraftGenerator
from kinema4d_ros.io.resources import share_path
from kinema4d_ros.kinematics import choose_kinematics
from kinema4d_ros.lab.scripted import pick_plan
from kinema4d_ros.render import render_pointmaps
from kinema4d_ros.robot import Robot
from kinema4d_ros.worlds import LabWorld


class Plain:
    """A user's generator, which cannot stream."""

    name = "plain"

    def generate(
        self, request: GenerateRequest, progress: ReportProgress | None = None, cancel: Cancel | None = None
    ) -> Rollout:
        """Generate the scene at rest."""
        return CompositeGenerator().generate(request, progress, cancel)


@pytest.fixture(scope="module")
def pick(yam: Robot) -> GenerateRequest:
    """A pick with measured depth, 144 x 96, 12 frames: more than are drawn at a time."""
    camera = read_camera(share_path("calibration/demo_lab.yaml")).rectified().scaled(144, 96)
    world = LabWorld.of("canonical", 3, camera, choose_kinematics(yam))
    plan = pick_plan(world.start, world.start.target, world.kinematics)
    drawn = render_pointmaps(yam, plan.resample(12), camera, rgb=True)
    return GenerateRequest(world.scene.image, drawn, world.scene.depth_m, motion=CommandedMotion.of(yam, plan))


@given(frames=st.integers(1, 20), depth=st.booleans())
@settings(max_examples=10, deadline=None)
def test_the_composite_delivers_every_frame_once(frames: int, depth: bool) -> None:
    robot = robot_of_a_square(36, 24, frames=frames)
    image = np.random.default_rng(0).integers(60, 200, (24, 36, 3), dtype=np.uint8)
    measured = np.full((24, 36), 0.5, np.float32) if depth else None
    stages, _ = check_stream(CompositeGenerator(), GenerateRequest(image, robot, measured))
    assert stages == [("still", True)]


def test_carry_delivers_the_scene_at_rest_first(pick: GenerateRequest) -> None:
    stages, made = check_stream(CarryGenerator(), pick)
    assert stages == [("still", False), ("draft", True)]
    assert not same(made, CompositeGenerator().generate(pick))


@pytest.mark.parametrize("spec", ["draft", "auto"])
def test_drafts_deliver_the_scene_at_rest_first(spec: str, pick: GenerateRequest) -> None:
    made_by = DraftGenerator(members=3) if spec == "draft" else load_generator("auto")
    stages, made = check_stream(made_by, pick)
    assert stages == [("still", False), ("draft", True)]
    assert made.outcomes


def test_generators_that_cannot_stream_deliver_all_at_the_end(pick: GenerateRequest) -> None:
    for generator in (Plain(), load_generator(f"{__name__}:Plain")):
        stages, _ = check_stream(generator, pick)
        assert stages == [("refined", True)]


@pytest.mark.parametrize("stage", ["still", "draft"])
def test_a_receiver_can_end_the_generation(stage: str, pick: GenerateRequest) -> None:
    def refuse(ready: ReadyFrames) -> None:
        if ready.stage == stage:
            raise Cancelled("enough")

    with pytest.raises(Cancelled, match="enough"):
        stream_frames(DraftGenerator(members=1), pick, refuse)


def test_the_still_frames_of_a_draft_come_before_it_fits(pick: GenerateRequest) -> None:
    said: list[str] = []
    generator = DraftGenerator(members=1)
    stream_frames(generator, pick, lambda ready: said.append(ready.stage), lambda step: said.append(step.phase))
    assert said.index("still") < said.index("fit") < said.index("draw") < said.index("draft")
    # A request that cannot be drafted delivers nothing.
    said.clear()
    with pytest.raises(Exception, match="no commands"):
        stream_frames(generator, replace(pick, motion=None), lambda ready: said.append(ready.stage))
    assert said == []
