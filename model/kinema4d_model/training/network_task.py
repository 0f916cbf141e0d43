"""`NetworkTask`: training task of the network: noisy latents, loss, validation and sampled strips."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from kinema4d_model.checkpoints.bundle import ModelBundle
from kinema4d_model.conditioning import Conditions
from kinema4d_model.network import KinemaTransformer
from kinema4d_model.sampling import TRAIN_STEPS, initial_noise, sample, velocity_from_residual
from kinema4d_model.training.config import ObjectiveSpec, TrainConfig
from kinema4d_model.training.latents import LatentSet, Sample, collate
from kinema4d_model.training.metrics_log import psnr, rows_of
from kinema4d_model.training.randomness import generator

__all__ = [
    "TRAIN_STEPS",
    "NetworkBatch",
    "NetworkTask",
    "loss_target",
    "noisy_latents",
    "sample_sigma",
    "weight_map",
    "weighted_loss",
]

# Objective: noise levels, noisy latents, the target of the preset's `prediction`, a weighted error.
#
# x(sigma) = (1 - sigma) * x0 + sigma * noise
# "velocity": noise - x0        "residual": x0 - base, with `base` the latent of the composite

CARRIED_ENERGY = 0.05
"""Squared latent difference of a cell above which carry hypothesis and composite count as different."""


def sample_sigma(spec: ObjectiveSpec, generator: torch.Generator) -> torch.Tensor:
    """Sample one noise level in (0, 1), float32 of shape ()."""
    if spec.timesteps == "uniform":
        # Keep away from 0, where the input has no noise and sampling with "residual" would divide by zero.
        sigma = torch.rand((), generator=generator).clamp(min=1.0 / TRAIN_STEPS)
    else:
        sigma = torch.sigmoid(torch.randn((), generator=generator) * spec.logit_std + spec.logit_mean)
    return spec.shift * sigma / (1 + (spec.shift - 1) * sigma)


def noisy_latents(clean: torch.Tensor, noise: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
    """Interpolate (B, C, F, h, 2w) between clean (sigma 0) and noise (sigma 1); sigma (B,)."""
    s = sigma.view(-1, *[1] * (clean.ndim - 1)).to(clean)
    return (1 - s) * clean + s * noise


def loss_target(prediction: str, clean: torch.Tensor, noise: torch.Tensor, base: torch.Tensor | None) -> torch.Tensor:
    """Return the target of the network, (B, C, F, h, 2w)."""
    if prediction == "residual" and base is not None:
        return clean - base
    return noise - clean


def weight_map(
    spec: ObjectiveSpec,
    dynamic: torch.Tensor,
    focus: torch.Tensor,
    robot: torch.Tensor | None = None,
    carried: torch.Tensor | None = None,
) -> torch.Tensor | None:
    """Return the (B, F, h, 2w) float32 weight of each cell's error; None = uniform.

    Args:
        spec: the weights.
        dynamic, focus: (B, F, h, w) in {0, 1}, the same for both halves.
        robot: (B, F, h, w), above 0 = robot.
        carried: (B, C, F, h, 2w), the carry hypothesis minus the composite.
    """
    hypothesis = spec.carried_weight if carried is not None else 0.0
    if not spec.dynamic_weight and not spec.focus_weight and not hypothesis and spec.robot_weight == 1:
        return None
    weight = 1 + spec.dynamic_weight * dynamic.float() + spec.focus_weight * focus.float()
    weight = torch.cat([weight, weight], dim=-1)
    if carried is not None and hypothesis:
        weight = weight + hypothesis * (carried.float().square().sum(1) > CARRIED_ENERGY)
    if robot is not None and spec.robot_weight != 1:
        both = torch.cat([robot, robot], dim=-1)
        weight = torch.where(both > 0, weight * spec.robot_weight, weight)
    return weight


def weighted_loss(output: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
    """Return the mean squared error, shape (), weighted per sample, so that batches can be split."""
    if weight is None:
        return functional.mse_loss(output.float(), target.float())
    error = (output.float() - target.float()).square().mean(dim=1)
    return ((error * weight).flatten(1).sum(1) / weight.flatten(1).sum(1)).mean()


@dataclass(frozen=True)
class NetworkBatch:
    """A batch on the device: inputs, targets and weights."""

    names: tuple[str, ...]
    noisy: torch.Tensor
    timestep: torch.Tensor
    conditions: Conditions
    target: torch.Tensor
    weight: torch.Tensor | None


class _Loss(nn.Module):
    """The network with its loss in one `forward`, as data-parallel wrappers require."""

    def __init__(self, transformer: KinemaTransformer) -> None:
        super().__init__()
        self.transformer = transformer

    def forward(self, batch: NetworkBatch) -> torch.Tensor:
        """Return the loss, shape ()."""
        prepared = self.transformer.prepare(batch.conditions)
        output = self.transformer(batch.noisy, batch.timestep, prepared)
        return weighted_loss(output, batch.target, batch.weight)


class NetworkTask:
    """Training task of the network; implements `loop.Task`.

    Attributes:
        module: computes the loss of a batch.
        learning: trainable parameters by name.
        fingerprint: of the data.
    """

    kind = "network"

    def __init__(
        self,
        bundle: ModelBundle,
        learning: Sequence[str],
        config: TrainConfig,
        train: LatentSet,
        validation: LatentSet | None,
    ) -> None:
        self._bundle = bundle
        self._config = config
        self._train = train
        self._validation = validation
        named = dict(bundle.transformer.named_parameters())
        self.learning: dict[str, nn.Parameter] = {name: named[name] for name in learning}
        self.module: nn.Module = _Loss(bundle.transformer)
        self.fingerprint = train.fingerprint

    @property
    def samples(self) -> int:
        """Number of training samples."""
        return len(self._train)

    @property
    def validation_samples(self) -> int:
        """Number of samples per validation."""
        return 0 if self._validation is None else min(len(self._validation), self._config.run.validation_samples)

    def batch(self, step: int, numbers: NDArray[np.int64], places: Sequence[int], device: torch.device) -> NetworkBatch:
        """Return samples `numbers`, which have `places` in the batch of all processes."""
        seed = self._config.seed
        drawn = [
            self._draw(self._train, int(n), generator(seed, "sample", step, place))
            for n, place in zip(numbers, places, strict=True)
        ]
        return self._collate(drawn, device)

    def validation_batch(self, number: int, device: torch.device) -> NetworkBatch:
        """Return one validation sample with fixed noise."""
        if self._validation is None:
            raise IndexError(number)
        return self._collate([self._draw(self._validation, number, generator("validation", number))], device)

    def _draw(
        self, source: LatentSet, number: int, chance: torch.Generator
    ) -> tuple[Sample, torch.Tensor, torch.Tensor]:
        found = source.sample(number, self._config.augment, chance)
        sigma = sample_sigma(self._config.objective, chance)
        return found, sigma, torch.randn(found.target.shape, generator=chance)

    def _collate(
        self, drawn: Sequence[tuple[Sample, torch.Tensor, torch.Tensor]], device: torch.device
    ) -> NetworkBatch:
        clean, conditions, dynamic, focus = collate([found for found, _, _ in drawn])
        sigma = torch.stack([s for _, s, _ in drawn])
        noise = torch.stack([n for _, _, n in drawn])
        weight = weight_map(self._config.objective, dynamic, focus, conditions.robot_mask, conditions.carried)
        target = loss_target(self._bundle.preset.prediction, clean, noise, conditions.base_latents)
        return NetworkBatch(
            tuple(found.name for found, _, _ in drawn),
            noisy_latents(clean, noise, sigma).to(device),
            (sigma * TRAIN_STEPS).to(device),
            conditions.to(device),
            target.to(device),
            None if weight is None else weight.to(device),
        )

    @torch.no_grad()
    def pictures(self, count: int, device: torch.device) -> tuple[dict[str, float], list[NDArray[np.uint8]]]:
        """Sample the first validation episodes; return metrics and strips of truth, prediction and composite.

        The truth is decoded by the codec, so its reconstruction error is not in the metrics. `psnr_dynamic` covers the
        cells where the truth differs from the composite.
        """
        if self._validation is None or count == 0:
            return {}, []
        preset, network, codec = self._bundle.preset, self._bundle.transformer, self._bundle.codec
        numbers: dict[str, list[float]] = {}
        strips = []
        for number in range(min(count, len(self._validation))):
            found = self._validation.sample(number, self._config.augment, generator("pictures", number))
            conditions = found.conditions.to(device)
            denoise = _Denoise(network, conditions, preset.prediction)
            noise = initial_noise((1, *found.target.shape), 0, device=device)
            s = preset.sampler
            latents = sample(denoise, noise, kind=s.kind, steps=s.steps, shift=s.shift)
            truth = codec.decode_pair(found.target[None].to(device))
            said = codec.decode_pair(latents)
            still = None if conditions.base_latents is None else codec.decode_pair(conditions.base_latents)
            where = _pixels(found.dynamic, truth[0].shape[2:])
            for name, value in _measure(truth, said, where).items():
                numbers.setdefault(name, []).append(value)
            for name, value in ({} if still is None else _measure(truth, still, where)).items():
                numbers.setdefault(f"composite_{name}", []).append(value)
            strips.append(rows_of([v for v in (truth, said, still) if v is not None]))
        return {
            name: float(np.nanmean(v)) if not np.isnan(v).all() else float("nan") for name, v in numbers.items()
        }, strips


class _Denoise:
    """The network with one sample's conditions bound, as the sampler expects it."""

    def __init__(self, network: KinemaTransformer, conditions: Conditions, prediction: str) -> None:
        self._network = network
        self._prepared = network.prepare(conditions)
        self._base = conditions.base_latents if prediction == "residual" else None

    def __call__(self, noisy: torch.Tensor, timestep: torch.Tensor, injection_scale: float) -> torch.Tensor:
        out: torch.Tensor = self._network(noisy, timestep, self._prepared, injection_scale=injection_scale)
        return out if self._base is None else velocity_from_residual(out, noisy, timestep, self._base)


def _pixels(cells: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """Expand cells (F, h, w) to (T, H, W) bool: the first frame alone, then groups."""
    frames, height, width = shape
    group = (frames - 1) // max(1, cells.shape[0] - 1) if frames > 1 else 1
    large = cells.repeat_interleave(height // cells.shape[1], 1).repeat_interleave(width // cells.shape[2], 2)
    return torch.cat([large[:1], large[1:].repeat_interleave(group, 0)])


def _measure(
    truth: tuple[torch.Tensor, torch.Tensor], said: tuple[torch.Tensor, torch.Tensor], where: torch.Tensor
) -> dict[str, float]:
    difference = (truth[0] - said[0])[0].cpu() / 2
    return {
        "psnr": psnr(difference),
        "psnr_dynamic": psnr(difference[:, where]) if where.any() else float("nan"),
        "xyz_error": float((truth[1] - said[1]).abs().mean()) / 2,
    }
