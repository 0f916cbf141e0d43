"""Tests of guided upsampling: image edges are kept, and the table does not bleed into objects."""

from __future__ import annotations

import cv2
import numpy as np

from kinema4d_model.pipeline.lifting.lifter import guided_upsample, upsample_within


def disc(size: int, radius: float) -> np.ndarray:
    v, u = np.mgrid[:size, :size] + 0.5
    return np.asarray(np.hypot(u - size * 0.47, v - size * 0.55) < radius * size)


def test_edges_come_from_the_image() -> None:
    truth = disc(160, 0.2)
    rng = np.random.default_rng(0)
    large = np.where(truth[..., None], (200, 60, 50), (110, 115, 120)) + rng.normal(0, 4, (160, 160, 1))
    large = np.clip(large, 0, 255).astype(np.uint8)
    small = np.asarray(cv2.resize(large, (40, 40), interpolation=cv2.INTER_AREA))
    values = np.asarray(cv2.resize(truth.astype(np.float32), (40, 40), interpolation=cv2.INTER_AREA))
    values = (values > 0.5).astype(np.float32)  # as confident as a trained network
    guided = guided_upsample(values, small, large)
    plain = np.asarray(cv2.resize(values, (160, 160)))
    wrong_guided, wrong_plain = ((v > 0.5) != truth for v in (guided, plain))
    assert guided.shape == (160, 160)
    assert wrong_plain.sum() > 40
    assert wrong_guided.sum() < 0.5 * wrong_plain.sum()


def test_uniform_image_regions_are_interpolated() -> None:
    values = disc(24, 0.3).astype(np.float32)
    plain = np.full((96, 96, 3), 120, np.uint8)
    guided = guided_upsample(values, plain[:24, :24], plain)
    smooth = cv2.resize(cv2.blur(cv2.blur(values, (7, 7)), (7, 7)), (96, 96))
    assert np.abs(guided - smooth)[16:-16, 16:-16].max() < 1e-3


def test_heights_are_mixed_only_from_objects() -> None:
    thing = disc(24, 0.3)
    height = np.where(thing, 0.05, 0.0).astype(np.float32)
    large = upsample_within(height, thing.astype(np.float32) + 1e-4, (96, 96, 3))
    inside = disc(96, 0.3)
    assert np.abs(large[inside] - 0.05).max() < 0.002
    assert large.shape == (96, 96)


def test_unknown_values_do_not_leak() -> None:
    known = ~disc(24, 0.25)
    values = np.where(known, 0.2, 50.0).astype(np.float32)
    image = np.random.default_rng(1).integers(0, 256, (24, 24, 3), dtype=np.uint8)
    assert np.abs(guided_upsample(values, image, image, known) - 0.2)[known].max() < 0.05
    assert np.abs(guided_upsample(values, image, image) - 0.2)[known].max() > 1.0
