"""Noise levels and the step from one to the next: diffusers' flow-matching solvers behind one function.

    x(sigma) = (1 - sigma) * x0 + sigma * noise,   velocity = noise - x0,   timestep = 1000 * sigma

`shift` s bends evenly spaced sigma to s * sigma / (1 + (s - 1) * sigma): more steps where the noise is high.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from kinema4d_ros.core.errors import ErrorCode, GeneratorError

__all__ = ["TRAIN_STEPS", "SolverKind", "make_scheduler"]

TRAIN_STEPS = 1000
"""Timesteps that sigma = 1 stands for."""

SolverKind = Literal["euler", "unipc"]


def make_scheduler(kind: str, steps: int, shift: float) -> Any:
    """A diffusers scheduler ready for `steps` steps; `timesteps` (steps,) and `sigmas` (steps + 1,) are set.

    "euler" spaces sigma evenly from 1 to 1 / steps before the shift; "unipc" as the official pipeline does,
    with whole timesteps.
    """
    if steps < 1 or shift <= 0:
        raise _refuse(f"{steps} steps with shift {shift}", "at least one step, and a positive shift")
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
        )
        unipc.set_timesteps(steps)
        return unipc
    raise _refuse(f"sampler '{kind}'", "euler or unipc")


def _refuse(what: str, expected: str) -> GeneratorError:
    return GeneratorError(what, expected=expected, code=ErrorCode.GENERATOR_BAD_REQUEST)
