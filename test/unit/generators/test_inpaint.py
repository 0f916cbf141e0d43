"""Inpainting: known pixels are kept, edges and textures are continued, no objects are invented."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinema4d_ros.core.errors import ErrorCode, GeneratorError
from kinema4d_ros.generators.inpaint import grow_mask, remove_robot


def scene() -> np.ndarray:
    """A striped table below a grey wall, with a red box on it, 240 x 160."""
    rng = np.random.default_rng(0)
    v, u = np.mgrid[:160, :240]
    image = np.empty((160, 240, 3))
    image[:] = 200
    table = v > 60
    stripe = 15 * np.sign(np.sin(u / 4.0))
    for c, base in enumerate((170, 130, 90)):
        image[..., c] = np.where(table, base + stripe, image[..., c])
    image[110:130, 180:205] = (210, 20, 20)
    return np.clip(image + rng.normal(0, 2, image.shape), 0, 255).astype(np.uint8)


def hole_in_the_middle() -> np.ndarray:
    hole = np.zeros((160, 240), np.bool_)
    hole[25:120, 90:125] = True
    return hole


def test_outside_of_the_hole_nothing_changes() -> None:
    image, hole = scene(), hole_in_the_middle()
    out = remove_robot(image, hole)
    assert np.array_equal(out[~hole], image[~hole])


def test_edge_and_stripes_continue_behind_the_robot() -> None:
    truth, hole = scene(), hole_in_the_middle()
    image = truth.copy()
    image[hole] = 0
    out = remove_robot(image, hole)
    error = np.abs(out.astype(int) - truth)[hole].mean()
    smooth = cv2.inpaint(image, hole.astype(np.uint8), 3, cv2.INPAINT_TELEA)
    assert error < 0.6 * np.abs(smooth.astype(int) - truth)[hole].mean()
    # The border between wall and table is within two pixels of its position.
    brightness = out[:, 92:123].mean((1, 2))
    assert abs(int(np.argmax(brightness < 165)) - 61) <= 2


def test_an_object_elsewhere_does_not_appear() -> None:
    out = remove_robot(scene(), hole_in_the_middle())[hole_in_the_middle()].astype(int)
    assert not ((out[:, 0] > 180) & (out[:, 1] < 70)).any()


def test_the_same_image_gives_the_same_result() -> None:
    first, second = (remove_robot(scene(), hole_in_the_middle()) for _ in range(2))
    assert np.array_equal(first, second)


def test_pixels_in_the_hole_have_no_effect() -> None:
    black, white = scene(), scene()
    black[hole_in_the_middle()] = 0
    white[hole_in_the_middle()] = 255
    assert np.array_equal(remove_robot(black, hole_in_the_middle()), remove_robot(white, hole_in_the_middle()))


def test_nothing_and_everything_hidden() -> None:
    image = scene()
    assert np.array_equal(remove_robot(image, np.zeros((160, 240), np.bool_)), image)
    assert (remove_robot(image, np.ones((160, 240), np.bool_)) == 127).all()


@settings(max_examples=25)
@given(height=st.integers(1, 60), width=st.integers(1, 60), seed=st.integers(0, 1000), share=st.floats(0, 1))
def test_any_size_and_hole(height: int, width: int, seed: int, share: float) -> None:
    rng = np.random.default_rng(seed)
    image = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
    hole = rng.random((height, width)) < share
    out = remove_robot(image, hole)
    assert out.dtype == np.uint8
    assert np.array_equal(out[~hole], image[~hole])


@pytest.mark.parametrize(
    ("image", "hole"),
    [
        (np.zeros((4, 5, 3), np.float32), np.zeros((4, 5), np.bool_)),
        (np.zeros((4, 5), np.uint8), np.zeros((4, 5), np.bool_)),
        (np.zeros((4, 5, 3), np.uint8), np.zeros((5, 4), np.bool_)),
    ],
)
def test_bad_images(image: np.ndarray, hole: np.ndarray) -> None:
    with pytest.raises(GeneratorError) as caught:
        remove_robot(image, hole)
    assert caught.value.code == ErrorCode.GENERATOR_BAD_REQUEST


@settings(max_examples=30)
@given(radius=st.floats(0, 9), seed=st.integers(0, 100))
def test_grow_mask_uses_the_euclidean_distance(radius: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    mask = rng.random((24, 30)) < 0.01
    grown = grow_mask(mask, radius)
    v, u = np.mgrid[:24, :30]
    seeds = np.argwhere(mask)
    nearest = np.full(mask.shape, np.inf)
    for sv, su in seeds:
        nearest = np.minimum(nearest, np.hypot(v - sv, u - su))
    assert np.array_equal(grown, nearest <= radius if radius >= 1 else mask)
