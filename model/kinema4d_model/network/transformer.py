"""`KinemaTransformer`: diffusers' Wan transformer on [RGB | XYZ] latents with robot tokens instead of text.

noisy (B,16,F,h,2w) ─┐
mask  (B, 4,F,h,2w) ─┼─ cat: 36 channels ─> patches + domain ─> Wan's blocks ─> velocity (B,16,F,h,2w)
condition + robot   ─┘                                            ^
image tokens, robot tokens (B,N,width) ───────────────────────────┘ cross attention
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from diffusers import WanTransformer3DModel
from diffusers.configuration_utils import register_to_config
from torch import nn
from torch.nn import functional

from kinema4d_model.conditioning.conditions import Conditions
from kinema4d_model.network.layers import (
    ContextAttentionProcessor,
    DomainPatchEmbedding,
    SharedRotaryEmbedding,
    TimeContextEmbedding,
)
from kinema4d_model.preset import Preset
from kinema4d_ros.core.errors import ErrorCode, GeneratorError

__all__ = ["ActionTokens", "KinemaTransformer", "Prepared", "RobotInjection", "RobotTokens"]

# Context tokens in place of Wan's text: from the robot's latents or its actions; injection into the condition.

MASK_CHANNELS = 4


class RobotTokens(nn.Module):
    """Robot latents and mask as context tokens; the last projection starts at zero.

    Latent pixels are grouped `patch` x `patch` per frame. If the latent grid is not a multiple of the patch, it is
    padded with zeros (no robot) at the right and bottom. The position embedding has the size `grid` and is interpolated
    to others.

    Args:
        hidden: channels before the projection.
        width: channels of the transformer.
        patch: rows and columns of a group.
        grid: (F, rows, columns) of groups of one half in the position embedding.
        both_halves: True for RGB and XYZ (with a domain embedding for each), False for XYZ alone.
    """

    def __init__(
        self, latent_channels: int, hidden: int, width: int, patch: int, grid: tuple[int, int, int], both_halves: bool
    ) -> None:
        super().__init__()
        size = (1, patch, patch)
        self.patch = nn.Conv3d(MASK_CHANNELS + latent_channels, hidden, kernel_size=size, stride=size)
        self.norm = nn.LayerNorm(hidden)
        self.activation = nn.GELU()
        self.position = nn.Parameter(torch.zeros(1, hidden, *grid))
        self.domain = nn.Parameter(torch.zeros(2, hidden)) if both_halves else None
        self.project = nn.Linear(hidden, width)
        self.reset_added()

    def reset_added(self) -> None:
        """Initialise: the projection outputs zeros, so that a base model is not disturbed."""
        nn.init.xavier_uniform_(self.patch.weight)
        nn.init.trunc_normal_(self.position, std=0.02)
        if self.domain is not None:
            nn.init.trunc_normal_(self.domain, std=0.02)
        for parameter in (self.patch.bias, self.project.weight, self.project.bias):
            if parameter is not None:
                nn.init.zeros_(parameter)

    def forward(self, mask: torch.Tensor, latents: torch.Tensor) -> torch.Tensor:
        """Make the robot's tokens.

        Args:
            mask: (B, F, h, w), 1 = robot, 0 = none, between = soft.
            latents: (B, 16, F, h, 2w), the RGB half left and the XYZ half right.

        Returns:
            (B, N, width); N = F * rows * columns, twice that with both halves.
        """
        halves = latents.chunk(2, dim=-1) if self.domain is not None else latents.chunk(2, dim=-1)[1:]
        channels = mask[:, None].expand(-1, MASK_CHANNELS, -1, -1, -1).to(latents.dtype)
        tokens = [self._half(channels, half, index) for index, half in enumerate(halves)]
        return self.project(torch.cat(tokens, dim=1))

    def _half(self, mask: torch.Tensor, latents: torch.Tensor, index: int) -> torch.Tensor:
        step = self.patch.kernel_size[1]
        padding = (0, -latents.shape[-1] % step, 0, -latents.shape[-2] % step)
        groups = self.patch(functional.pad(torch.cat([mask, latents], dim=1), padding))
        groups = self.activation(self.norm(groups.movedim(1, -1)))
        position: torch.Tensor = self.position
        if position.shape[2:] != groups.shape[1:4]:
            position = functional.interpolate(position.float(), size=groups.shape[1:4], mode="trilinear")
        groups = groups + position.to(groups.dtype).movedim(1, -1)
        if self.domain is not None:
            groups = groups + self.domain[index].to(groups.dtype)
        return groups.flatten(1, 3)


class ActionTokens(nn.Module):
    """One token per frame from an action vector (B, T, A): the paper's "embedding" ablation."""

    def __init__(self, action_dim: int, hidden: int, width: int, frames: int) -> None:
        super().__init__()
        self.embed = nn.Linear(action_dim, hidden)
        self.norm = nn.LayerNorm(hidden)
        self.activation = nn.GELU()
        self.position = nn.Parameter(torch.zeros(1, hidden, frames))
        self.project = nn.Linear(hidden, width)
        self.reset_added()

    def reset_added(self) -> None:
        """Initialise: the projection outputs zeros."""
        nn.init.trunc_normal_(self.position, std=0.02)
        nn.init.zeros_(self.project.weight)
        nn.init.zeros_(self.project.bias)

    def forward(self, actions: torch.Tensor) -> torch.Tensor:
        """Map (B, T, A) to (B, T, width)."""
        hidden = self.activation(self.norm(self.embed(actions.to(self.embed.weight.dtype))))
        position = functional.interpolate(self.position.float(), size=actions.shape[1], mode="linear")
        return self.project(hidden + position.to(hidden.dtype).movedim(1, -1))


