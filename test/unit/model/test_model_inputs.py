"""Tests of the network inputs: the request at the network's size, in [0, 1], padded in time."""

from __future__ import annotations

import numpy as np
import pytest
from support.requests import robot_of_a_square

from kinema4d_model.pipeline.inputs import prepare_inputs, shrink_request
from kinema4d_model.pipeline.normalise import PointScale
from kinema4d_model.preset_parts import ConditionSpec
from kinema4d_ros.generators import GenerateRequest
from kinema4d_ros.generators.composite import CompositeGenerator


def request(frames: int = 6, *, rgb: bool = True, depth: bool = False) -> GenerateRequest:
    robot = robot_of_a_square(frames=frames, rgb=rgb)
    image = np.random.default_rng(0).integers(60, 200, (48, 72, 3), dtype=np.uint8)
    return GenerateRequest(image, robot, np.full((48, 72), 0.8, np.float32) if depth else None, seed=5)


@pytest.mark.parametrize("depth", [False, True])
def test_a_smaller_request_is_the_same_scene(depth: bool) -> None:
    whole = request(depth=depth)
    small = shrink_request(whole, 48, 32)
    small.robot.check_points()
    assert small.camera.width == 48
    assert small.image.shape == (32, 48, 3)
    assert (small.depth is not None) == depth
    # A sampled point still projects into its own pixel, within half an old pixel.
    for v, u in np.argwhere(small.robot.mask[0]):
        pixel = small.camera.project(small.robot.xyz[0, v, u][None].astype(np.float64))[0]
        assert np.abs(pixel - (u + 0.5, v + 0.5)).max() < 0.5
    assert shrink_request(whole, 72, 48) is whole


@pytest.mark.parametrize(("frames", "padded"), [(1, 1), (2, 5), (5, 5), (6, 9)])
def test_time_is_padded_with_the_last_frame(frames: int, padded: int) -> None:
    asked = shrink_request(request(frames), 48, 32)
    inputs, _ = prepare_inputs(asked, CompositeGenerator(), 4)
    assert inputs.frames == frames
    for array in (
        inputs.robot_rgb,
        inputs.robot_xyz01,
        inputs.robot_mask,
        inputs.composite_rgb,
        inputs.composite_xyz01,
    ):
        assert len(array) == padded
        assert np.array_equal(array[frames:], np.repeat(array[frames - 1 : frames], padded - frames, 0))


def test_mirrored_padding_fills_the_trained_length_as_the_released_code() -> None:
    spec = ConditionSpec(padding="mirror")
    for frames, length in ((6, 9), (3, 13), (9, 9)):
        inputs, _ = prepare_inputs(shrink_request(request(frames), 48, 32), CompositeGenerator(), 4, spec, length)
        assert len(inputs.robot_mask) == length
        assert inputs.frames == frames
        shown = inputs.robot_xyz01
        for extra in range(frames, min(length, 2 * frames)):
            # The released pad_frames appends the reversed frames: the last one first.
            assert np.array_equal(shown[extra], shown[2 * frames - 1 - extra])
    # A sequence longer than the preset's length is not cut.
    inputs, _ = prepare_inputs(shrink_request(request(10), 48, 32), CompositeGenerator(), 4, spec, 9)
    assert len(inputs.robot_mask) == 13


def test_values_are_in_bounds_and_invertible() -> None:
    asked = request()
    inputs, _ = prepare_inputs(asked, CompositeGenerator(), 4)
    world = CompositeGenerator().compose(asked, CompositeGenerator().still_world(asked)).xyz
    mask = inputs.robot_mask[:6]
    for values in (inputs.robot_xyz01, inputs.composite_xyz01):
        assert values.min() >= 0
        assert values.max() <= 1
    assert (inputs.robot_xyz01[~inputs.robot_mask] == 0).all()
    span = inputs.bounds[1] - inputs.bounds[0]
    assert np.allclose(inputs.robot_xyz01[:6][mask] * span + inputs.bounds[0], asked.robot.xyz[mask], atol=1e-5)
    known = np.isfinite(world).all(-1)
    assert np.allclose(inputs.composite_xyz01[:6][known] * span + inputs.bounds[0], world[known], atol=1e-5)
    assert np.array_equal(inputs.robot_rgb[:6][mask], asked.robot.rgb[mask])


def test_missing_points_become_the_far_end_of_the_ray() -> None:
    asked = request()
    bounds = np.array([[-1.0, -1.0, 0.5], [1.0, 1.0, 2.0]])
    nothing = np.full((1, 48, 72, 3), np.nan, np.float32)
    rays = asked.camera.rays()
    values = PointScale(bounds).values(nothing, rays)
    assert (values[..., 2] == 1).all()
    expected = np.clip((rays[..., 0] * 2.0 + 1.0) / 2.0, 0, 1)
    assert np.allclose(values[0, ..., 0], expected, atol=1e-6)


def test_a_robot_without_colours_is_shaded() -> None:
    asked = request(rgb=False)
    inputs, _ = prepare_inputs(asked, CompositeGenerator(), 4)
    mask = inputs.robot_mask
    assert inputs.robot_rgb[mask].min() >= 70
    assert (inputs.robot_rgb[~mask] == 0).all()
