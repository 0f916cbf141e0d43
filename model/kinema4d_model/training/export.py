"""`export`: write the weights of a run in loadable form, with a model card and a sha256 manifest."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from pathlib import Path

import torch

import kinema4d_ros
from kinema4d_model.checkpoints.bundle import ModelBundle
from kinema4d_model.checkpoints.manifest import MANIFEST, read_manifest, write_manifest
from kinema4d_model.checkpoints.official import save_official
from kinema4d_model.config_files import plain
from kinema4d_model.speed import torch_dtype
from kinema4d_model.training.checkpoints import Checkpoint, CheckpointFolder, restore_weights
from kinema4d_model.training.config import TrainConfig
from kinema4d_model.training.metrics_log import read_log
from kinema4d_ros.core.errors import ErrorCode, FileFormatError
from kinema4d_ros.io.files import read_json, replacing_file, replacing_folder

__all__ = ["CARD", "export"]

CARD = "README.md"


def export(config: TrainConfig, bundle: ModelBundle, learning: Sequence[str], out: Path) -> Path:
    """Write OUT/model from the best checkpoint by validation, or the newest one without validation.

    Averaged weights are used if the run has them. Full training gives a model folder; LoRA gives the two files of the
    official layout, which are loaded on top of the base.
    """
    folder = CheckpointFolder(out / "checkpoints")
    found = folder.newest("best") or folder.newest("step")
    if found is None:
        raise FileFormatError(f"{out} has no checkpoint to export", code=ErrorCode.FILE_MISSING)
    named = dict(bundle.transformer.named_parameters())
    learnt = {name: named[name] for name in learning}
    restore_weights(found.tensors("average") or found.tensors("weights"), learnt, found.path)
    target = out / "model"
    if config.learn == "all":
        bundle.transformer.eval().to(torch_dtype(config.run.export_dtype))
        bundle.save_pretrained(target)
    else:
        with replacing_folder(target, lambda path: (path / MANIFEST).is_file()) as temporary:
            save_official(bundle.transformer, temporary)
            write_manifest(temporary)
    with replacing_file(target / CARD) as temporary:
        temporary.write_text(_card(config, bundle, found, out, target, learnt), encoding="utf-8")
    return target


def _card(
    config: TrainConfig,
    bundle: ModelBundle,
    found: Checkpoint,
    out: Path,
    target: Path,
    learnt: dict[str, torch.nn.Parameter],
) -> str:
    """Format the model card: data, validation, seed, training time, versions."""
    progress, run = found.progress, config.run
    newest = CheckpointFolder(out / "checkpoints").newest("step")
    hours = (progress if newest is None else newest.progress).seconds / 3600
    log = out / "metrics.jsonl"
    validated = [line for line in (read_log(log) if log.is_file() else []) if "validation_loss" in line]
    at_best = next((line for line in validated if line["step"] == progress.step), None)
    numbers = "none" if at_best is None else ", ".join(f"{k} {v:.5g}" for k, v in at_best.items() if k != "step")
    count = sum(p.numel() for p in learnt.values())
    episodes = {
        split: _episodes(out if config.data.latents is None else Path(config.data.latents).parent, config, split)
        for split in ("train", "validation")
    }
    return f"""# {config.name}

{"Weights of" if config.learn == "all" else "LoRA and added weights for"} preset `{config.preset}` of kinema4d_ros.

| | |
|---|---|
| data | {config.data.train or config.data.latents}, {episodes["train"]} episodes; fingerprint `{progress.data[:16]}` |
| validation | {config.data.validation or "none"}, {episodes["validation"]} episodes, never learnt from |
| seed | {config.seed} |
| steps | {progress.step} of {run.steps}, {run.batch} samples each |
| training time | {hours:.2f} h on {_machine()} |
| learnt | {count:,} parameters{", moving average" if run.ema_decay is not None else ""} |
| validation numbers | {numbers} |
| sha256 | `{read_manifest(target).sha256}` (of `{MANIFEST}`) |
| versions | kinema4d_ros {kinema4d_ros.__version__}, torch {torch.__version__}, Python {platform.python_version()} |

Validation loss is the training objective on episodes kept apart; PSNR is against what the codec makes of the truth.

Reproduce with `kinema4d train --config FILE`, with this as FILE:

```json
{json.dumps(plain(config), indent=1)}
```
"""


def _episodes(root: Path, config: TrainConfig, split: str) -> str:
    folder = (root / "latents" if config.data.latents is None else Path(config.data.latents)) / split / "index.json"
    try:
        return str(len(read_json(folder)["names"]))
    except (FileFormatError, TypeError, KeyError):
        return "0"


def _machine() -> str:
    if torch.cuda.is_available():
        return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}"
    return f"CPU ({platform.machine()}, {torch.get_num_threads()} threads)"
