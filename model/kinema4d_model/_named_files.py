"""YAML files of the package by name or by path, one of which may say only how it differs from another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kinema4d_ros.core.errors import ErrorCode, FileFormatError
from kinema4d_ros.io.files import read_yaml

__all__ = ["find_named", "names_in", "read_extended"]


def names_in(folder: Path) -> tuple[str, ...]:
    """Names of the files of a folder, sorted."""
    return tuple(sorted(path.stem for path in folder.glob("*.yaml")))


def find_named(name_or_path: str | Path, folder: Path, kind: str) -> Path:
    """The file of a name in `folder`, or the path itself (anything with a suffix or a separator)."""
    path = Path(name_or_path)
    if path.suffix in (".yaml", ".yml") or len(path.parts) != 1:
        return path
    path = folder / f"{name_or_path}.yaml"
    if not path.is_file():
        raise FileFormatError(
            f"{kind} '{name_or_path}' does not exist",
            expected=f"one of {', '.join(names_in(folder))}, or the path of a YAML file",
            code=ErrorCode.FILE_MISSING,
        )
    return path


def read_extended(path: Path, folder: Path) -> dict[str, Any]:
    """The file's mapping; with `extends: NAME` only what differs from another file of `folder`."""
    document = read_yaml(path)
    if "extends" not in document:
        return document
    base = document.pop("extends")
    if not isinstance(base, str) or Path(base).name != base:
        raise FileFormatError(
            f"{path} extends {base!r}", expected=f"the name of another: one of {', '.join(names_in(folder))}"
        )
    merged = read_yaml(folder / f"{base}.yaml")
    for key, value in document.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = {**merged[key], **value} if both else value
    return merged
