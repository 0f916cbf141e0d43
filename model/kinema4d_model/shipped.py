"""Weights that come with the package; nothing heavy is imported to look for them."""

from __future__ import annotations

from pathlib import Path

__all__ = ["shipped_weights"]

FOLDER = Path(__file__).resolve().parent / "weights"


def shipped_weights(preset: str) -> Path | None:
    """The folder of a preset's weights, or None if they do not come with the package."""
    folder = FOLDER / preset
    return folder if (folder / "preset.yaml").is_file() else None
