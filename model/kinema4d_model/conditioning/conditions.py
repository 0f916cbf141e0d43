"""`Conditions`: everything a rollout is conditioned on, as latents, encoded once."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["Conditions"]


@dataclass(frozen=True)
class Conditions:
    """Latents of what is known. F, h, w are latent frames, rows and columns of one half; RGB left, XYZ right."""

    mask: torch.Tensor
    """(B, 4, F, h, 2w): frame 0 says what the first image gives, later frames where the robot is."""
    condition: torch.Tensor
    """(B, 16, F, h, 2w): the first image beside a ramp, then nothing; no robot in it."""
    robot_latents: torch.Tensor
    """(B, 16, F, h, 2w): the robot alone, RGB half and XYZ half; zeros where a half is not told."""
    robot_mask: torch.Tensor
    """(B, F, h, w) in [0, 1]: 1 = robot, 0 = none, 0.5 = softened."""
    image_tokens: torch.Tensor | None = None
    """(B, 257, 1280) of the image encoder, or None for networks without it."""
    base_latents: torch.Tensor | None = None
    """(B, 16, F, h, 2w) of the composite, for presets that predict a difference to it."""
    carried: torch.Tensor | None = None
    """(B, C, F, h, 2w): the carry hypothesis minus the composite, for presets with `condition.carry`."""
    description: torch.Tensor | None = None
    """(B, 20): how the thing and the closing fingers lie; comes with `carried`."""
    text_tokens: torch.Tensor | None = None
    """(B, L, text_dim): the "text" ablation only."""
    actions: torch.Tensor | None = None
    """(B, T, A): the "embedding" ablation only."""

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Conditions:
        """The same on another device or in another precision."""
        moved: dict[str, Any] = {
            f.name: None if value is None else value.to(device=device, dtype=dtype)
            for f in dataclasses.fields(self)
            for value in [getattr(self, f.name)]
        }
        return Conditions(**moved)
