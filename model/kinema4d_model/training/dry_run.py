"""Dry run of a training config: parameters, memory per GPU and FLOPs per step, counted on meta tensors.

Parameters and FLOPs are counted on the preset's modules without allocating memory. Memory is the sum of sharded
weights, gradients and optimiser state (FSDP full sharding), one gathered block, the block inputs kept by gradient
checkpointing, and the activations of one block, counted while it runs. Allocator overhead, kernel workspaces and
communication buffers are not included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from kinema4d_model.checkpoints.bundle import ModelBundle
from kinema4d_model.conditioning import shapes_only
from kinema4d_model.cost.memory import PeakActivations
from kinema4d_model.network import KinemaTransformer
from kinema4d_model.preset import Preset, load_preset
from kinema4d_model.speed.apply import cast
from kinema4d_model.training.config import StartSpec, TrainConfig
from kinema4d_model.training.stages import add_adapter, learning_names

__all__ = ["DryRun", "GpuMemory", "dry_run", "dry_run_table"]


@dataclass(frozen=True)
class GpuMemory:
    """Bytes on each of `gpus`."""

    gpus: int
    samples: int
    frozen: int
    learning: int
    gathered: int
    activations: int

    @property
    def total(self) -> int:
        """Total bytes."""
        return self.frozen + self.learning + self.gathered + self.activations


@dataclass(frozen=True)
class DryRun:
    """Costs of a run.

    Attributes:
        parameters: parameters of the network.
        learning: trainable parameters.
        adapter: LoRA parameters among them.
        tokens: per sample.
        forward_flops: per sample.
        step_flops: of a whole step: forward, recomputation for gradient checkpointing, backward.
        memory: for each requested number of GPUs.
    """

    config: TrainConfig
    parameters: int
    learning: int
    adapter: int
    tokens: int
    forward_flops: int
    step_flops: int
    memory: tuple[GpuMemory, ...]


def dry_run(config: TrainConfig, gpus: Sequence[int]) -> DryRun:
    """Count parameters, FLOPs and memory without loading weights or computing."""
    preset = load_preset(config.preset)
    bundle = ModelBundle.from_preset(preset, device="meta")
    network = bundle.transformer
    parameters = sum(p.numel() for p in network.parameters())
    if config.learn == "lora":
        with torch.device("meta"):
            add_adapter(replace(config, start=StartSpec()), bundle)
    names = set(learning_names(config, bundle))
    sizes = {name: p.numel() for name, p in network.named_parameters()}
    learning = sum(sizes[name] for name in names)
    compute = torch.bfloat16 if config.run.precision == "bf16" else torch.float32
    low = 2 if config.run.frozen_dtype == "bfloat16" else 4
    frozen = sum(size for name, size in sizes.items() if name not in names) * low
    # Weights, gradients and two moments in float32; Muon's matrices have one moment less, which is ignored.
    learnt = learning * (16 + (4 if config.run.ema_decay is not None else 0))

    cast(network, compute)
    inputs = shapes_only(preset).to(dtype=compute)
    with torch.no_grad():
        prepared = network.prepare(inputs)
        noisy = torch.empty_like(inputs.condition)
        with FlopCounterMode(display=False) as counter:
            network(noisy, torch.empty(1, device="meta"), prepared)
    forward = int(counter.get_total_flops())
    adapted = config.learn == "lora"
    # Backward: activation gradients cost one forward pass, weight gradients another for trainable weights.
    backward = forward + (round(forward * learning / (parameters + learning)) if adapted else forward)
    again = forward if config.run.gradient_checkpointing else 0
    tokens = _tokens(preset)
    block = _block_bytes(network, preset, tokens, compute)
    width, blocks = preset.transformer.width, preset.transformer.layers
    element = torch.empty((), dtype=compute).element_size()
    gathered = max(sum(p.numel() for p in b.parameters()) for b in network.blocks) * element * 2
    memory = []
    for count in gpus:
        samples = max(1, config.run.batch // (count * config.run.accumulate))
        kept = tokens * width * element * blocks + block if config.run.gradient_checkpointing else block * blocks
        memory.append(GpuMemory(count, samples, frozen // count, learnt // count, gathered, samples * kept))
    return DryRun(
        config,
        parameters,
        learning,
        sum(size for name, size in sizes.items() if ".lora_" in name),
        tokens,
        forward,
        config.run.batch * (forward + again + backward),
        tuple(memory),
    )


def _tokens(preset: Preset) -> int:
    _, rows, columns = preset.transformer.patch
    return preset.latent_frames * (preset.latent_height // rows) * (2 * preset.latent_width // columns)


def _block_bytes(network: KinemaTransformer, preset: Preset, tokens: int, dtype: torch.dtype) -> int:
    """Return the peak bytes of activations in forward and backward of one block."""
    width = preset.transformer.width
    block: Any = network.blocks[0]
    hidden = torch.empty(1, tokens, width, device="meta", dtype=dtype, requires_grad=True)
    context = torch.empty(1, (preset.transformer.image_tokens if preset.transformer.image_dim else 0) + 1, width,
                          device="meta", dtype=dtype)  # fmt: skip
    time = torch.empty(1, 6, width, device="meta", dtype=dtype)
    head = preset.transformer.head_dim
    turns = [torch.empty(1, tokens, 1, head, device="meta") for _ in range(2)]
    with PeakActivations() as peak:
        block(hidden, context, time, tuple(turns)).sum().backward()
    return peak.peak


def dry_run_table(found: DryRun) -> str:
    """Format a dry run as text."""
    run, optimiser = found.config.run, found.config.optimiser
    schedule = f"{optimiser.kind}, peak {optimiser.lr:g}, {optimiser.warmup_steps} warm-up steps, {optimiser.schedule}"
    lines = [
        f"{found.config.name}: preset {found.config.preset}, {run.steps:,} steps of {run.batch} samples, {schedule}",
        f"parameters        {found.parameters / 1e9:9.3f} G",
        f"  that learn      {found.learning / 1e6:9.3f} M, {found.adapter / 1e6:.3f} M of them LoRA",
        f"tokens a sample   {found.tokens:9,}",
        f"forward           {found.forward_flops / 1e12:9.1f} TFLOPs a sample",
        f"step              {found.step_flops / 1e15:9.2f} PFLOPs",
        f"run               {found.step_flops * run.steps / 1e18:9.1f} EFLOPs",
        "memory of a GPU, fully sharded      samples   frozen   learning  gathered  activations    total",
    ]
    for m in found.memory:
        gb = [f"{v / 1e9:8.2f}" for v in (m.frozen, m.learning, m.gathered, m.activations, m.total)]
        lines.append(f"  {m.gpus:3d} GPUs {'':23}{m.samples:11d} {gb[0]} {gb[1]:>10} {gb[2]:>9} {gb[3]:>12} {gb[4]} GB")
    lines.append("counted on meta tensors; not in it: what the allocator wastes, kernels' work space, communication")
    return "\n".join(lines)
