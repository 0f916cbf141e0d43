"""The sampling loop: from noise to latents, step by step, the same for the same seed on every device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from kinema4d_model.sampling.schedule import make_scheduler
from kinema4d_ros.core.errors import ErrorCode, GeneratorError
from kinema4d_ros.generators.protocol import Cancel, Progress, raise_if_cancelled

__all__ = ["Denoiser", "guided_velocity", "initial_noise", "passes", "sample", "velocity_from_residual"]

# How one velocity comes out of the network: in one pass, or in the official two.
#
# The official pipeline adds the robot's features a to a tensor that its second, "unconditional" pass uses again,
# so that pass sees them twice. With guidance scale g its output is g * v(x + a) - (g - 1) * v(x + 2a).
# "compat" computes exactly that; "none" is v(x + a), at half the cost.


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


PHASE = "sample"


def initial_noise(
    shape: Sequence[int], seed: int, *, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Standard normal noise of a seed, 0 to 2^64 - 1; drawn on the CPU, so that every device starts from the same."""
    # torch takes signed numbers; the upper half of the seeds maps onto the negative ones.
    generator = torch.Generator("cpu").manual_seed(seed if seed < 2**63 else seed - 2**64)
    return torch.randn(tuple(shape), generator=generator, dtype=torch.float32).to(device=device, dtype=dtype)


def sample(
    denoise: Denoiser,
    noise: torch.Tensor,
    *,
    kind: str = "euler",
    steps: int = 4,
    shift: float = 3.0,
    guidance: str = "none",
    guidance_scale: float = 1.0,
    progress: Callable[[Progress], None] | None = None,
    cancel: Cancel | None = None,
) -> torch.Tensor:
    """Latents like `noise` (B, 16, F, h, 2w), float32, without noise.

    Args:
        denoise: the network.
        noise: where sampling starts.
        kind, steps, shift: see `make_scheduler`.
        guidance, guidance_scale: see `guided_velocity`.
        progress: told "sample" 0 of steps, 1 of steps, ... steps of steps.
        cancel: asked before every pass; True raises `Cancelled`.
    """
    passes(guidance)
    scheduler = make_scheduler(kind, steps, shift)
    report = progress or (lambda _: None)
    latents = noise.float()
    report(Progress(PHASE, 0, steps))
    for index, timestep in enumerate(scheduler.timesteps):
        stage = Progress(PHASE, index, steps)
        raise_if_cancelled(cancel, stage)
        times = timestep.to(noise.device, torch.float32).expand(noise.shape[0])
        velocity = guided_velocity(
            denoise,
            latents.to(noise.dtype),
            times,
            guidance,
            guidance_scale,
            lambda stage=stage: raise_if_cancelled(cancel, stage),  # type: ignore[misc]
        )
        latents = scheduler.step(velocity.float(), timestep, latents, return_dict=False)[0]
        report(Progress(PHASE, index + 1, steps))
    return latents
