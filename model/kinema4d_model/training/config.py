"""Training configs: frozen dataclasses read from `config/train/*.yaml` and validated.

>>> config = load_config("nano")
>>> config.preset, config.optimiser.kind
('nano', 'muon')
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from kinema4d_model.config_files import build, find_named, names_in, plain, read_extended
from kinema4d_model.preset import preset_names
from kinema4d_ros.core.errors import FileFormatError
from kinema4d_ros.io.files import write_yaml
from kinema4d_ros.io.resources import share_directory

__all__ = [
    "AugmentSpec",
    "CodecFitSpec",
    "DataSpec",
    "ObjectiveSpec",
    "OptimiserSpec",
    "RunSpec",
    "StartSpec",
    "TrainConfig",
    "config_names",
    "load_config",
    "save_config",
]


@dataclass(frozen=True)
class DataSpec:
    """Episodes and latents.

    Attributes:
        train: folder of training episodes, or several separated by ":"; None if the latents exist.
        validation: folder of held-out episodes; None disables validation.
        latents: folder of encoded episodes; None uses the run's folder.
        shard_episodes: episodes per latents file.
        limit: use only the first training episodes; None = all.
        validation_limit: the same for validation.
        depth_ratio: share of episodes that use measured depth, chosen by episode name; the others assume a plane, as
            for a camera without depth.
        lifter: estimates the depth of the others instead: "shipped", or the folder of a trained lifter.
    """

    train: str | None = None
    validation: str | None = None
    latents: str | None = None
    shard_episodes: int = 64
    limit: int | None = None
    validation_limit: int | None = None
    depth_ratio: float = 1.0
    lifter: str | None = None


@dataclass(frozen=True)
class StartSpec:
    """Initial weights; random by the seed if none are given.

    Attributes:
        bundle: folder written by `ModelBundle.save_pretrained`.
        base: folder of plain Wan.
        checkpoint: official or 4DNeX files on top of `base`.
        codec: a `vae/` folder, instead of fitting or training one.
    """

    bundle: str | None = None
    base: str | None = None
    checkpoint: str | None = None
    codec: str | None = None


@dataclass(frozen=True)
class CodecFitSpec:
    """Fitting or training of the codec if none is given.

    Attributes:
        episodes: to fit or train on; None = all.
        focus_weight: relative weight of moving and small objects.
        robot_weight: linear codec: relative weight of patches with the robot, since the exact robot is pasted over
            them in the result.
        whiten: linear codec: 0 keeps the variances of the components, 1 makes them equal.
        align: linear codec: rotate the components of frame groups towards those of the first frame; lossless.
        steps: wan codec: training iterations.
        batch: wan codec: clips per step.
        frames: wan codec: frames per clip; shorter clips never reach the causal cache's steady state.
        lr: wan codec.
        kl_weight: wan codec.
    """

    episodes: int | None = 512
    focus_weight: float = 4.0
    robot_weight: float = 1.0
    whiten: float = 0.5
    align: bool = True
    steps: int = 20_000
    batch: int = 4
    frames: int = 13
    lr: float = 1e-3
    kl_weight: float = 1e-6


@dataclass(frozen=True)
class ObjectiveSpec:
    """Flow matching: noise levels and loss weights.

    Attributes:
        timesteps: "uniform" (as in the paper) or "logit_normal".
        logit_mean, logit_std: of the normal before the sigmoid.
        shift: shifts noise levels like the sampler's shift.
        dynamic_weight: added to the weight 1 of cells where the truth differs from the composite.
        focus_weight: added to the weight of cells that show a movable object.
        carried_weight: added to the weight of cells where the carry hypothesis differs from the composite, which
            show the outcome.
        robot_weight: factor on cells that show the robot, which is replaced by the exact robot at inference.
    """

    timesteps: Literal["uniform", "logit_normal"] = "uniform"
    logit_mean: float = 0.0
    logit_std: float = 1.0
    shift: float = 1.0
    dynamic_weight: float = 0.0
    focus_weight: float = 0.0
    carried_weight: float = 0.0
    robot_weight: float = 1.0


@dataclass(frozen=True)
class AugmentSpec:
    """Data augmentation.

    Attributes:
        soft_ratio: share of the mask's robot cells set to 0.5; None = the preset's.
        pointmap_noise: standard deviation of noise on the robot's pointmap latents.
        noise_ratio: share of samples with this noise.
    """

    soft_ratio: float | None = None
    pointmap_noise: float = 0.0
    noise_ratio: float = 0.5


@dataclass(frozen=True)
class OptimiserSpec:
    """Optimiser. "muon" orthogonalises the steps of the blocks' matrices and uses AdamW for the rest."""

    kind: Literal["adamw", "muon"] = "adamw"
    lr: float = 2e-5
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.01
    momentum: float = 0.95
    warmup_steps: int = 100
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    final_ratio: float = 0.0
    clip_norm: float | None = 1.0


