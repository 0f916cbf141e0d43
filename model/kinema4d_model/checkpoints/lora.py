"""LoRA adapters on the network: load, activate, merge, unmerge, remove; uses peft's layers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from kinema4d_model.checkpoints.tensor_files import (
    Shape,
    differences,
    file_metadata,
    name_some,
    raise_if,
    read_tensors,
    tensor_shapes,
)
from kinema4d_model.network import KinemaTransformer
from kinema4d_ros.core.errors import FileFormatError, GeneratorError

__all__ = [
    "activate",
    "adapter_metadata",
    "adapter_names",
    "adapter_tensors",
    "add_lora",
    "load_lora",
    "lora_shapes",
    "merge",
    "remove",
    "stated_alpha",
    "unmerge",
]

PREFIX = "transformer."
ATTENTION = ("attn1", "attn2")
TARGETS = ("to_q", "to_k", "to_v", "to_out.0")
METADATA = "lora_adapter_metadata"
"""Key of an adapter's configuration in a file's header, as diffusers writes it."""
USED = (".lora_A.weight", ".lora_B.weight", ".lora_down.weight", ".lora_up.weight", ".alpha")
"""Tensors of a LoRA file that are used; diffusers silently drops some of the others."""


def _linears(transformer: KinemaTransformer) -> dict[str, nn.Linear]:
    """Return every linear layer by its name in the network without adapters."""
    found = {}
    for name, module in transformer.named_modules():
        base = module.get_base_layer() if hasattr(module, "get_base_layer") else module
        if isinstance(base, nn.Linear) and ".lora_" not in name and not name.endswith(".base_layer"):
            found[name] = base
    return found


def lora_shapes(transformer: KinemaTransformer, rank: int) -> dict[str, Shape]:
    """Return names and shapes of an official adapter: q, k, v, out of both attentions of every block."""
    linears = _linears(transformer)
    shapes: dict[str, Shape] = {}
    for block in range(transformer.config.num_layers):
        for name in (f"blocks.{block}.{attention}.{target}" for attention in ATTENTION for target in TARGETS):
            layer = linears[name]
            shapes[f"{PREFIX}{name}.lora_A.weight"] = (rank, layer.in_features)
            shapes[f"{PREFIX}{name}.lora_B.weight"] = (layer.out_features, rank)
    return shapes


def add_lora(
    transformer: KinemaTransformer, tensors: Mapping[str, torch.Tensor], name: str, *, rank: int, alpha: float
) -> None:
    """Add an adapter whose tensors were checked before; it becomes the only active one."""
    if name in adapter_names(transformer):
        raise GeneratorError(f"adapter '{name}' is already loaded", hint="choose another name, or remove it first")
    was_trainable = {n: p.requires_grad for n, p in transformer.named_parameters()}
    targets = sorted({key.removeprefix(PREFIX).rsplit(".lora_", 1)[0] for key in tensors})
    config = {"r": rank, "lora_alpha": alpha, "target_modules": targets, "inference_mode": True}
    transformer.load_lora_adapter(
        {key.removeprefix(PREFIX): tensor for key, tensor in tensors.items()},
        prefix=None,
        adapter_name=name,
        metadata=config,
    )
    # peft freezes everything except adapters; restore the caller's choice of trained parameters.
    for n, parameter in transformer.named_parameters():
        parameter.requires_grad_(was_trainable.get(n.replace(".base_layer.", "."), False))
    activate(transformer, {name: 1.0})


def load_lora(transformer: KinemaTransformer, path: Path, name: str, *, alpha: float | None = None) -> None:
    """Add any LoRA for Wan 2.1, for example a distilled one: any linear layers, one rank.

    Args:
        transformer: network that receives the adapter.
        path: safetensors in diffusers', the original Wan's or musubi's naming.
        name: of the adapter.
        alpha: overrides the file's; None uses the file's alphas, or the rank (scale 1) if it has none.
    """
    from diffusers.loaders import WanLoraLoaderMixin

    unused = [key for key in tensor_shapes(path) if not key.endswith(USED)]
    raise_if([f"{len(unused)} not used: {name_some(unused)}"] if unused else [], path, expected="only LoRA matrices")
    alpha = stated_alpha(path) if alpha is None else alpha
    # diffusers translates the names of other tools and applies their alphas to the weights.
    try:
        converted = WanLoraLoaderMixin.lora_state_dict(dict(read_tensors(path)))
    except (ValueError, KeyError, IndexError) as error:
        raise FileFormatError(f"{path} is not a LoRA for Wan 2.1: {str(error)[:300]}") from None
    tensors = {key.removeprefix(PREFIX): tensor for key, tensor in converted.items()}
    linears = _linears(transformer)
    names = {key.rsplit(".lora_", 1)[0] for key in tensors if ".lora_A." in key or ".lora_B." in key}
    ranks = {tensor.shape[0] for key, tensor in tensors.items() if key.endswith(".lora_A.weight")}
    if len(ranks) != 1:
        raise FileFormatError(
            f"{path} has adapters of ranks {sorted(ranks)}", expected="one rank for all layers of a LoRA file"
        )
    (rank,) = ranks
    known = [n for n in sorted(names) if n in linears]
    expected = {f"{n}.lora_A.weight": (rank, linears[n].in_features) for n in known} | {
        f"{n}.lora_B.weight": (linears[n].out_features, rank) for n in known
    }
    raise_if(differences(expected, {key: tuple(tensor.shape) for key, tensor in tensors.items()}), path)
    add_lora(transformer, tensors, name, rank=rank, alpha=rank if alpha is None else alpha)


def adapter_names(transformer: KinemaTransformer) -> tuple[str, ...]:
    """Return the loaded adapters, active or not."""
    return tuple(getattr(transformer, "peft_config", {}))


def adapter_tensors(transformer: KinemaTransformer, name: str) -> dict[str, torch.Tensor]:
    """Return an adapter's tensors under their official names."""
    from peft.utils import get_peft_model_state_dict

    _known(transformer, [name])
    state = get_peft_model_state_dict(transformer, adapter_name=name)
    return {f"{PREFIX}{key}": tensor for key, tensor in state.items()}


