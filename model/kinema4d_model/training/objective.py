"""What the network learns: noise levels, noisy latents, the target of the preset's `prediction`, a weighted error.

x(sigma) = (1 - sigma) * x0 + sigma * noise
"velocity": noise - x0        "residual": x0 - base, with `base` the latent of the composite
"""

from __future__ import annotations

import torch
from torch.nn import functional

from kinema4d_model.sampling import TRAIN_STEPS
from kinema4d_model.training.config import ObjectiveSpec

CARRIED_ENERGY = 0.05
"""Of a cell's latent difference, above which the two worlds differ there."""

__all__ = ["TRAIN_STEPS", "loss_target", "noisy_latents", "sample_sigma", "weight_map", "weighted_loss"]


def sample_sigma(spec: ObjectiveSpec, generator: torch.Generator) -> torch.Tensor:
    """One noise level in (0, 1), float32 of shape ()."""
    if spec.timesteps == "uniform":
        # Away from 0, where "residual" has nothing to divide by at sampling and the input has no noise at all.
        sigma = torch.rand((), generator=generator).clamp(min=1.0 / TRAIN_STEPS)
    else:
        sigma = torch.sigmoid(torch.randn((), generator=generator) * spec.logit_std + spec.logit_mean)
    return spec.shift * sigma / (1 + (spec.shift - 1) * sigma)


def noisy_latents(clean: torch.Tensor, noise: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
    """(B, C, F, h, 2w) between clean (sigma 0) and noise (sigma 1); sigma (B,)."""
    s = sigma.view(-1, *[1] * (clean.ndim - 1)).to(clean)
    return (1 - s) * clean + s * noise


def loss_target(prediction: str, clean: torch.Tensor, noise: torch.Tensor, base: torch.Tensor | None) -> torch.Tensor:
    """What the network should say, (B, C, F, h, 2w)."""
    if prediction == "residual" and base is not None:
        return clean - base
    return noise - clean


def weight_map(
    spec: ObjectiveSpec,
    dynamic: torch.Tensor,
    focus: torch.Tensor,
    robot: torch.Tensor | None = None,
    carried: torch.Tensor | None = None,
) -> torch.Tensor | None:
    """(B, F, h, 2w) float32, where an error counts how much; None = all alike.

    Args:
        spec: the weights.
        dynamic, focus: (B, F, h, w) in {0, 1}, the same for both halves.
        robot: (B, F, h, w), above 0 = robot.
        carried: (B, C, F, h, 2w), the carry hypothesis minus the composite.
    """
    hypothesis = spec.carried_weight if carried is not None else 0.0
    if not spec.dynamic_weight and not spec.focus_weight and not hypothesis and spec.robot_weight == 1:
        return None
    weight = 1 + spec.dynamic_weight * dynamic.float() + spec.focus_weight * focus.float()
    weight = torch.cat([weight, weight], dim=-1)
    if carried is not None and hypothesis:
        weight = weight + hypothesis * (carried.float().square().sum(1) > CARRIED_ENERGY)
    if robot is not None and spec.robot_weight != 1:
        both = torch.cat([robot, robot], dim=-1)
        weight = torch.where(both > 0, weight * spec.robot_weight, weight)
    return weight


def weighted_loss(output: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
    """Mean squared error, shape (): each sample's own weighted mean, so that batches can be split at will."""
    if weight is None:
        return functional.mse_loss(output.float(), target.float())
    error = (output.float() - target.float()).square().mean(dim=1)
    return ((error * weight).flatten(1).sum(1) / weight.flatten(1).sum(1)).mean()
