"""Tests of the output stage: resizing, the exact robot, rays and confidence."""

from __future__ import annotations

from collections.abc import Callable

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinema4d_model.pipeline.backend import confidence_of
from kinema4d_model.pipeline.resize import (
    fill_under_robot,
    grow_images,
    grow_points,
    paste_robot,
    pick_pixels,
    points_on_rays,
    shrink_images,
)
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import GeneratorError
from kinema4d_ros.core.pointmap import PointmapSequence
from kinema4d_ros.core.rollout import Frames

sizes = st.tuples(st.integers(2, 30), st.integers(2, 30))


@settings(max_examples=50, deadline=None)
@given(old=sizes, new=sizes, seed=st.integers(0, 99))
def test_picked_pixels_are_those_under_the_new_centres(old: tuple[int, int], new: tuple[int, int], seed: int) -> None:
    frames = np.random.default_rng(seed).random((2, *old, 3)).astype(np.float32)
    picked = pick_pixels(frames, new[1], new[0])
    for v in range(new[0]):
        for u in range(new[1]):
            row, column = int((v + 0.5) * old[0] / new[0]), int((u + 0.5) * old[1] / new[1])
            assert np.array_equal(picked[:, v, u], frames[:, row, column])


@settings(max_examples=30, deadline=None)
@given(old=sizes, new=sizes, seed=st.integers(0, 99))
def test_upsampled_points_stay_between_neighbours_on_one_surface(
    old: tuple[int, int], new: tuple[int, int], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    points = rng.random((1, *old, 3)).astype(np.float32)
    near = rng.random(old) < 0.5
    # Two surfaces, each within 1 %: no point may lie in the gap of a metre between them.
    points[0, ..., 2] = np.where(near, 1.0, 2.0) * (1 + 0.01 * rng.random(old))
    grown = grow_points(points, new[1], new[0])
    z = grown[0, ..., 2]
    assert (((z > 0.999) & (z < 1.011)) | ((z > 1.999) & (z < 2.021))).all()
    assert grown.min() >= points.min() - 1e-6
    assert grown.max() <= points.max() + 1e-5


def test_upsampling_within_a_surface_is_bilinear() -> None:
    points = np.random.default_rng(0).random((1, 5, 7, 3)).astype(np.float32)
    points[..., 2] += 100.0
    grown = grow_points(points, 21, 15)
    expected = cv2.resize(points[0], (21, 15), interpolation=cv2.INTER_LINEAR)
    assert np.abs(grown[0] - expected).max() < 1e-4


def test_nan_stays_nan() -> None:
    points = np.ones((1, 4, 4, 3), np.float32)
    points[0, 2:] = np.nan
    grown = grow_points(points, 8, 8)
    assert np.isnan(grown[0, 4:]).all()
    assert np.array_equal(grown[0, :4], np.ones((4, 8, 3), np.float32))


def test_the_same_size_is_the_same_array() -> None:
    images = np.zeros((2, 4, 6, 3), np.uint8)
    points = np.zeros((2, 4, 6, 3), np.float32)
    assert shrink_images(images, 6, 4) is images
    assert grow_images(images, 6, 4) is images
    assert pick_pixels(points, 6, 4) is points
    assert grow_points(points, 6, 4) is points


def test_shrinking_keeps_the_mean() -> None:
    images = np.random.default_rng(0).integers(0, 256, (2, 16, 24, 3), dtype=np.uint8)
    small = shrink_images(images, 6, 4)
    blocks = images.reshape(2, 4, 4, 6, 4, 3).mean((2, 4))
    assert np.abs(small - blocks).max() <= 0.51


def test_pixels_under_the_robot_take_the_nearest_world_pixel() -> None:
    rng = np.random.default_rng(3)
    frames = rng.random((2, 12, 15, 3)).astype(np.float32)
    mask = rng.random((2, 12, 15)) < 0.4
    filled = fill_under_robot(frames, mask)
    assert np.array_equal(filled[~mask], frames[~mask])
    for t in range(2):
        world = np.argwhere(~mask[t])
        for v, u in np.argwhere(mask[t]):
            steps = np.linalg.norm(world - (v, u), axis=1)
            # The distance transform's 3 x 3 mask is approximate: accept any world pixel less than 5 % farther.
            close = world[steps <= 1.05 * steps.min()]
            assert any(np.array_equal(filled[t, v, u], frames[t, r, c]) for r, c in close)
    everywhere = np.ones_like(mask)
    assert np.array_equal(fill_under_robot(frames, everywhere), frames)


def test_the_pasted_robot_is_exact(make_sequence: Callable[..., PointmapSequence]) -> None:
    robot = make_sequence()
    rgb, xyz = np.full((*robot.mask.shape, 3), 9, np.uint8), np.ones((*robot.mask.shape, 3), np.float32)
    frames = Frames(rgb, xyz, robot.mask)
    paste_robot(frames, robot)
    assert robot.rgb is not None
    assert np.array_equal(xyz[robot.mask], robot.xyz[robot.mask])
    assert np.array_equal(rgb[robot.mask], robot.rgb[robot.mask])
    assert (xyz[~robot.mask] == 1).all()
    assert (rgb[~robot.mask] == 9).all()
    colourless = make_sequence(rgb=False)
    rgb[:] = 5
    paste_robot(frames, colourless)
    assert (rgb == 5).all()


def test_points_move_to_the_closest_point_on_their_ray() -> None:
    camera = PinholeCamera(6, 4, [[8.0, 0, 3.0], [0, 8.0, 2.0], [0, 0, 1]])
    rng = np.random.default_rng(0)
    z = rng.uniform(0.5, 2.0, (2, 4, 6))
    on_rays = (camera.rays() * z[..., None]).astype(np.float32)
    same, off = points_on_rays(on_rays, camera)
    assert np.abs(same - on_rays).max() < 1e-6
    assert off < 1e-6
    sideways = np.cross(camera.rays(), (0.3, 0.5, 0.1))
    sideways *= 0.02 / np.linalg.norm(sideways, axis=-1, keepdims=True)
    back, off = points_on_rays((on_rays + sideways).astype(np.float32), camera)
    assert np.abs(back - on_rays).max() < 1e-5
    assert off == pytest.approx(0.02, rel=1e-3)
    assert np.isnan(points_on_rays(-on_rays, camera)[0]).all()


def test_confidence_measures_agreement_of_seeds() -> None:
    mask = np.zeros((1, 2, 4), bool)
    mask[0, 1, 3] = True
    first, second = np.ones((1, 2, 4, 3), np.float32), np.ones((1, 2, 4, 3), np.float32)
    second[0, 0, 1, 2] += 0.02 * np.sqrt(2)
    second[0, 0, 2] = np.nan
    first[0, 0, 3] = second[0, 0, 3] = np.nan
    second[0, 1, 3] = 9.0
    runs = [Frames(np.full((1, 2, 4, 3), level, np.uint8), xyz, mask) for level, xyz in ((100, first), (110, second))]
    found = confidence_of(runs, mask, scale_m=0.02)
    assert found.value[0, 0].tolist() == pytest.approx([1.0, 0.5, 0.0, 1.0], abs=1e-4)
    assert found.spread_m[0, 0, 1] == pytest.approx(0.02, rel=1e-4)
    assert found.value[0, 1, 3] == 1.0
    assert found.spread_rgb[0, 0, 0] == pytest.approx(10 / np.sqrt(2))
    assert found.seeds == 2
    with pytest.raises(GeneratorError):
        confidence_of(runs[:1], mask)
