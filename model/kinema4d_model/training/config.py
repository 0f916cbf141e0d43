"""What a training run is: frozen dataclasses read from `config/train/*.yaml` and checked once.

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
    """Where episodes and latents are.

    Attributes:
        train: folder of episodes to learn from, or several with ":" between them; None when the latents are there.
        validation: folder of episodes that are never learnt from; None leaves validation out.
        latents: folder of encoded episodes; None puts it into the run's own folder.
        shard_episodes: episodes in one file of latents.
        limit: the first so many training episodes only; None takes all.
        validation_limit: the same for validation.
        depth_ratio: share of episodes whose world comes from measured depth; the others assume a plane, as a
            camera without depth does. Chosen by the episode's name.
        lifter: guesses the depth of those others instead: "shipped", or the folder of a trained one.
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
    """The weights before the first step; without any, random ones by the seed.

    Attributes:
        bundle: folder that `ModelBundle.save_pretrained` wrote.
        base: folder of plain Wan.
        checkpoint: on top of `base`: official or 4DNeX files.
        codec: a `vae/` folder, instead of fitting or training one.
    """

    bundle: str | None = None
    base: str | None = None
    checkpoint: str | None = None
    codec: str | None = None


@dataclass(frozen=True)
class CodecFitSpec:
    """How the codec comes about when none is given.

    Attributes:
        episodes: to fit or train on; None takes all.
        focus_weight: how much more moving and small things count than the rest.
        robot_weight: linear codec: what patches with the robot count of the others; the exact robot is pasted over them
            in the end.
        whiten: linear codec: 0 keeps the components' own sizes, 1 gives all the same.
        align: linear codec: turn the components of groups towards those of the first frame; costs nothing.
        steps: wan codec: iterations of training.
        batch: wan codec: clips a step.
        frames: wan codec: frames of a clip; shorter ones never reach the causal cache's steady state.
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
    """Flow matching: which noise levels, and where an error counts.

    Attributes:
        timesteps: "uniform" (the paper's) or "logit_normal".
        logit_mean, logit_std: of the normal before the sigmoid.
        shift: bends noise levels as the sampler's shift does.
        dynamic_weight: added to the weight 1 of cells where the truth differs from the composite.
        focus_weight: added to the weight of cells that show an object which can move.
        carried_weight: added to the weight of cells where the carry hypothesis differs from the composite: where the
            outcome shows.
        robot_weight: factor on cells that show the robot, which is exact whatever the network says.
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
    """What is made worse on purpose.

    Attributes:
        soft_ratio: share of the mask's robot cells set to 0.5; None takes the preset's.
        pointmap_noise: standard deviation of noise on the robot's pointmap latents.
        noise_ratio: share of samples that get it.
    """

    soft_ratio: float | None = None
    pointmap_noise: float = 0.0
    noise_ratio: float = 0.5


@dataclass(frozen=True)
class OptimiserSpec:
    """How the weights move. "muon" orthogonalises the steps of the blocks' matrices and leaves the rest to AdamW."""

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
    """How long, how large, how often.

    Attributes:
        steps: optimiser steps.
        batch: samples a step, over all processes and accumulated passes.
        accumulate: passes a step.
        precision: of computing; on a CPU without native bf16 that is slower.
        frozen_dtype: of weights that do not learn.
        gradient_checkpointing: blocks are computed twice instead of being remembered.
        ema_decay: of the averaged weights, which are validated and exported; None keeps none.
        checkpoint_every, keep: steps between checkpoints, and how many of them stay.
        validate_every: steps between validations.
        validation_samples: episodes a validation looks at.
        strips: of those, sampled and drawn beside the truth.
        log_every: steps between lines of the log.
        wandb: project of Weights & Biases that gets the numbers too; needs the package wandb.
        threads: of one process on a CPU; None leaves torch's choice.
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
    """One run. Equal configs, data and start weights give equal losses on a CPU."""

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
                f"training config '{self.name}' cannot be run: " + "; ".join(problems),
                expected="values as in config/train/wan14b_lora.yaml",
            )

    @property
    def sha256(self) -> str:
        """Of everything that decides the losses; how often something is logged or saved does not."""
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
        found.append(f"optimiser.warmup_steps {opt.warmup_steps} leaves nothing of run.steps {run.steps}")
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
    """Names of the configs that come with the package."""
    return names_in(_folder())


def load_config(name_or_path: str | Path, **overrides: Any) -> TrainConfig:
    """A config by its name, or by the path of a YAML file; `overrides` replace keys at the top."""
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
    """Write a config so that `load_config(path)` gives an equal one."""
    write_yaml(path, plain(config), "A training run of kinema4d_model, as it was run.")
