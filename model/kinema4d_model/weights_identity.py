"""Which weights a preset would be loaded with: their hash as a rollout's provenance has it, without loading them."""

from __future__ import annotations

import hashlib
from pathlib import Path

from kinema4d_model.checkpoints.folder import PRESET_FILE
from kinema4d_model.checkpoints.manifest import check_manifest
from kinema4d_model.loading import checkpoint_folder
from kinema4d_model.preset import load_preset
from kinema4d_ros.errors import ErrorCode, FileFormatError

__all__ = ["weights_sha256"]


def weights_sha256(preset: str, checkpoint: str | Path = "") -> str:
    """The sha256 of a preset's weights; "" for a layout whose hash is known only once it is loaded.

    Raises:
        FileFormatError: there are none (FILE_MISSING), or files are missing or have other sizes than when written.
    """
    chosen = load_preset(preset)
    folder = checkpoint_folder(chosen, checkpoint)
    if (folder / PRESET_FILE).is_file():
        # The text of ModelBundle.from_pretrained's origin, hashed as ModelBundle.sha256 does.
        return hashlib.sha256(f"folder {check_manifest(folder, hashes=False).sha256}".encode()).hexdigest()
    if not any((path / "transformer").is_dir() for path in (folder, folder / "base")):
        state = "does not exist" if not folder.exists() else "holds neither preset.yaml nor transformer/"
        raise FileFormatError(
            f"no weights for preset '{preset}': {folder} {state}",
            expected="a model folder",
            hint="kinema4d fetch-weights, or --checkpoint MODEL=DIR",
            code=ErrorCode.FILE_MISSING,
        )
    return ""
