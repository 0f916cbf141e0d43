from __future__ import annotations

import numpy as np
import pytest
import torch

from kinema4d_model.sampling import velocity_from_residual
from kinema4d_model.training.config import ObjectiveSpec
from kinema4d_model.training.network_task import loss_target, noisy_latents, sample_sigma, weight_map, weighted_loss
from kinema4d_model.training.optimisers import Ema
from kinema4d_model.training.randomness import batch_indices, derive, generator


def sigmas(spec: ObjectiveSpec, count: int = 4000) -> np.ndarray:
    chance = generator(0)
    return np.array([float(sample_sigma(spec, chance)) for _ in range(count)])


def test_uniform_noise_levels_are_uniform() -> None:
    found = np.sort(sigmas(ObjectiveSpec()))
    assert np.abs(found - np.linspace(0, 1, len(found))).max() < 0.03
    assert found.min() > 0


def test_logit_normal_noise_levels_have_the_normal_s_quantiles() -> None:
    logits = np.log(
        1 / (1 / sigmas(ObjectiveSpec(timesteps="logit_normal", logit_mean=0.5, logit_std=2.0)) - 1) + 1e-12
    )
    assert abs(logits.mean() - 0.5) < 0.12
    assert abs(logits.std() - 2.0) < 0.12


@pytest.mark.parametrize("kind", ["uniform", "logit_normal"])
def test_shift_of_noise_levels_equals_the_sampler_s(kind: str) -> None:
    plain = sigmas(ObjectiveSpec(timesteps=kind), 50)  # type: ignore[arg-type]
    bent = sigmas(ObjectiveSpec(timesteps=kind, shift=3.0), 50)  # type: ignore[arg-type]
    np.testing.assert_allclose(bent, 3 * plain / (1 + 2 * plain), rtol=1e-5)


def test_targets_lead_back_to_the_clean_latents() -> None:
    clean, noise, base = torch.randn(3, 2, 4, 3, 2, 6)
    sigma = torch.tensor([0.3, 0.9])
    noisy = noisy_latents(clean, noise, sigma)
    s = sigma.view(-1, 1, 1, 1, 1)
    velocity = loss_target("velocity", clean, noise, base)
    torch.testing.assert_close(noisy - s * velocity, clean, rtol=1e-4, atol=1e-5)
    residual = loss_target("residual", clean, noise, base)
    torch.testing.assert_close(
        velocity_from_residual(residual, noisy, 1000 * sigma, base), velocity, rtol=1e-3, atol=1e-4
    )


def test_the_loss_is_a_mean_without_weights_and_a_weighted_mean_with_them() -> None:
    output, target = torch.randn(2, 3, 4, 2, 3, 8)
    assert torch.equal(weighted_loss(output, target, None), ((output - target) ** 2).mean())
    weight = torch.rand(3, 2, 3, 8) + 0.1
    naive = []
    for i in range(3):
        error = ((output[i] - target[i]) ** 2).mean(0)
        naive.append((error * weight[i]).sum() / weight[i].sum())
    torch.testing.assert_close(weighted_loss(output, target, weight), torch.stack(naive).mean())


def test_loss_does_not_depend_on_batch_splits() -> None:
    output, target = torch.randn(2, 4, 4, 2, 3, 8)
    weight = torch.rand(4, 2, 3, 8) + 0.1
    halves = [weighted_loss(output[i : i + 2], target[i : i + 2], weight[i : i + 2]) for i in (0, 2)]
    torch.testing.assert_close(sum(halves) / 2, weighted_loss(output, target, weight))


def test_weights_follow_the_maps_in_both_halves() -> None:
    dynamic, focus = torch.zeros(2, 1, 2, 3, 4, dtype=torch.bool)
    dynamic[0, 1, 2, 3] = focus[0, 1, 2, 3] = focus[0, 0, 0, 0] = True
    weight = weight_map(ObjectiveSpec(dynamic_weight=4.0, focus_weight=2.0), dynamic, focus)
    assert weight is not None
    assert weight.shape == (1, 2, 3, 8)
    assert weight[0, 1, 2, 3] == weight[0, 1, 2, 7] == 7
    assert weight[0, 0, 0, 0] == weight[0, 0, 0, 4] == 3
    assert int((weight != 1).sum()) == 4
    assert weight_map(ObjectiveSpec(), dynamic, focus) is None


def test_the_outcome_counts_more_and_the_exact_robot_less() -> None:
    nothing = torch.zeros(1, 1, 2, 3)
    robot, carried = torch.zeros(1, 1, 2, 3), torch.zeros(1, 4, 1, 2, 6)
    robot[0, 0, 0, 0] = robot[0, 0, 1, 2] = 0.5
    carried[0, :, 0, 0, 0] = carried[0, :, 0, 0, 5] = 0.3
    carried[0, 0, 0, 1, 1] = 0.1  # below CARRIED_ENERGY
    spec = ObjectiveSpec(carried_weight=20.0, robot_weight=0.1)
    weight = weight_map(spec, nothing, nothing, robot, carried)
    assert weight is not None
    expected = [[2.1, 1, 1, 0.1, 1, 21], [1, 1, 0.1, 1, 1, 0.1]]
    torch.testing.assert_close(weight[0, 0], torch.tensor(expected))
    assert weight_map(ObjectiveSpec(carried_weight=20.0), nothing, nothing, robot, None) is None


def test_every_epoch_is_a_new_permutation() -> None:
    drawn = np.concatenate([batch_indices(10, 4, step, seed=1) for step in range(5)])
    assert sorted(drawn[:10]) == sorted(drawn[10:]) == list(range(10))
    assert list(drawn[:10]) != list(drawn[10:])
    assert list(batch_indices(10, 4, 3, seed=1)) == list(drawn[12:16])
    assert list(batch_indices(10, 20, 0, seed=1)) == list(drawn)
    assert list(batch_indices(10, 4, 0, seed=2)) != list(drawn[:4])


def test_seeds_depend_on_every_part() -> None:
    parts = [(0, "a", 1), (0, "a", 2), (1, "a", 1), (0, "b", 1), (0, "a1"), (0, "a", "1", "")]
    assert len({derive(*p) for p in parts}) == len(parts)
    assert all(0 <= derive(*p) < 2**63 for p in parts)
    assert torch.equal(torch.rand(3, generator=generator(1, "x")), torch.rand(3, generator=generator(1, "x")))


def test_the_average_follows_its_formula() -> None:
    parameter = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
    named = {"p": parameter}
    average = Ema(named, decay=0.9)
    expected = parameter.detach().clone()
    for step in range(1, 120):
        with torch.no_grad():
            parameter += 0.1 * step
        average.update(named, step)
        decay = min(0.9, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * parameter.detach()
    torch.testing.assert_close(average.average["p"], expected, rtol=1e-5, atol=1e-4)
    before = parameter.detach().clone()
    with average.applied(named):
        torch.testing.assert_close(parameter.detach(), expected, rtol=1e-5, atol=1e-4)
    assert torch.equal(parameter.detach(), before)
