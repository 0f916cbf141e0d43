"""Applying a preset's speed options to loaded modules: offload, parallelism, quantisation, attention, precision."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from kinema4d_model.preset_parts import SpeedSpec
from kinema4d_ros.core.errors import ErrorCode, GeneratorError, SetupError

__all__ = [
    "OFFLOADS",
    "Residence",
    "apply_speed",
    "attention_backends",
    "cast",
    "choose_device",
    "enable_context_parallel",
    "quantise_blocks",
    "set_attention",
    "torch_dtype",
]

# Placement of the weights: on the device, on the host until a part is needed, or block by block.

OFFLOADS = ("none", "model", "group")
_GROUP = 2


class Residence:
    """Placement of modules: moves them to the device while they are in use.

    "none": everything stays on the device. "model": each part is there only while it runs. "group": the same for the
    codec and the image encoder; the transformer is copied two blocks at a time, the next ones while these compute
    (diffusers' group offloading). On the CPU all three give the same result and save nothing.
    """

    def __init__(self, transformer: Any, others: list[Any], offload: str, device: torch.device) -> None:
        """Place the modules."""
        if offload not in OFFLOADS:
            raise GeneratorError(
                f"unknown offload '{offload}'", expected=" or ".join(OFFLOADS), code=ErrorCode.GENERATOR_BAD_REQUEST
            )
        self.device = device
        self._visiting = [] if offload == "none" else list(others)
        if offload == "none":
            for module in (transformer, *others):
                module.to(device)
        elif offload == "model":
            self._visiting.append(transformer)
        else:
            from diffusers.hooks import apply_group_offloading

            apply_group_offloading(
                transformer,
                onload_device=device,
                offload_device=torch.device("cpu"),
                offload_type="block_level",
                num_blocks_per_group=_GROUP,
                use_stream=device.type == "cuda",
            )

    @contextmanager
    def using(self, *modules: Any) -> Iterator[None]:
        """Keep the modules on the device inside the context; move offloaded ones back to the host afterwards."""
        visitors = [m for m in modules if any(m is v for v in self._visiting)]
        for module in visitors:
            module.to(self.device)
        try:
            yield
        finally:
            for module in visitors:
                module.to("cpu")


# One rollout on several GPUs: the tokens are split, attention exchanges heads (Ulysses), by diffusers.
#
# Start one process per GPU with `torchrun`; every process runs the same code and gets the same result.


def enable_context_parallel(transformer: Any, degree: int) -> None:
    """Split the tokens over `degree` processes of a torchrun group."""
    import torch

    if not torch.cuda.is_available() or int(os.environ.get("WORLD_SIZE", "1")) != degree:
        raise SetupError(
            f"context_parallel {degree} needs {degree} processes with a GPU each; "
            f"found {os.environ.get('WORLD_SIZE', '1')} processes and {torch.cuda.device_count()} GPUs",
            expected=f"`torchrun --nproc-per-node {degree}` on a machine with {degree} GPUs",
            hint="set context_parallel: 1",
        )
    from diffusers import ContextParallelConfig

    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("nccl")
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    transformer.enable_parallelism(config=ContextParallelConfig(ulysses_degree=degree))


# Weights of the blocks in one byte each: torchao's weight-only int8 and fp8. Only the large matrices of the transformer
# blocks, 97 % of Wan 14B's bytes; embeddings, norms and output layer are sensitive and keep their precision.


def quantise_blocks(transformer: torch.nn.Module, kind: str) -> int:
    """Quantise the weights of all linear layers in `transformer.blocks` in place; return their number.

    Args:
        transformer: a network with a module list `blocks`; may be on the meta device.
        kind: "int8" (symmetric, a scale per row) or "fp8" (e4m3, a scale per tensor).
    """
    try:
        from torchao.quantization import Float8WeightOnlyConfig, Int8WeightOnlyConfig, quantize_
    except ImportError as error:
        raise SetupError(
            f"torchao cannot be imported: {error}", expected="torchao", hint="pip install torchao"
        ) from None
    configs: dict[str, Any] = {"int8": Int8WeightOnlyConfig, "fp8": Float8WeightOnlyConfig}
    if kind not in configs:
        raise GeneratorError(
            f"unknown quantisation '{kind}'", expected=" or ".join(configs), code=ErrorCode.GENERATOR_BAD_REQUEST
        )
    changed = [m for m in transformer.blocks.modules() if isinstance(m, torch.nn.Linear)]  # type: ignore[union-attr]
    quantize_(transformer.blocks, configs[kind]())
    return len(changed)


# Attention back-ends: diffusers' dispatcher.


def attention_backends() -> tuple[str, ...]:
    """Return the names that the dispatcher knows; not all run on every machine."""
    from diffusers.models.attention_dispatch import AttentionBackendName

    return tuple(sorted(member.value for member in AttentionBackendName))


def set_attention(transformer: Any, name: str) -> None:
    """Use back-end `name` in every attention layer; "auto" keeps torch's choice."""
    if name == "auto":
        return
    if name not in attention_backends():
        raise GeneratorError(
            f"unknown attention back-end '{name}'",
            expected=f"auto or one of {', '.join(attention_backends())}",
            code=ErrorCode.GENERATOR_BAD_REQUEST,
        )
    from diffusers.models.attention_dispatch import _AttentionBackendRegistry as Registry

    everyone, _ = Registry.get_active_backend()
    try:
        transformer.set_attention_backend(name)
    except (ImportError, RuntimeError, ValueError) as error:
        raise SetupError(
            f"attention back-end '{name}' cannot be used on this machine: {error}",
            expected="its package, and a device that it supports",
            hint="set attention: auto, which works everywhere",
        ) from error
    finally:
        # diffusers also changes the process-wide default; restore it, the transformer now has its own back-end.
        Registry.set_active_backend(everyone)


_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def torch_dtype(name: str) -> torch.dtype:
    """Return the torch dtype of a spec's name."""
    return _DTYPES[name]


def image_dtype(spec: SpeedSpec) -> torch.dtype:
    """Return the precision of the image encoder."""
    return torch_dtype(spec.dtype if spec.image_dtype == "same" else spec.image_dtype)


def choose_device(name: str) -> torch.device:
    """Select a device: "auto" is the first GPU, else the CPU; raise if the named device is not available."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise GeneratorError(
            f"unknown device '{name}'", expected="auto, cpu or cuda", code=ErrorCode.GENERATOR_BAD_REQUEST
        ) from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise SetupError(
            "device 'cuda' is not available to torch",
            expected="a CUDA device and a torch built for it",
            hint="set device: cpu, or run `kinema4d doctor`",
        )
    return device


def apply_speed(
    transformer: Any, vae: Any, encoder: Any | None, spec: SpeedSpec, device: torch.device
) -> tuple[Residence, tuple[str, ...]]:
    """Apply the options to the modules in place; return their placement and notes for logs and provenance.

    Args:
        transformer: the network (a diffusers model).
        vae: `AutoencoderKLWan`.
        encoder: of the first image, or None.
        spec: the options.
        device: device for the computation.
    """
    notes = []
    dtype = torch_dtype(spec.dtype)
    if dtype is not torch.float32:
        cast(transformer, dtype)
        cast(vae, dtype)
        notes.append(f"weights in {spec.dtype}")
    if encoder is not None:
        cast(encoder, image_dtype(spec))
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
        # Block by block: one compilation serves all layers, and the cache's hooks stay outside it.
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
    """Convert weights to another precision, except Wan's float32 parts: norms, modulation tables, time embedding."""
    keep = tuple(getattr(module, "_keep_in_fp32_modules", None) or ())
    for name, parameter in module.named_parameters():
        if parameter.is_floating_point() and not any(part in keep for part in name.split(".")):
            parameter.data = parameter.data.to(dtype)
