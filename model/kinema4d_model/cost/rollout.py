"""FLOPs and bytes of one rollout, stage by stage, counted by torch on tensors without memory.

Nothing is estimated from formulas: the modules of the preset are built on the meta device at full size, and
every stage is run there once under torch's FLOP counter and once under `PeakActivations`. Steps and passes
multiply. What depends on the data (how often a step cache skips) is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from kinema4d_model.bundle import ModelBundle
from kinema4d_model.conditioning import Conditions
from kinema4d_model.cost.memory import PeakActivations, parameter_bytes
from kinema4d_model.preset import Preset
from kinema4d_model.sampling import passes
from kinema4d_model.speed import quantise_blocks, torch_dtype
from kinema4d_model.speed.apply import cast

__all__ = ["OFFICIAL_STEPS", "RolloutCost", "StageCost", "official", "rollout_cost"]

OFFICIAL_STEPS = 50
_BLOCKS_ON_DEVICE = 4
"""With offloading by groups of two: the two that compute and the two that arrive."""


@dataclass(frozen=True)
class StageCost:
    """One stage of a rollout.

    Attributes:
        name: of the stage.
        flops: of one run; a multiplication and an addition count as two.
        runs: how often it runs for one rollout.
        weight_bytes: of its modules.
        resident_bytes: of those on the device while it runs, with what else stays there.
        activation_bytes: the most alive at once while it runs.
    """

    name: str
    flops: int
    runs: int
    weight_bytes: int
    resident_bytes: int
    activation_bytes: int

    @property
    def total_flops(self) -> int:
        """Of all its runs."""
        return self.flops * self.runs

    @property
    def device_bytes(self) -> int:
        """Weights and activations while it runs."""
        return self.resident_bytes + self.activation_bytes


@dataclass(frozen=True)
class RolloutCost:
    """The stages of one rollout of a preset."""

    preset: Preset
    stages: tuple[StageCost, ...]

    @property
    def flops(self) -> int:
        """Of the whole rollout."""
        return sum(stage.total_flops for stage in self.stages)

    @property
    def weight_bytes(self) -> int:
        """Of all modules; encode and decode share the codec."""
        return sum(stage.weight_bytes for stage in self.stages)

    @property
    def peak_bytes(self) -> int:
        """The most that is on the device at once."""
        return max(stage.device_bytes for stage in self.stages)


def official(preset: Preset) -> Preset:
    """The same sizes with the released recipe: 50 steps, two passes each, bfloat16, nothing saved."""
    from dataclasses import replace

    from kinema4d_model.preset import SamplerSpec, SpeedSpec

    return replace(
        preset,
        sampler=SamplerSpec("unipc", OFFICIAL_STEPS, 3.0, "compat", 5.0),
        speed=SpeedSpec(dtype="bfloat16"),
    )


@torch.no_grad()
def rollout_cost(preset: Preset) -> RolloutCost:
    """Count one rollout of a preset with its own sampler and speed options."""
    bundle = ModelBundle.from_preset(preset, device="meta")
    dtype = torch_dtype(preset.speed.dtype)
    transformer, vae, encoder = bundle.transformer, bundle.codec.vae, bundle.image_encoder
    if dtype is not torch.float32:
        for module in (transformer, vae, encoder):
            if module is not None:
                cast(module, dtype)
    # Before quantisation: a dequantised weight is not work that the recipe asks for.
    inputs = _inputs(preset)
    prepared_flops = _flops(lambda: transformer.prepare(inputs))
    prepared = transformer.prepare(inputs)
    noisy = torch.empty_like(inputs.condition, dtype=torch.float32)
    time = torch.empty(1, device="meta")
    pass_flops = _flops(lambda: transformer(noisy, time, prepared))
    if preset.speed.quantise != "none":
        quantise_blocks(transformer, preset.speed.quantise)
    if preset.speed.tiling:
        vae.enable_tiling()

    encode = _encode(bundle, preset)
    weights = {
        "codec": parameter_bytes(vae),
        "transformer": parameter_bytes(transformer),
        "image encoder": 0 if encoder is None else parameter_bytes(encoder),
    }
    resident = _resident(weights, transformer, preset.speed.offload)
    stages = []
    if encoder is not None:
        image = torch.empty(1, 3, preset.height, preset.width, device="meta")
        stages.append(_stage("image encoder", lambda: encoder(image), 1, weights, resident))
    stages.append(_stage("encode", encode, 1, weights, resident, of="codec"))
    stages.append(
        StageCost("prepare", prepared_flops, 1, 0, resident["transformer"], _peak(lambda: transformer.prepare(inputs)))
    )
    runs = preset.sampler.steps * passes(preset.sampler.guidance)
    stages.append(
        StageCost(
            "transformer",
            pass_flops,
            runs,
            weights["transformer"],
            resident["transformer"],
            _peak(lambda: transformer(noisy, time, prepared)),
        )
    )
    latents = torch.empty_like(noisy)
    decode = _stage("decode", lambda: bundle.codec.decode_pair(latents), 1, weights, resident, of="codec")
    stages.append(StageCost("decode", decode.flops, 1, 0, decode.resident_bytes, decode.activation_bytes))
    return RolloutCost(preset, tuple(stages))


def _inputs(preset: Preset) -> Conditions:
    def empty(*shape: int) -> torch.Tensor:
        return torch.empty(shape, device="meta")

    grid = (preset.latent_frames, preset.latent_height, preset.latent_width)
    wide = (*grid[:2], 2 * grid[2])
    t, channels = preset.transformer, preset.codec.latent_channels
    return Conditions(
        mask=empty(1, preset.codec.temporal_factor, *wide),
        condition=empty(1, channels, *wide),
        robot_latents=empty(1, channels, *wide),
        robot_mask=empty(1, *grid),
        image_tokens=None if t.image_dim is None else empty(1, t.image_tokens, t.image_dim),
        base_latents=empty(1, channels, *wide) if preset.prediction == "residual" else None,
    )


def _encode(bundle: ModelBundle, preset: Preset) -> Callable[[], Any]:
    """What `build_conditions` encodes: the first frame's video, the robot's, and the composite's for residuals."""
    video = torch.empty(1, 3, preset.frames, preset.height, preset.width, device="meta")
    wide = torch.empty(1, 3, preset.frames, preset.height, 2 * preset.width, device="meta")
    both = preset.robot.variant == "act"

    def run() -> None:
        bundle.codec.encode(wide)
        if both:
            bundle.codec.encode_pair(video, video)
        else:
            bundle.codec.encode(video)
        if preset.prediction == "residual":
            bundle.codec.encode_pair(video, video)

    return run


def _resident(weights: dict[str, int], transformer: Any, offload: str) -> dict[str, int]:
    """Weights on the device while each part runs."""
    if offload == "none":
        total = sum(weights.values())
        return dict.fromkeys(weights, total)
    if offload == "model":
        return dict(weights)
    blocks = [parameter_bytes(block) for block in transformer.blocks]
    held = weights["transformer"] - sum(blocks) + sum(sorted(blocks)[-_BLOCKS_ON_DEVICE:])
    return {**weights, "transformer": held}


def _stage(
    name: str, run: Callable[[], Any], runs: int, weights: dict[str, int], resident: dict[str, int], of: str = ""
) -> StageCost:
    part = of or name
    return StageCost(name, _flops(run), runs, weights[part], resident[part], _peak(run))


def _flops(run: Callable[[], Any]) -> int:
    with FlopCounterMode(display=False) as counter:
        run()
    return int(counter.get_total_flops())


def _peak(run: Callable[[], Any]) -> int:
    with PeakActivations() as memory:
        run()
    return memory.peak
