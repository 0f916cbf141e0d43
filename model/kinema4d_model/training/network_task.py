"""The task of learning the network: batches of latents with noise, the loss, validation and its pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from kinema4d_model.bundle import ModelBundle
from kinema4d_model.conditioning import Conditions
from kinema4d_model.network import KinemaTransformer
from kinema4d_model.sampling import initial_noise, sample, velocity_from_residual
from kinema4d_model.training.config import TrainConfig
from kinema4d_model.training.latents import LatentSet, Sample, collate
from kinema4d_model.training.objective import (
    TRAIN_STEPS,
    loss_target,
    noisy_latents,
    sample_sigma,
    weight_map,
    weighted_loss,
)
from kinema4d_model.training.randomness import generator
from kinema4d_model.training.strips import psnr, rows_of

__all__ = ["NetworkBatch", "NetworkTask"]


@dataclass(frozen=True)
class NetworkBatch:
    """A batch on the device: what goes in, what should come out, where it counts."""

    names: tuple[str, ...]
    noisy: torch.Tensor
    timestep: torch.Tensor
    conditions: Conditions
    target: torch.Tensor
    weight: torch.Tensor | None


class _Loss(nn.Module):
    """The network with its loss: one `forward`, which is what data-parallel wrappers can wrap."""

    def __init__(self, transformer: KinemaTransformer) -> None:
        super().__init__()
        self.transformer = transformer

    def forward(self, batch: NetworkBatch) -> torch.Tensor:
        """The loss, shape ()."""
        prepared = self.transformer.prepare(batch.conditions)
        output = self.transformer(batch.noisy, batch.timestep, prepared)
        return weighted_loss(output, batch.target, batch.weight)


class NetworkTask:
    """What a trainer asks of a task.

    Attributes:
        module: gives the loss of a batch.
        learning: parameters that learn, by name.
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
        """Training samples."""
        return len(self._train)

    @property
    def validation_samples(self) -> int:
        """Samples that a validation looks at."""
        return 0 if self._validation is None else min(len(self._validation), self._config.run.validation_samples)

    def batch(self, step: int, numbers: NDArray[np.int64], places: Sequence[int], device: torch.device) -> NetworkBatch:
        """Samples `numbers`, which have `places` in the batch of all processes."""
        seed = self._config.seed
        drawn = [
            self._draw(self._train, int(n), generator(seed, "sample", step, place))
            for n, place in zip(numbers, places, strict=True)
        ]
        return self._collate(drawn, device)

    def validation_batch(self, number: int, device: torch.device) -> NetworkBatch:
        """One validation sample; always the same noise."""
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
        """Sample the first validation episodes: numbers, and strips of truth, prediction and composite.

        The truth is what the codec makes of it, so its own loss is not in the numbers. `psnr_dynamic` counts the cells
        where the truth differs from the composite.
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
    """The network with one sample's conditions bound, as the sampler wants it."""

    def __init__(self, network: KinemaTransformer, conditions: Conditions, prediction: str) -> None:
        self._network = network
        self._prepared = network.prepare(conditions)
        self._base = conditions.base_latents if prediction == "residual" else None

    def __call__(self, noisy: torch.Tensor, timestep: torch.Tensor, injection_scale: float) -> torch.Tensor:
        out: torch.Tensor = self._network(noisy, timestep, self._prepared, injection_scale=injection_scale)
        return out if self._base is None else velocity_from_residual(out, noisy, timestep, self._base)


def _pixels(cells: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """(T, H, W) bool of cells (F, h, w): the first frame alone, then groups."""
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
