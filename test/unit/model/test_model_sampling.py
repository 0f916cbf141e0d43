"""Tests of the sampling loop on problems with known solutions: straight flows, compat formula, cancellation."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from diffusers import UniPCMultistepScheduler
from hypothesis import given, settings
from hypothesis import strategies as st

from kinema4d_model.sampling import (
    UNIPC_GRIDS,
    guided_velocity,
    initial_noise,
    make_scheduler,
    sample,
    velocity_from_residual,
)
from kinema4d_ros.core.errors import Cancelled, GeneratorError
from kinema4d_ros.generators import Progress

SHAPE = (1, 16, 3, 4, 12)


def straight_to(target: torch.Tensor):  # network that returns the exact velocity
    def denoise(noisy: torch.Tensor, timestep: torch.Tensor, _scale: float) -> torch.Tensor:
        return (noisy - target) / (timestep / 1000).view(-1, 1, 1, 1, 1)

    return denoise


@settings(max_examples=30, deadline=None)
@given(steps=st.integers(1, 60), shift=st.floats(0.5, 12.0))
def test_euler_levels_are_even_before_the_shift(steps: int, shift: float) -> None:
    sigmas = make_scheduler("euler", steps, shift).sigmas.tolist()
    even = [1 - i / steps for i in range(steps + 1)]
    assert sigmas == pytest.approx([shift * s / (1 + (shift - 1) * s) for s in even], abs=1e-5)


@pytest.mark.parametrize("steps", [1, 4, 50])
def test_unipc_levels_are_those_of_the_official_pipeline(steps: int) -> None:
    for grid, first in (("released", 0.999), ("even", 1.0)):
        scheduler = make_scheduler("unipc", steps, 3.0, grid)
        plain = [first - 0.999 * i / steps for i in range(steps)]
        shifted = [3 * s / (1 + 2 * s) for s in plain]
        assert scheduler.sigmas.tolist() == pytest.approx([*shifted, 0.0], abs=2e-6)
        assert scheduler.timesteps.tolist() == [int(1000 * s) for s in scheduler.sigmas.tolist()[:-1]]


def test_another_grid_of_diffusers_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A version that ignores the sigmas would sample other pictures without a word."""
    own = UniPCMultistepScheduler.set_timesteps
    monkeypatch.setattr(UniPCMultistepScheduler, "set_timesteps", lambda s, sigmas: own(s, len(sigmas)))
    with pytest.raises(GeneratorError, match=r"UniPC of diffusers .* steps through"):
        make_scheduler("unipc", 6, 3.0)
    with pytest.raises(GeneratorError, match="unknown grid 'fine'"):
        make_scheduler("unipc", 6, 3.0, "fine")


@pytest.mark.parametrize("kind", ["euler", "unipc"])
@pytest.mark.parametrize("steps", [1, 2, 5, 20])
def test_a_straight_flow_ends_at_its_target(kind: str, steps: int) -> None:
    target = initial_noise(SHAPE, 9)

    def denoise(_noisy: torch.Tensor, _timestep: torch.Tensor, _scale: float) -> torch.Tensor:
        return noise - target

    noise = initial_noise(SHAPE, 1)
    result = sample(denoise, noise, kind=kind, steps=steps)
    assert (result - target).abs().max() < 2e-3


def test_euler_is_the_sum_of_its_steps() -> None:
    noise = initial_noise(SHAPE, 1)
    result = sample(lambda x, t, _: torch.sin(x) + t.view(-1, 1, 1, 1, 1) / 1000, noise, steps=7, shift=5.0)
    x = noise.clone()
    levels = [5 * s / (1 + 4 * s) for s in (1 - i / 7 for i in range(8))]
    for now, then in itertools.pairwise(levels):
        x = x + (then - now) * (torch.sin(x) + now)
    assert (result - x).abs().max() < 1e-4


