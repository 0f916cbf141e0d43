"""Sampling loop from noise to latents, reproducible by seed on every device: solvers, guidance, step cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from kinema4d_ros.core.errors import ErrorCode, GeneratorError
from kinema4d_ros.generators.protocol import Cancel, Progress, raise_if_cancelled

__all__ = [
    "TRAIN_STEPS",
    "UNIPC_GRIDS",
    "Denoiser",
    "SolverKind",
    "StepCache",
    "guided_velocity",
    "initial_noise",
    "make_scheduler",
    "passes",
    "sample",
    "velocity_from_residual",
]

# Noise levels and steps: diffusers' flow-matching solvers behind one function.
#
#     x(sigma) = (1 - sigma) * x0 + sigma * noise,   velocity = noise - x0,   timestep = 1000 * sigma
#
# `shift` s maps evenly spaced sigma to s * sigma / (1 + (s - 1) * sigma): more steps where the noise is high.

TRAIN_STEPS = 1000
"""Timestep of sigma = 1."""

SolverKind = Literal["euler", "unipc"]

UNIPC_GRIDS = {"released": (0.999, 0.0), "even": (1.0, 0.001)}
"""First sigma of UniPC, and the one after its last, before the shift; evenly spaced in between.

"released" is the default of diffusers 0.34, which the released code pins; "even" that of later versions, which end
their 50 steps at slightly more noise. Both are written here, so that another diffusers does not change the samples.
"""


def make_scheduler(kind: str, steps: int, shift: float, grid: str = "released") -> Any:
    """Make a diffusers scheduler for `steps` steps; `timesteps` (steps,) and `sigmas` (steps + 1,) are set.

    "euler" spaces sigma evenly from 1 to 1 / steps before the shift; "unipc" follows `UNIPC_GRIDS[grid]`, with integer
    timesteps.

    Raises:
        GeneratorError: the arguments are invalid, or the installed diffusers does not use the requested noise levels.
    """
    if steps < 1 or shift <= 0:
        raise _refuse(f"cannot sample {steps} steps with shift {shift}", "at least one step, and a positive shift")
    if kind == "euler":
        from diffusers import FlowMatchEulerDiscreteScheduler

        euler = FlowMatchEulerDiscreteScheduler(num_train_timesteps=TRAIN_STEPS, shift=shift)
        euler.set_timesteps(sigmas=np.linspace(1.0, 1.0 / steps, steps).tolist())
        return euler
    if kind == "unipc":
        from diffusers import UniPCMultistepScheduler

        unipc = UniPCMultistepScheduler(
            num_train_timesteps=TRAIN_STEPS,
            prediction_type="flow_prediction",
            use_flow_sigmas=True,
            flow_shift=shift,
            solver_order=2,
            solver_type="bh2",
            lower_order_final=True,
            final_sigmas_type="zero",
        )
        if grid not in UNIPC_GRIDS:
            raise _refuse(f"unknown grid '{grid}'", " or ".join(UNIPC_GRIDS))
        first, end = UNIPC_GRIDS[grid]
        plain = np.linspace(first, end, steps + 1)[:-1]
        unipc.set_timesteps(sigmas=plain.copy())
        _require_levels(unipc, shift * plain / (1 + (shift - 1) * plain))
        return unipc
    raise _refuse(f"unknown sampler '{kind}'", "euler or unipc")


def _require_levels(scheduler: Any, sigmas: NDArray[np.float64]) -> None:
    """Raise if a scheduler does not step through these sigmas (steps,) and end at 0."""
    found = scheduler.sigmas.numpy()
    # diffusers lowers a first sigma of 1 by 1e-6.
    if found.shape != (len(sigmas) + 1,) or np.abs(found - [*sigmas, 0.0]).max() > 5e-6:
        import diffusers

        raise _refuse(
            f"UniPC of diffusers {diffusers.__version__} steps through {np.round(found, 4).tolist()}",
            f"{np.round([*sigmas, 0.0], 4).tolist()}; install the diffusers of requirements/",
        )


def _refuse(what: str, expected: str) -> GeneratorError:
    return GeneratorError(what, expected=expected, code=ErrorCode.GENERATOR_BAD_REQUEST)


# Guidance: one velocity from one network pass, or from the official two.
#
# The official pipeline adds the robot's features a to a tensor that its second, "unconditional" pass reuses, so that
# pass sees them twice. With guidance scale g its output is g * v(x + a) - (g - 1) * v(x + 2a). "compat" computes
# exactly that; "none" is v(x + a), at half the cost.


class Denoiser(Protocol):
    """Network with all step-independent inputs bound."""

    def __call__(self, noisy: torch.Tensor, timestep: torch.Tensor, injection_scale: float) -> torch.Tensor:
        """Return the velocity (B, 16, F, h, 2w) of noisy latents at timestep (B,)."""
        ...


def passes(guidance: str) -> int:
    """Return the number of network passes per step."""
    counts = {"none": 1, "compat": 2}
    if guidance not in counts:
        raise GeneratorError(
            f"unknown guidance '{guidance}'", expected="none or compat", code=ErrorCode.GENERATOR_BAD_REQUEST
        )
    return counts[guidance]


def guided_velocity(
    denoise: Denoiser,
    noisy: torch.Tensor,
    timestep: torch.Tensor,
    guidance: str,
    scale: float,
    between: Callable[[], None] = lambda: None,
) -> torch.Tensor:
    """Compute the velocity of a step; `between` is called between two passes."""
    first = denoise(noisy, timestep, 1.0)
    if passes(guidance) == 1:
        return first
    between()
    second = denoise(noisy, timestep, 2.0)
    return scale * first - (scale - 1.0) * second


def velocity_from_residual(
    residual: torch.Tensor, noisy: torch.Tensor, timestep: torch.Tensor, base: torch.Tensor, train_steps: int = 1000
) -> torch.Tensor:
    """Compute the velocity from a predicted x0 - base: (noisy - x0) / sigma, for timesteps above 0."""
    sigma = (timestep.to(torch.float32) / train_steps).view(-1, *[1] * (noisy.ndim - 1))
    return ((noisy.float() - base.float() - residual.float()) / sigma).to(noisy.dtype)


PHASE = "sample"


def initial_noise(
    shape: Sequence[int], seed: int, *, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Draw standard normal noise for a seed, 0 to 2^64 - 1; on the CPU, so that every device starts from the same."""
    # torch takes signed numbers; the upper half of the seeds maps to negative ones.
    generator = torch.Generator("cpu").manual_seed(seed if seed < 2**63 else seed - 2**64)
    return torch.randn(tuple(shape), generator=generator, dtype=torch.float32).to(device=device, dtype=dtype)


