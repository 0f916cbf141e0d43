"""`.pt` files, of which others publish their weights: read by torch's weights-only reader, which runs no code."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import torch

from kinema4d_ros.core.errors import ErrorCode, FileFormatError
from kinema4d_ros.io.files import require_plain

__all__ = ["load_pickled"]


def load_pickled(path: str | Path, expected: str = "tensors alone") -> Any:
    """What the file holds: tensors and plain containers of them, on the CPU.

    Raises:
        FileFormatError: no file, a damaged one, or one that holds anything else.
    """
    file = Path(path)
    if not file.exists():
        raise FileFormatError(f"{file} does not exist", expected=expected, code=ErrorCode.FILE_MISSING)
    require_plain(file)
    try:
        return torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise FileFormatError(
            f"{file} cannot be read: it is no whole pickle, or holds more than tensors",
            expected=f"{expected}: code in a pickle is never run",
            hint="convert it to safetensors where you trust it",
            code=ErrorCode.FILE_UNSUPPORTED,
        ) from None
    except Exception as error:  # damaged bytes can make an unpickler fail in any way
        raise FileFormatError(f"{file} cannot be read: {_short(error)}", expected=expected) from None


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:160] or type(error).__name__
