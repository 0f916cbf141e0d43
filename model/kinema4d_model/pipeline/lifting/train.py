"""Training of a lifter on episodes; writes its weights folder and can resume after a stop.

OUT/cache/            decoded images
OUT/lifter/           checkpoints and metrics.jsonl, see `training.loop`
OUT/model/            config.json, weights, training.json: input of `load_lifter`
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, smooth_l1_loss

from kinema4d_model.pipeline.lifting.frames import FrameSet, Sample, augmented_sample, load_frames, plain_sample
from kinema4d_model.pipeline.lifting.network import HEIGHT_UNIT_M, STRIDE, THING_WEIGHT, HeightNet, probability
from kinema4d_model.training.checkpoints import Progress
from kinema4d_model.training.config import TrainConfig
from kinema4d_model.training.loop import Trainer, make_accelerator
from kinema4d_model.training.randomness import derive
from kinema4d_ros.core.errors import FileFormatError
from kinema4d_ros.io.files import replacing_folder

__all__ = ["LifterBatch", "LifterTask", "train_lifter", "train_on_frames"]

# Training task: predict which pixels show an object that stands on the table, and its height there.

HEIGHT_WEIGHT = 2.0
OVERLAP_WEIGHT = 0.5
WHOLE_SHARE = 0.25
"""Share of the steps that use whole images; the others crop to two thirds of each side, which is faster."""


@dataclass(frozen=True)
class LifterBatch:
    """Batch of samples, (B, 12, H, W) and (B, H, W); see `Sample`."""

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
        """Sum the cross-entropy and overlap losses of the object mask, and the height error on objects."""
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
    """Lifter task of a trainer; see `training.loop.Task`."""

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
        """Number of training images."""
        return len(self._train)

    @property
    def validation_samples(self) -> int:
        """Number of validation images."""
        return 0 if self._validation is None else len(self._validation)

    def batch(self, step: int, numbers: NDArray[np.int64], places: Sequence[int], device: torch.device) -> LifterBatch:
        """Load and augment images `numbers`; the augmentation depends only on seed, step and place."""
        rows, columns = self._train.rgb.shape[1:3]
        whole = derive(self._seed, "size", step) % 1000 < 1000 * WHOLE_SHARE
        size = (rows, columns) if whole else (_two_thirds(rows), _two_thirds(columns))
        rngs = [np.random.default_rng(derive(self._seed, "augment", step, place)) for place in places]
        samples = [augmented_sample(self._train, int(n), size, g) for n, g in zip(numbers, rngs, strict=True)]
        return _collate([str(self._train.key[n]) for n in numbers], samples, device)

    def validation_batch(self, number: int, device: torch.device) -> LifterBatch:
        """Load one image without augmentation."""
        frames = self._require_validation()
        return _collate([str(frames.key[number])], [plain_sample(frames, number)], device)

    def pictures(self, count: int, device: torch.device) -> tuple[dict[str, float], list[NDArray[np.uint8]]]:
        """Return the overlap and median height error of the validation images, and an empty list of images."""
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
            raise ValueError("there are no validation images")
        return self._validation


def _two_thirds(side: int) -> int:
    return max(STRIDE, round(side * 2 / 3 / STRIDE) * STRIDE)


def _collate(names: list[str], samples: list[Sample], device: torch.device) -> LifterBatch:
    x, *rest = (
        torch.from_numpy(np.stack([getattr(s, name) for s in samples])).to(device)
        for name in ("x", "thing", "height_m", "weight")
    )
    return LifterBatch(tuple(names), x.contiguous(memory_format=torch.channels_last), *rest)


def train_lifter(
    config: TrainConfig,
    out: Path,
    *,
    resume: bool = False,
    stop: Callable[[], bool] = lambda: False,
    bar: bool = True,
) -> Progress:
    """Train on the episodes named in a config, and write OUT/model at the end."""
    data, cache = config.data, out / "cache"
    if data.train is None:
        raise FileFormatError(f"training config '{config.name}' has no data.train", expected="a folder of episodes")
    train = load_frames(data.train, cache, last=True, limit=data.limit)
    validation = None
    if data.validation is not None:
        validation = load_frames(data.validation, cache, limit=data.validation_limit or config.run.validation_samples)
    return train_on_frames(config, out, train, validation, resume=resume, stop=stop, bar=bar)


def train_on_frames(
    config: TrainConfig,
    out: Path,
    train: FrameSet,
    validation: FrameSet | None,
    *,
    resume: bool = False,
    stop: Callable[[], bool] = lambda: False,
    bar: bool = True,
) -> Progress:
    """Train on images in memory; see `train_lifter`."""
    torch.manual_seed(derive(config.seed, "lifter"))
    network = HeightNet()
    few = None if validation is None else validation.first(config.run.validation_samples)
    task = LifterTask(network, config.seed, train, few)
    trainer = Trainer(task, config, out / "lifter", make_accelerator(config), resume=resume, bar=bar)
    progress = trainer.run(stop)
    if progress.step == config.run.steps:
        if trainer.ema is not None:
            trainer.ema.copy_to(task.learning)
        _export(network, out / "model", config, progress, len(train))
    return progress


def _export(network: HeightNet, folder: Path, config: TrainConfig, progress: Progress, pictures: int) -> None:
    record: dict[str, object] = {
        "pictures": pictures,
        "steps": progress.step,
        "batch": config.run.batch,
        "seed": config.seed,
    }
    record |= {"seconds": round(progress.seconds, 1), "config_sha256": config.sha256, "data": progress.data}
    with replacing_folder(folder, lambda path: (path / "training.json").is_file()) as temporary:
        network.to(memory_format=torch.contiguous_format).save_pretrained(temporary)
        for path in temporary.iterdir():
            path.chmod(0o644)  # safetensors are written with owner-only permissions
        (temporary / "training.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
