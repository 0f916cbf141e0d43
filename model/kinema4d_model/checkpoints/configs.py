"""What a part's config.json says against what the preset says: shapes alone do not tell heads or statistics."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kinema4d_model.checkpoints.tensor_files import raise_if
from kinema4d_ros.errors import FileFormatError
from kinema4d_ros.files import read_json

__all__ = ["check_config"]

CONFIG = "config.json"


def check_config(folder: Path, ours: Mapping[str, Any]) -> None:
    """Refuse a folder whose config.json gives another value to a key that both have; no file, no check."""
    path = folder / CONFIG
    if not path.is_file():
        return
    document = read_json(path)
    try:
        theirs = {str(key): value for key, value in document.items() if not str(key).startswith("_")}
    except AttributeError as error:
        raise FileFormatError(f"{path} is not a configuration: {error!r}") from None
    differ = [
        f"{key} is {theirs[key]!r}, the preset's is {_plain(value)!r}"
        for key, value in ours.items()
        if key in theirs and _plain(theirs[key]) != _plain(value)
    ]
    raise_if(differ, path, hint="the weights are of another model; choose the preset that they were made for")


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
