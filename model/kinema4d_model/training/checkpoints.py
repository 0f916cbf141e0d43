"""Atomic checkpoints: written to a temporary folder, flushed to disk, renamed, verified when read.

CHECKPOINTS/step-00001000/
  weights.safetensors     trainable parameters
  average.safetensors     their moving average, if enabled
  optimiser.safetensors   state of the optimiser, by parameter name
  progress.json           step, seconds, best validation, size and sha256 of the files above: written last
CHECKPOINTS/best-00001000/
  the same without the optimiser: the best validation so far
"""

from __future__ import annotations

import json
import os
import re
import shutil
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file

from kinema4d_model.checkpoints.manifest import file_sha256
from kinema4d_model.checkpoints.tensor_files import differences, raise_if, read_tensors
from kinema4d_ros.core.errors import ErrorCode, FileFormatError
from kinema4d_ros.io.files import read_json, swap, writing

__all__ = ["Checkpoint", "CheckpointFolder", "Progress"]

FORMAT = "kinema4d-checkpoint-1"
PROGRESS = "progress.json"
_NAME = re.compile(r"(step|best)-(\d{8})")


@dataclass
class Progress:
    """Progress of a run.

    Attributes:
        step: completed optimiser steps.
        seconds: training time over all restarts.
        best: smallest validation loss so far, with its step; None before the first.
        config_sha256: of the run's config.
        data: fingerprint of the training data.
    """

    step: int = 0
    seconds: float = 0.0
    best: float | None = None
    best_step: int = 0
    config_sha256: str = ""
    data: str = ""


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint on disk."""

    path: Path
    progress: Progress

    def tensors(self, part: str) -> dict[str, torch.Tensor]:
        """Read "weights", "average" or "optimiser"; empty if missing."""
        path = self.path / f"{part}.safetensors"
        return dict(read_tensors(path)) if path.is_file() else {}


class CheckpointFolder:
    """All checkpoints of a run."""

    def __init__(self, folder: Path, *, keep: int = 2) -> None:
        self.folder = folder
        self._keep = keep

    def save(
        self,
        kind: str,
        progress: Progress,
        parts: Mapping[str, Mapping[str, torch.Tensor]],
        extra: Callable[[Path], None] | None = None,
    ) -> Path:
        """Write a checkpoint of kind "step" or "best" and remove old ones.

        `extra` may add files to the folder before it is renamed.
        """
        target = self.folder / f"{kind}-{progress.step:08d}"
        temporary = self.folder / f".{target.name}.{uuid.uuid4().hex[:12]}"
        try:
            with writing(target, temporary):
                self._write(temporary, progress, parts, extra)
                # The same step again after a resume: replace it without a moment in which none exists.
                if not (target.exists() and swap(temporary, target)):
                    if target.exists():
                        target.rename(temporary.with_name(f"{temporary.name}.old"))
                    temporary.rename(target)
                _flush(self.folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        self._prune()
        return target

    @staticmethod
    def _write(
        folder: Path,
        progress: Progress,
        parts: Mapping[str, Mapping[str, torch.Tensor]],
        extra: Callable[[Path], None] | None,
    ) -> None:
        folder.mkdir(parents=True)
        for part, tensors in parts.items():
            if tensors:
                plain = {n: t.detach().cpu().contiguous() for n, t in tensors.items()}
                save_file(plain, folder / f"{part}.safetensors")
        if extra is not None:
            extra(folder)
        files = {p.name: [p.stat().st_size, file_sha256(p)] for p in sorted(folder.iterdir()) if p.is_file()}
        document = {"format": FORMAT, "progress": asdict(progress), "files": files}
        (folder / PROGRESS).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                _flush(path)
        _flush(folder)

    def newest(self, kind: str = "step") -> Checkpoint | None:
        """Return the newest complete checkpoint; skip damaged ones, raise FileFormatError for another format."""
        for path in reversed(self._named(kind)):
            checkpoint = _open(path)
            if checkpoint is not None:
                return checkpoint
        return None

    def clean(self) -> None:
        """Remove incomplete checkpoints of an interrupted run."""
        for path in self.folder.glob(".*-*"):
            shutil.rmtree(path, ignore_errors=True)

    def _named(self, kind: str) -> list[Path]:
        found = [p for p in self.folder.glob(f"{kind}-*") if _NAME.fullmatch(p.name) and p.is_dir()]
        return sorted(found)

    def _prune(self) -> None:
        for path in [*self._named("step")[: -self._keep], *self._named("best")[:-1]]:
            shutil.rmtree(path, ignore_errors=True)
        for path in self.folder.glob(".*.old"):
            shutil.rmtree(path, ignore_errors=True)


def _open(path: Path) -> Checkpoint | None:
    try:
        document = read_json(path / PROGRESS)
        files = {str(name): (int(size), str(sha)) for name, (size, sha) in document["files"].items()}
        progress = Progress(**document["progress"])
        known = document["format"] == FORMAT
    except (FileFormatError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return None
    if not known:
        raise FileFormatError(f"{path} has format {document['format']!r}", expected=FORMAT)
    for name, (size, sha) in files.items():
        file = path / name
        if Path(name).name != name or not file.is_file() or file.stat().st_size != size or file_sha256(file) != sha:
            return None
    return Checkpoint(path, progress)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def optimiser_tensors(optimiser: torch.optim.Optimizer, names: Mapping[int, str]) -> dict[str, torch.Tensor]:
    """Return the optimiser's state as named tensors; `names` by id of the parameter."""
    return {
        f"{names[id(parameter)]}|{key}": value if isinstance(value, torch.Tensor) else torch.tensor(float(value))
        for parameter, state in optimiser.state.items()
        for key, value in state.items()
    }


def restore_optimiser(
    optimiser: torch.optim.Optimizer, tensors: Mapping[str, torch.Tensor], parameters: Mapping[str, torch.Tensor]
) -> None:
    """Restore the state returned by `optimiser_tensors`."""
    optimiser.state.clear()
    for name, tensor in tensors.items():
        parameter_name, _, key = name.rpartition("|")
        if parameter_name not in parameters:
            raise FileFormatError(f"the optimiser's state names '{parameter_name}', which is not trainable")
        parameter = parameters[parameter_name]
        optimiser.state[parameter][key] = tensor.to(parameter.device) if key != "step" else tensor


def restore_weights(tensors: Mapping[str, torch.Tensor], parameters: Mapping[str, torch.Tensor], where: Path) -> None:
    """Copy tensors into parameters; every name and shape must match."""
    raise_if(
        differences(
            {n: tuple(p.shape) for n, p in parameters.items()}, {n: tuple(t.shape) for n, t in tensors.items()}
        ),
        where,
        ErrorCode.FILE_MALFORMED,
    )
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(tensors[name])
