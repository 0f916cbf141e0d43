"""Weights shipped with the package; finding them imports no heavy module."""

from __future__ import annotations

from pathlib import Path

__all__ = ["shipped_weights"]

FOLDER = Path(__file__).resolve().parent / "weights"


def shipped_weights(preset: str) -> Path | None:
    """Return the folder of a preset's weights, or None if the package does not ship them."""
    folder = FOLDER / preset
    return folder if (folder / "preset.yaml").is_file() else None
