"""Optimisers (AdamW, or Muon in float32 for the blocks' matrices), learning-rate schedule, and weight averaging."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from kinema4d_model.training.config import OptimiserSpec

__all__ = ["Ema", "MuonAdamW", "learning_rate", "make_optimiser", "orthogonalise"]

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
NEWTON_SCHULZ_STEPS = 5
RMS = 0.2
"""RMS of an AdamW step; Muon's steps are scaled to it so that both share one learning rate."""


def learning_rate(spec: OptimiserSpec, step: int, steps: int) -> float:
    """Return the rate of step 0, 1, ...: linear warm-up to the peak, then the schedule down to `final_ratio` of it."""
    if step < spec.warmup_steps:
        return spec.lr * (step + 1) / spec.warmup_steps
    done = (step - spec.warmup_steps) / max(1, steps - spec.warmup_steps)
    falling = {"cosine": (1 + math.cos(math.pi * min(1.0, done))) / 2, "linear": 1 - min(1.0, done), "constant": 1.0}
    return spec.lr * (spec.final_ratio + (1 - spec.final_ratio) * falling[spec.schedule])


def orthogonalise(matrices: torch.Tensor) -> torch.Tensor:
    """Orthogonalise (N, r, c): singular values become about 1 (0.7 to 1.2), by Newton-Schulz in float32."""
    a, b, c = NEWTON_SCHULZ
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if tall else matrices
    x = x / (x.flatten(1).norm(dim=1).view(-1, 1, 1) + 1e-7)
    for _ in range(NEWTON_SCHULZ_STEPS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


class MuonAdamW(torch.optim.Optimizer):
    """Optimiser with orthogonalised momentum steps for groups with `muon: True`, AdamW for the others."""

    def __init__(self, groups: list[dict[str, Any]], spec: OptimiserSpec) -> None:
        defaults = {
            "lr": spec.lr,
            "betas": spec.betas,
            "eps": spec.eps,
            "weight_decay": spec.weight_decay,
            "momentum": spec.momentum,
            "muon": False,
        }
        super().__init__(groups, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Apply one step."""
        loss = None if closure is None else closure()
        for group in self.param_groups:
            learning = [p for p in group["params"] if p.grad is not None]
            if group["muon"]:
                self._muon(group, learning)
            else:
                self._adamw(group, learning)
        return loss

    def _muon(self, group: dict[str, Any], parameters: list[nn.Parameter]) -> None:
        by_shape: dict[torch.Size, list[nn.Parameter]] = {}
        for p in parameters:
            by_shape.setdefault(p.shape, []).append(p)
        for shape, alike in by_shape.items():
            updates = []
            for p in alike:
                state = self.state[p]
                if not state:
                    state["momentum"] = torch.zeros_like(p)
                gradient = _gradient(p)
                state["momentum"].lerp_(gradient, 1 - group["momentum"])
                updates.append(gradient.lerp(state["momentum"], group["momentum"]))
            scale = RMS * math.sqrt(max(shape))
            for p, update in zip(alike, orthogonalise(torch.stack(updates)), strict=True):
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(update, alpha=-group["lr"] * scale)

    def _adamw(self, group: dict[str, Any], parameters: list[nn.Parameter]) -> None:
        for p in parameters:
            if not self.state[p]:
                self.state[p] = {
                    "step": torch.zeros(()),
                    "exp_avg": torch.zeros_like(p),
                    "exp_avg_sq": torch.zeros_like(p),
                }
        states = [self.state[p] for p in parameters]
        if parameters:
            torch.optim._functional.adamw(  # type: ignore[attr-defined]
                list[torch.Tensor](parameters),
                [_gradient(p) for p in parameters],
                [s["exp_avg"] for s in states],
                [s["exp_avg_sq"] for s in states],
                [],
                [s["step"] for s in states],
                foreach=False,
                amsgrad=False,
                beta1=group["betas"][0],
                beta2=group["betas"][1],
                lr=group["lr"],
                weight_decay=group["weight_decay"],
                eps=group["eps"],
                maximize=False,
            )


def _gradient(parameter: nn.Parameter) -> torch.Tensor:
    gradient = parameter.grad
    if gradient is None:
        raise ValueError("a parameter has no gradient")
    return gradient


def make_optimiser(spec: OptimiserSpec, parameters: Iterable[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
    """Make the optimiser of named parameters; vectors, norms and embeddings have no weight decay."""
    matrices, decayed, plain = [], [], []
    for name, p in parameters:
        if spec.kind == "muon" and p.ndim == 2 and "blocks." in name and "scale_shift_table" not in name:
            matrices.append(p)
        elif p.ndim >= 2 and not name.endswith(("scale_shift_table", "position", "domain")):
            decayed.append(p)
        else:
            plain.append(p)
    groups: list[dict[str, Any]] = [
        {"params": decayed},
        {"params": plain, "weight_decay": 0.0},
    ]
    if spec.kind == "muon":
        return MuonAdamW([{"params": matrices, "muon": True}, *groups], spec)
    return torch.optim.AdamW(groups, lr=spec.lr, betas=spec.betas, eps=spec.eps, weight_decay=spec.weight_decay)


# Moving average of the weights, used for validation and export.


class Ema:
    """Exponential moving average of named parameters, in float32.

    After n steps the decay is min(`decay`, (1 + n) / (10 + n)), so that initial weights are forgotten quickly.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], decay: float) -> None:
        self.decay = decay
        self.average = {name: p.detach().float().clone() for name, p in parameters.items()}

    @torch.no_grad()
    def update(self, parameters: Mapping[str, nn.Parameter], step: int) -> None:
        """Update the averages after step 1, 2, ..."""
        decay = min(self.decay, (1 + step) / (10 + step))
        for name, average in self.average.items():
            average.lerp_(parameters[name].detach().float(), 1 - decay)

    @contextmanager
    def applied(self, parameters: Mapping[str, nn.Parameter]) -> Iterator[None]:
        """Put the averages into the parameters for the `with` block and restore them exactly afterwards."""
        kept = {name: parameters[name].detach().clone() for name in self.average}
        self.copy_to(parameters)
        try:
            yield
        finally:
            with torch.no_grad():
                for name, tensor in kept.items():
                    parameters[name].copy_(tensor)

    @torch.no_grad()
    def copy_to(self, parameters: Mapping[str, nn.Parameter]) -> None:
        """Copy the averages into the parameters."""
        for name, average in self.average.items():
            parameters[name].copy_(average.to(parameters[name]))
