"""Layers that replace Wan's: context attention, domain patch embedding, time embedding, shared rotary embedding."""

from __future__ import annotations

import torch
from diffusers.models.attention_dispatch import dispatch_attention_fn
from diffusers.models.transformers.transformer_wan import (
    WanAttention,
    WanAttnProcessor,
    WanRotaryPosEmbed,
    WanTimeTextImageEmbedding,
)
from torch import nn

__all__ = ["ContextAttentionProcessor", "DomainPatchEmbedding", "SharedRotaryEmbedding", "TimeContextEmbedding"]


class ContextAttentionProcessor(WanAttnProcessor):
    """Cross attention to image tokens and any number of robot tokens, where Wan's assumes 512 text tokens.

    Splits the context after the first `image_tokens` tokens instead of before the last 512. Queries attend to the two
    parts separately and the results are summed, as in Wan 2.1 I2V.
    """

    def __init__(self, image_tokens: int) -> None:
        super().__init__()
        self.image_tokens = image_tokens

    def __call__(
        self,
        attn: WanAttention,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        rotary_emb: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> torch.Tensor:
        """Attend from (B, N, width) to the context (B, image_tokens + M, width)."""
        if encoder_hidden_states is None or attn.add_k_proj is None:
            return super().__call__(attn, hidden_states, encoder_hidden_states, attention_mask, rotary_emb)
        image = encoder_hidden_states[:, : self.image_tokens]
        robot = encoder_hidden_states[:, self.image_tokens :]
        if attn.fused_projections:
            robot_key, robot_value = attn.to_kv(robot).chunk(2, dim=-1)
            image_key, image_value = attn.to_added_kv(image).chunk(2, dim=-1)
        else:
            robot_key, robot_value = attn.to_k(robot), attn.to_v(robot)
            image_key, image_value = attn.add_k_proj(image), attn.add_v_proj(image)
        query = attn.norm_q(attn.to_q(hidden_states))
        parts = (
            (attn.norm_k(robot_key), robot_value, attention_mask),
            (attn.norm_added_k(image_key), image_value, None),
        )
        attended = [self._attend(attn.heads, query, key, value, mask) for key, value, mask in parts]
        for layer in attn.to_out:
            attended = [layer(sum(attended))]
        return attended[0]

    def _attend(
        self, heads: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        split = [x.unflatten(-1, (heads, -1)) for x in (query, key, value)]
        # Every device has all context tokens, so a context-parallel run must not split them.
        output = dispatch_attention_fn(*split, attn_mask=mask, backend=self._attention_backend, parallel_config=None)
        return output.flatten(-2).type_as(query)


# Patch embedding with one learned vector for images and one for pointmaps.


class DomainPatchEmbedding(nn.Conv3d):
    """Wan's patch embedding, under Wan's own names, plus `domain` (2, width): row 0 left (RGB), row 1 right (XYZ)."""

    def __init__(self, in_channels: int, width: int, patch: tuple[int, int, int]) -> None:
        super().__init__(in_channels, width, kernel_size=patch, stride=patch)
        self.domain = nn.Parameter(torch.zeros(2, width))

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Embed (B, C, F, h, 2w) to (B, width, F, h/p, 2w/p)."""
        halves = super().forward(input).unflatten(-1, (2, -1))
        domain = self.domain.to(halves.dtype).T[None, :, None, None, :, None]
        return (halves + domain).flatten(-2)


# Time embedding; the context is embedded once per rollout because it does not change between steps.


class TimeContextEmbedding(WanTimeTextImageEmbedding):
    """Wan's condition embedder, same parameters; text and image tokens are already embedded."""

    def forward(
        self,
        timestep: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        encoder_hidden_states_image: torch.Tensor | None = None,
        timestep_seq_len: int | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Return the embedding of (B,) timesteps, its projection, and the unchanged context."""
        steps = self.timesteps_proj(timestep)
        if timestep_seq_len is not None:
            steps = steps.unflatten(0, (-1, timestep_seq_len))
        dtype = self.time_embedder.linear_1.bias.dtype
        embedded = self.time_embedder(steps.to(dtype)).type_as(encoder_hidden_states)
        return embedded, self.time_proj(self.act_fn(embedded)), encoder_hidden_states, encoder_hidden_states_image


# One rotary position for both halves: a pixel and its point share a position.


class SharedRotaryEmbedding(WanRotaryPosEmbed):
    """Wan's rotary embedding of the half width, used for the left and the right half.

    Input (B, C, F, h, 2w); output cos and sin, each (1, F*h*2*w / patch, 1, head_dim), in the order
    frame, row, half, column of Wan's own patches.
    """

    def forward(self, hidden_states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cos and sin for every token of the two halves."""
        half = hidden_states[..., : hidden_states.shape[-1] // 2]
        columns = half.shape[-1] // self.patch_size[2]
        cos, sin = super().forward(half)
        return _twice(cos, columns), _twice(sin, columns)


def _twice(frequencies: torch.Tensor, columns: int) -> torch.Tensor:
    rows = frequencies.unflatten(1, (-1, 1, columns))
    return rows.expand(-1, -1, 2, -1, -1, -1).flatten(1, 3)