@dataclass(frozen=True)
class RunSpec:
    """Length, batch size, precision, checkpoints and logging of a run.

    Attributes:
        steps: optimiser steps.
        batch: samples per step, over all processes and accumulated passes.
        accumulate: passes per step.
        precision: of the computation; bf16 is slower on a CPU without native support.
        frozen_dtype: of frozen weights.
        gradient_checkpointing: recompute blocks in the backward pass instead of storing activations.
        ema_decay: of the averaged weights, which are validated and exported; None disables averaging.
        checkpoint_every, keep: steps between checkpoints, and number of checkpoints to keep.
        validate_every: steps between validations.
        validation_samples: episodes per validation.
        strips: number of these that are sampled and shown next to the truth.
        log_every: steps between log lines.
        wandb: project of Weights & Biases for the metrics; needs the package wandb.
        threads: CPU threads per process; None = torch's default.
        export_dtype: of the network's weights in the exported folder.
    """

    steps: int = 5_000
    batch: int = 32
    accumulate: int = 1
    precision: Literal["fp32", "bf16"] = "fp32"
    frozen_dtype: Literal["float32", "bfloat16"] = "float32"
    gradient_checkpointing: bool = False
    ema_decay: float | None = None
    checkpoint_every: int = 500
    keep: int = 2
    validate_every: int = 500
    validation_samples: int = 64
    strips: int = 4
    log_every: int = 10
    wandb: str | None = None
    threads: int | None = None
    export_dtype: Literal["float32", "bfloat16", "float16"] = "float32"


