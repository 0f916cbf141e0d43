"""A model by preset and folder: whichever of the known layouts the folder has, or an error that says what to run."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kinema4d_model.bundle import ModelBundle
from kinema4d_model.checkpoints.folder import PRESET_FILE
from kinema4d_model.checkpoints.lora import activate, adapter_names, load_lora, merge, remove
from kinema4d_model.checkpoints.manifest import file_sha256
from kinema4d_model.checkpoints.official import LORA_FILE
from kinema4d_model.preset import Preset, load_preset
from kinema4d_model.shipped import shipped_weights
from kinema4d_model.speed import torch_dtype
from kinema4d_ros.errors import ErrorCode, FileFormatError

__all__ = ["checkpoint_folder", "load_bundle", "with_options"]

_OFFICIAL = {"act": "kinema4d_ckpt", "pm": "kinema4d_pmcond_ckpt"}


def checkpoint_folder(preset: Preset, given: str | Path = "") -> Path:
    """Where a preset's weights are: `given`, else $KINEMA4D_CHECKPOINTS/NAME, else the package's own, else the cache.

    The cache is ~/.cache/kinema4d/NAME.
    """
    if given:
        return Path(given).expanduser()
    root = os.environ.get("KINEMA4D_CHECKPOINTS")
    shipped = None if root else shipped_weights(preset.name)
    if shipped is not None:
        return shipped
    return Path(root or "~/.cache/kinema4d").expanduser() / preset.name.split("_")[0]


def load_bundle(
    preset: str | Path | Preset,
    checkpoint: str | Path = "",
    lora: str | Path = "",
    *,
    sampler: Mapping[str, Any] | None = None,
    speed: Mapping[str, Any] | None = None,
) -> ModelBundle:
    """The model of a preset, with its weights.

    Args:
        preset: a name, the path of a YAML file, or the preset itself. Sizes are always the folder's. So are sampler
            and speed options where a preset of that name is asked for by name; otherwise they are `preset`'s.
        checkpoint: a folder written by `ModelBundle.save_pretrained`, by `kinema4d fetch-weights` or by a LoRA
            training, whose base is then looked for where the preset's own weights are; by default the preset's own.
        lora: safetensors of another adapter on top, for example one distilled for few steps.
        sampler, speed: fields that replace those of either.

    Raises:
        FileFormatError: FILE_MISSING with the folder and the command that fills it.
    """
    chosen = preset if isinstance(preset, Preset) else load_preset(preset)
    chosen = with_options(chosen, sampler, speed)
    folder = checkpoint_folder(chosen, checkpoint)
    if (folder / PRESET_FILE).is_file():
        own = load_preset(folder / PRESET_FILE)
        if own.name == chosen.name and not isinstance(preset, Preset):
            chosen = with_options(own, sampler, speed)
        dtype = torch_dtype(chosen.speed.dtype)
        bundle = ModelBundle.from_pretrained(folder, dtype=dtype)
        bundle.preset = dataclasses.replace(bundle.preset, name=chosen.name, sampler=chosen.sampler, speed=chosen.speed)
    else:
        adapter = (folder / LORA_FILE).is_file()
        root = checkpoint_folder(chosen) if adapter else folder
        base = next((p for p in (root, root / "base") if (p / "transformer").is_dir()), None)
        if base is None:
            raise _missing(chosen, root)
        official = folder if adapter else folder / _OFFICIAL[chosen.robot.variant]
        bundle = ModelBundle.from_wan(
            base, official if official.is_dir() else None, preset=chosen, dtype=torch_dtype(chosen.speed.dtype)
        )
    if lora:
        load_lora(bundle.transformer, Path(lora), "extra")
        bundle.origin += f", lora {file_sha256(Path(lora))}"
    _fold_adapters(bundle)
    return bundle


def with_options(
    preset: Preset, sampler: Mapping[str, Any] | None = None, speed: Mapping[str, Any] | None = None
) -> Preset:
    """The preset with some of its sampler's and speed options replaced."""
    return dataclasses.replace(
        preset,
        sampler=dataclasses.replace(preset.sampler, **dict(sampler or {})),
        speed=dataclasses.replace(preset.speed, **dict(speed or {})),
    )


def _fold_adapters(bundle: ModelBundle) -> None:
    """Adapters become part of the weights: no cost in any step, and what is left can be quantised and compiled."""
    names = adapter_names(bundle.transformer)
    if not names:
        return
    activate(bundle.transformer, dict.fromkeys(names, 1.0))
    merge(bundle.transformer, list(names))
    for name in names:
        remove(bundle.transformer, name)


def _missing(preset: Preset, folder: Path) -> FileFormatError:
    fetched = any(source.repo for source in preset.weights)
    name = preset.name.split("_")[0]
    command = (
        f"kinema4d fetch-weights --preset {name} --out {folder}"
        if fetched
        else "train one, or give --checkpoint DIR with a folder that ModelBundle.save_pretrained wrote"
    )
    state = "does not exist" if not folder.exists() else "holds neither preset.yaml nor transformer/"
    return FileFormatError(
        f"no weights for preset '{preset.name}': {folder} {state}",
        expected="a model folder",
        hint=command,
        code=ErrorCode.FILE_MISSING,
    )
