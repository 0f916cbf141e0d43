from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from torch import nn

from kinema4d_model.training.config import OptimiserSpec
from kinema4d_model.training.optimisers import MuonAdamW, learning_rate, make_optimiser, orthogonalise


def test_the_schedule_of_the_paper() -> None:
    spec = OptimiserSpec(lr=2e-5, warmup_steps=100, schedule="cosine")
    rates = [learning_rate(spec, step, 5000) for step in range(5000)]
    assert rates[0] == pytest.approx(2e-7)
    assert max(rates) == rates[99] == rates[100] == 2e-5
    assert all(b > a for a, b in pairwise(rates[:100]))
    assert all(b < a for a, b in pairwise(rates[100:]))
    assert rates[100 + 2450] == pytest.approx(1e-5)
    assert rates[-1] < 1e-11


@pytest.mark.parametrize(
    ("schedule", "half", "end"), [("linear", 0.55, 0.1), ("constant", 1.0, 1.0), ("cosine", 0.55, 0.1)]
)
def test_schedules_end_at_the_final_ratio(schedule: str, half: float, end: float) -> None:
    spec = OptimiserSpec(lr=1.0, warmup_steps=0, schedule=schedule, final_ratio=0.1)  # type: ignore[arg-type]
    assert learning_rate(spec, 0, 100) == 1.0
    assert learning_rate(spec, 50, 100) == pytest.approx(half)
    assert learning_rate(spec, 100, 100) == pytest.approx(end)
    assert learning_rate(spec, 1000, 100) == pytest.approx(end)


@pytest.mark.parametrize("shape", [(3, 16, 16), (2, 8, 40), (2, 40, 8)])
def test_orthogonalised_matrices_have_singular_values_about_one(shape: tuple[int, int, int]) -> None:
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    found = orthogonalise(matrices)
    assert found.dtype == torch.float32
    singular = torch.linalg.svdvals(found)
    assert singular.max() < 1.25
    assert singular[:, : min(shape[1:]) - 1].min() > 0.5
    for matrix, one in zip(matrices, found, strict=True):
        u, _, v = torch.linalg.svd(matrix, full_matrices=False)
        assert float((one * (u @ v)).sum()) / min(shape[1:]) > 0.8
    torch.testing.assert_close(orthogonalise(matrices[1:2])[0], found[1], rtol=1e-4, atol=1e-5)


def two_layers() -> nn.ModuleDict:
    torch.manual_seed(0)
    return nn.ModuleDict({"blocks": nn.ModuleList([nn.Linear(6, 6)]), "head": nn.Linear(6, 3)})


def steps(model: nn.ModuleDict, optimiser: torch.optim.Optimizer, count: int) -> None:
    for i in range(count):
        x = torch.randn(5, 6, generator=torch.Generator().manual_seed(i))
        model["head"](torch.tanh(model["blocks"][0](x))).square().sum().backward()  # type: ignore[index]
        optimiser.step()
        optimiser.zero_grad()


def test_parameters_other_than_block_matrices_use_torch_s_adamw() -> None:
    spec = OptimiserSpec(kind="muon", lr=0.01, betas=(0.8, 0.9), weight_decay=0.1)
    ours, theirs = two_layers(), two_layers()
    for model in (ours, theirs):
        model["blocks"].requires_grad_(False)
    mine = make_optimiser(spec, [(n, p) for n, p in ours.named_parameters() if p.requires_grad])
    assert isinstance(mine, MuonAdamW)
    steps(ours, mine, 5)
    reference = torch.optim.AdamW(
        [{"params": [theirs["head"].weight]}, {"params": [theirs["head"].bias], "weight_decay": 0.0}],
        lr=0.01,
        betas=(0.8, 0.9),
        weight_decay=0.1,
    )
    steps(theirs, reference, 5)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_a_muon_step_is_a_scaled_orthogonal_matrix() -> None:
    model = two_layers()
    spec = OptimiserSpec(kind="muon", lr=0.01, weight_decay=0.0)
    optimiser = make_optimiser(spec, model.named_parameters())
    weight = model["blocks"][0].weight  # type: ignore[index]
    before = weight.detach().clone()
    steps(model, optimiser, 1)
    moved = (before - weight.detach()) / 0.01
    # Same RMS as an AdamW step, 0.2, independent of the gradient.
    assert float(moved.square().mean().sqrt()) == pytest.approx(0.2, rel=0.25)
    singular = torch.linalg.svdvals(moved) / (0.2 * math.sqrt(6))
    assert singular.max() < 1.25


def test_muon_descends() -> None:
    model = two_layers()
    optimiser = make_optimiser(OptimiserSpec(kind="muon", lr=0.02), model.named_parameters())
    x, y = torch.randn(64, 6), torch.randn(64, 3)
    losses = []
    for _ in range(60):
        loss = (model["head"](torch.tanh(model["blocks"][0](x))) - y).square().mean()  # type: ignore[index]
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        losses.append(float(loss))
    assert losses[-1] < 0.9 * losses[0]


def test_norms_and_embeddings_are_not_decayed() -> None:
    named = [
        ("blocks.0.attn1.to_q.weight", nn.Parameter(torch.zeros(2, 2))),
        ("blocks.0.scale_shift_table", nn.Parameter(torch.zeros(1, 6, 2))),
        ("blocks.0.norm2.weight", nn.Parameter(torch.zeros(2))),
        ("robot_tokens.position", nn.Parameter(torch.zeros(1, 2, 1, 1, 1))),
        ("proj_out.weight", nn.Parameter(torch.zeros(2, 2))),
    ]
    found = {}
    for group in make_optimiser(OptimiserSpec(kind="muon", weight_decay=0.3), named).param_groups:
        for name, parameter in named:
            if any(parameter is p for p in group["params"]):
                found[name] = (group["muon"], group["weight_decay"])
    assert found == {
        "blocks.0.attn1.to_q.weight": (True, 0.3),
        "blocks.0.scale_shift_table": (False, 0.0),
        "blocks.0.norm2.weight": (False, 0.0),
        "robot_tokens.position": (False, 0.0),
        "proj_out.weight": (False, 0.3),
    }
