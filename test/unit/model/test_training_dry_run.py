from __future__ import annotations

import dataclasses

import pytest
import torch
from support.model_inputs import random_conditions

from kinema4d_model.checkpoints.bundle import ModelBundle
from kinema4d_model.training.config import DataSpec, RunSpec, TrainConfig, load_config
from kinema4d_model.training.dry_run import DryRun, dry_run, dry_run_table
from kinema4d_ros.cli import main

TINY = TrainConfig("x", "tiny", learn="lora", data=DataSpec(latents="nowhere"), run=RunSpec(batch=8, steps=200))


@pytest.fixture(scope="module")
def wan14b() -> DryRun:
    return dry_run(load_config("wan14b_lora"), [8, 32])


@pytest.mark.full
def test_the_14b_recipe_trains_the_parameters_of_the_released_files(wan14b: DryRun) -> None:
    found = wan14b
    assert found.adapter == 209_715_200
    assert found.learning == 209_715_200 + 1_287_568
    assert found.tokens == 35_100
    assert 16.3e9 < found.parameters < 16.5e9
    # 2 FLOPs per parameter and token for the blocks; attention adds to it.
    assert found.forward_flops > 2 * 13.0e9 * 35_100
    assert found.step_flops > 3 * 32 * found.forward_flops * 0.99
    eight, many = found.memory
    assert (eight.samples, many.samples) == (4, 1)
    assert eight.frozen == pytest.approx(2 * 16.4e9 / 8, rel=0.01)
    assert eight.learning == pytest.approx(16 * found.learning / 8, rel=1e-6)
    assert many.frozen == pytest.approx(eight.frozen / 4, rel=1e-6)
    assert many.total < eight.total


def test_the_table_contains_the_counts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--config", "nano", "--dry-run", "--gpus", "1"]) == 0
    text = capsys.readouterr().out
    found = dry_run(load_config("nano"), [1])
    assert dry_run_table(found) == text.rstrip("\n")
    assert f"{found.learning / 1e6:.3f} M" in text
    assert "  1 GPUs" in text


def test_counts_are_those_of_the_real_network() -> None:
    found = dry_run(TINY, [1])
    network = ModelBundle.from_preset("tiny").transformer
    assert found.parameters == sum(p.numel() for p in network.parameters())
    # q, k, v, out of two attentions in each of two blocks; rank 4 in and out of width 24.
    assert found.adapter == 2 * 2 * 4 * (4 * 24 + 24 * 4)
    added = sum(p.numel() for n, p in network.named_parameters() if network.is_added(n))
    assert found.learning == found.adapter + added
    prepared = network.prepare(random_conditions(ModelBundle.from_preset("tiny").preset))
    tokens = []
    network.blocks[0].register_forward_hook(lambda _, inputs, __: tokens.append(inputs[0].shape[1]))
    with torch.no_grad():
        network(torch.zeros(1, 16, 3, 4, 12), torch.zeros(1), prepared)
    assert tokens == [found.tokens]


def test_checkpointing_trades_memory_for_a_second_forward_pass() -> None:
    plain = dry_run(TINY, [1])
    saved = dry_run(dataclasses.replace(TINY, run=dataclasses.replace(TINY.run, gradient_checkpointing=True)), [1])
    assert saved.step_flops - plain.step_flops == 8 * plain.forward_flops
    assert saved.memory[0].activations < plain.memory[0].activations