def sample(
    denoise: Denoiser,
    noise: torch.Tensor,
    *,
    kind: str = "euler",
    steps: int = 4,
    shift: float = 3.0,
    grid: str = "released",
    guidance: str = "none",
    guidance_scale: float = 1.0,
    progress: Callable[[Progress], None] | None = None,
    cancel: Cancel | None = None,
) -> torch.Tensor:
    """Sample denoised latents (B, 16, F, h, 2w), float32, of the shape of `noise`.

    Args:
        denoise: the network.
        noise: start of the sampling.
        kind, steps, shift, grid: see `make_scheduler`.
        guidance, guidance_scale: see `guided_velocity`.
        progress: called with "sample" 0 of steps, 1 of steps, ... steps of steps.
        cancel: polled before every pass; True raises `Cancelled`.
    """
    passes(guidance)
    scheduler = make_scheduler(kind, steps, shift, grid)
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


# Step cache: diffusers' first-block cache, with counters. While the first block's output changes by less than
# `threshold` (mean absolute change, relative), the other blocks are skipped and their last contribution is reused.
# Threshold 0 never skips.


class StepCache:
    """Cache for one rollout of one network.

    Attributes:
        computed: passes through all blocks.
        skipped: passes that ended after the first block.
    """

    def __init__(self, network: Any, threshold: float | None) -> None:
        """Prepare the cache; `threshold` None disables it."""
        if threshold is not None and not 0.0 <= threshold < 1.0:
            raise GeneratorError(
                f"the cache threshold is {threshold}",
                expected="0 (never skips) to 1",
                code=ErrorCode.GENERATOR_BAD_REQUEST,
            )
        self._network = network
        self._threshold = threshold
        self.computed = 0
        self.skipped = 0

    @contextmanager
    def active(self) -> Iterator[StepCache]:
        """Install the hooks on the network for one rollout; starts without state of an earlier one."""
        if self._threshold is None:
            yield self
            return
        from diffusers import FirstBlockCacheConfig

        # Enabled and disabled per rollout: resetting alone would keep the last rollout's first-block residual.
        self._network.enable_cache(FirstBlockCacheConfig(threshold=self._threshold))
        counter = self._network.blocks[-1].attn1.register_forward_hook(self._count)
        try:
            yield self
        finally:
            counter.remove()
            self._network.disable_cache()

    def for_pass(self, name: str) -> AbstractContextManager[Any]:
        """Return the context of one pass; each pass of a step has its own state."""
        if self._threshold is None:
            return nullcontext()
        return self._pass(name)

    @contextmanager
    def _pass(self, name: str) -> Iterator[None]:
        before = self.computed
        with self._network.cache_context(name):
            yield
        self.skipped += self.computed == before

    def _count(self, *_: Any) -> None:
        self.computed += 1
