"""`Trainer`: training loop with checkpoints and validation; an interrupted run resumes with identical results.

Randomness is stateless: a step depends only on the config, its number and the weights. A checkpoint is therefore
weights, average, optimiser state and step number; a killed run repeats at most `checkpoint_every` steps.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType
from numpy.typing import NDArray
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

from kinema4d_model.training.checkpoints import (
    Checkpoint,
    CheckpointFolder,
    Progress,
    optimiser_tensors,
    restore_optimiser,
    restore_weights,
)
from kinema4d_model.training.config import TrainConfig
from kinema4d_model.training.metrics_log import MetricsLog, write_strips
from kinema4d_model.training.optimisers import Ema, learning_rate, make_optimiser
from kinema4d_model.training.randomness import batch_indices, derive
from kinema4d_ros.core.errors import ErrorCode, FileFormatError, GeneratorError

__all__ = ["Task", "Trainer", "gather_learning", "make_accelerator"]

SHARDED = (DistributedType.FSDP, DistributedType.DEEPSPEED)


class Task(Protocol):
    """A training task: a module that computes the loss of a batch, and its batches."""

    kind: str
    module: nn.Module
    learning: dict[str, nn.Parameter]
    fingerprint: str

    @property
    def samples(self) -> int:
        """Number of training samples."""
        ...

    @property
    def validation_samples(self) -> int:
        """Number of samples per validation."""
        ...

    def batch(self, step: int, numbers: NDArray[np.int64], places: Sequence[int], device: torch.device) -> Any:
        """Return samples `numbers` at `places` of a step's batch; the result has `names`."""
        ...

    def validation_batch(self, number: int, device: torch.device) -> Any:
        """Return one validation sample as a batch."""
        ...

    def pictures(self, count: int, device: torch.device) -> tuple[dict[str, float], list[NDArray[np.uint8]]]:
        """Return metrics and image strips of a few validation samples."""
        ...


def make_accelerator(config: TrainConfig) -> Accelerator:
    """Make the accelerator; `accelerate launch` and its config file set processes and devices."""
    if config.run.threads is not None:
        torch.set_num_threads(config.run.threads)
    return Accelerator(
        cpu=not torch.cuda.is_available(),
        mixed_precision="bf16" if config.run.precision == "bf16" else "no",
        gradient_accumulation_steps=config.run.accumulate,
    )


