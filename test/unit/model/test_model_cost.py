"""Tests of the rollout cost, counted on meta tensors, against formulas and real runs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from kinema4d_model.checkpoints.bundle import ModelBundle
from kinema4d_model.cost import PeakActivations, cost_table, official, parameter_bytes, rollout_cost
from kinema4d_model.cost.rollout import RolloutCost
from kinema4d_model.preset import Preset, load_preset
from kinema4d_model.speed import quantise_blocks

GB = 1e9


@pytest.fixture(scope="module")
def wan() -> dict[str, RolloutCost]:
    """Count once for all tests: the meta kernels of the codec's 13 groups of frames are slow."""
    presets = {name: load_preset(name) for name in ("wan14b_fast", "wan14b_24gb")}
    costs = {name: rollout_cost(preset) for name, preset in presets.items()}
    costs["official"] = rollout_cost(official(load_preset("wan14b")))
    return costs


@pytest.mark.full
def test_flops_of_a_14b_pass_agree_with_arithmetic(wan: dict[str, RolloutCost]) -> None:
    stage = next(s for s in wan["official"].stages if s.name == "transformer")
    n, d, ffn, layers, context = 35100, 5120, 13824, 40, 624 + 257
    block = 2 * n * (6 * d * d + 2 * d * ffn) + 2 * context * 2 * d * d + 4 * n * (n + context) * d
    assert stage.flops == pytest.approx(layers * block, rel=0.005)
    assert stage.runs == 100
    assert stage.weight_bytes == pytest.approx(2 * 16.4e9, rel=0.01)


@pytest.mark.full
def test_the_fast_preset_needs_12_times_fewer_flops(wan: dict[str, RolloutCost]) -> None:
    ratio = wan["official"].flops / wan["wan14b_fast"].flops
    assert ratio > 20
    eight = wan["wan14b_24gb"]
    assert eight.preset.sampler.steps == 8
    assert wan["official"].flops / eight.flops > 12


@pytest.mark.full
def test_one_preset_fits_24_gb(wan: dict[str, RolloutCost]) -> None:
    assert wan["wan14b_24gb"].peak_bytes < 24 * GB
    assert wan["official"].peak_bytes > 24 * GB
    network = next(s for s in wan["wan14b_24gb"].stages if s.name == "transformer")
    assert network.weight_bytes == pytest.approx(16.5 * GB, rel=0.03)


@pytest.mark.full
def test_the_table_names_every_stage_and_the_ratio(wan: dict[str, RolloutCost]) -> None:
    table = cost_table(wan["wan14b_fast"], wan["official"])
    for word in ("image encoder", "encode", "transformer", "decode", "50 steps x 2 passes", "times fewer FLOPs"):
        assert word in table


def test_steps_and_passes_multiply(tiny: Preset) -> None:
    one = rollout_cost(tiny)
    four = rollout_cost(replace(tiny, sampler=replace(tiny.sampler, steps=4, guidance="compat")))
    network = {s.name: s for s in one.stages}["transformer"]
    assert four.flops - one.flops == (8 - 2) * network.flops


def test_counting_on_meta_agrees_with_a_real_run(tiny: Preset) -> None:
    bundle = ModelBundle.from_preset(tiny)
    latents = torch.zeros(1, 16, 3, 4, 12)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        bundle.codec.decode_pair(latents)
    stages = {s.name: s for s in rollout_cost(tiny).stages}
    # The counter misses the FLOPs of the CPU's attention kernel: 0.07 % of this codec.
    assert stages["decode"].flops == pytest.approx(counter.get_total_flops(), rel=0.001)


def test_offloading_lowers_device_memory(tiny: Preset) -> None:
    def peak(**speed: object) -> dict[str, int]:
        cost = rollout_cost(replace(tiny, speed=replace(tiny.speed, **speed)))  # type: ignore[arg-type]
        return {s.name: s.resident_bytes for s in cost.stages}

    everything, model = peak(), peak(offload="model")
    assert len(set(everything.values())) == 1
    assert sum(model[n] for n in ("image encoder", "encode", "transformer")) == everything["encode"]
    assert peak(quantise="int8")["transformer"] < everything["transformer"]


def test_peak_activations_track_live_tensors() -> None:
    x = torch.empty(1000, device="meta")
    with PeakActivations() as memory:
        y = x + 1
        z = y * 2
        assert memory.live == 8000
        del y
        assert (memory.live, memory.peak) == (4000, 8000)
        view = z.view(10, 100)
        del z
        assert memory.live == 4000
        del view
    assert (memory.live, memory.peak) == (0, 8000)


def test_the_matrix_of_attention_scores_is_not_stored() -> None:
    q = torch.empty(1, 4, 5000, 16, device="meta")
    with PeakActivations() as memory:
        out = torch.nn.functional.scaled_dot_product_attention(q, q, q)
    assert out.shape == q.shape
    assert memory.peak == 4 * q.numel()


def test_quantised_parameters_count_their_stored_bytes() -> None:
    network = torch.nn.Module()
    network.blocks = torch.nn.ModuleList([torch.nn.Linear(64, 128)])
    assert parameter_bytes(network) == 4 * (64 * 128 + 128)
    assert quantise_blocks(network, "int8") == 1
    # One byte per weight, a float scale and a one-byte zero point for each of 128 rows, and the unchanged bias.
    assert parameter_bytes(network) == 64 * 128 + (4 + 1) * 128 + 4 * 128
