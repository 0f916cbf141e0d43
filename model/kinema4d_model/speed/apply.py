"""Applies a preset's speed options to loaded modules, in the order that works."""

from __future__ import annotations

from typing import Any

import torch

from kinema4d_model.preset_parts import SpeedSpec
from kinema4d_model.speed.attention import set_attention
from kinema4d_model.speed.parallel import enable_context_parallel
from kinema4d_model.speed.place import Residence
from kinema4d_model.speed.quantise import quantise_blocks
from kinema4d_ros.core.errors import ErrorCode, GeneratorError, SetupError

__all__ = ["apply_speed", "cast", "choose_device", "torch_dtype"]

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def torch_dtype(name: str) -> torch.dtype:
    """The dtype of a spec's name."""
    return _DTYPES[name]


def choose_device(name: str) -> torch.device:
    """ "auto" is the first accelerator, else the CPU; a device that is not there is refused."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise GeneratorError(
            f"device '{name}'", expected="auto, cpu or cuda", code=ErrorCode.GENERATOR_BAD_REQUEST
        ) from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise SetupError(
            "device 'cuda' was asked for, and torch sees none",
            expected="a CUDA device and a torch built for it",
            hint="device: cpu, or `kinema4d doctor`",
        )
    return device


def apply_speed(
    transformer: Any, vae: Any, encoder: Any | None, spec: SpeedSpec, device: torch.device
) -> tuple[Residence, tuple[str, ...]]:
    """Change the modules in place; where they live now, and what was done, for logs and provenance.

    Args:
        transformer: the network (a diffusers model).
        vae: `AutoencoderKLWan`.
        encoder: of the first image, or None.
        spec: the options.
        device: where computing happens.
    """
    notes = []
    dtype = torch_dtype(spec.dtype)
    if dtype is not torch.float32:
        for module in (transformer, vae, encoder):
            if module is not None:
                cast(module, dtype)
        notes.append(f"weights in {spec.dtype}")
    if spec.quantise != "none":
        notes.append(f"{quantise_blocks(transformer, spec.quantise)} matrices in {spec.quantise}")
    if spec.tiling:
        vae.enable_tiling()
        notes.append("codec in tiles")
    if spec.attention != "auto":
        set_attention(transformer, spec.attention)
        notes.append(f"attention by {spec.attention}")
    if spec.context_parallel > 1:
        enable_context_parallel(transformer, spec.context_parallel)
        notes.append(f"tokens over {spec.context_parallel} devices")
    if spec.compile:
        # Block by block: one compilation serves all layers, and the cache's hooks stay outside of it.
        transformer.compile_repeated_blocks(backend=spec.compile_backend)
        notes.append(f"blocks compiled by {spec.compile_backend}")
    if spec.cache_threshold is not None:
        notes.append(f"first-block cache, threshold {spec.cache_threshold:g}")
    others = [vae] if encoder is None else [vae, encoder]
    residence = Residence(transformer, others, spec.offload, device)
    if spec.offload != "none":
        notes.append(f"offload by {spec.offload}")
    return residence, tuple(notes)


def cast(module: Any, dtype: torch.dtype) -> None:
    """Weights in another precision, except what Wan keeps in float32: norms, modulation tables, time embedding."""
    keep = tuple(getattr(module, "_keep_in_fp32_modules", None) or ())
    for name, parameter in module.named_parameters():
        if parameter.is_floating_point() and not any(part in keep for part in name.split(".")):
            parameter.data = parameter.data.to(dtype)
