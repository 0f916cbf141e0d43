"""The task of learning to lift: which pixels show something that stands on the table, and how high it is there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, smooth_l1_loss

from kinema4d_model.pipeline.lifting.augment import Sample, augmented_sample, plain_sample
from kinema4d_model.pipeline.lifting.frames import FrameSet
from kinema4d_model.pipeline.lifting.network import HEIGHT_UNIT_M, STRIDE, THING_WEIGHT, HeightNet, probability
from kinema4d_model.training.randomness import derive

__all__ = ["LifterBatch", "LifterTask"]

HEIGHT_WEIGHT = 2.0
OVERLAP_WEIGHT = 0.5
WHOLE_SHARE = 0.25
"""Of the steps, those that see whole pictures; the others cut two thirds of each side: more pictures in the time."""


@dataclass(frozen=True)
class LifterBatch:
    """Samples side by side, (B, 12, H, W) and (B, H, W); see `Sample`."""

    names: tuple[str, ...]
    x: torch.Tensor
    thing: torch.Tensor
    height_m: torch.Tensor
    weight: torch.Tensor


class _Loss(nn.Module):
    def __init__(self, network: HeightNet) -> None:
        super().__init__()
        self.network = network

    def forward(self, batch: LifterBatch) -> torch.Tensor:
        """Cross-entropy and overlap of what stands there, and the distance of its height."""
        logit, height = self.network(batch.x)
        weight = batch.weight * (1 + (THING_WEIGHT - 1) * batch.thing)
        found = binary_cross_entropy_with_logits(logit, batch.thing, weight, reduction="sum") / _at_least_1(weight)
        guess, truth = logit.sigmoid() * batch.weight, batch.thing * batch.weight
        overlap = 1 - (2 * (guess * truth).sum() + 1) / (guess.sum() + truth.sum() + 1)
        error = smooth_l1_loss(height, batch.height_m / HEIGHT_UNIT_M, reduction="none", beta=0.05)
        high = (error * truth).sum() / _at_least_1(truth)
        return found + OVERLAP_WEIGHT * overlap + HEIGHT_WEIGHT * high


def _at_least_1(weight: torch.Tensor) -> torch.Tensor:
    return weight.sum().clamp_min(1.0)


class LifterTask:
    """What a trainer asks of a task; see `training.loop.Task`."""

    kind = "lifter"

    def __init__(self, network: HeightNet, seed: int, train: FrameSet, validation: FrameSet | None) -> None:
        self._network = network.to(memory_format=torch.channels_last)
        self._seed = seed
        self._train, self._validation = train, validation
        self.module: nn.Module = _Loss(self._network)
        self.learning: dict[str, nn.Parameter] = dict(self._network.named_parameters())
        self.fingerprint = f"{derive(len(train), *map(str, train.key)):016x}"

    @property
    def samples(self) -> int:
        """Training pictures."""
        return len(self._train)

    @property
    def validation_samples(self) -> int:
        """Pictures that a validation looks at."""
        return 0 if self._validation is None else len(self._validation)

    def batch(self, step: int, numbers: NDArray[np.int64], places: Sequence[int], device: torch.device) -> LifterBatch:
        """Pictures `numbers`, made different in a way that follows from seed, step and place."""
        rows, columns = self._train.rgb.shape[1:3]
        whole = derive(self._seed, "size", step) % 1000 < 1000 * WHOLE_SHARE
        size = (rows, columns) if whole else (_two_thirds(rows), _two_thirds(columns))
        rngs = [np.random.default_rng(derive(self._seed, "augment", step, place)) for place in places]
        samples = [augmented_sample(self._train, int(n), size, g) for n, g in zip(numbers, rngs, strict=True)]
        return _collate([str(self._train.key[n]) for n in numbers], samples, device)

    def validation_batch(self, number: int, device: torch.device) -> LifterBatch:
        """One picture as it is."""
        frames = self._require_validation()
        return _collate([str(frames.key[number])], [plain_sample(frames, number)], device)

    def pictures(self, count: int, device: torch.device) -> tuple[dict[str, float], list[NDArray[np.uint8]]]:
        """Overlap and median height error of the validation pictures; nothing is drawn."""
        shared = either = 0
        errors: list[NDArray[np.float32]] = []
        for number in range(self.validation_samples):
            batch = self.validation_batch(number, device)
            logit, height = self._network(batch.x)
            truth, known = batch.thing > 0, batch.weight > 0
            found = (probability(logit) > 0.5) & known
            shared += int((found & truth & known).sum())
            either += int((found | (truth & known)).sum())
            error = (HEIGHT_UNIT_M * height - batch.height_m).abs()[truth & known]
            errors.append(error.cpu().numpy())
        return {"iou": shared / max(1, either), "height_mm": 1e3 * float(np.median(np.concatenate(errors)))}, []

    def _require_validation(self) -> FrameSet:
        if self._validation is None:
            raise ValueError("there are no pictures to validate with")
        return self._validation


def _two_thirds(side: int) -> int:
    return max(STRIDE, round(side * 2 / 3 / STRIDE) * STRIDE)


def _collate(names: list[str], samples: list[Sample], device: torch.device) -> LifterBatch:
    x, *rest = (
        torch.from_numpy(np.stack([getattr(s, name) for s in samples])).to(device)
        for name in ("x", "thing", "height_m", "weight")
    )
    return LifterBatch(tuple(names), x.contiguous(memory_format=torch.channels_last), *rest)
