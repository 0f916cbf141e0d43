"""Codecs: training task of a small Wan autoencoder (`CodecTask`), and the linear codec fitted by PCA.

`CodecTask` reconstructs clips with more weight on small moving objects. The loss uses the decoder output before
diffusers' clamp, because clamped values have no gradient.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from diffusers.models.autoencoders.autoencoder_kl_wan import unpatchify
from numpy.typing import NDArray
from torch import nn

from kinema4d_model.codec.linear import LinearAutoencoder, LinearCodec
from kinema4d_model.codec.video_codec import VideoCodec
from kinema4d_model.preset_parts import CodecSpec
from kinema4d_model.training.config import CodecFitSpec, TrainConfig
from kinema4d_model.training.examples import Example, ExampleSource, values, video
from kinema4d_model.training.metrics_log import psnr, rows_of
from kinema4d_model.training.randomness import generator
from kinema4d_ros.core.errors import GeneratorError

__all__ = [
    "CodecBatch",
    "CodecTask",
    "PatchStatistics",
    "codec_config",
    "fit_linear_codec",
    "measured_spec",
    "start_codec",
    "unclamped",
]

ROBOT_SHARE = 0.2
"""Share of clips that show the robot alone on black."""
START_LOG_VARIANCE = -6.0
"""Initial log-variance of the posterior: almost no noise, so that images are learnt first."""


def codec_config(config: TrainConfig) -> TrainConfig:
    """Return the config of the codec run: its own steps, batch and learning rate, the rest unchanged."""
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
    """Initialise the posterior's variance."""
    bias = codec.vae.quant_conv.bias
    with torch.no_grad():
        bias[len(bias) // 2 :] = START_LOG_VARIANCE


def unclamped(vae: Any, latents: torch.Tensor) -> torch.Tensor:
    """Decode raw latents (B, C, F, h, w) to (B, 3, T, H, W) without the clamp."""
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
        """Return the weighted mean squared error per clip plus `kl_weight` times the KL divergence."""
        posterior = self.vae.encode(batch.clips).latent_dist
        said = unclamped(self.vae, posterior.mean + posterior.std * batch.noise)
        error = (said - batch.clips).square().mean(1, keepdim=True)
        fit = (error * batch.weight).flatten(1).sum(1) / batch.weight.flatten(1).sum(1)
        distance = (posterior.mean.square() + posterior.var - 1 - posterior.logvar).flatten(1).mean(1) / 2
        return (fit + self.kl_weight * distance).mean()


class CodecTask:
    """Training task of the Wan codec; implements `loop.Task`."""

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
        """Number of training samples."""
        count = len(self._train.names)
        return count if self._config.codec.episodes is None else min(count, self._config.codec.episodes)

    @property
    def validation_samples(self) -> int:
        """Number of samples per validation."""
        return 0 if self._validation is None else min(len(self._validation.names), self._config.run.validation_samples)

    def batch(self, step: int, numbers: NDArray[np.int64], places: Sequence[int], device: torch.device) -> CodecBatch:
        """Return random clips of these examples."""
        found = [
            self._draw(self._train.load(int(n)), generator(self._config.seed, "clip", step, place))
            for n, place in zip(numbers, places, strict=True)
        ]
        return _stack(found, device)

    def validation_batch(self, number: int, device: torch.device) -> CodecBatch:
        """Return two fixed clips of a validation example; torch convolutions are much slower with a batch of one."""
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
        """Return the PSNR of reconstructions, overall and of moving pixels, and strips of truth and reconstruction."""
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
    """Return the spec with the latent statistics of this codec, per channel, for images and for pointmaps."""
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


# Linear codec: principal components of patches from exact covariances, in one pass without gradients.


class PatchStatistics:
    """Weighted count, sum and product of patches (N, D), in float64."""

    def __init__(self, size: int) -> None:
        self.weight = 0.0
        self.total = torch.zeros(size, dtype=torch.float64)
        self.product = torch.zeros(size, size, dtype=torch.float64)

    def add(self, patches: torch.Tensor, weight: torch.Tensor) -> None:
        """Add patches (N, D) with weights (N,)."""
        heavy = patches * weight[:, None]
        self.weight += float(weight.double().sum())
        self.total += heavy.double().sum(0)
        # float32 is enough for the product: patches are in [-1, 1] and an episode has a few thousand.
        self.product += (patches.T @ heavy).double()

    def components(self, count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return mean (D,), the first `count` orthonormal components (count, D), and their variances (count,)."""
        if not self.weight:
            raise GeneratorError("no patches to fit a codec to", expected="at least one episode")
        mean = self.total / self.weight
        covariance = self.product / self.weight - torch.outer(mean, mean)
        variances, vectors = torch.linalg.eigh((covariance + covariance.T) / 2)
        basis = vectors.flip(1)[:, :count].T
        # The sign of a component is arbitrary: fix it so that latents are equal on all machines.
        signs = torch.sign(basis.gather(1, basis.abs().argmax(1, keepdim=True)))
        return mean, basis * signs, variances.flip(0)[:count].clamp(min=0)

    def variances(self, basis: torch.Tensor) -> torch.Tensor:
        """Return the variance (C,) of the data along the rows of a basis (C, D)."""
        mean = self.total / self.weight
        covariance = self.product / self.weight - torch.outer(mean, mean)
        return ((basis @ covariance) * basis).sum(1).clamp(min=0)


def fit_linear_codec(
    spec: CodecSpec,
    source: ExampleSource,
    fit: CodecFitSpec,
    progress: Callable[[int], object] = lambda done: None,
) -> LinearCodec:
    """Fit a codec to the truth, composite and robot videos of a source, with more weight on moving objects."""
    codec = LinearCodec.from_spec(spec)
    vae = codec.vae
    sizes = {"first": vae.first_mean.shape[1], "group": vae.group_mean.shape[1]}
    statistics = {(part, m): PatchStatistics(size) for part, size in sizes.items() for m in range(2)}
    count = len(source.names) if fit.episodes is None else min(fit.episodes, len(source.names))
    # Spread over the whole set: neighbours may share a scene.
    for number in np.linspace(0, len(source.names) - 1, count).astype(int):
        _add(vae, statistics, source.load(int(number)), fit)
        progress(1)
    for m in range(2):
        first_mean, first, variances = statistics["first", m].components(spec.latent_channels)
        group_mean, group, _ = statistics["group", m].components(spec.latent_channels)
        if fit.align:
            group = _align(group, first * variances.sqrt()[:, None], spec.temporal_factor)
        for part, mean, basis in (("first", first_mean, first), ("group", group_mean, group)):
            deviation = statistics[part, m].variances(basis).sqrt()
            typical = deviation.square().mean().sqrt().clamp(min=1e-6)
            scale = deviation.clamp(min=1e-4) ** fit.whiten * typical ** (1 - fit.whiten)
            for name, tensor in (("basis", basis), ("mean", mean), ("scale", scale)):
                getattr(vae, f"{part}_{name}")[m] = tensor.float()
    return codec


def _add(
    vae: LinearAutoencoder,
    statistics: dict[tuple[str, int], PatchStatistics],
    example: Example,
    fit: CodecFitSpec,
) -> None:
    """Add all truth patches, composite patches that differ, robot patches, and black for patches without the robot."""
    inputs = example.inputs
    moving, robot = _maps((example.dynamic | example.focus), inputs.robot_mask)
    inside = inputs.robot_mask[..., None]
    alone = (np.where(inside, inputs.robot_rgb, 0).astype(np.uint8), np.where(inside, inputs.robot_xyz01, 0))
    clips = [
        (video(rgb), 2 * values(xyz01) - 1)
        for rgb, xyz01 in (
            (example.truth_rgb, example.truth_xyz01),
            (inputs.composite_rgb, inputs.composite_xyz01),
            alone,
        )
    ]
    factor = vae.config.temporal_factor
    for part, frames, chosen in (("first", 1, slice(0, 1)), ("group", factor, slice(1, None))):
        share, robot_share = (vae._patches(w[:, :, chosen], frames).flatten(0, -2).amax(1) for w in (moving, robot))
        if not len(share):
            continue
        weight = (1 + fit.focus_weight * share) * torch.where(robot_share > 0, fit.robot_weight, 1.0)
        for m in range(2):
            truth, composite, drawn = (vae._patches(c[m][:, :, chosen], frames).flatten(0, -2) for c in clips)
            table = statistics[part, m]
            table.add(truth, weight)
            table.add(composite[share > 0], 0.5 * weight[share > 0])
            table.add(drawn[robot_share > 0], 0.25 * weight[robot_share > 0])
            table.add(torch.full_like(truth[:1], -1), 0.25 * (robot_share == 0).sum()[None])


def _maps(*maps: NDArray[np.bool_]) -> list[torch.Tensor]:
    """Return (1, 3, T, H, W) float32 of maps (T, H, W), so that they can be patched like images."""
    return [torch.from_numpy(m.astype(np.float32))[None, None].expand(-1, 3, -1, -1, -1) for m in maps]


def _align(group: torch.Tensor, first: torch.Tensor, frames: int) -> torch.Tensor:
    """Rotate the basis within its subspace so that a static patch has about the latents of its first frame.

    `first` (C, D / frames) has rows whose length is their importance.
    """
    still = first.unflatten(1, (3, 1, -1)).expand(-1, -1, frames, -1).flatten(1)
    left, _, right = torch.linalg.svd(still @ group.T)
    return left @ right @ group
