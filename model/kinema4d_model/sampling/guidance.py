"""How one velocity comes out of the network: in one pass, or in the official two.

The official pipeline adds the robot's features a to a tensor that its second, "unconditional" pass uses again,
so that pass sees them twice. With guidance scale g its output is g * v(x + a) - (g - 1) * v(x + 2a).
"compat" computes exactly that; "none" is v(x + a), at half the cost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from kinema4d_ros.core.errors import ErrorCode, GeneratorError

__all__ = ["Denoiser", "guided_velocity", "passes", "velocity_from_residual"]


class Denoiser(Protocol):
    """The network with everything that stays the same over the steps bound."""

    def __call__(self, noisy: torch.Tensor, timestep: torch.Tensor, injection_scale: float) -> torch.Tensor:
        """The velocity (B, 16, F, h, 2w) of noisy latents at timestep (B,)."""
        ...


def passes(guidance: str) -> int:
    """Passes through the network per step."""
    counts = {"none": 1, "compat": 2}
    if guidance not in counts:
        raise GeneratorError(f"guidance '{guidance}'", expected="none or compat", code=ErrorCode.GENERATOR_BAD_REQUEST)
    return counts[guidance]


def guided_velocity(
    denoise: Denoiser,
    noisy: torch.Tensor,
    timestep: torch.Tensor,
    guidance: str,
    scale: float,
    between: Callable[[], None] = lambda: None,
) -> torch.Tensor:
    """The velocity to step with; `between` is called between two passes."""
    first = denoise(noisy, timestep, 1.0)
    if passes(guidance) == 1:
        return first
    between()
    second = denoise(noisy, timestep, 2.0)
    return scale * first - (scale - 1.0) * second


def velocity_from_residual(
    residual: torch.Tensor, noisy: torch.Tensor, timestep: torch.Tensor, base: torch.Tensor, train_steps: int = 1000
) -> torch.Tensor:
    """The velocity of a network that says x0 - base: (noisy - x0) / sigma, for timesteps above 0."""
    sigma = (timestep.to(torch.float32) / train_steps).view(-1, *[1] * (noisy.ndim - 1))
    return ((noisy.float() - base.float() - residual.float()) / sigma).to(noisy.dtype)
