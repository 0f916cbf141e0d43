"""Tests of training a lifter: the loss falls, an interrupted run gives the same numbers, the result loads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.lifting_scenes import lab_episode, lab_frames

from kinema4d_model.data.episode_files import encode_episode
from kinema4d_model.data.shards import write_shard
from kinema4d_model.pipeline.lifting import load_lifter
from kinema4d_model.pipeline.lifting.network import HeightNet
from kinema4d_model.pipeline.lifting.train import train_on_frames
from kinema4d_model.training.config import RunSpec, TrainConfig, load_config, save_config
from kinema4d_model.training.metrics_log import read_log
from kinema4d_ros.cli import main


def short(steps: int, **run: object) -> TrainConfig:
    config = load_config("lifter")
    spec = RunSpec(**{  # type: ignore[arg-type]
        "steps": steps, "batch": 4, "ema_decay": 0.9, "checkpoint_every": 2, "validate_every": steps,
        "validation_samples": 2, "strips": 0, "log_every": 1, **run,
    })  # fmt: skip
    return replace(config, run=spec, optimiser=replace(config.optimiser, warmup_steps=2))


def losses(out: Path) -> list[float]:
    return [line["loss"] for line in read_log(out / "lifter" / "metrics.jsonl") if "loss" in line]


def test_a_few_steps_lower_the_loss(tmp_path: Path) -> None:
    frames = lab_frames(2, width=72, height=48)
    config = short(60, batch=6, checkpoint_every=60, validate_every=20)
    assert train_on_frames(config, tmp_path, frames, frames, bar=False).step == 60
    seen = losses(tmp_path)
    assert np.mean(seen[-10:]) < 0.85 * np.mean(seen[:5])
    log = read_log(tmp_path / "lifter" / "metrics.jsonl")
    whole = [line["validation_loss"] for line in log if "validation_loss" in line]
    assert len(whole) == 3
    assert whole[2] < whole[1] < whole[0]
    assert load_lifter(tmp_path / "model").sha256 != load_lifter().sha256


def test_an_interrupted_run_gives_the_same_numbers(tmp_path: Path) -> None:
    frames, config = lab_frames(2, width=72, height=48), short(6)
    train_on_frames(config, tmp_path / "whole", frames, None, bar=False)
    calls = iter([False, False, True])
    stopped = train_on_frames(config, tmp_path / "parts", frames, None, stop=lambda: next(calls), bar=False)
    assert stopped.step == 3
    assert not (tmp_path / "parts" / "model").exists()
    train_on_frames(config, tmp_path / "parts", frames, None, resume=True, bar=False)
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")
    one, two = (HeightNet.from_pretrained(tmp_path / name / "model") for name in ("whole", "parts"))
    assert all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), two.state_dict().values(), strict=True))


def test_the_command_trains_from_shards(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for split, numbers in (("train", (0, 1)), ("val", (2,))):
        shard = [(lab_episode(n).key, encode_episode(lab_episode(n))) for n in numbers]
        write_shard(tmp_path / split / f"{split}-000000.tar", shard)
    config = short(3)
    data = replace(config.data, train=str(tmp_path / "train"), validation=str(tmp_path / "val"))
    save_config(replace(config, data=data), tmp_path / "config.yaml")
    arguments = ["train", "--config", str(tmp_path / "config.yaml"), "--out", str(tmp_path / "out"), "--quiet"]
    assert main([*arguments, "--stage", "lifter"]) == 0
    assert str(tmp_path / "out" / "model") in capsys.readouterr().out
    lines = read_log(tmp_path / "out" / "lifter" / "metrics.jsonl")
    assert any(0 <= line.get("iou", -1) <= 1 for line in lines)
    load_lifter(tmp_path / "out" / "model")
    assert main([*arguments, "--stage", "lifter", "--stage", "export"]) == 2
    assert "lifter alone" in capsys.readouterr().err
