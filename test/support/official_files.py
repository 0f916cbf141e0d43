"""Checkpoint files with the official names and layout, of any network's sizes."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file

from kinema4d_model.checkpoints.lora import lora_shapes
from kinema4d_model.checkpoints.official import ADDED_FILE, LORA_FILE, added_shapes
from kinema4d_model.network import KinemaTransformer


def random_tensors(shapes: dict[str, tuple[int, ...]], seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: 0.3 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def write_official(folder: Path, transformer: KinemaTransformer, seed: int = 0, rank: int = 4) -> Path:
    """Files as they are released, with this network's sizes."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(random_tensors(added_shapes(transformer), seed), folder / ADDED_FILE)
    save_file(random_tensors(lora_shapes(transformer, rank), seed + 1), folder / LORA_FILE)
    return folder
