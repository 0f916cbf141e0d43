"""FLOPs and bytes of one rollout by stage, counted by torch on tensors without memory; text table of them.

No formulas: the modules of the preset are built on the meta device at full size, and every stage runs there once under
torch's FLOP counter and `PeakActivations`. Steps and passes multiply. Effects that depend on the data (how often a step
cache skips) are not included.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from kinema4d_model.codec.image_encoder import ImageEncoder
from kinema4d_model.codec.video_codec import VideoCodec
from kinema4d_model.conditioning import shapes_only
from kinema4d_model.cost.memory import PeakActivations, parameter_bytes
from kinema4d_model.network import KinemaTransformer
from kinema4d_model.preset import Preset
from kinema4d_model.preset_parts import CodecSpec, ImageEncoderSpec, SamplerSpec, SpeedSpec
from kinema4d_model.sampling import passes
from kinema4d_model.speed import quantise_blocks, torch_dtype
from kinema4d_model.speed.apply import cast, image_dtype

__all__ = ["OFFICIAL_STEPS", "RolloutCost", "StageCost", "cost_table", "describe", "official", "rollout_cost"]

OFFICIAL_STEPS = 50
_BLOCKS_ON_DEVICE = 4
"""With group offloading: the two blocks that compute and the two being copied."""


@dataclass(frozen=True)
class StageCost:
    """One stage of a rollout.

    Attributes:
        name: of the stage.
        flops: of one run; a multiplication and an addition count as two.
        runs: number of runs per rollout.
        weight_bytes: of its modules.
        resident_bytes: weights on the device while it runs, including those of other stages.
        activation_bytes: peak of the activations while it runs.
    """

    name: str
    flops: int
    runs: int
    weight_bytes: int
    resident_bytes: int
    activation_bytes: int

    @property
    def total_flops(self) -> int:
        """FLOPs of all its runs."""
        return self.flops * self.runs

    @property
    def device_bytes(self) -> int:
        """Weights and activations while it runs."""
        return self.resident_bytes + self.activation_bytes


@dataclass(frozen=True)
class RolloutCost:
    """Stages of one rollout of a preset."""

    preset: Preset
    stages: tuple[StageCost, ...]

    @property
    def flops(self) -> int:
        """FLOPs of the whole rollout."""
        return sum(stage.total_flops for stage in self.stages)

    @property
    def weight_bytes(self) -> int:
        """Bytes of all modules; encode and decode share the codec."""
        return sum(stage.weight_bytes for stage in self.stages)

    @property
    def peak_bytes(self) -> int:
        """Peak bytes on the device."""
        return max(stage.device_bytes for stage in self.stages)


def official(preset: Preset) -> Preset:
    """Return the preset with the released recipe: 50 steps, two passes each, bfloat16, no speed options."""
    return replace(
        preset,
        sampler=SamplerSpec("unipc", OFFICIAL_STEPS, 3.0, "compat", 5.0),
        speed=SpeedSpec(dtype="bfloat16"),
    )


@dataclass(frozen=True)
class _Measured:
    """Measurement of one run: FLOPs, bytes of weights, peak bytes of activations."""

    flops: int
    weight_bytes: int
    peak: int


@torch.no_grad()
def rollout_cost(preset: Preset) -> RolloutCost:
    """Count one rollout of a preset with its own sampler and speed options."""
    speed = preset.speed
    shape = (preset.frames, preset.height, preset.width)
    residual, both = preset.prediction == "residual", preset.robot.variant == "act"
    first = preset.condition.fill == "zeros"
    encode = _encode(preset.codec, shape, speed.dtype, speed.tiling, first, both, residual)
    decode = _decode(preset.codec, shape, speed.dtype, speed.tiling)
    image = None if preset.image_encoder is None else _image(preset.image_encoder, shape[1:], image_dtype(speed))
    prepare, network, held = _network(preset)
    everything = encode.weight_bytes + network.weight_bytes + (0 if image is None else image.weight_bytes)

    def on_device(own: int) -> int:
        return everything if speed.offload == "none" else own

    stages = []
    if image is not None:
        weights = image.weight_bytes
        stages.append(StageCost("image encoder", image.flops, 1, weights, on_device(weights), image.peak))
    codec = encode.weight_bytes
    runs = preset.sampler.steps * passes(preset.sampler.guidance)
    transformer = network.weight_bytes
    stages += [
        StageCost("encode", encode.flops, 1, codec, on_device(codec), encode.peak),
        StageCost("prepare", prepare.flops, 1, 0, on_device(held), prepare.peak),
        StageCost("transformer", network.flops, runs, transformer, on_device(held), network.peak),
        StageCost("decode", decode.flops, 1, 0, on_device(codec), decode.peak),
    ]
    return RolloutCost(preset, tuple(stages))


def _network(preset: Preset) -> tuple[_Measured, _Measured, int]:
    """Measure preparing and one pass; also return the bytes of weights on the device during an offloaded pass."""
    with torch.device("meta"):
        transformer = KinemaTransformer.from_preset(preset).eval()
    _convert(transformer, preset.speed.dtype)
    inputs = shapes_only(preset)
    prepared = transformer.prepare(inputs)
    noisy = torch.empty_like(inputs.condition, dtype=torch.float32)
    time = torch.empty(1, device="meta")
    prepare = _measure(lambda: transformer.prepare(inputs), transformer)
    one_pass = _measure(lambda: transformer(noisy, time, prepared), transformer)
    if preset.speed.quantise != "none":
        # FLOPs are counted before quantising: dequantisation belongs to the format, not to the recipe.
        quantise_blocks(transformer, preset.speed.quantise)
        largest = max(p.numel() for p in transformer.blocks[0].parameters())
        unpacked = largest * torch_dtype(preset.speed.dtype).itemsize
        one_pass = _Measured(one_pass.flops, parameter_bytes(transformer), one_pass.peak + unpacked)
    held = one_pass.weight_bytes
    if preset.speed.offload == "group":
        blocks = sorted(parameter_bytes(block) for block in transformer.blocks)
        held += sum(blocks[-_BLOCKS_ON_DEVICE:]) - sum(blocks)
    return prepare, one_pass, held


@lru_cache(maxsize=16)
def _encode(
    spec: CodecSpec, shape: tuple[int, int, int], dtype: str, tiling: bool, first: bool, both: bool, residual: bool
) -> _Measured:
    """Measure what `build_conditions` encodes: first-frame video, robot, and the composite for residuals."""
    codec = _codec(spec, dtype, tiling)
    frames, height, width = shape
    video = torch.empty(1, 3, frames, height, width, device="meta")
    wide = torch.empty(1, 3, frames, height, 2 * width, device="meta")

    def run() -> None:
        if first:
            codec.encode_first(wide)
        if both:
            codec.encode_pair(video, video)
        else:
            codec.encode_xyz(video)
        if residual:
            codec.encode_pair(video, video)

    return _measure(run, codec.vae)


@lru_cache(maxsize=16)
def _decode(spec: CodecSpec, shape: tuple[int, int, int], dtype: str, tiling: bool) -> _Measured:
    codec = _codec(spec, dtype, tiling)
    frames, height, width = shape
    latents = torch.empty(
        1,
        spec.latent_channels,
        (frames - 1) // spec.temporal_factor + 1,
        height // spec.spatial_factor,
        2 * width // spec.spatial_factor,
        device="meta",
    )
    return _measure(lambda: codec.decode_pair(latents), codec.vae)


@lru_cache(maxsize=16)
def _image(spec: ImageEncoderSpec, size: tuple[int, int], dtype: torch.dtype) -> _Measured:
    with torch.device("meta"):
        encoder = ImageEncoder.from_spec(spec).eval()
    cast(encoder, dtype)
    image = torch.empty(1, 3, *size, device="meta")
    return _measure(lambda: encoder(image), encoder)


def _codec(spec: CodecSpec, dtype: str, tiling: bool) -> VideoCodec:
    with torch.device("meta"):
        codec = VideoCodec.from_spec(spec).eval()
    _convert(codec.vae, dtype)
    if tiling:
        codec.vae.enable_tiling()
    return codec


def _convert(module: torch.nn.Module, dtype: str) -> None:
    if dtype != "float32":
        cast(module, torch_dtype(dtype))


def _measure(run: Callable[[], Any], module: torch.nn.Module) -> _Measured:
    with torch.no_grad(), FlopCounterMode(display=False) as counter, PeakActivations() as memory:
        run()
    return _Measured(int(counter.get_total_flops()) + memory.attention_flops, parameter_bytes(module), memory.peak)


# Text output: one line per stage, compared with the released recipe.


def cost_table(cost: RolloutCost, reference: RolloutCost) -> str:
    """Format FLOPs, weights and peak activations by stage, then the ratio to the reference."""
    lines = [
        describe(cost.preset),
        f"{'stage':<14}{'TFLOPs':>12}{'runs':>6}{'total':>12}{'share':>8}{'weights':>10}{'activations':>13}{'device':>10}",
    ]
    for stage in cost.stages:
        lines.append(
            f"{stage.name:<14}{stage.flops / 1e12:>12.3f}{stage.runs:>6}{stage.total_flops / 1e12:>12.2f}"
            f"{stage.total_flops / cost.flops:>8.1%}{_gb(stage.weight_bytes):>10}{_gb(stage.activation_bytes):>13}"
            f"{_gb(stage.device_bytes):>10}"
        )
    lines.append(
        f"{'rollout':<14}{'':>12}{'':>6}{cost.flops / 1e12:>12.2f}{'':>8}{_gb(cost.weight_bytes):>10}{'':>13}"
        f"{_gb(cost.peak_bytes):>10}"
    )
    lines.append(
        f"{'official':<14}{'':>12}{'':>6}{reference.flops / 1e12:>12.2f}{'':>8}{_gb(reference.weight_bytes):>10}"
        f"{'':>13}{_gb(reference.peak_bytes):>10}"
    )
    lines.append(
        f"{reference.flops / cost.flops:.1f} times fewer FLOPs, {reference.peak_bytes / cost.peak_bytes:.2f} times "
        f"less memory than the official recipe ({describe(reference.preset, short=True)})"
    )
    lines.append("counted on meta tensors; attention as one fused operation; skipped steps of a cache are not counted")
    return "\n".join(lines)


def describe(preset: Preset, *, short: bool = False) -> str:
    """Describe sampler and options in one line."""
    sampler, speed = preset.sampler, preset.speed
    recipe = f"{sampler.steps} steps x {2 if sampler.guidance == 'compat' else 1} pass"
    if short:
        return recipe + ("es" if sampler.guidance == "compat" else "")
    options: list[str] = [speed.dtype]
    if speed.quantise != "none":
        options.append(f"{speed.quantise} weights")
    if speed.offload != "none":
        options.append(f"offload by {speed.offload}")
    if speed.tiling:
        options.append("codec in tiles")
    size = f"{preset.frames} x {preset.height} x {preset.width}"
    return f"{preset.name}: {size}, {sampler.kind}, {recipe}, {', '.join(options)}"


def _gb(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"
