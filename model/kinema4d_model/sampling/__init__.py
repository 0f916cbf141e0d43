"""From noise to latents: solvers, guidance, step cache, and the loop around them."""

from kinema4d_model.sampling.loop import (
    TRAIN_STEPS,
    UNIPC_GRIDS,
    Denoiser,
    StepCache,
    guided_velocity,
    initial_noise,
    make_scheduler,
    passes,
    sample,
    velocity_from_residual,
)

__all__ = [
    "TRAIN_STEPS",
    "UNIPC_GRIDS",
    "Denoiser",
    "StepCache",
    "guided_velocity",
    "initial_noise",
    "make_scheduler",
    "passes",
    "sample",
    "velocity_from_residual",
]
