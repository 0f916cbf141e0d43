"""Training of a detector on views; writes its weights folder and can resume after a stop.

OUT/detector/         checkpoints and metrics.jsonl, see `training.loop`
OUT/model/            config.json, weights, training.json: input of `load_detector`; a new run starts from these weights
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.functional import cross_entropy

from kinema4d_model.detection.detector import load_detector
from kinema4d_model.detection.network import UNIT_M, DetectorNet
from kinema4d_model.detection.samples import Sample, augmented_sample, plain_sample
from kinema4d_model.detection.views import NONE, Views
from kinema4d_model.pipeline.lifting import load_lifter
from kinema4d_model.training.checkpoints import Progress
from kinema4d_model.training.config import TrainConfig
from kinema4d_model.training.loop import Trainer, make_accelerator
from kinema4d_model.training.randomness import derive
from kinema4d_ros.core.errors import FileFormatError
from kinema4d_ros.io.files import replacing_folder

__all__ = ["DetectorBatch", "DetectorTask", "train_detector", "train_on_views"]

FACE_WEIGHT = 3.0
OVERLAP_WEIGHT = 0.5
CLASS_WEIGHT = 0.5
VOTE_WEIGHT = 0.25
OBJECT_WEIGHT = 3.0
"""Weight of an object's pixel in the loss of the faces: objects cover few pixels."""


@dataclass(frozen=True)
class DetectorBatch:
    """Batch of samples; see `Sample`."""

    names: tuple[str, ...]
    x: torch.Tensor
    face: torch.Tensor
    known: torch.Tensor
    votes: torch.Tensor
    shape: torch.Tensor
    weight: torch.Tensor


class _Loss(nn.Module):
    def __init__(self, network: DetectorNet) -> None:
        super().__init__()
        self.network = network

    def forward(self, batch: DetectorBatch) -> torch.Tensor:
        """Sum the losses of faces (cross-entropy, overlap of objects), votes (Laplace) and shapes (cross-entropy)."""
        out = self.network(batch.x)
        thing = (batch.face != NONE).float() * batch.known
        weight = batch.known * (1 + (OBJECT_WEIGHT - 1) * thing)
        face = (cross_entropy(out.faces, batch.face, reduction="none") * weight).sum() / _at_least_1(weight)
        guess = (1 - out.faces.softmax(1)[:, NONE]) * batch.known
        overlap = 1 - (2 * (guess * thing).sum() + 1) / (guess.sum() + thing.sum() + 1)
        error = (out.values - batch.votes).abs()
        laplace = (error * torch.exp(-out.log_scale) + out.log_scale).sum(1)
        total = _at_least_1(batch.weight)
        votes = (laplace * batch.weight).sum() / total
        shape = (cross_entropy(out.classes, batch.shape, reduction="none") * batch.weight).sum() / total
        return FACE_WEIGHT * face + OVERLAP_WEIGHT * overlap + VOTE_WEIGHT * votes + CLASS_WEIGHT * shape


def _at_least_1(weight: torch.Tensor) -> torch.Tensor:
    return weight.sum().clamp_min(1.0)


