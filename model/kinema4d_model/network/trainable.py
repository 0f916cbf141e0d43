"""Which parameters learn: all of them, or only what Wan does not have; never those that the condition leaves idle."""

from __future__ import annotations

from typing import Literal

from kinema4d_model.network.transformer import KinemaTransformer
from kinema4d_model.preset_parts import Ablation

__all__ = ["set_trainable"]


def set_trainable(
    transformer: KinemaTransformer,
    scope: Literal["all", "added"],
    ablation: Ablation = Ablation.RGB_POINTMAP,
) -> list[str]:
    """Set `requires_grad` everywhere and return the names of what learns.

    Args:
        transformer: the network, with or without adapters.
        scope: "all" for training from nothing, "added" for adapters and the parts that Wan does not have.
        ablation: parts that it does not feed get no gradient, so they do not learn.
    """
    idle = ["condition_embedder.text_embedder."] if ablation is not Ablation.TEXT else []
    if ablation is not Ablation.EMBEDDING:
        idle.append("action_tokens.")
    if ablation in (Ablation.TEXT, Ablation.EMBEDDING, Ablation.NULL):
        idle.append("robot_injection.")
    if ablation in (Ablation.TEXT, Ablation.EMBEDDING):
        idle.append("robot_tokens.")
    learning = []
    for name, parameter in transformer.named_parameters():
        wanted = scope == "all" or transformer.is_added(name) or ".lora_" in name
        parameter.requires_grad_(wanted and not name.startswith(tuple(idle)))
        if parameter.requires_grad:
            learning.append(name)
    return learning
