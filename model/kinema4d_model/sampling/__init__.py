"""From noise to latents: solvers, guidance, step cache, and the loop around them."""

from kinema4d_model.sampling.cache import StepCache
from kinema4d_model.sampling.loop import (
    Denoiser,
    guided_velocity,
    initial_noise,
    passes,
    sample,
    velocity_from_residual,
)
from kinema4d_model.sampling.schedule import TRAIN_STEPS, make_scheduler

__all__ = [
    "TRAIN_STEPS",
    "Denoiser",
    "StepCache",
    "guided_velocity",
    "initial_noise",
    "make_scheduler",
    "passes",
    "sample",
    "velocity_from_residual",
]