@pytest.mark.parametrize("kind", ["euler", "unipc"])
def test_more_steps_reduce_the_error(kind: str) -> None:
    # The exact solution of dx/ds = -x from the first sigma to 0 is x * e^sigma.
    noise = initial_noise(SHAPE, 1)
    exact = math.exp(1.0 if kind == "euler" else UNIPC_GRIDS["released"][0]) * noise
    errors = [
        (sample(lambda x, _t, _s: -x, noise, kind=kind, steps=n, shift=1.0) - exact).abs().max().item()
        for n in (4, 16, 64)
    ]
    assert errors[0] > 2 * errors[1] > 4 * errors[2]


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**64 - 1))
def test_noise_is_a_function_of_the_seed(seed: int) -> None:
    first, second = initial_noise((2, 3), seed), initial_noise((2, 3), seed)
    assert torch.equal(first, second)
    assert not torch.equal(first, initial_noise((2, 3), (seed + 1) % 2**64))


@pytest.mark.parametrize("scale", [1.0, 5.0])
def test_compat_guidance_is_the_official_arithmetic(scale: float) -> None:
    calls: list[float] = []

    def denoise(noisy: torch.Tensor, timestep: torch.Tensor, injection_scale: float) -> torch.Tensor:
        calls.append(injection_scale)
        return torch.tanh(noisy * timestep.view(-1, 1, 1, 1, 1) + injection_scale)

    noisy, timestep = initial_noise(SHAPE, 3), torch.tensor([0.7])
    found = guided_velocity(denoise, noisy, timestep, "compat", scale)
    assert calls == [1.0, 2.0]
    by_hand = scale * torch.tanh(noisy * 0.7 + 1) - (scale - 1) * torch.tanh(noisy * 0.7 + 2)
    assert torch.allclose(found, by_hand, atol=1e-6)
    calls.clear()
    assert torch.equal(guided_velocity(denoise, noisy, timestep, "none", scale), torch.tanh(noisy * 0.7 + 1))
    assert calls == [1.0]


def test_a_residual_becomes_the_velocity_that_leads_to_it() -> None:
    base, residual, noise = (initial_noise(SHAPE, seed) for seed in (1, 2, 3))
    sigma = 0.3
    noisy = (1 - sigma) * (base + residual) + sigma * noise
    velocity = velocity_from_residual(residual, noisy, torch.tensor([300.0]), base)
    assert torch.allclose(velocity, noise - base - residual, atol=1e-4)


@pytest.mark.parametrize("kind", ["euler", "unipc"])
def test_every_step_is_reported(kind: str) -> None:
    told: list[Progress] = []
    sample(straight_to(torch.zeros(SHAPE)), initial_noise(SHAPE, 0), kind=kind, steps=5, progress=told.append)
    assert told == [Progress("sample", i, 5) for i in range(6)]


@pytest.mark.parametrize("guidance", ["none", "compat"])
@pytest.mark.parametrize("stop_at", range(6))
def test_cancellation_ends_before_the_next_pass(guidance: str, stop_at: int) -> None:
    passes: list[float] = []

    def denoise(noisy: torch.Tensor, _timestep: torch.Tensor, scale: float) -> torch.Tensor:
        passes.append(scale)
        return noisy

    with pytest.raises(Cancelled) as caught:
        sample(
            denoise,
            initial_noise(SHAPE, 0),
            steps=6,
            guidance=guidance,
            guidance_scale=5.0,
            cancel=lambda: len(passes) >= stop_at,
        )
    assert len(passes) == stop_at
    assert "sample" in str(caught.value)


@pytest.mark.parametrize(
    "bad", [{"kind": "ddim"}, {"steps": 0}, {"shift": 0.0}, {"guidance": "twice"}], ids=lambda b: next(iter(b))
)
def test_bad_settings_are_refused(bad: dict) -> None:
    with pytest.raises(GeneratorError):
        sample(straight_to(torch.zeros(SHAPE)), initial_noise(SHAPE, 0), **bad)