def adapter_metadata(transformer: KinemaTransformer, name: str) -> dict[str, str]:
    """Return an adapter's rank, alpha and layers as header of its file, in diffusers' format."""
    _known(transformer, [name])
    config = transformer.peft_config[name].to_dict()
    plain = {f"{PREFIX}{key}": sorted(value) if isinstance(value, set) else value for key, value in config.items()}
    return {"format": "pt", METADATA: json.dumps(plain, sort_keys=True)}


def stated_alpha(path: Path) -> float | None:
    """Read the alpha from a LoRA file's header; None if it states none."""
    text = file_metadata(path).get(METADATA)
    if text is None:
        return None
    try:
        document: dict[str, Any] = json.loads(text)
        if document.get(f"{PREFIX}alpha_pattern"):
            raise ValueError("it has an alpha for single layers")
        alpha = document.get(f"{PREFIX}lora_alpha")
        return None if alpha is None else float(alpha)
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise FileFormatError(
            f"the header of {path} states no usable alpha: {error}", expected="one alpha for all layers"
        ) from None


def activate(transformer: KinemaTransformer, weights: Mapping[str, float]) -> None:
    """Use exactly these adapters with these weights; an empty mapping disables all."""
    _known(transformer, list(weights))
    if not weights:
        if adapter_names(transformer):
            transformer.disable_lora()
        return
    transformer.enable_lora()
    transformer.set_adapters(list(weights), list(weights.values()))


def merge(transformer: KinemaTransformer, names: list[str] | None = None) -> None:
    """Merge active (or the named) adapters into the weights: no extra cost at run time; `unmerge` undoes it."""
    _known(transformer, names or [])
    transformer.fuse_lora(safe_fusing=True, adapter_names=names)


def unmerge(transformer: KinemaTransformer) -> None:
    """Remove merged adapters from the weights (exact up to rounding: merge in float32 if that matters)."""
    transformer.unfuse_lora()


def remove(transformer: KinemaTransformer, name: str) -> None:
    """Remove an adapter; removing the last one restores the plain network. Merged weights stay merged."""
    _known(transformer, [name])
    if len(adapter_names(transformer)) == 1:
        transformer.unload_lora()
    else:
        transformer.delete_adapters(name)


def _known(transformer: KinemaTransformer, names: list[str]) -> None:
    loaded = adapter_names(transformer)
    unknown = [name for name in names if name not in loaded]
    if unknown:
        raise GeneratorError(
            f"adapter '{unknown[0]}' is not loaded", expected=f"one of {', '.join(loaded) or '(none is loaded)'}"
        )
