"""Loading a model by preset and folder in any known layout; errors name the command that fetches weights."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from kinema4d_model.checkpoints.bundle import ModelBundle
from kinema4d_model.checkpoints.folder import PRESET_FILE
from kinema4d_model.checkpoints.lora import activate, adapter_names, load_lora, merge, remove
from kinema4d_model.checkpoints.manifest import file_sha256
from kinema4d_model.checkpoints.official import ADDED_FILE, LORA_FILE, find_official, require_variant
from kinema4d_model.preset import Preset, load_preset
from kinema4d_model.shipped import shipped_weights
from kinema4d_model.speed import torch_dtype
from kinema4d_ros.core.errors import ErrorCode, FileFormatError

__all__ = ["check_bundle", "checkpoint_folder", "load_bundle", "weights_sha256", "with_options"]

_OFFICIAL = {"act": "kinema4d_ckpt", "pm": "kinema4d_pmcond_ckpt"}


def checkpoint_folder(preset: Preset, given: str | Path = "") -> Path:
    """Return the folder of a preset's weights.

    In this order: `given`, $KINEMA4D_CHECKPOINTS/NAME, the package's own weights, ~/.cache/kinema4d/NAME.
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
    allow_base: bool = False,
) -> ModelBundle:
    """Load the model of a preset with its weights.

    Args:
        preset: a name, the path of a YAML file, or a `Preset`. Sizes always come from the folder. Sampler and speed
            options come from the folder if `preset` is the name of the folder's own preset, else from `preset`.
        checkpoint: a folder written by `ModelBundle.save_pretrained`, by `kinema4d fetch-weights` or by a LoRA
            training, whose base is then searched in the preset's default folder; default: the preset's own.
        lora: safetensors file of an additional adapter, for example one distilled for few steps.
        sampler, speed: fields that replace those options.
        allow_base: use the base model alone if the folder has no adapter at all.

    Raises:
        FileFormatError: FILE_MISSING with the folder and the command that fills it; or the mismatch found.
    """
    bundle = _open(preset, checkpoint, sampler, speed, allow_base, read=True)
    if lora:
        load_lora(bundle.transformer, Path(lora), "extra")
        bundle.origin += f", lora {file_sha256(Path(lora))}"
    _fold_adapters(bundle)
    return bundle


def check_bundle(preset: str | Path | Preset, checkpoint: str | Path = "", *, allow_base: bool = False) -> ModelBundle:
    """Raise every error that `load_bundle` would; return a bundle with its `sha256` and without weights ("meta")."""
    return _open(preset, checkpoint, None, None, allow_base, read=False)


def _open(
    preset: str | Path | Preset,
    checkpoint: str | Path,
    sampler: Mapping[str, Any] | None,
    speed: Mapping[str, Any] | None,
    allow_base: bool,
    *,
    read: bool,
) -> ModelBundle:
    chosen = preset if isinstance(preset, Preset) else load_preset(preset)
    chosen = with_options(chosen, sampler, speed)
    folder = checkpoint_folder(chosen, checkpoint)
    dtype = torch_dtype(chosen.speed.dtype)
    if not (folder / PRESET_FILE).is_file():
        base, official = _find_parts(chosen, folder, allow_base)
        return ModelBundle.from_wan(base, official, preset=chosen, dtype=dtype, read=read)
    own = load_preset(folder / PRESET_FILE)
    if own.robot.variant != chosen.robot.variant:
        raise FileFormatError(
            f"{folder} holds a '{own.robot.variant}' model, preset '{chosen.name}' is for '{chosen.robot.variant}'",
            expected=f"robot.variant: {own.robot.variant} in the preset",
            hint=f"give --preset {folder / PRESET_FILE}",
        )
    if own.name == chosen.name and not isinstance(preset, Preset):
        chosen = with_options(own, sampler, speed)
        dtype = torch_dtype(chosen.speed.dtype)
    bundle = ModelBundle.from_pretrained(folder, dtype=dtype, read=read)
    bundle.preset = dataclasses.replace(bundle.preset, name=chosen.name, sampler=chosen.sampler, speed=chosen.speed)
    return bundle


def _find_parts(preset: Preset, folder: Path, allow_base: bool) -> tuple[Path, Path | None]:
    """Return the folders of base and adapter; the latter is None if there is none and `allow_base` is set.

    FOLDER/base/, kinema4d_ckpt/, kinema4d_pmcond_ckpt/                     `kinema4d fetch-weights`, all below FOLDER
    FOLDER/pretrained/Wan2.1-I2V-14B-480P-Diffusers/, training/kinema4d_ckpt/   the released README
    FOLDER/kinema4d_ckpt/, kinema4d_pmcond_ckpt/    the hub's repository; the base is in the preset's default folder
    FOLDER/*.safetensors                            one adapter; likewise

    The README's download command nests a second kinema4d_ckpt/ in the first: it is found too.
    """
    own = _is_adapter(folder)
    if own:
        require_variant(find_official(folder), preset.robot.variant)
    found = {variant: _find_adapter(folder, name) for variant, name in _OFFICIAL.items()}
    base = None if own else _find_base(preset, folder)
    if base is None and (own or any(found.values())):
        base = _find_base(preset, checkpoint_folder(preset))
    if base is None:
        raise _missing(preset, checkpoint_folder(preset) if own else folder)
    if own:
        return base, folder
    wanted = found[preset.robot.variant]
    if wanted is not None:
        return base, wanted
    wanted = folder / _OFFICIAL[preset.robot.variant]
    others = {variant: path.name for variant, path in found.items() if path is not None}
    if allow_base and not others:
        return base, None
    raise _no_adapter(preset, folder, wanted, others)


