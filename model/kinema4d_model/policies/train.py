"""`train_policy`: train the small Diffusion Policy; resumable, with the same result as an uninterrupted run.

DEMOS ─> Examples ─> steps ─> OUT/checkpoints/ (to resume) ─> OUT/policy/ (result)
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from kinema4d_model.policies.examples import Examples
from kinema4d_model.policies.folder import TrainedPolicy, write_policy
from kinema4d_model.policies.network import NetworkConfig, PolicyNetwork
from kinema4d_model.training.checkpoints import (
    CheckpointFolder,
    Progress,
    optimiser_tensors,
    restore_optimiser,
    restore_weights,
)
from kinema4d_model.training.optimisers import Ema
from kinema4d_ros.core.errors import ErrorCode
from kinema4d_ros.policies.protocol import PolicyError
from kinema4d_ros.policies.view import WorkspaceView

__all__ = ["PolicyTraining", "train_policy"]


@dataclass(frozen=True)
class PolicyTraining:
    """Training parameters.

    Attributes:
        steps: optimiser steps.
        batch: samples per step.
        draws: noise draws per sample.
        rate: peak learning rate; it rises over `warmup` steps and falls to a hundredth by the end.
        average: decay of the moving average of the weights, which is saved.
        every: steps between checkpoints.
        episodes: use only the first episodes; 0 = all.
        seed: of all randomness.
    """

    steps: int = 6000
    batch: int = 32
    draws: int = 4
    rate: float = 1e-3
    warmup: int = 200
    average: float = 0.995
    every: int = 500
    episodes: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        """Raise PolicyError for invalid values."""
        counts = (self.steps, self.batch, self.draws, self.every)
        if not (
            all(type(n) is int and n >= 1 for n in counts)
            and 0 < self.rate < 1
            and 0 <= self.average < 1
            and self.episodes >= 0
        ):
            raise PolicyError(
                f"steps {self.steps}, batch {self.batch}, every {self.every}, rate {self.rate}, "
                f"episodes {self.episodes}",
                expected="steps, batch, draws, every: 1 or more; rate: 0 to 1; average: below 1; episodes: 0 or more",
                code=ErrorCode.ARGUMENT_INVALID,
            )


def train_policy(
    data: str | Path,
    out: str | Path,
    training: PolicyTraining | None = None,
    *,
    progress: Callable[[int, float], None] | None = None,
) -> TrainedPolicy:
    """Train on a folder of demonstrations, resume from the newest checkpoint if any; write and return the policy.

    Args:
        data: folder written by `kinema4d policy demos`.
        out: output folder for `policy/` and `checkpoints/`.
        training: default 6000 steps.
        progress: called with every step and its loss.

    Raises:
        PolicyError: no demonstrations, or checkpoints of another training in `out`.
    """
    settings, root = training or PolicyTraining(), Path(out)
    torch.manual_seed(settings.seed)
    examples = Examples(data, NetworkConfig.horizon, settings.episodes)
    view = WorkspaceView.from_dict(examples.about["view"])
    joint_names = tuple(examples.about["joint_names"])
    network = PolicyNetwork(NetworkConfig(joints=len(joint_names), image=(view.height, view.width)))
    parameters = dict(network.named_parameters())
    names = {id(p): n for n, p in parameters.items()}
    optimiser = torch.optim.AdamW(network.parameters(), lr=settings.rate, weight_decay=1e-4)
    ema = Ema(parameters, settings.average)
    state = Progress(data=f"{examples.episodes} episodes, {len(examples)} samples", config_sha256=repr(settings))
    checkpoints = CheckpointFolder(root / "checkpoints")
    found = checkpoints.newest()
    if found is not None:
        if (found.progress.config_sha256, found.progress.data) != (state.config_sha256, state.data):
            raise PolicyError(
                f"{found.path} is of {found.progress.data} and {found.progress.config_sha256}",
                expected=f"{state.data} and {state.config_sha256}",
                hint="use another folder, or remove the checkpoints",
                code=ErrorCode.ARGUMENT_INVALID,
            )
        state = found.progress
        restore_weights(found.tensors("weights"), parameters, found.path)
        restore_weights(found.tensors("average"), ema.average, found.path)
        restore_optimiser(optimiser, found.tensors("optimiser"), parameters)
    last = float("nan")
    while state.step < settings.steps:
        begun = time.monotonic()
        last = _step(network, optimiser, examples, settings, state.step)
        state.step += 1
        ema.update(parameters, state.step)
        state.seconds += time.monotonic() - begun
        if progress is not None:
            progress(state.step, last)
        if state.step % settings.every == 0 or state.step == settings.steps:
            kept = optimiser_tensors(optimiser, names)
            checkpoints.save("step", state, {"weights": parameters, "average": ema.average, "optimiser": kept})
    ema.copy_to(parameters)
    made = {**asdict(settings), "demonstrations": examples.episodes, "samples": len(examples)}
    if np.isfinite(last):
        made["last_loss"] = round(last, 5)
    policy = TrainedPolicy(
        network.eval(),
        examples.numbers,
        view,
        float(examples.about["rate_hz"]),
        str(examples.about["robot"]),
        joint_names,
        examples.longest / float(examples.about["rate_hz"]),
        {**made, "scenario": examples.about["scenario"], "seconds": round(state.seconds, 1)},
    )
    write_policy(policy, root / "policy")
    return policy


def _step(
    network: PolicyNetwork, optimiser: torch.optim.Optimizer, examples: Examples, settings: PolicyTraining, step: int
) -> float:
    # Randomness depends only on the step, so a resumed run equals an uninterrupted one.
    rng = np.random.default_rng([settings.seed, step])
    batch = examples.batch(rng, settings.batch)
    count = settings.batch * settings.draws
    noise = torch.from_numpy(rng.standard_normal((count, *batch.chunk.shape[1:]), np.float32))
    level = torch.from_numpy(rng.integers(network.config.train_levels, size=count))
    for group in optimiser.param_groups:
        group["lr"] = settings.rate * _schedule(step, settings)
    network.train()
    loss = network.loss(batch.image, batch.joints, batch.chunk, batch.grasp, noise, level)
    optimiser.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
    optimiser.step()
    return float(loss.detach())


def _schedule(step: int, settings: PolicyTraining) -> float:
    rise = min(1.0, (step + 1) / max(1, settings.warmup))
    fall = 0.5 * (1 + np.cos(np.pi * step / settings.steps))
    return float(rise * (0.01 + 0.99 * fall))