@dataclass(frozen=True)
class TrainConfig:
    """Config of one run. Equal configs, data and initial weights give equal losses on a CPU."""

    name: str
    preset: str
    seed: int = 0
    learn: Literal["all", "lora"] = "all"
    data: DataSpec = field(default_factory=DataSpec)
    start: StartSpec = field(default_factory=StartSpec)
    codec: CodecFitSpec = field(default_factory=CodecFitSpec)
    objective: ObjectiveSpec = field(default_factory=ObjectiveSpec)
    augment: AugmentSpec = field(default_factory=AugmentSpec)
    optimiser: OptimiserSpec = field(default_factory=OptimiserSpec)
    run: RunSpec = field(default_factory=RunSpec)

    def __post_init__(self) -> None:
        problems = _problems(self)
        if problems:
            raise FileFormatError(
                f"training config '{self.name}' is not valid: " + "; ".join(problems),
                expected="values as in config/train/wan14b_lora.yaml",
            )

    @property
    def sha256(self) -> str:
        """Hash of all values that affect the losses; logging and checkpoint intervals do not."""
        document = plain(self)
        for key in ("checkpoint_every", "keep", "strips", "log_every", "wandb", "threads"):
            del document["run"][key]
        return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def _problems(c: TrainConfig) -> list[str]:
    run, opt, found = c.run, c.optimiser, []
    positive = {
        "run.steps": run.steps,
        "run.batch": run.batch,
        "run.accumulate": run.accumulate,
        "run.checkpoint_every": run.checkpoint_every,
        "run.keep": run.keep,
        "run.validate_every": run.validate_every,
        "run.validation_samples": run.validation_samples,
        "run.log_every": run.log_every,
        "data.shard_episodes": c.data.shard_episodes,
        "optimiser.lr": opt.lr,
        "optimiser.eps": opt.eps,
        "objective.shift": c.objective.shift,
        "objective.logit_std": c.objective.logit_std,
        "codec.steps": c.codec.steps,
        "codec.batch": c.codec.batch,
        "codec.lr": c.codec.lr,
    }
    found += [f"{name} is {value}, not positive" for name, value in positive.items() if not value > 0]
    optional = {
        "data.limit": c.data.limit,
        "data.validation_limit": c.data.validation_limit,
        "codec.episodes": c.codec.episodes,
        "run.threads": run.threads,
        "optimiser.clip_norm": opt.clip_norm,
    }
    found += [f"{n} is {v}, not positive" for n, v in optional.items() if v is not None and not v > 0]
    shares = {
        "data.depth_ratio": c.data.depth_ratio,
        "augment.soft_ratio": 0.0 if c.augment.soft_ratio is None else c.augment.soft_ratio,
        "augment.noise_ratio": c.augment.noise_ratio,
        "optimiser.final_ratio": opt.final_ratio,
        "codec.whiten": c.codec.whiten,
        "optimiser.betas[0]": opt.betas[0],
        "optimiser.betas[1]": opt.betas[1],
        "optimiser.momentum": opt.momentum,
        "run.ema_decay": 0.0 if run.ema_decay is None else run.ema_decay,
    }
    found += [f"{name} is {value}, not in [0, 1]" for name, value in shares.items() if not 0 <= value <= 1]
    zero_or_more = {
        "seed": c.seed,
        "run.strips": run.strips,
        "optimiser.warmup_steps": opt.warmup_steps,
        "optimiser.weight_decay": opt.weight_decay,
        "objective.dynamic_weight": c.objective.dynamic_weight,
        "objective.focus_weight": c.objective.focus_weight,
        "objective.carried_weight": c.objective.carried_weight,
        "objective.robot_weight": c.objective.robot_weight,
        "augment.pointmap_noise": c.augment.pointmap_noise,
        "codec.focus_weight": c.codec.focus_weight,
        "codec.robot_weight": c.codec.robot_weight,
        "codec.kl_weight": c.codec.kl_weight,
    }
    found += [f"{name} is {value}, below 0" for name, value in zero_or_more.items() if not value >= 0]
    if run.accumulate > 0 and run.batch % run.accumulate:
        found.append(f"run.batch {run.batch} is not a multiple of run.accumulate {run.accumulate}")
    if opt.warmup_steps >= run.steps:
        found.append(f"optimiser.warmup_steps {opt.warmup_steps} is not less than run.steps {run.steps}")
    if c.codec.frames < 13:
        found.append(f"codec.frames {c.codec.frames} is less than 13: the causal cache would never be full")
    if c.data.train is None and c.data.latents is None:
        found.append("neither data.train nor data.latents is given")
    if c.start.bundle is not None and c.start.base is not None:
        found.append("start.bundle and start.base exclude each other")
    if c.start.checkpoint is not None and c.start.base is None:
        found.append("start.checkpoint needs start.base")
    return found


def _folder() -> Path:
    return share_directory() / "config" / "train"


def config_names() -> tuple[str, ...]:
    """Return the names of the shipped configs."""
    return names_in(_folder())


def load_config(name_or_path: str | Path, **overrides: Any) -> TrainConfig:
    """Load a config by name or path of a YAML file; `overrides` replace top-level keys."""
    path = find_named(name_or_path, _folder(), "training config")
    config: TrainConfig = build(TrainConfig, read_extended(path, _folder()) | overrides, str(path))
    if (
        "/" not in config.preset
        and not config.preset.endswith((".yaml", ".yml"))
        and config.preset not in preset_names()
    ):
        raise FileFormatError(
            f"{path}: preset '{config.preset}' does not exist", expected=f"one of {', '.join(preset_names())}"
        )
    return config


def save_config(config: TrainConfig, path: str | Path) -> None:
    """Write a config that `load_config(path)` reads back unchanged."""
    write_yaml(path, plain(config), "A training run of kinema4d_model, as it was run.")
