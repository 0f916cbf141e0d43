"""Guided mask on the latent grid, grouped as in the codec: frame 0 alone, then groups of 4 by maximum."""

from __future__ import annotations

from typing import Literal

import torch
from torch.nn import functional

from kinema4d_model.preset_parts import Ablation, ConditionSpec
from kinema4d_ros.core.errors import ErrorCode, GeneratorError

__all__ = ["downsample_mask", "mask_channels", "soft_robot_mask", "soften"]

WITHOUT_MASK = (Ablation.NO_MASK, Ablation.NULL, Ablation.TEXT, Ablation.EMBEDDING)

SOFT = 0.5
IMAGE_KNOWN = 1.0
RAMP_KNOWN = 0.5
"""Mask values in frame 0: the image is given, the pointmap is only a placeholder."""


def downsample_mask(mask: torch.Tensor, height: int, width: int, temporal_factor: int = 4) -> torch.Tensor:
    """Downsample a robot mask to the latent grid.

    Args:
        mask: (B, T, H, W), bool or float, 1 = robot; T = 1 + a multiple of `temporal_factor`.
        height: rows of the latent grid.
        width: columns of one half of it.
        temporal_factor: frames in a group.

    Returns:
        (B, F, height, width) float32: the nearest pixel, frame 0 kept, then the maximum of each group.
    """
    frames = mask.shape[1]
    if mask.ndim != 4 or (frames - 1) % temporal_factor:
        raise GeneratorError(
            f"a robot mask of shape {tuple(mask.shape)} cannot be grouped",
            expected=f"(B, T, H, W) with T = 1 + a multiple of {temporal_factor}",
            code=ErrorCode.GENERATOR_BAD_REQUEST,
        )
    small = functional.interpolate(mask.float(), size=(height, width), mode="nearest")
    later = small[:, 1:].unflatten(1, (-1, temporal_factor)) if frames > 1 else small[:, :0, None]
    return torch.cat([small[:, :1], later.amax(dim=2)], dim=1)


def soften(mask: torch.Tensor, ratio: float, generator: torch.Generator | None = None) -> torch.Tensor:
    """Set `ratio` of the mask's occupied cells to 0.5, selected by the generator.

    As in the released training code: int(ratio * occupied) cells, rounded down, over all frames and the whole batch
    together, the first of one random permutation of them.
    """
    softened = mask.clone()
    occupied = (softened.flatten() == 1).nonzero().flatten()
    count = int(len(occupied) * ratio)
    if count:
        order = torch.randperm(len(occupied), generator=generator)[:count]
        softened.view(-1)[occupied[order.to(occupied.device)]] = SOFT
    return softened


def soft_robot_mask(
    mask: torch.Tensor, spec: ConditionSpec, generator: torch.Generator | None = None, ratio: float | None = None
) -> torch.Tensor | None:
    """Return the latent robot mask (B, F, h, w) of a condition; None if the condition has no mask.

    `ratio` replaces the spec's own `soft_ratio`.
    """
    if not spec.mask or spec.ablation in WITHOUT_MASK:
        return None
    return soften(mask, spec.soft_ratio if ratio is None else ratio, generator)


def mask_channels(
    robot: torch.Tensor | None,
    shape: tuple[int, int, int, int],
    variant: Literal["act", "pm"],
    *,
    environment: bool = False,
    channels: int = 4,
) -> torch.Tensor:
    """Make the mask channels that the network sees beside the condition.

    Args:
        robot: (B, F, h, w) latent robot mask, or None for the "no mask" ablation.
        shape: (B, F, h, w).
        variant: "act": the robot in frames 1.. of both halves. "pm": in all frames of the right half.
        environment: the first pointmap is measured, so it counts as known.
        channels: frames in a group; Wan's mask has one channel per frame.

    Returns:
        (B, channels, F, h, 2w) float32.
    """
    batch, frames, height, width = shape
    halves = torch.zeros(batch, frames, height, 2, width, device=None if robot is None else robot.device)
    halves[:, 0, :, 0] = IMAGE_KNOWN
    halves[:, 0, :, 1] = IMAGE_KNOWN if environment else RAMP_KNOWN
    if robot is not None and variant == "act":
        halves[:, 1:] = robot[:, 1:, :, None]
    elif robot is not None:
        halves[..., 1, :] = robot
    return halves.flatten(-2)[:, None].repeat(1, channels, 1, 1, 1)
