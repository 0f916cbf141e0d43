"""One run that teaches a lifter on episodes and leaves its folder of weights; stopped, it goes on.

OUT/cache/            decoded pictures
OUT/lifter/           checkpoints and metrics.jsonl, see `training.loop`
OUT/model/            config.json, weights, training.json: what `load_lifter` takes
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import torch

from kinema4d_model.pipeline.lifting.frames import FrameSet, load_frames
from kinema4d_model.pipeline.lifting.network import HeightNet
from kinema4d_model.pipeline.lifting.task import LifterTask
from kinema4d_model.training.checkpoints import Progress
from kinema4d_model.training.config import TrainConfig
from kinema4d_model.training.loop import Trainer, make_accelerator
from kinema4d_model.training.randomness import derive
from kinema4d_ros.core.errors import FileFormatError
from kinema4d_ros.io.files import replacing_folder

__all__ = ["train_lifter", "train_on_frames"]


def train_lifter(
    config: TrainConfig,
    out: Path,
    *,
    resume: bool = False,
    stop: Callable[[], bool] = lambda: False,
    bar: bool = True,
) -> Progress:
    """Teach on the episodes that a config names, and write OUT/model at the end."""
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
    """The same on pictures that are in memory."""
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
            path.chmod(0o644)  # safetensors are written for their owner alone
        (temporary / "training.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