class Trainer:
    """Trainer of one task in one folder.

    Args:
        task: the training task.
        config: the training config.
        folder: of the run; holds `checkpoints/`, `metrics.jsonl`, `strips/`.
        accelerator: processes and devices.
        resume: resume from the newest checkpoint; start from step 0 if there is none.
        bar: show a progress bar.
    """

    def __init__(
        self,
        task: Task,
        config: TrainConfig,
        folder: Path,
        accelerator: Accelerator,
        *,
        resume: bool = False,
        bar: bool = True,
    ) -> None:
        self.task, self.config, self.folder, self.accelerator = task, config, folder, accelerator
        self._bar = bar
        self._sharded = accelerator.distributed_type in SHARDED
        run = config.run
        share = run.accumulate * accelerator.num_processes
        if run.batch % share:
            raise FileFormatError(
                f"run.batch {run.batch} cannot be divided over {accelerator.num_processes} processes in "
                f"{run.accumulate} passes",
                expected=f"a multiple of {share}",
            )
        if self._sharded and run.ema_decay is not None:
            raise FileFormatError("run.ema_decay is set, but the weights are sharded", expected="ema_decay: null")
        self._micro = run.batch // share
        self.checkpoints = CheckpointFolder(folder / "checkpoints", keep=run.keep)
        task.module.train()
        self.ema = None if run.ema_decay is None else Ema(task.learning, run.ema_decay)
        self._names = {id(p): name for name, p in task.learning.items()}
        optimiser = make_optimiser(config.optimiser, task.learning.items())
        self.progress = Progress(config_sha256=config.sha256, data=task.fingerprint)
        found = self._find(resume)
        plugin = getattr(accelerator.state, "deepspeed_plugin", None)
        if plugin is not None:
            # DeepSpeed reads it from a data loader, which does not exist here.
            plugin.deepspeed_config["train_micro_batch_size_per_gpu"] = self._micro
        self._module, self._optimiser = accelerator.prepare(task.module, optimiser)
        if found is not None:
            self._restore(found)

    def run(self, stop: Callable[[], bool] = lambda: False) -> Progress:
        """Train to the end, or until `stop` returns True after a step; write a checkpoint in both cases."""
        run, accelerator = self.config.run, self.accelerator
        log = MetricsLog(
            self.folder,
            self.progress.step,
            run.steps,
            active=accelerator.is_main_process,
            bar=self._bar,
            wandb=run.wandb,
        )
        saved = self.progress.step
        # Denormals (below 1e-38) are a hundred times slower on a CPU and irrelevant here; restore the mode afterwards.
        torch.set_flush_denormal(True)
        try:
            while self.progress.step < run.steps:
                self._one(log)
                step = self.progress.step
                if step % run.validate_every == 0 or step == run.steps:
                    self._validate(log)
                stopping = self._agreed(stop())
                if step % run.checkpoint_every == 0 or step == run.steps or stopping:
                    self._save("step")
                    saved = step
                if stopping:
                    log.say(f"stopped after step {saved}")
                    break
        finally:
            torch.set_flush_denormal(False)
            log.close()
        return self.progress

    def _one(self, log: MetricsLog) -> None:
        run, accelerator, step = self.config.run, self.accelerator, self.progress.step
        start = time.perf_counter()
        rate = learning_rate(self.config.optimiser, step, run.steps)
        for group in self._optimiser.param_groups:
            group["lr"] = rate
        # Modules that use torch's default generator also depend only on the step.
        torch.manual_seed(derive(self.config.seed, "step", step, accelerator.process_index))
        chosen = batch_indices(self.task.samples, run.batch, step, self.config.seed)
        total, norm = torch.zeros((), device=accelerator.device), float("nan")
        for part in range(run.accumulate):
            first = (part * accelerator.num_processes + accelerator.process_index) * self._micro
            places = range(first, first + self._micro)
            batch = self.task.batch(step, chosen[first : first + self._micro], places, accelerator.device)
            with accelerator.accumulate(self._module):
                loss = self._module(batch)
                _require_finite(loss, step, batch)
                accelerator.backward(loss)
                if accelerator.sync_gradients and self.config.optimiser.clip_norm is not None:
                    norm = float(
                        accelerator.clip_grad_norm_(self._module.parameters(), self.config.optimiser.clip_norm)
                    )
                self._optimiser.step()
                self._optimiser.zero_grad()
            total += loss.detach() / run.accumulate
        self.progress.step = step = step + 1
        if self.ema is not None:
            self.ema.update(self.task.learning, step)
        seconds = time.perf_counter() - start
        self.progress.seconds += seconds
        if step % run.log_every == 0 or step == run.steps:
            value = float(accelerator.reduce(total, "mean"))
            speed = run.batch / seconds
            log.write(step, loss=value, lr=rate, grad_norm=norm, samples_per_s=speed, seconds=self.progress.seconds)
            log.advance({"loss": f"{value:.4f}", "samples/s": f"{speed:.1f}"})
        else:
            log.advance()

    @torch.no_grad()
    def _validate(self, log: MetricsLog) -> None:
        count, accelerator = self.task.validation_samples, self.accelerator
        if count == 0:
            return
        self._module.eval()
        averaged = nullcontext() if self.ema is None else self.ema.applied(self.task.learning)
        with averaged:
            total = torch.zeros(2, device=accelerator.device, dtype=torch.float64)
            # Equal number of passes in every process: sharded weights are gathered collectively.
            for turn in range(-(-count // accelerator.num_processes)):
                number = turn * accelerator.num_processes + accelerator.process_index
                loss = self._module(self.task.validation_batch(min(number, count - 1), accelerator.device))
                if number < count:
                    total += torch.tensor([float(loss), 1.0], device=accelerator.device, dtype=torch.float64)
            total = accelerator.reduce(total, "sum")
            value = float(total[0] / total[1])
            numbers: dict[str, float] = {}
            if accelerator.is_main_process and not self._sharded:
                numbers, strips = self.task.pictures(self.config.run.strips, accelerator.device)
                if strips:
                    write_strips(self.folder / "strips" / f"{self.task.kind}-{self.progress.step:08d}.png", strips)
        self._module.train()
        log.write(self.progress.step, validation_loss=value, **numbers)
        shown = ", ".join(f"{n} {v:.3f}" for n, v in numbers.items())
        log.say(f"step {self.progress.step}: validation loss {value:.5f}" + (f", {shown}" if shown else ""))
        if self.progress.best is None or value < self.progress.best:
            self.progress.best, self.progress.best_step = value, self.progress.step
            self._save("best")

    def _save(self, kind: str) -> None:
        accelerator = self.accelerator
        if self._sharded:
            self._save_sharded(kind)
            return
        if accelerator.is_main_process:
            average = {} if self.ema is None else self.ema.average
            parts: dict[str, Mapping[str, torch.Tensor]] = {"weights": self.task.learning, "average": average}
            if kind == "step":
                inner = getattr(self._optimiser, "optimizer", self._optimiser)
                parts["optimiser"] = optimiser_tensors(inner, self._names)
            self.checkpoints.save(kind, self.progress, parts)
        accelerator.wait_for_everyone()

    def _save_sharded(self, kind: str) -> None:
        """Save sharded weights and optimiser state with accelerate; rename the folder when all processes are done."""
        accelerator = self.accelerator
        staging = self.folder / "checkpoints" / f".{kind}-staging"
        accelerator.save_state(str(staging))
        gathered = gather_learning(accelerator.unwrap_model(self._module), self.task.learning)
        accelerator.wait_for_everyone()
        if accelerator.is_main_process:
            self.checkpoints.save(
                kind, self.progress, {"weights": gathered}, lambda path: _move(staging, path / "sharded")
            )
        accelerator.wait_for_everyone()

    def _find(self, resume: bool) -> Checkpoint | None:
        main = self.accelerator.is_main_process
        if not resume:
            if self.checkpoints.newest() is not None:
                raise FileFormatError(
                    f"{self.folder} already holds a run",
                    expected="a new folder, or --resume to continue it",
                    code=ErrorCode.FILE_NOT_WRITABLE,
                )
            return None
        if main:
            self.checkpoints.clean()
        self.accelerator.wait_for_everyone()
        found = self.checkpoints.newest()
        for what, mine, theirs in (
            ("config", self.progress.config_sha256, found and found.progress.config_sha256),
            ("data", self.progress.data, found and found.progress.data),
        ):
            if found is not None and mine != theirs:
                raise FileFormatError(
                    f"{found.path} was made with another {what}",
                    expected=f"{what} {str(theirs)[:12]}, found {mine[:12]}",
                    hint="start a new run in another folder",
                )
        return found

    def _restore(self, found: Checkpoint) -> None:
        self.progress = found.progress
        if self._sharded:
            self.accelerator.load_state(str(found.path / "sharded"))
            return
        restore_weights(found.tensors("weights"), self.task.learning, found.path)
        if self.ema is not None:
            restore_weights(found.tensors("average"), self.ema.average, found.path)
        inner = getattr(self._optimiser, "optimizer", self._optimiser)
        restore_optimiser(inner, found.tensors("optimiser"), self.task.learning)

    def _agreed(self, stopping: bool) -> bool:
        """Return True in all processes if it is True in one."""
        if self.accelerator.num_processes == 1:
            return stopping
        flag = torch.tensor(float(stopping), device=self.accelerator.device)
        return float(self.accelerator.reduce(flag, "sum")) > 0


def gather_learning(module: nn.Module, names: Iterable[str]) -> dict[str, torch.Tensor]:
    """Gather trainable parameters of a possibly sharded module on the CPU; collective over all processes."""
    options = StateDictOptions(full_state_dict=True, cpu_offload=True, ignore_frozen_params=True)
    found: dict[str, Any] = get_model_state_dict(module, options=options)
    wanted = set(names)
    # The trained module wraps the network, which adds one level to the names.
    return {own: tensor for name, tensor in found.items() if (own := name.partition(".")[2]) in wanted}


def _require_finite(loss: torch.Tensor, step: int, batch: Any) -> None:
    value = float(loss.detach())
    if not math.isfinite(value):
        raise GeneratorError(
            f"the loss is {value} in step {step + 1}",
            expected="a finite number",
            hint=f"check episodes {', '.join(batch.names)}, or lower optimiser.lr; --resume starts before this step",
        )


def _move(source: Path, target: Path) -> None:
    source.rename(target)
