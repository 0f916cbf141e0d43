"""`run_stages`: run a config: codec, latents, network, export; a stage is skipped if its result exists.

OUT/config.yaml     the config
OUT/codec/          weights of the codec, fitted or trained
OUT/latents/        encoded episodes (or the folder data.latents)
OUT/checkpoints/    metrics.jsonl  strips/  tensorboard/
OUT/model/          the export for `ModelBundle.from_pretrained`, with a model card
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch
from accelerate import Accelerator
from tqdm import tqdm

from kinema4d_model.checkpoints.bundle import ModelBundle
from kinema4d_model.checkpoints.folder import PRESET_FILE, load_vae
from kinema4d_model.checkpoints.lora import adapter_names, lora_shapes
from kinema4d_model.checkpoints.official import DOMAIN_FILE, load_4dnex, load_official
from kinema4d_model.codec.video_codec import VideoCodec
from kinema4d_model.network.transformer import KinemaTransformer
from kinema4d_model.pipeline.lifting import load_lifter
from kinema4d_model.preset import Preset, load_preset, save_preset
from kinema4d_model.preset_parts import Ablation
from kinema4d_model.training.checkpoints import Progress, restore_weights
from kinema4d_model.training.codec_task import CodecTask, codec_config, fit_linear_codec, measured_spec, start_codec
from kinema4d_model.training.config import TrainConfig, save_config
from kinema4d_model.training.examples import EpisodeExamples
from kinema4d_model.training.export import export
from kinema4d_model.training.latents import LatentSet, encode_source
from kinema4d_model.training.loop import Trainer, make_accelerator
from kinema4d_model.training.network_task import NetworkTask
from kinema4d_ros.core.errors import FileFormatError
from kinema4d_ros.io.files import replacing_folder

__all__ = ["ADAPTER", "STAGES", "make_bundle", "run_stages", "set_trainable"]

# Trainable parameters: all, or only those that Wan does not have; never those that the condition does not use.


def set_trainable(
    transformer: KinemaTransformer,
    scope: Literal["all", "added"],
    ablation: Ablation = Ablation.RGB_POINTMAP,
) -> list[str]:
    """Set `requires_grad` of all parameters and return the names of trainable ones.

    Args:
        transformer: the network, with or without adapters.
        scope: "all" for training from scratch, "added" for adapters and the parts that Wan does not have.
        ablation: parts that it does not feed get no gradient and are frozen.
    """
    idle = ["condition_embedder.text_embedder."] if ablation is not Ablation.TEXT else []
    if ablation is not Ablation.EMBEDDING:
        idle.append("action_tokens.")
    if ablation in (Ablation.TEXT, Ablation.EMBEDDING, Ablation.NULL):
        idle.append("robot_injection.")
    if ablation in (Ablation.TEXT, Ablation.EMBEDDING):
        idle.append("robot_tokens.")
    learning = []
    for name, parameter in transformer.named_parameters():
        wanted = scope == "all" or transformer.is_added(name) or ".lora_" in name
        parameter.requires_grad_(wanted and not name.startswith(tuple(idle)))
        if parameter.requires_grad:
            learning.append(name)
    return learning


STAGES = ("codec", "encode", "network", "export")
ADAPTER = "kinema4d"
SPLITS = ("train", "validation")


def run_stages(
    config: TrainConfig,
    out: Path,
    *,
    stages: tuple[str, ...] = STAGES,
    resume: bool = False,
    stop: Callable[[], bool] = lambda: False,
    bar: bool = True,
) -> Progress | None:
    """Run the requested stages; return the progress of the network, if it was trained."""
    accelerator = make_accelerator(config)
    preset = load_preset(config.preset)
    out.mkdir(parents=True, exist_ok=True)
    if accelerator.is_main_process:
        save_config(config, out / "config.yaml")
    if "codec" in stages:
        _codec_stage(config, preset, out, accelerator, resume, stop, bar)
    if stop() or not set(stages) - {"codec"}:
        return None
    bundle = make_bundle(config, out)
    if "encode" in stages and config.data.train is not None:
        _encode_stage(config, bundle, out, accelerator, bar)
    progress = None
    if "network" in stages:
        progress = _network_stage(config, bundle, out, accelerator, resume, stop, bar)
    if "export" in stages and (progress is None or progress.step == config.run.steps) and accelerator.is_main_process:
        export(config, make_bundle(config, out), learning_names(config, bundle), out)
    return progress


def make_bundle(config: TrainConfig, out: Path) -> ModelBundle:
    """Make the model before the first step: initial weights, codec, adapter; all other weights are frozen."""
    preset, start = run_preset(config, out), config.start
    dtype = torch.bfloat16 if config.run.frozen_dtype == "bfloat16" else None
    if start.bundle is not None:
        bundle = ModelBundle.from_pretrained(start.bundle, dtype=dtype)
        _require_same(bundle.preset, preset, start.bundle)
        bundle.preset = preset
    elif start.base is not None:
        bundle = ModelBundle.from_wan(start.base, preset=preset, dtype=dtype)
    else:
        bundle = ModelBundle.from_preset(preset, seed=config.seed)
        if preset.prediction == "residual":
            # The initial prediction is then the composite itself.
            torch.nn.init.zeros_(bundle.transformer.proj_out.weight)
            torch.nn.init.zeros_(bundle.transformer.proj_out.bias)
    folder = Path(start.codec) if start.codec is not None else out / "codec"
    if folder.is_dir():
        load_vae(bundle.codec.vae, folder)
    elif preset.codec.kind == "linear" and start.bundle is None:
        raise FileFormatError(
            f"{folder} does not exist: the linear codec has not been fitted", hint="run the stage `codec` first"
        )
    bundle.codec.requires_grad_(False)
    if bundle.image_encoder is not None:
        bundle.image_encoder.requires_grad_(False)
    if config.learn == "lora":
        add_adapter(config, bundle)
    return bundle


def run_preset(config: TrainConfig, out: Path) -> Preset:
    """Return the config's preset, with the statistics of a codec trained by this run."""
    own = out / PRESET_FILE
    return load_preset(own if own.is_file() and (out / "codec_run").is_dir() else config.preset)


