"""A tiny run that is ready for training: preset, fitted linear codec, latents of synthetic episodes, config."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from support.training_examples import SweptSquares

from kinema4d_model.preset import Preset, load_preset, save_preset
from kinema4d_model.preset_parts import CodecSpec, ConditionSpec
from kinema4d_model.training.codec_task import fit_linear_codec
from kinema4d_model.training.config import (
    DataSpec,
    ObjectiveSpec,
    OptimiserSpec,
    RunSpec,
    TrainConfig,
    save_config,
)
from kinema4d_model.training.latents import encode_source
from kinema4d_model.training.stages import make_bundle


def tiny_linear() -> Preset:
    """Return the tiny preset with a linear codec that predicts the difference to the composite."""
    tiny = load_preset("tiny")
    return dataclasses.replace(
        tiny,
        name="tiny_linear",
        transformer=dataclasses.replace(tiny.transformer, image_dim=None),
        image_encoder=None,
        codec=CodecSpec(kind="linear"),
        prediction="residual",
        condition=ConditionSpec(soft_ratio=0.1, fill="composite"),
    )


def make_run(folder: Path, episodes: int = 12, validation: int = 4, **run: Any) -> TrainConfig:
    """Write all inputs of `run_stages(config, folder, stages=("network", "export"))`."""
    preset = tiny_linear()
    save_preset(preset, folder / "preset.yaml")
    source = SweptSquares(preset, episodes)
    config = TrainConfig(
        name="tiny-run",
        preset=str(folder / "preset.yaml"),
        data=DataSpec(latents=str(folder / "latents")),
        objective=ObjectiveSpec(timesteps="logit_normal", shift=3.0, dynamic_weight=2.0, focus_weight=2.0),
        optimiser=OptimiserSpec(kind="muon", lr=2e-3, warmup_steps=3, betas=(0.9, 0.95)),
        run=dataclasses.replace(
            RunSpec(
                steps=12,
                batch=4,
                ema_decay=0.9,
                checkpoint_every=2,
                validate_every=4,
                validation_samples=2,
                strips=1,
                log_every=1,
                threads=1,
            ),
            **run,
        ),
    )
    if not (folder / "codec").is_dir():
        fit_linear_codec(preset.codec, source, config.codec).vae.save_pretrained(folder / "codec")
        bundle = make_bundle(config, folder)
        encode_source(bundle, source, folder / "latents" / "train", shard_episodes=5)
        if validation:
            held_out = SweptSquares(preset, validation, seed=1)
            encode_source(bundle, held_out, folder / "latents" / "validation", shard_episodes=5)
    save_config(config, folder / "train.yaml")
    return config
