"""Context tokens in place of Wan's text: from the robot's latents or its actions; injection into the condition."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

__all__ = ["ActionTokens", "RobotInjection", "RobotTokens"]

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