class DetectorTask:
    """Detector task of a trainer; see `training.loop.Task`."""

    kind = "detector"

    def __init__(self, network: DetectorNet, seed: int, train: Views, validation: Views | None = None) -> None:
        """Train the network in place; `seed` determines the augmentation."""
        self._network = network.to(memory_format=torch.channels_last)
        self._seed = seed
        self._train, self._validation = train, validation
        self.module: nn.Module = _Loss(self._network)
        self.learning: dict[str, nn.Parameter] = dict(self._network.named_parameters())
        self.fingerprint = f"{derive(len(train), *map(str, train.seed)):016x}"

    @property
    def samples(self) -> int:
        """Number of training views."""
        return len(self._train)

    @property
    def validation_samples(self) -> int:
        """Number of validation views."""
        return 0 if self._validation is None else len(self._validation)

    def batch(
        self, step: int, numbers: NDArray[np.int64], places: Sequence[int], device: torch.device
    ) -> DetectorBatch:
        """Load and augment views `numbers`; the augmentation depends only on seed, step and place."""
        rngs = [np.random.default_rng(derive(self._seed, "augment", step, place)) for place in places]
        samples = [augmented_sample(self._train, int(n), g) for n, g in zip(numbers, rngs, strict=True)]
        return _collate([str(self._train.seed[n]) for n in numbers], samples, device)

    def validation_batch(self, number: int, device: torch.device) -> DetectorBatch:
        """Load one view without augmentation."""
        views = self._require_validation()
        return _collate([str(views.seed[number])], [plain_sample(views, number)], device)

    def pictures(self, count: int, device: torch.device) -> tuple[dict[str, float], list[NDArray[np.uint8]]]:
        """Return the overlap of objects and median errors of the votes, in mm; and an empty list of images."""
        shared = either = right = seen = 0
        errors = []
        for number in range(self.validation_samples):
            batch = self.validation_batch(number, device)
            with torch.inference_mode():
                out = self._network(batch.x)
            found, truth = (out.faces.argmax(1) != NONE), batch.face != NONE
            known = batch.known > 0
            shared += int((found & truth & known).sum())
            either += int(((found | truth) & known).sum())
            on = batch.weight > 0
            errors.append((out.values - batch.votes).abs().movedim(1, -1)[on].cpu().numpy())
            right += int((out.classes.argmax(1) == batch.shape)[on].sum())
            seen += int(on.sum())
        along = 1e3 * UNIT_M * np.median(np.concatenate(errors), axis=0)
        names = ("across_mm", "along_mm", "width_mm", "top_mm")
        metrics = dict(zip(names, along[[0, 1, 2, 7]].tolist(), strict=True))
        return {"iou": shared / max(1, either), "shape": right / max(1, seen), **metrics}, []

    def _require_validation(self) -> Views:
        if self._validation is None:
            raise ValueError("there are no validation views")
        return self._validation


def _collate(names: list[str], samples: list[Sample], device: torch.device) -> DetectorBatch:
    x, *rest = (torch.from_numpy(np.stack([getattr(s, f.name) for s in samples])).to(device) for f in fields(Sample))
    return DetectorBatch(tuple(names), x.contiguous(memory_format=torch.channels_last), *rest)


def train_detector(
    config: TrainConfig,
    out: Path,
    *,
    resume: bool = False,
    stop: Callable[[], bool] = lambda: False,
    bar: bool = True,
) -> Progress:
    """Train on the views named in a config, and write OUT/model at the end."""
    data = config.data
    if data.train is None:
        raise FileFormatError(
            f"training config '{config.name}' has no data.train",
            expected="a folder of views",
            hint="make one with python -m kinema4d_model.detection.scenes --out FOLDER",
        )
    train = Views.load(Path(data.train))
    held = config.run.validation_samples if len(train) > 2 * config.run.validation_samples else 0
    few = train.part(slice(len(train) - held, None)) if held else None
    return train_on_views(config, out, train.part(slice(0, len(train) - held)), few, resume=resume, stop=stop, bar=bar)


def train_on_views(
    config: TrainConfig,
    out: Path,
    train: Views,
    validation: Views | None,
    *,
    resume: bool = False,
    stop: Callable[[], bool] = lambda: False,
    bar: bool = True,
) -> Progress:
    """Train on views in memory, from the weights in OUT/model or from the shipped lifter's; see `train_detector`."""
    torch.manual_seed(derive(config.seed, "detector"))
    network = DetectorNet()
    earlier = (out / "model" / "config.json").is_file()
    network.start_from(load_detector(out / "model").network if earlier else load_lifter().network)
    task = DetectorTask(network, config.seed, train, validation)
    trainer = Trainer(task, config, out / "detector", make_accelerator(config), resume=resume, bar=bar)
    progress = trainer.run(stop)
    if trainer.ema is not None:
        trainer.ema.copy_to(task.learning)
    _export(network, out / "model", config, progress, len(train))
    return progress


def _export(network: DetectorNet, folder: Path, config: TrainConfig, progress: Progress, views: int) -> None:
    record: dict[str, object] = {
        "views": views,
        "steps": progress.step,
        "batch": config.run.batch,
        "seed": config.seed,
        "seconds": round(progress.seconds, 1),
        "config_sha256": config.sha256,
        "data": progress.data,
    }
    with replacing_folder(folder, lambda path: (path / "training.json").is_file()) as temporary:
        network.to(memory_format=torch.contiguous_format).save_pretrained(temporary)
        for path in temporary.iterdir():
            path.chmod(0o644)  # safetensors are written with owner-only permissions
        (temporary / "training.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
