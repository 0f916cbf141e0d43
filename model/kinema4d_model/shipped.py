"""Weights shipped with the package; finding them imports no heavy module."""

from __future__ import annotations

from pathlib import Path

__all__ = ["DETECTOR", "shipped_detector", "shipped_weights"]

FOLDER = Path(__file__).resolve().parent / "weights"
DETECTOR = FOLDER / "detector"


def shipped_weights(preset: str) -> Path | None:
    """Return the folder of a preset's weights, or None if the package does not ship them."""
    folder = FOLDER / preset
    return folder if (folder / "preset.yaml").is_file() else None


def shipped_detector() -> Path | None:
    """Return the folder of the detector of objects, or None if the package does not ship its weights."""
    return DETECTOR if (DETECTOR / "config.json").is_file() else None
