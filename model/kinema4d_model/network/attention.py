"""Cross attention to image tokens and any number of robot tokens, where Wan's own assumes 512 text tokens."""

from __future__ import annotations

import torch
from diffusers.models.attention_dispatch import dispatch_attention_fn
from diffusers.models.transformers.transformer_wan import WanAttention, WanAttnProcessor

__all__ = ["ContextAttentionProcessor"]


class ContextAttentionProcessor(WanAttnProcessor):
    """Splits the context after the first `image_tokens` tokens instead of before the last 512.

    Queries attend to the two parts separately and the results are summed, as in Wan 2.1 I2V.
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
        # Context tokens are whole on every device, so a context-parallel run must not split them.
        output = dispatch_attention_fn(*split, attn_mask=mask, backend=self._attention_backend, parallel_config=None)
        return output.flatten(-2).type_as(query)
