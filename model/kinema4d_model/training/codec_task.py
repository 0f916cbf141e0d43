"""The task of learning Wan's autoencoder at a small size: reconstruct clips, small moving things above all.

Diffusers' decoder clamps what it says, and a clamped value has no gradient: the loss is on what comes before.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from diffusers.models.autoencoders.autoencoder_kl_wan import unpatchify
from numpy.typing import NDArray
from torch import nn

from kinema4d_model.codec.video_codec import VideoCodec
from kinema4d_model.preset_parts import CodecSpec
from kinema4d_model.training.config import TrainConfig
from kinema4d_model.training.examples import Example, ExampleSource, values, video
from kinema4d_model.training.metrics_log import psnr, rows_of
from kinema4d_model.training.randomness import generator

__all__ = ["CodecBatch", "CodecTask", "codec_config", "measured_spec", "start_codec", "unclamped"]

ROBOT_SHARE = 0.2
"""Of the clips, those that show the robot alone on black."""
START_LOG_VARIANCE = -6.0
"""A posterior that begins almost without noise learns pictures first."""


def codec_config(config: TrainConfig) -> TrainConfig:
    """The run of the codec: its own length, batch and learning rate; everything else as in the config."""
    fit = config.codec
    return dataclasses.replace(
        config,
        name=f"{config.name}-codec",
        learn="all",
        run=dataclasses.replace(config.run, steps=fit.steps, batch=fit.batch, accumulate=1, precision="fp32"),
        optimiser=dataclasses.replace(
            config.optimiser, kind="adamw", lr=fit.lr, warmup_steps=min(config.optimiser.warmup_steps, fit.steps // 10)
        ),
    )


def start_codec(codec: VideoCodec) -> None:
    """Set the posterior's start."""
    bias = codec.vae.quant_conv.bias
    with torch.no_grad():
        bias[len(bias) // 2 :] = START_LOG_VARIANCE


def unclamped(vae: Any, latents: torch.Tensor) -> torch.Tensor:
    """What the decoder says of raw latents (B, C, F, h, w) before it is clamped: (B, 3, T, H, W)."""
    parts: list[torch.Tensor] = []
    handle = vae.decoder.register_forward_hook(lambda module, inputs, output: parts.append(output))
    try:
        vae.decode(latents)
    finally:
        handle.remove()
    said = torch.cat(parts, dim=2)
    return said if vae.config.patch_size is None else unpatchify(said, patch_size=vae.config.patch_size)


@dataclass(frozen=True)
class CodecBatch:
    """Clips (B, 3, T, H, W) in [-1, 1], weights (B, 1, T, H, W), noise (B, C, F, h, w) of the posterior."""

    names: tuple[str, ...]
    clips: torch.Tensor
    weight: torch.Tensor
    noise: torch.Tensor


class _Loss(nn.Module):
    def __init__(self, vae: Any, kl_weight: float) -> None:
        super().__init__()
        self.vae = vae
        self.kl_weight = kl_weight

    def forward(self, batch: CodecBatch) -> torch.Tensor:
        """Each clip's weighted mean squared error, and a little of the posterior's distance from a normal."""
        posterior = self.vae.encode(batch.clips).latent_dist
        said = unclamped(self.vae, posterior.mean + posterior.std * batch.noise)
        error = (said - batch.clips).square().mean(1, keepdim=True)
        fit = (error * batch.weight).flatten(1).sum(1) / batch.weight.flatten(1).sum(1)
        distance = (posterior.mean.square() + posterior.var - 1 - posterior.logvar).flatten(1).mean(1) / 2
        return (fit + self.kl_weight * distance).mean()


class CodecTask:
    """What a trainer asks of a task; see `loop.Task`."""

    kind = "codec"

    def __init__(
        self, codec: VideoCodec, config: TrainConfig, train: ExampleSource, validation: ExampleSource | None
    ) -> None:
        self._codec = codec
        self._config = config
        self._train = train
        self._validation = validation
        self.module: nn.Module = _Loss(codec.vae, config.codec.kl_weight)
        self.learning: dict[str, nn.Parameter] = dict(codec.vae.named_parameters())
        for parameter in self.learning.values():
            parameter.requires_grad_(True)
        self.fingerprint = train.identity

    @property
    def samples(self) -> int:
        """Training samples."""
        count = len(self._train.names)
        return count if self._config.codec.episodes is None else min(count, self._config.codec.episodes)

    @property
    def validation_samples(self) -> int:
        """Samples that a validation looks at."""
        return 0 if self._validation is None else min(len(self._validation.names), self._config.run.validation_samples)

    def batch(self, step: int, numbers: NDArray[np.int64], places: Sequence[int], device: torch.device) -> CodecBatch:
        """Clips of these examples: which, and from where on, by chance."""
        found = [
            self._draw(self._train.load(int(n)), generator(self._config.seed, "clip", step, place))
            for n, place in zip(numbers, places, strict=True)
        ]
        return _stack(found, device)

    def validation_batch(self, number: int, device: torch.device) -> CodecBatch:
        """Two clips of a validation example, always the same: torch convolves a batch of one much more slowly."""
        if self._validation is None:
            raise IndexError(number)
        example = self._validation.load(number)
        return _stack([self._draw(example, generator("validation", number, i)) for i in range(2)], device)

    def _draw(self, example: Example, chance: torch.Generator) -> tuple[str, torch.Tensor, torch.Tensor, torch.Tensor]:
        robot, points, start = torch.rand(3, generator=chance).tolist()
        inputs = example.inputs
        inside = inputs.robot_mask[..., None]
        if points < 0.5:
            clip = video(np.where(inside, inputs.robot_rgb, 0) if robot < ROBOT_SHARE else example.truth_rgb)
        else:
            clip = (
                2 * values(np.where(inside, inputs.robot_xyz01, 0) if robot < ROBOT_SHARE else example.truth_xyz01) - 1
            )
        length = min(self._config.codec.frames, clip.shape[2])
        first = int(start * (clip.shape[2] - length + 1))
        chosen = slice(first, first + length)
        weight = 1 + self._config.codec.focus_weight * torch.from_numpy(example.dynamic | example.focus).float()
        spec = self._codec.vae.config
        factors = (spec.scale_factor_temporal, spec.scale_factor_spatial)
        grid = ((length - 1) // factors[0] + 1, clip.shape[3] // factors[1], clip.shape[4] // factors[1])
        return (
            example.name,
            clip[:, :, chosen],
            weight[None, None, chosen],
            torch.randn(1, spec.z_dim, *grid, generator=chance),
        )

    @torch.no_grad()
    def pictures(self, count: int, device: torch.device) -> tuple[dict[str, float], list[NDArray[np.uint8]]]:
        """PSNR of reconstructions, everywhere and where something moves; strips of truth and reconstruction."""
        if self._validation is None:
            return {}, []
        numbers: dict[str, list[float]] = {"psnr": [], "psnr_dynamic": [], "xyz_error": []}
        strips = []
        for number in range(min(count, len(self._validation.names))):
            example = self._validation.load(number)
            truth = (video(example.truth_rgb), 2 * values(example.truth_xyz01) - 1)
            said = self._reconstruct(torch.cat(truth).to(device)).cpu().chunk(2)
            difference = (said[0] - truth[0])[0] / 2
            moving = torch.from_numpy(example.dynamic)
            numbers["psnr"].append(psnr(difference))
            numbers["xyz_error"].append(float((said[1] - truth[1]).abs().mean()) / 2)
            if moving.any():
                numbers["psnr_dynamic"].append(psnr(difference[:, moving]))
            strips.append(rows_of([truth, (said[0], said[1])]))
        return {name: float(np.mean(found)) for name, found in numbers.items() if found}, strips

    def _reconstruct(self, clip: torch.Tensor) -> torch.Tensor:
        return unclamped(self._codec.vae, self._codec.vae.encode(clip).latent_dist.mode()).clamp(-1, 1)


def _stack(found: Sequence[tuple[str, torch.Tensor, torch.Tensor, torch.Tensor]], device: torch.device) -> CodecBatch:
    names, clips, weights, noise = zip(*found, strict=True)
    return CodecBatch(names, torch.cat(clips).to(device), torch.cat(weights).to(device), torch.cat(noise).to(device))


@torch.no_grad()
def measured_spec(codec: VideoCodec, spec: CodecSpec, source: ExampleSource, count: int) -> CodecSpec:
    """The spec with the statistics of this codec's latents: channel by channel for pictures, then for pointmaps."""
    raw: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])
    for number in np.unique(np.linspace(0, len(source.names) - 1, count).astype(int)):
        example = source.load(int(number))
        for found, clip in zip(raw, (video(example.truth_rgb), 2 * values(example.truth_xyz01) - 1), strict=True):
            found.append(codec.vae.encode(clip).latent_dist.mode().movedim(1, 0).flatten(1))
    rgb, xyz = (torch.cat(found, dim=1).double() for found in raw)
    mean, std = rgb.mean(1), rgb.std(1).clamp(min=1e-4)
    points = (xyz - mean[:, None]) / std[:, None]
    return dataclasses.replace(
        spec,
        latents_mean=tuple(mean.tolist()),
        latents_std=tuple(std.tolist()),
        xyz_mean=float(points.mean()),
        xyz_std=max(1e-4, float(points.std())),
    )
