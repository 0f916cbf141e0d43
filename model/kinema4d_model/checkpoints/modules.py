"""Loading weights into modules: names, shapes and configurations are checked before the first tensor is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from kinema4d_model.checkpoints.tensor_files import (
    Shape,
    differences,
    find_shards,
    name_some,
    raise_if,
    read_tensors,
    tensor_shapes,
)
from kinema4d_ros.core.errors import FileFormatError
from kinema4d_ros.io.files import read_json

__all__ = ["check_config", "check_shift", "load_module"]


def load_module(
    module: nn.Module,
    folder: Path,
    stem: str,
    *,
    dtype: torch.dtype | None = None,
    rename: Callable[[str], str | None] = lambda name: name,
    without: Callable[[str], bool] = lambda name: False,
    read: bool = True,
) -> None:
    """Load weights into a module (on "meta" or not) from the safetensors files of a folder, shard by shard.

    Args:
        module: module to load; its tensors are replaced, not copied into.
        folder: contains `<stem>.safetensors`, or an index and its shards.
        stem: the file's name without its suffix.
        dtype: precision to convert floating-point weights to; None keeps the file's. Modules that the class keeps in
            float32 (`_keep_in_fp32_modules`) become float32 when this is lower.
        rename: maps the file's name to the module's; None skips a tensor that the module does not use.
        without: selects names of the module that the folder must not contain: their values come from elsewhere.
        read: False only compares names and shapes.
    """
    shards = find_shards(folder, stem)
    target: dict[str, str] = {}
    found: dict[str, Shape] = {}
    twice = []
    for path in shards:
        for name, shape in tensor_shapes(path).items():
            here = rename(name)
            if here is None:
                continue
            if here in found:
                twice.append(name)
            target[name], found[here] = here, shape
    expected = {name: tuple(t.shape) for name, t in module.state_dict().items() if not without(name)}
    problems = differences(expected, found)
    raise_if([*problems, f"{len(twice)} twice: {name_some(twice)}"] if twice else problems, folder)
    if not read:
        return
    keep = tuple(getattr(module, "_keep_in_fp32_modules", None) or ())
    for path in shards:
        loaded = {
            target[name]: _cast(tensor, target[name], dtype, keep)
            for name, tensor in read_tensors(path)
            if name in target
        }
        module.load_state_dict(loaded, strict=False, assign=True)


def _cast(tensor: torch.Tensor, name: str, dtype: torch.dtype | None, keep: tuple[str, ...]) -> torch.Tensor:
    """Copy a tensor: a view depends on its memory-mapped file, and its unaligned data changes the last digits."""
    if dtype is None or not tensor.is_floating_point():
        return tensor.clone()
    return tensor.to(torch.float32 if set(name.split(".")) & set(keep) else dtype, copy=True)


# Comparison of a part's configuration with the preset: shapes do not determine heads, statistics or shift.

CONFIG = "config.json"
SCHEDULER_CONFIG = "scheduler_config.json"
SHIFT_KEYS = ("flow_shift", "shift")
"""Names of the shift in UniPC's and Euler's configurations."""
ANOTHER_MODEL = "the weights belong to another model; choose the preset that they were made for"


def check_config(
    folder: Path, ours: Mapping[str, Any], name: str = CONFIG, hint: str = ANOTHER_MODEL
) -> dict[str, Any]:
    """Read a folder's configuration; raise if it gives another value to a key of `ours`.

    Returns an empty mapping if the file does not exist.
    """
    path = folder / name
    if not path.is_file():
        return {}
    document = read_json(path)
    try:
        theirs = {str(key): value for key, value in document.items() if not str(key).startswith("_")}
    except AttributeError as error:
        raise FileFormatError(f"{path} is not a configuration: {error!r}") from None
    differ = [
        f"{key} is {theirs[key]!r}, the preset's is {_plain(value)!r}"
        for key, value in ours.items()
        if key in theirs and _plain(theirs[key]) != _plain(value)
    ]
    raise_if(differ, path, hint=hint, expected="the values of the preset")
    return theirs


def check_shift(base: Path, shift: float) -> float | None:
    """Return the flow shift stated in a base's `scheduler/`; None if it states none.

    Args:
        base: contains transformer/ and, as released, scheduler/.
        shift: flow shift of the base's training according to the preset.
    """
    theirs = check_config(
        base / "scheduler",
        dict.fromkeys(SHIFT_KEYS, shift),
        SCHEDULER_CONFIG,
        hint="choose the preset of this base; to sample with another shift on purpose, give --shift, or state the "
        "base's own as sampler.trained_shift in the preset",
    )
    return next((float(theirs[key]) for key in SHIFT_KEYS if key in theirs), None)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
