"""One rotary position for both halves: a pixel of the picture and its point share their place."""

from __future__ import annotations

import torch
from diffusers.models.transformers.transformer_wan import WanRotaryPosEmbed

__all__ = ["SharedRotaryEmbedding"]


class SharedRotaryEmbedding(WanRotaryPosEmbed):
    """Wan's rotary embedding of the half width, used for the left and the right half.

    Input (B, C, F, h, 2w); output cos and sin, each (1, F*h*2*w / patch, 1, head_dim), in the order
    frame, row, half, column of Wan's own patches.
    """

    def forward(self, hidden_states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cos and sin for every token of the two halves."""
        half = hidden_states[..., : hidden_states.shape[-1] // 2]
        columns = half.shape[-1] // self.patch_size[2]
        cos, sin = super().forward(half)
        return _twice(cos, columns), _twice(sin, columns)


def _twice(frequencies: torch.Tensor, columns: int) -> torch.Tensor:
    rows = frequencies.unflatten(1, (-1, 1, columns))
    return rows.expand(-1, -1, 2, -1, -1, -1).flatten(1, 3)
