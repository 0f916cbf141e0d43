"""Tests of chunks at the trained motion rate: what the network sees, the frames in between, provenance."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.model_inputs import wake
from support.requests import robot_of_a_square

from kinema4d_model.checkpoints.bundle import ModelBundle
from kinema4d_model.pipeline.backend import DiffusionGenerator
from kinema4d_model.pipeline.session import motion_frames
from kinema4d_model.preset import Preset, load_preset
from kinema4d_model.preset_parts import MotionSpec
from kinema4d_ros.core.errors import FileFormatError
from kinema4d_ros.generators import GenerateRequest


def request(frames: int, period_s: float) -> GenerateRequest:
    robot = robot_of_a_square(frames=frames)
    image = np.random.default_rng(0).integers(60, 200, (48, 72, 3), dtype=np.uint8)
    return GenerateRequest(image, replace(robot, times=5.0 + period_s * np.arange(frames)), seed=3)


@pytest.fixture(scope="module")
def generator() -> DiffusionGenerator:
    tiny = load_preset("tiny")
    moving = replace(tiny, motion=MotionSpec(source_hz=10.0, stride=4))
    bundle = ModelBundle.from_preset(moving, seed=1)
    wake(bundle.transformer)
    return DiffusionGenerator(bundle=bundle, device="cpu")


@settings(max_examples=60, deadline=None)
@given(count=st.integers(1, 200), spacing_s=st.floats(0.01, 2.0), period_s=st.floats(0.05, 1.0))
def test_the_network_sees_frames_at_the_trained_rate(count: int, spacing_s: float, period_s: float) -> None:
    times = spacing_s * np.arange(count)
    shown = motion_frames(times, period_s)
    assert shown[0] == 0
    assert shown[-1] == count - 1
    assert (np.diff(shown) > 0).all()
    if count > 1 and spacing_s > period_s:
        # Nothing is made up between frames that are further apart than in the training.
        assert len(shown) == count or len(shown) >= round(times[-1] / period_s)
    elif count > 2:
        gaps = np.diff(times[shown])
        assert gaps.max() < 1.5 * period_s + spacing_s + 1e-9


def test_a_long_plan_is_split_and_every_chunk_is_reported(generator: DiffusionGenerator) -> None:
    asked = request(41, 0.2)  # 8 s: 21 frames, 0.4 s apart, in chunks of 9
    rollout = generator.generate(asked)
    rollout.check_points()
    said = rollout.provenance.versions
    assert said["chunks"] == "3 of up to 9 frames"
    assert said["motion"] == "the network saw a frame every 0.400 s, trained every 0.400 s"
    assert [line.split(",")[:2] for line in said["per chunk"].split("; ")] == [
        ["0.00 to 3.20 s", " 9 frames seen"],
        ["3.20 to 6.40 s", " 9 frames seen"],
        ["6.40 to 8.00 s", " 5 frames seen"],
    ]
    assert "warning" not in said
    mask = asked.robot.mask
    assert np.array_equal(rollout.xyz[mask], asked.robot.xyz[mask])
    # A frame in between shows the world of a neighbour, with its own robot and without the neighbour's.
    world = ~(mask[1] | mask[0] | mask[2])
    neighbours = [np.array_equal(rollout.rgb[1][world], rollout.rgb[k][world]) for k in (0, 2)]
    assert any(neighbours)


def test_frames_too_far_apart_are_a_warning(generator: DiffusionGenerator) -> None:
    said = generator.generate(request(5, 1.2)).provenance.versions
    assert "3.0 times as far apart as in the training" in said["warning"]
    assert generator.frames_for(8.0) == 21
    assert generator.frames_for(0.0) == 1


def test_the_14b_presets_have_the_rate_of_the_released_videos(tiny: Preset) -> None:
    for name in ("wan14b", "wan14b_pm", "wan14b_24gb", "wan14b_fast", "wan14b_pm_24gb"):
        motion = load_preset(name).motion
        assert motion is not None
        assert 48 * motion.period_s == pytest.approx(12.8)
    assert tiny.motion is None
    with pytest.raises(FileFormatError, match=r"motion.stride and motion.source_hz must be positive"):
        replace(tiny, motion=MotionSpec(15.0, 0))
