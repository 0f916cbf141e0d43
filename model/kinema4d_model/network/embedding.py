"""Time embedding beside a context that was embedded before: it does not change from step to step."""

from __future__ import annotations

import torch
from diffusers.models.transformers.transformer_wan import WanTimeTextImageEmbedding

__all__ = ["TimeContextEmbedding"]


class TimeContextEmbedding(WanTimeTextImageEmbedding):
    """Wan's condition embedder, same parameters; text and image tokens come to it already embedded."""

    def forward(
        self,
        timestep: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        encoder_hidden_states_image: torch.Tensor | None = None,
        timestep_seq_len: int | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Embedding of (B,) timesteps, its projection, and the context as it came."""
        steps = self.timesteps_proj(timestep)
        if timestep_seq_len is not None:
            steps = steps.unflatten(0, (-1, timestep_seq_len))
        dtype = self.time_embedder.linear_1.bias.dtype
        embedded = self.time_embedder(steps.to(dtype)).type_as(encoder_hidden_states)
        return embedded, self.time_proj(self.act_fn(embedded)), encoder_hidden_states, encoder_hidden_states_image