class RobotInjection(nn.Module):
    """Zero-initialised 1x1 projection that adds robot latents to the condition, per pixel.

    With both halves, the first latent frame is not changed: it holds the first image. With XYZ alone, the left half is
    not changed and every frame of the right half gets the robot. The two official checkpoints were trained this way.
    """

    def __init__(self, latent_channels: int, both_halves: bool) -> None:
        super().__init__()
        self.project = nn.Linear(latent_channels, latent_channels)
        self.both_halves = both_halves
        self.reset_added()

    def reset_added(self) -> None:
        """Initialise: nothing is added."""
        nn.init.zeros_(self.project.weight)
        nn.init.zeros_(self.project.bias)

    def forward(self, latents: torch.Tensor) -> torch.Tensor:
        """Project (B, 16, F, h, 2w) to the tensor that is added to the condition, same shape."""
        added = self.project(latents.movedim(1, -1)).movedim(-1, 1)
        where = torch.ones(latents.shape[2:], dtype=added.dtype, device=added.device)
        if self.both_halves:
            where[0] = 0
        else:
            where[..., : latents.shape[-1] // 2] = 0
        return added * where


ADDED = ("patch_embedding.domain", "robot_tokens.", "robot_injection.", "action_tokens.")
"""Prefixes of the parameters that Wan does not have."""


@dataclass(frozen=True)
class Prepared:
    """Inputs shared by every step of a rollout: independent of noise and time."""

    mask: torch.Tensor
    """(B, 4, F, h, 2w)."""
    condition: torch.Tensor
    """(B, 16, F, h, 2w), without the robot."""
    injection: torch.Tensor
    """(B, 16, F, h, 2w), the robot's addition to the condition."""
    context: torch.Tensor
    """(B, image + robot tokens, width)."""
    carried: torch.Tensor | None = None
    """(B, 16, F, h, 2w), the carry hypothesis minus the composite."""
    description: torch.Tensor | None = None
    """(B, 20, F, h, 2w), the same numbers everywhere."""

    def to(self, device: torch.device | str) -> Prepared:
        """Move to another device."""
        moved: dict[str, Any] = {name: None if v is None else v.to(device) for name, v in vars(self).items()}
        return Prepared(**moved)


class KinemaTransformer(WanTransformer3DModel):
    """Wan 2.1 with two halves and a robot. Parameters of Wan keep their names.

    `robot_variant` "act" takes the robot's RGB and XYZ latents, "pm" its XYZ latents only.
    """

    @register_to_config
    def __init__(
        self,
        patch_size: tuple[int, int, int] = (1, 2, 2),
        num_attention_heads: int = 40,
        attention_head_dim: int = 128,
        in_channels: int = 36,
        out_channels: int = 16,
        text_dim: int = 4096,
        freq_dim: int = 256,
        ffn_dim: int = 13824,
        num_layers: int = 40,
        cross_attn_norm: bool = True,
        qk_norm: str | None = "rms_norm_across_heads",
        eps: float = 1e-6,
        image_dim: int | None = None,
        added_kv_proj_dim: int | None = None,
        rope_max_seq_len: int = 1024,
        pos_embed_seq_len: int | None = None,
        robot_variant: str = "act",
        robot_hidden: int = 128,
        robot_token_patch: int = 15,
        robot_position_grid: tuple[int, int, int] = (13, 4, 6),
        action_dim: int | None = None,
        image_tokens: int = 257,
        carry: bool = False,
    ) -> None:
        super().__init__(
            patch_size, num_attention_heads, attention_head_dim, in_channels, out_channels, text_dim, freq_dim,
            ffn_dim, num_layers, cross_attn_norm, qk_norm, eps, image_dim, added_kv_proj_dim, rope_max_seq_len,
            pos_embed_seq_len,
        )  # fmt: skip
        width = num_attention_heads * attention_head_dim
        both = robot_variant == "act"
        self.rope = SharedRotaryEmbedding(attention_head_dim, patch_size, rope_max_seq_len)
        self.patch_embedding = DomainPatchEmbedding(in_channels, width, patch_size)
        self.condition_embedder = TimeContextEmbedding(
            width, freq_dim, 6 * width, text_dim, image_dim, pos_embed_seq_len
        )
        self.robot_tokens = RobotTokens(out_channels, robot_hidden, width, robot_token_patch, robot_position_grid, both)
        self.robot_injection = RobotInjection(out_channels, both)
        if carry:
            # One more number per cell: the share of the carry hypothesis there.
            self.proj_out = nn.Linear(width, (out_channels + 1) * math.prod(patch_size))
        self.action_tokens = (
            None if action_dim is None else ActionTokens(action_dim, robot_hidden, width, robot_position_grid[0])
        )
        if image_dim is not None:
            for block in self.blocks:
                block.attn2.set_processor(ContextAttentionProcessor(image_tokens))

    @classmethod
    def from_preset(cls, preset: Preset) -> KinemaTransformer:
        """Make a network of the preset's sizes, with random weights of the default generator."""
        t, r = preset.transformer, preset.robot
        return cls(
            patch_size=t.patch,
            num_attention_heads=t.heads,
            attention_head_dim=t.head_dim,
            in_channels=t.in_channels,
            out_channels=t.out_channels,
            text_dim=t.text_dim,
            freq_dim=t.freq_dim,
            ffn_dim=t.ffn_dim,
            num_layers=t.layers,
            image_dim=t.image_dim,
            added_kv_proj_dim=None if t.image_dim is None else t.width,
            rope_max_seq_len=t.rope_max_seq_len,
            robot_variant=r.variant,
            robot_hidden=r.hidden,
            robot_token_patch=r.token_patch,
            robot_position_grid=r.position_grid,
            action_dim=r.action_dim,
            image_tokens=t.image_tokens,
            carry=preset.condition.carry,
        )

    @staticmethod
    def is_added(name: str) -> bool:
        """Tell whether a parameter is not part of plain Wan."""
        return name.startswith(ADDED)

    def prepare(self, conditions: Conditions) -> Prepared:
        """Compute the inputs that are the same in every step; call it once per rollout."""
        self._check(conditions)
        dtype = self.patch_embedding.weight.dtype
        conditions = conditions.to(dtype=dtype)
        if conditions.text_tokens is not None:
            tokens = self.condition_embedder.text_embedder(conditions.text_tokens)
        elif conditions.actions is not None and self.action_tokens is not None:
            tokens = self.action_tokens(conditions.actions)
        else:
            tokens = self.robot_tokens(conditions.robot_mask, conditions.robot_latents)
        if conditions.image_tokens is not None:
            image = self.condition_embedder.image_embedder(conditions.image_tokens)
            tokens = torch.cat([image.to(tokens.dtype), tokens], dim=1)
        description = conditions.description
        if description is not None:
            shape = (-1, -1, *conditions.condition.shape[2:])
            description = description[:, :, None, None, None].expand(*shape).to(dtype)
        return Prepared(
            mask=conditions.mask,
            condition=conditions.condition,
            injection=self.robot_injection(conditions.robot_latents),
            context=tokens,
            carried=conditions.carried,
            description=description,
        )

    def forward(
        self, noisy: torch.Tensor, timestep: torch.Tensor, prepared: Prepared, *, injection_scale: float = 1.0
    ) -> torch.Tensor:
        """Predict one step.

        Args:
            noisy: (B, 16, F, h, 2w), latents of [RGB | XYZ] with noise.
            timestep: (B,), 0 = clean, 1000 = noise.
            prepared: of the same batch, from `prepare`.
            injection_scale: 2 reproduces the official second pass, which adds the robot twice.

        Returns:
            (B, 16, F, h, 2w), noise - clean, or as the preset's `prediction` defines.
        """
        condition = prepared.condition + injection_scale * prepared.injection
        parts = [noisy.to(condition.dtype), prepared.mask, condition]
        if prepared.carried is None or prepared.description is None:
            return super().forward(torch.cat(parts, dim=1), timestep, prepared.context, return_dict=False)[0]
        stacked = torch.cat([*parts, prepared.carried, prepared.description], dim=1)
        out = super().forward(stacked, timestep, prepared.context, return_dict=False)[0]
        return out[:, :-1] + torch.sigmoid(out[:, -1:]) * prepared.carried

    def _check(self, conditions: Conditions) -> None:
        _, p_h, p_w = self.config.patch_size
        height, width = conditions.condition.shape[-2:]
        needs_image = self.config.image_dim is not None
        image = conditions.image_tokens
        problem = ""
        if height % p_h or width % (2 * p_w):
            problem = f"latents of {height} x {width} do not divide into two halves of {p_h} x {p_w} patches"
        elif needs_image != (image is not None):
            problem = f"image tokens are {'missing' if needs_image else 'given, but this network takes none'}"
        elif image is not None and image.shape[1:] != (self.config.image_tokens, self.config.image_dim):
            problem = (
                f"image tokens are {tuple(image.shape[1:])}, not {self.config.image_tokens, self.config.image_dim}"
            )
        elif self.config.carry != (conditions.carried is not None and conditions.description is not None):
            problem = "the carry hypothesis is " + ("missing" if self.config.carry else "given, but not used")
        elif conditions.actions is not None and self.action_tokens is None:
            problem = "actions are given, but this network has no action_dim"
        if problem:
            raise GeneratorError(
                problem, expected="conditions made for this preset", code=ErrorCode.GENERATOR_BAD_REQUEST
            )
