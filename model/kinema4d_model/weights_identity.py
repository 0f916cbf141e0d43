"""Which weights a preset would be loaded with: their hash as a rollout's provenance has it, without loading them."""

from __future__ import annotations

from pathlib import Path

from kinema4d_model.loading import check_bundle

__all__ = ["weights_sha256"]


def weights_sha256(preset: str, checkpoint: str | Path = "") -> str:
    """The sha256 of a preset's weights.

    Raises:
        FileFormatError: there are none (FILE_MISSING), or they are not what the preset needs.
    """
    return check_bundle(preset, checkpoint).sha256
