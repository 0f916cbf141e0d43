"""Options of the verbs that run or count a model: preset, sampler and speed, named as in the preset files."""

from __future__ import annotations

import argparse
from typing import Any

__all__ = ["add_model_options", "sampler_options", "speed_options"]

SAMPLER = ("kind", "steps", "shift", "guidance", "guidance_scale")
SPEED = ("dtype", "quantise", "attention", "cache_threshold", "offload", "tiling", "compile", "context_parallel")


def add_model_options(
    parser: argparse.ArgumentParser, preset: str, allowed: str = "a preset's name or a YAML file"
) -> None:
    """Add --preset, whose help says what is allowed, and what overrides it."""
    add = parser.add_argument
    add("--preset", default=preset, metavar="SPEC", help=f"{allowed} (default: {preset})")
    group = parser.add_argument_group("instead of the preset's own")
    add = group.add_argument
    add("--kind", choices=("euler", "unipc"), help="solver")
    add("--steps", type=int, help="sampling steps")
    add("--shift", type=float, help="of the noise levels")
    add("--guidance", choices=("none", "compat"), help="none: one pass a step; compat: the official two")
    add("--guidance-scale", type=float, help="of compat")
    add("--dtype", choices=("float32", "bfloat16", "float16"), help="precision of the weights")
    add("--quantise", choices=("none", "int8", "fp8"), help="weights of the blocks in one byte")
    add("--attention", metavar="BACKEND", help="auto, or a back-end of diffusers' dispatcher")
    add(
        "--cache-threshold", type=float, metavar="T", help="first-block step cache; 0 never skips, 0.05 to 0.1 is usual"
    )
    add("--offload", choices=("none", "model", "group"), help="weights on the host while they are not needed")
    add("--tiling", action="store_true", default=None, help="codec in tiles")
    add("--compile", action="store_true", default=None, help="torch.compile, block by block")
    add("--context-parallel", type=int, metavar="N", help="GPUs for one rollout (with torchrun)")


def sampler_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The sampler's fields that were given."""
    return {name: getattr(arguments, name) for name in SAMPLER if getattr(arguments, name) is not None}


def speed_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The speed options that were given."""
    return {name: getattr(arguments, name) for name in SPEED if getattr(arguments, name) is not None}
