"""Patch embedding that tells the halves apart: one learned vector for pictures, one for pointmaps."""

from __future__ import annotations

import torch
from torch import nn

__all__ = ["DomainPatchEmbedding"]


class DomainPatchEmbedding(nn.Conv3d):
    """Wan's patch embedding, under Wan's own names, plus `domain` (2, width): row 0 left (RGB), row 1 right (XYZ)."""

    def __init__(self, in_channels: int, width: int, patch: tuple[int, int, int]) -> None:
        super().__init__(in_channels, width, kernel_size=patch, stride=patch)
        self.domain = nn.Parameter(torch.zeros(2, width))

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """(B, C, F, h, 2w) to (B, width, F, h/p, 2w/p)."""
        halves = super().forward(input).unflatten(-1, (2, -1))
        domain = self.domain.to(halves.dtype).T[None, :, None, None, :, None]
        return (halves + domain).flatten(-2)