def learning_names(config: TrainConfig, bundle: ModelBundle) -> list[str]:
    """Select the trainable parameters and return their names."""
    scope = "all" if config.learn == "all" else "added"
    names = set_trainable(bundle.transformer, "all" if scope == "all" else "added", bundle.preset.condition.ablation)
    for name, parameter in bundle.transformer.named_parameters():
        if name in set(names):
            parameter.data = parameter.data.float()
    return names


def add_adapter(config: TrainConfig, bundle: ModelBundle) -> None:
    lora = bundle.preset.lora
    if lora is None:
        raise FileFormatError(f"preset '{bundle.preset.name}' has no lora", expected="lora: {rank: 64, alpha: 32}")
    checkpoint = config.start.checkpoint
    if checkpoint is not None and (Path(checkpoint) / DOMAIN_FILE).is_file():
        load_4dnex(bundle.transformer, checkpoint, lora, adapter=ADAPTER)
    elif checkpoint is not None:
        load_official(bundle.transformer, checkpoint, lora, adapter=ADAPTER)
    if adapter_names(bundle.transformer):
        return
    from peft import LoraConfig

    names = sorted({n.removeprefix("transformer.").rsplit(".lora_", 1)[0] for n in lora_shapes(bundle.transformer, 1)})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        bundle.transformer.add_adapter(
            LoraConfig(r=lora.rank, lora_alpha=lora.alpha, target_modules=names), adapter_name=ADAPTER
        )


def _require_same(found: Preset, wanted: Preset, where: str) -> None:
    for part in ("transformer", "codec", "robot", "prediction"):
        if getattr(found, part) != getattr(wanted, part):
            raise FileFormatError(
                f"{where} has another {part} than preset '{wanted.name}'",
                expected=f"{getattr(wanted, part)!r}",
                hint="train with the preset.yaml of the folder",
            )


def latents_folder(config: TrainConfig, out: Path, split: str) -> Path:
    """Return the latents folder of a split."""
    return (out / "latents" if config.data.latents is None else Path(config.data.latents)) / split


def _source(config: TrainConfig, preset: Preset, split: str) -> EpisodeExamples | None:
    data = config.data
    where = data.train if split == "train" else data.validation
    limit = data.limit if split == "train" else data.validation_limit
    if where is None:
        return None
    lifter = None if data.lifter is None else load_lifter(None if data.lifter == "shipped" else data.lifter)
    return EpisodeExamples(where, preset, limit=limit, depth_ratio=data.depth_ratio, lifter=lifter)


