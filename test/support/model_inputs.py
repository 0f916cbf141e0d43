"""Random inputs of the learned generator, of any size, and non-zero weights."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from kinema4d_model.conditioning import Conditions
from kinema4d_model.preset import Preset


def with_variant(preset: Preset, variant: Any) -> Preset:
    return dataclasses.replace(preset, robot=dataclasses.replace(preset.robot, variant=variant))


def wake(module: torch.nn.Module, seed: int = 0) -> None:
    """Set every parameter to random values, so that zero initialisation hides no error."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(0.2 * torch.randn(parameter.shape, generator=generator))


def random_conditions(preset: Preset, batch: int = 1, seed: int = 0, **sizes: int) -> Conditions:
    """Return conditions of latent size F, h, w (default: the preset's)."""
    frames, height, width = (
        sizes.get(name, getattr(preset, f"latent_{long}"))
        for name, long in (("F", "frames"), ("h", "height"), ("w", "width"))
    )
    generator = torch.Generator().manual_seed(seed)

    def rand(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    image = preset.transformer.image_dim
    return Conditions(
        mask=rand(batch, 4, frames, height, 2 * width),
        condition=rand(batch, 16, frames, height, 2 * width),
        robot_latents=rand(batch, 16, frames, height, 2 * width),
        robot_mask=(rand(batch, frames, height, width) > 0).float(),
        image_tokens=None if image is None else rand(batch, preset.transformer.image_tokens, image),
    )
