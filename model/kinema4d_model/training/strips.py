"""Predictions beside the truth: rows of a few frames, for people."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from kinema4d_ros.io.images import write_image

__all__ = ["psnr", "rows_of", "write_strips"]

SHOWN = 7
GAP = 2


def psnr(difference: torch.Tensor) -> float:
    """In dB, of differences of values in [0, 1]; 99 where there is none."""
    error = float(difference.square().mean())
    return min(99.0, -10 * float(np.log10(max(error, 1e-12))))


def rows_of(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> NDArray[np.uint8]:
    """One picture (rows, columns, 3): for RGB first, then for the pointmap, one row of frames a pair.

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
    """All strips below each other in one PNG."""
    gap = np.zeros((4 * GAP, strips[0].shape[1], 3), np.uint8)
    write_image(path, np.concatenate([part for strip in strips for part in (strip, gap)]))
