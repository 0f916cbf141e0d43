from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import yaml

from kinema4d_model.preset import load_preset
from kinema4d_model.training.config import TrainConfig, config_names, load_config, save_config
from kinema4d_ros.core.errors import ErrorCode, FileFormatError
from kinema4d_ros.io.resources import share_directory

SMALLEST = {"name": "x", "preset": "tiny", "data": {"latents": "somewhere"}}


def write(folder: Path, document: dict[str, object]) -> Path:
    path = folder / "train.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


@pytest.mark.parametrize("name", config_names())
def test_shipped_configs_round_trip(name: str, tmp_path: Path) -> None:
    config = load_config(name)
    assert config.name == name
    save_config(config, tmp_path / "again.yaml")
    assert load_config(tmp_path / "again.yaml") == config
    preset = load_preset(config.preset)
    assert (config.learn == "lora") <= (preset.lora is not None)


def test_the_paper_s_numbers() -> None:
    config = load_config("wan14b_lora")
    lora = load_preset(config.preset).lora
    assert lora is not None
    assert (lora.rank, lora.alpha) == (64, 32)
    assert (config.optimiser.kind, config.optimiser.lr) == ("adamw", 2e-5)
    assert (config.run.batch, config.run.steps) == (32, 5000)
    assert (config.objective.timesteps, config.objective.shift, config.objective.dynamic_weight) == (
        "uniform",
        1.0,
        0.0,
    )
    assert config.augment.soft_ratio == 0.1
    assert config.optimiser.warmup_steps > 0
    assert config.optimiser.schedule != "constant"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"learning_rate": 1}, "unknown key learning_rate"),
        ({"optimiser": {"kind": "sgd"}}, "optimiser.kind is 'sgd', not one of adamw, muon"),
        ({"optimiser": {"lr": -1.0}}, "optimiser.lr is -1.0, not positive"),
        ({"optimiser": {"lr": float("nan")}}, "optimiser.lr is nan, not positive"),
        ({"optimiser": {"warmup_steps": 6000}}, "warmup_steps 6000 is not less than run.steps 5000"),
        ({"run": {"batch": 6, "accumulate": 4}}, "run.batch 6 is not a multiple of run.accumulate 4"),
        ({"run": {"steps": 0}}, "run.steps is 0, not positive"),
        ({"run": {"steps": "many"}}, "run.steps is 'many', not of type int"),
        ({"run": {"ema_decay": 1.5}}, r"run.ema_decay is 1.5, not in \[0, 1\]"),
        ({"augment": {"soft_ratio": 2.0}}, r"augment.soft_ratio is 2.0, not in \[0, 1\]"),
        ({"objective": {"dynamic_weight": -2.0}}, "objective.dynamic_weight is -2.0, below 0"),
        ({"codec": {"frames": 9}}, "codec.frames 9 is less than 13"),
        ({"data": {}}, "neither data.train nor data.latents"),
        ({"start": {"bundle": "a", "base": "b"}}, "exclude each other"),
        ({"start": {"checkpoint": "a"}}, "start.checkpoint needs start.base"),
        ({"preset": "huge"}, "preset 'huge' does not exist"),
        ({"name": None}, "name is None, not of type str"),
    ],
)
def test_invalid_config_values_are_named(change: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=message):
        load_config(write(tmp_path, SMALLEST | change))


def test_several_problems_are_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=r"run.keep is 0.*optimiser.clip_norm is -1.0"):
        load_config(write(tmp_path, SMALLEST | {"run": {"keep": 0}, "optimiser": {"clip_norm": -1.0}}))


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(FileFormatError, match="wan14b_lora") as caught:
        load_config("nothing")
    assert caught.value.code is ErrorCode.FILE_MISSING


def test_hash_depends_only_on_values_that_affect_losses(tmp_path: Path) -> None:
    config: TrainConfig = load_config(write(tmp_path, SMALLEST))

    def changed(**run: object) -> str:
        return dataclasses.replace(config, run=dataclasses.replace(config.run, **run)).sha256

    assert changed(checkpoint_every=7, log_every=3, keep=9, strips=0, threads=4) == config.sha256
    assert changed(steps=6000) != config.sha256
    assert changed(ema_decay=0.5) != config.sha256
    assert dataclasses.replace(config, seed=1).sha256 != config.sha256


def test_config_may_contain_only_differences() -> None:
    eight, paper = load_config("wan14b_lora_8gpu"), load_config("wan14b_lora")
    assert (eight.run.accumulate, eight.run.batch) == (4, 32)
    same = dataclasses.replace(eight, name=paper.name, run=dataclasses.replace(eight.run, accumulate=1))
    assert same == paper


@pytest.mark.parametrize(
    "path", sorted((share_directory() / "config/train/accelerate").glob("*.yaml")), ids=lambda p: p.stem
)
def test_accelerate_reads_its_configs(path: Path) -> None:
    from accelerate.commands.config.config_args import load_config_from_file

    read = load_config_from_file(str(path))
    assert read.num_processes == int(path.stem.rpartition("_")[2])
    if path.stem.startswith("fsdp"):
        from diffusers.models.transformers.transformer_wan import WanTransformerBlock

        assert read.fsdp_config["fsdp_transformer_layer_cls_to_wrap"] == WanTransformerBlock.__name__