def _codec_stage(
    config: TrainConfig,
    preset: Preset,
    out: Path,
    accelerator: Accelerator,
    resume: bool,
    stop: Callable[[], bool],
    bar: bool,
) -> None:
    done = (out / "codec").is_dir() or config.start.codec is not None
    given = config.start.bundle is not None or config.start.base is not None or config.data.train is None
    source = None if done or given else _source(config, preset, "train")
    if source is not None and preset.codec.kind == "linear":
        if accelerator.is_main_process:
            count = min(len(source.names), config.codec.episodes or len(source.names))
            with tqdm(total=count, unit="episode", desc="codec", disable=not bar) as shown:
                codec = fit_linear_codec(preset.codec, source, config.codec, shown.update)
            with replacing_folder(out / "codec", lambda path: False) as temporary:
                codec.vae.save_pretrained(temporary, safe_serialization=True)
        accelerator.wait_for_everyone()
    elif source is not None:
        _train_codec(config, preset, source, out, accelerator, resume, stop, bar)


def _train_codec(
    config: TrainConfig,
    preset: Preset,
    source: EpisodeExamples,
    out: Path,
    accelerator: Accelerator,
    resume: bool,
    stop: Callable[[], bool],
    bar: bool,
) -> None:
    """Train the autoencoder in OUT/codec_run; its weights go to OUT/codec, its statistics to OUT/preset.yaml."""
    own = codec_config(config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        codec = VideoCodec.from_spec(preset.codec)
    start_codec(codec)
    codec.to(accelerator.device)
    task = CodecTask(codec, own, source, _source(config, preset, "validation"))
    trainer = Trainer(task, own, out / "codec_run", accelerator, resume=resume, bar=bar)
    if trainer.run(stop).step < own.run.steps:
        return
    if accelerator.is_main_process:
        found = trainer.checkpoints.newest("best") or trainer.checkpoints.newest("step")
        if found is not None:
            restore_weights(found.tensors("average") or found.tensors("weights"), task.learning, found.path)
        codec.to("cpu").eval()
        spec = measured_spec(codec, preset.codec, source, min(64, len(source.names)))
        save_preset(replace(preset, codec=spec), out / PRESET_FILE)
        codec.vae.register_to_config(latents_mean=list(spec.latents_mean), latents_std=list(spec.latents_std))
        with replacing_folder(out / "codec", lambda path: False) as temporary:
            codec.vae.save_pretrained(temporary, safe_serialization=True)
    accelerator.wait_for_everyone()


def _encode_stage(config: TrainConfig, bundle: ModelBundle, out: Path, accelerator: Accelerator, bar: bool) -> None:
    bundle.codec.to(accelerator.device)
    for split in SPLITS:
        source = _source(config, bundle.preset, split)
        if source is None:
            continue
        main = accelerator.is_main_process
        share = -(-len(source.names) // accelerator.num_processes)
        with tqdm(total=share, unit="episode", desc=f"encode {split}", disable=not (bar and main)) as shown:
            encode_source(
                bundle,
                source,
                latents_folder(config, out, split),
                shard_episodes=config.data.shard_episodes,
                rank=accelerator.process_index,
                processes=accelerator.num_processes,
                progress=shown.update,
                finish=accelerator.wait_for_everyone,
            )


def _network_stage(
    config: TrainConfig,
    bundle: ModelBundle,
    out: Path,
    accelerator: Accelerator,
    resume: bool,
    stop: Callable[[], bool],
    bar: bool,
) -> Progress:
    names = learning_names(config, bundle)
    if config.run.gradient_checkpointing:
        bundle.transformer.enable_gradient_checkpointing()
    train = LatentSet(latents_folder(config, out, "train"), bundle.preset)
    there = config.data.validation is not None or latents_folder(config, out, "validation").is_dir()
    validation = LatentSet(latents_folder(config, out, "validation"), bundle.preset) if there else None
    bundle.codec.to(accelerator.device)
    task = NetworkTask(bundle, names, config, train, validation)
    return Trainer(task, config, out, accelerator, resume=resume, bar=bar).run(stop)
