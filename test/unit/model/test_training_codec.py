from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from support.training_examples import SweptSquares

from kinema4d_model.codec.video_codec import VideoCodec
from kinema4d_model.preset import Preset, load_preset
from kinema4d_model.training.codec_task import CodecTask, codec_config, measured_spec, start_codec, unclamped
from kinema4d_model.training.config import CodecFitSpec, DataSpec, OptimiserSpec, RunSpec, TrainConfig
from kinema4d_model.training.examples import values, video
from kinema4d_model.training.loop import Trainer, make_accelerator
from kinema4d_model.training.metrics_log import read_log

CONFIG = TrainConfig(
    "codec",
    "tiny",
    data=DataSpec(latents="unused"),
    codec=CodecFitSpec(steps=16, batch=2, lr=1e-2),
    optimiser=OptimiserSpec(warmup_steps=3),
    run=RunSpec(steps=100, log_every=1, validate_every=8, validation_samples=1, strips=1, ema_decay=0.5, threads=1),
)


@pytest.fixture
def long() -> Preset:
    """Return a preset with tiny images and enough frames to fill the causal cache."""
    return load_preset("tiny").with_size(17, 32, 32)


def codec_of(preset: Preset) -> VideoCodec:
    torch.manual_seed(0)
    codec = VideoCodec.from_spec(preset.codec)
    start_codec(codec)
    return codec


def test_the_loss_uses_the_decoder_output_before_the_clamp(long: Preset) -> None:
    codec = codec_of(long)
    latents = 3 * torch.randn(1, 16, 2, 4, 4)
    with torch.no_grad():
        codec.vae.decoder.conv_out.bias += 0.9
        said = unclamped(codec.vae, latents)
        assert said.shape == (1, 3, 5, 32, 32)
        assert float(said.max()) > 1
        torch.testing.assert_close(said.clamp(-1, 1), codec.vae.decode(latents).sample)
    assert not codec.vae.decoder._forward_hooks


@pytest.mark.full
def test_training_lowers_the_error_on_held_out_clips(long: Preset, tmp_path: Path) -> None:
    config = codec_config(CONFIG)
    assert (config.run.steps, config.run.batch, config.optimiser.lr) == (16, 2, 1e-2)
    task = CodecTask(codec_of(long), config, SweptSquares(long, 6), SweptSquares(long, 2, seed=4))
    Trainer(task, config, tmp_path, make_accelerator(config), bar=False).run()
    lines = read_log(tmp_path / "metrics.jsonl")
    found = [line["loss"] for line in lines if "loss" in line]
    assert np.mean(found[-5:]) < 0.7 * np.mean(found[:2])
    checked = [line for line in lines if "validation_loss" in line]
    assert checked[-1]["validation_loss"] < checked[0]["validation_loss"]
    assert checked[-1]["psnr"] > checked[0]["psnr"]
    assert (tmp_path / "strips" / "codec-00000016.png").is_file()


def test_moving_objects_have_more_weight(long: Preset) -> None:
    source = SweptSquares(long, 3)
    plain = codec_config(dataclasses.replace(CONFIG, codec=dataclasses.replace(CONFIG.codec, focus_weight=0.0)))
    heavy = codec_config(CONFIG)
    batches = [
        CodecTask(codec_of(long), c, source, None).batch(0, np.array([1, 2]), [0, 1], torch.device("cpu"))
        for c in (plain, heavy)
    ]
    assert torch.equal(batches[0].clips, batches[1].clips)
    assert set(batches[0].weight.unique().tolist()) == {1.0}
    assert set(batches[1].weight.unique().tolist()) == {1.0, 5.0}
    assert batches[1].clips.shape == (2, 3, 13, 32, 32)
    assert batches[1].noise.shape == (2, 16, 4, 4, 4)


def test_measured_statistics_normalise_both_modalities(long: Preset) -> None:
    source = SweptSquares(long, 4)
    codec = codec_of(long)
    spec = measured_spec(codec, long.codec, source, 4)
    normalised = VideoCodec.from_spec(spec)
    normalised.vae.load_state_dict(codec.vae.state_dict())
    with torch.no_grad():
        pairs = [
            normalised.encode_pair(video(e.truth_rgb), 2 * values(e.truth_xyz01) - 1)
            for e in (source.load(i) for i in range(4))
        ]
    left, right = torch.cat(pairs).chunk(2, dim=-1)
    channels = left.movedim(1, 0).flatten(1)
    torch.testing.assert_close(channels.mean(1), torch.zeros(16), rtol=0, atol=1e-3)
    torch.testing.assert_close(channels.std(1), torch.ones(16), rtol=0, atol=1e-2)
    assert float(right.mean()) == pytest.approx(0, abs=1e-3)
    assert float(right.std()) == pytest.approx(1, abs=1e-2)
