"""Metrics of a run: JSON lines, optional TensorBoard and W&B, a progress bar; strips of predictions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm

from kinema4d_ros.core.errors import FileFormatError, SetupError
from kinema4d_ros.io.documents import parse_json
from kinema4d_ros.io.files import read_bytes, replacing_file, writing
from kinema4d_ros.io.images import write_image

__all__ = ["MetricsLog", "psnr", "read_log", "rows_of", "write_strips"]


def read_log(path: str | Path) -> list[dict[str, Any]]:
    """Read the lines of a log; a last line truncated by a crash is skipped."""
    lines = []
    for line in read_bytes(path).splitlines():
        try:
            found = parse_json(line, path)
        except FileFormatError:
            break
        if not isinstance(found, dict) or not isinstance(found.get("step"), int):
            break
        lines.append(found)
    return lines


class MetricsLog:
    """Writer of metrics.jsonl, TensorBoard, W&B and the progress bar.

    Args:
        folder: of the run.
        start: completed steps; lines of later steps, written before a crash, are removed.
        steps: of the whole run.
        active: False in all but one process; then nothing is written.
        bar: show a progress bar.
        wandb: project of Weights & Biases; None disables it.
    """

    def __init__(
        self,
        folder: Path,
        start: int,
        steps: int,
        *,
        active: bool = True,
        bar: bool = True,
        wandb: str | None = None,
    ) -> None:
        self._active = active
        self._bar: Any = None
        self._board: Any = None
        self._run: Any = None
        if not active:
            return
        if wandb is not None:
            self._run = _wandb_run(wandb, folder)
        self._path = path = folder / "metrics.jsonl"
        kept = [line for line in read_log(path) if line["step"] <= start] if path.is_file() and start else []
        with replacing_file(path) as temporary:
            temporary.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")
        self._file = path.open("a", encoding="utf-8")
        try:
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(str(folder / "tensorboard"), purge_step=start)
        except ImportError:
            self.say(f"TensorBoard is not installed (pip install tensorboard): metrics are only in {path}")
        self._bar = tqdm(total=steps, initial=start, unit="step", disable=not bar, dynamic_ncols=True)

    def write(self, step: int, **values: float) -> None:
        """Write one line and flush it."""
        if not self._active:
            return
        with writing(self._path):
            self._file.write(json.dumps({"step": step, **values}) + "\n")
            self._file.flush()
            for name, value in values.items():
                if self._board is not None:
                    self._board.add_scalar(name, value, step)
        if self._run is not None:
            self._run.log(dict(values), step=step)

    def advance(self, shown: Mapping[str, str] | None = None) -> None:
        """Advance the bar by one step."""
        if self._active:
            if shown:
                self._bar.set_postfix(shown, refresh=False)
            self._bar.update(1)

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        if self._active:
            tqdm.write(text)

    def close(self) -> None:
        """Close the bar and the files."""
        if self._active:
            self._bar.close()
            # Lines are flushed when written, so a full disk was already reported there.
            with suppress(OSError):
                self._file.close()
            if self._board is not None:
                with suppress(OSError):
                    self._board.close()
            if self._run is not None:
                self._run.finish()


def _wandb_run(project: str, folder: Path) -> Any:
    """Open the W&B run of a folder; its id is derived from the folder, so that a resumed training continues it."""
    try:
        import wandb
    except ImportError as error:
        raise SetupError(
            "run.wandb is set, but the package wandb is not installed",
            expected="the package, or no run.wandb in the config",
            hint="pip install wandb",
        ) from error
    known = folder / "wandb_id.txt"
    if not known.is_file():
        known.write_text(wandb.util.generate_id(), encoding="utf-8")
    return wandb.init(project=project, dir=str(folder), id=known.read_text(encoding="utf-8").strip(), resume="allow")


# Strips: a few frames of predictions next to the truth.

SHOWN = 7
GAP = 2


def psnr(difference: torch.Tensor) -> float:
    """Return the PSNR in dB of differences of values in [0, 1]; 99 if they are zero."""
    error = float(difference.square().mean())
    return min(99.0, -10 * float(np.log10(max(error, 1e-12))))


def rows_of(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> NDArray[np.uint8]:
    """Return one image (rows, columns, 3) uint8: a row of frames per pair, first RGB, then pointmaps.

    Each pair is RGB and XYZ (1, 3, T, H, W) in [-1, 1].
    """
    rows = []
    for half in range(2):
        for pair in pairs:
            clip = ((pair[half][0].float().cpu() + 1) * 127.5).round().clamp(0, 255).byte().permute(1, 2, 3, 0).numpy()
            chosen = np.rint(np.linspace(0, len(clip) - 1, min(SHOWN, len(clip)))).astype(int)
            gap = np.full((clip.shape[1], GAP, 3), 255, np.uint8)
            rows.append(np.concatenate([part for i in chosen for part in (clip[i], gap)], axis=1))
            rows.append(np.full((GAP, rows[-1].shape[1], 3), 255, np.uint8))
    return np.concatenate(rows)


def write_strips(path: Path, strips: Sequence[NDArray[np.uint8]]) -> None:
    """Write all strips as one PNG, stacked vertically."""
    gap = np.zeros((4 * GAP, strips[0].shape[1], 3), np.uint8)
    write_image(path, np.concatenate([part for strip in strips for part in (strip, gap)]))