def _is_adapter(folder: Path) -> bool:
    return any((folder / name).is_file() for name in (LORA_FILE, ADDED_FILE))


def _find_adapter(folder: Path, name: str) -> Path | None:
    """Return the folder of an official checkpoint, or the empty one of its name; None if there is none."""
    places = [folder / name, folder / "training" / name]
    inner = [place / name for place in places]
    return next((p for p in (*places, *inner) if _is_adapter(p)), next((p for p in places if p.is_dir()), None))


def _find_base(preset: Preset, folder: Path) -> Path | None:
    """Return the folder with Wan's transformer/: this one, base/, or under its name on the hub."""
    names = [PurePosixPath(source.repo).name for source in preset.weights if source.role == "base"]
    places = [folder, folder / "base", *(folder / under / name for name in names for under in ("", "pretrained"))]
    return next((p for p in places if (p / "transformer").is_dir()), None)


def with_options(
    preset: Preset, sampler: Mapping[str, Any] | None = None, speed: Mapping[str, Any] | None = None
) -> Preset:
    """Return the preset with some sampler and speed options replaced; the base's flow shift stays the preset's."""
    # A None trained_shift must not follow a shift that is given only for sampling.
    fields = {"trained_shift": preset.sampler.base_shift} if "shift" in (sampler or {}) else {}
    return dataclasses.replace(
        preset,
        sampler=dataclasses.replace(preset.sampler, **{**fields, **(sampler or {})}),
        speed=dataclasses.replace(preset.speed, **dict(speed or {})),
    )


def _fold_adapters(bundle: ModelBundle) -> None:
    """Merge adapters into the weights: no cost per step, and the result can be quantised and compiled."""
    names = adapter_names(bundle.transformer)
    if not names:
        return
    activate(bundle.transformer, dict.fromkeys(names, 1.0))
    merge(bundle.transformer, list(names))
    for name in names:
        remove(bundle.transformer, name)


def _missing(preset: Preset, folder: Path) -> FileFormatError:
    command = (
        _fetch(preset, folder)
        or "train a model, or give --checkpoint DIR with a folder written by ModelBundle.save_pretrained"
    )
    state = "does not exist" if not folder.exists() else "holds neither preset.yaml nor transformer/"
    return FileFormatError(
        f"no weights for preset '{preset.name}': {folder} {state}",
        expected="a model folder, or transformer/, vae/ and image_encoder/ in it, in its base/ or in its "
        "pretrained/Wan2.1-I2V-14B-480P-Diffusers/",
        hint=command,
        code=ErrorCode.FILE_MISSING,
    )


def _no_adapter(preset: Preset, folder: Path, wanted: Path, others: Mapping[str, str]) -> FileFormatError:
    """Make the error for a base without the preset's adapter: the base alone ignores the robot."""
    variant = preset.robot.variant
    found = " and ".join(f"the '{v}' adapter ({name}/)" for v, name in others.items())
    if others:
        hint = f"choose a preset of the variant '{next(iter(others))}'"
    elif (folder.parent / wanted.name).is_dir():
        hint = f"give --checkpoint {folder.parent}"
    else:
        hint = "--allow-base (parameter allow_base) runs the base model alone"
    command = _fetch(preset, folder)
    return FileFormatError(
        f"{folder} holds the base model and {found or 'no adapter'}; preset '{preset.name}' is for '{variant}'",
        expected=f"{LORA_FILE} and {ADDED_FILE} in {wanted}",
        hint=f"{command}, or {hint}" if command else hint,
        code=ErrorCode.FILE_MISSING,
    )


def _fetch(preset: Preset, folder: Path) -> str:
    """Return the command that fills a folder; "" if the preset names no source."""
    fetched = any(source.repo for source in preset.weights)
    return f"kinema4d fetch-weights --preset {preset.name} --out {folder}" if fetched else ""


# Hash of the weights of a preset, as in a rollout's provenance, without loading them.


def weights_sha256(preset: str, checkpoint: str | Path = "") -> str:
    """Return the sha256 of a preset's weights.

    Raises:
        FileFormatError: the weights are missing (FILE_MISSING) or do not match the preset.
    """
    return check_bundle(preset, checkpoint).sha256
