"""Tests of the soft mask: prediction and training both follow the released training code."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from support.training_examples import SweptSquares
from support.training_runs import make_run

import kinema4d_ros.core.pointmap
from kinema4d_model.conditioning import build_conditions, downsample_mask, soft_robot_mask, soften
from kinema4d_model.preset_parts import Ablation, ConditionSpec
from kinema4d_model.training.config import AugmentSpec
from kinema4d_model.training.examples import picture, values, video
from kinema4d_model.training.latents import LatentSet
from kinema4d_model.training.stages import make_bundle

RATIOS = (0.0, 0.1, 0.19, 0.5, 0.7, 1.0)


def released(mask: torch.Tensor, ratio: float, seed: int) -> torch.Tensor:
    """Soften as the released trainer does, on the downsampled mask (B, F, h, w)."""
    mask = mask.clone()
    indices = torch.nonzero(mask == 1)
    count = int(indices.size(0) * ratio)
    if count > 0:
        chosen = indices[torch.randperm(indices.size(0), generator=torch.Generator().manual_seed(seed))[:count]]
        mask[chosen[:, 0], chosen[:, 1], chosen[:, 2], chosen[:, 3]] = 0.5
    return mask


def test_prediction_and_training_soften_the_same_cells_as_the_released_code(tmp_path: Path) -> None:
    bundle = make_bundle(make_run(tmp_path, episodes=1, validation=0), tmp_path)
    preset, given = bundle.preset, SweptSquares(bundle.preset, 1).load(0).inputs
    pixels = torch.from_numpy(given.robot_mask.astype(np.float32))[None]
    cells = downsample_mask(pixels, preset.latent_height, preset.latent_width, preset.codec.temporal_factor)
    occupied = int(cells.sum())
    # The ratios must distinguish rounding down from rounding to the nearest.
    assert any(int(ratio * occupied) != round(ratio * occupied) for ratio in RATIOS)
    stored = LatentSet(tmp_path / "latents" / "train", preset)
    for seed, ratio in enumerate(RATIOS):
        expected = released(cells, ratio, seed)
        predicted = build_conditions(
            bundle.codec,
            picture(given.image[None]),
            video(given.robot_rgb),
            values(given.robot_xyz01),
            pixels,
            preset.with_condition(dataclasses.replace(preset.condition, soft_ratio=ratio)),
            composite=(video(given.composite_rgb), values(given.composite_xyz01)),
            generator=torch.Generator().manual_seed(seed),
        )
        trained = stored.sample(0, AugmentSpec(soft_ratio=ratio), torch.Generator().manual_seed(seed)).conditions
        for found in (soften(cells, ratio, torch.Generator().manual_seed(seed)), predicted.robot_mask):
            assert torch.equal(found, expected), ratio
        assert torch.equal(trained.robot_mask, expected), ratio
        assert torch.equal(trained.mask, predicted.mask), ratio


def test_there_is_only_one_soft_mask_function() -> None:
    assert not hasattr(kinema4d_ros.core.pointmap, "soft_mask")


@pytest.mark.parametrize("ablation", list(Ablation))
def test_prediction_and_training_use_the_mask_in_the_same_ablations(ablation: Ablation) -> None:
    spec = ConditionSpec(ablation=ablation, soft_ratio=1.0)
    told = soft_robot_mask(torch.ones(1, 1, 2, 2), spec)
    hides = ablation in {Ablation.NO_MASK, Ablation.NULL, Ablation.TEXT, Ablation.EMBEDDING}
    assert (told is None) == hides
    assert told is None or bool((told == 0.5).all())
    assert soft_robot_mask(torch.ones(1, 1, 2, 2), dataclasses.replace(spec, mask=False)) is None
