"""YAML config files by name or path, with `extends`, and their conversion to and from frozen dataclasses."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from kinema4d_ros.core.errors import ErrorCode, FileFormatError
from kinema4d_ros.io.files import read_yaml, reading

__all__ = ["build", "find_named", "names_in", "plain", "read_extended"]


def names_in(folder: Path) -> tuple[str, ...]:
    """List the names of the YAML files in a folder, sorted."""
    return tuple(sorted(path.stem for path in folder.glob("*.yaml")))


def find_named(name_or_path: str | Path, folder: Path, kind: str) -> Path:
    """Return the path of a named file in `folder`, or the argument itself if it has a suffix or a separator."""
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


def read_extended(path: Path, folder: Path, below: tuple[str, ...] = ()) -> dict[str, Any]:
    """Read a file's mapping; with `extends: NAME` merge it over that file of `folder`, which may extend another.

    `below` has the names that lead here, to refuse a circle.
    """
    document = read_yaml(path)
    if "extends" not in document:
        return document
    base = document.pop("extends")
    if not isinstance(base, str) or Path(base).name != base or base in below:
        raise FileFormatError(
            f"{path} extends {base!r}", expected=f"the name of a config file: one of {', '.join(names_in(folder))}"
        )
    merged = read_extended(folder / f"{base}.yaml", folder, (*below, base))
    for key, value in document.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = {**merged[key], **value} if both else value
    return merged


# Dataclass conversion. All unknown, missing and mistyped keys are reported in one error.


class _Mismatch(Exception):  # noqa: N818 - its text completes the sentence "KEY is VALUE, not ..."
    """Description of the expected value."""


def build(cls: Any, mapping: Mapping[str, Any], where: str) -> Any:
    """Build dataclass `cls` from the mapping of a file called `where`; raise one error that lists every problem."""
    problems: list[str] = []
    with reading(where, f"the keys of {cls.__name__}"):
        instance = _dataclass(cls, mapping, "", problems)
    if problems:
        raise FileFormatError(f"{where}: " + "; ".join(problems), expected=f"the keys of {cls.__name__}")
    return instance


def _dataclass(cls: Any, mapping: Any, prefix: str, problems: list[str]) -> Any:
    if not isinstance(mapping, Mapping):
        problems.append(f"{prefix.rstrip('.') or 'the file'} is {type(mapping).__name__}, not a mapping")
        return None
    fields = {f.name: f for f in dataclasses.fields(cls)}
    hints = get_type_hints(cls)
    problems += [f"unknown key {prefix}{key}" for key in mapping if key not in fields]
    values = {}
    before = len(problems)
    for name, f in fields.items():
        if name not in mapping:
            if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING:
                problems.append(f"missing key {prefix}{name}")
            continue
        try:
            values[name] = _value(hints[name], mapping[name], f"{prefix}{name}.", problems)
        except _Mismatch as mismatch:
            problems.append(f"{prefix}{name} is {mapping[name]!r}, not {mismatch}")
    return cls(**values) if len(problems) == before and not problems else None


def _value(hint: Any, value: Any, prefix: str, problems: list[str]) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        if value is None:
            return None
        return _value(next(a for a in arguments if a is not type(None)), value, prefix, problems)
    if origin is Literal:
        if value not in arguments:
            raise _Mismatch("one of " + ", ".join(map(str, arguments)))
        return value
    if origin is tuple:
        return _tuple(arguments, value, prefix, problems)
    if dataclasses.is_dataclass(hint):
        return _dataclass(hint, value, prefix, problems)
    if isinstance(hint, type) and issubclass(hint, Enum):
        try:
            return hint(value)
        except ValueError:
            raise _Mismatch("one of " + ", ".join(str(member.value) for member in hint)) from None
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise _Mismatch(f"of type {hint.__name__}")
    return value


def _tuple(arguments: tuple[Any, ...], value: Any, prefix: str, problems: list[str]) -> Any:
    if not isinstance(value, (list, tuple)):
        raise _Mismatch("a list")
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        arguments = (arguments[0],) * len(value)
    if len(arguments) != len(value):
        raise _Mismatch(f"a list of {len(arguments)}")
    items = zip(arguments, value, strict=True)
    return tuple(_value(a, v, f"{prefix[:-1]}[{i}].", problems) for i, (a, v) in enumerate(items))


def plain(value: Any) -> Any:
    """Convert a dataclass to mappings, lists and scalars that YAML and JSON can store."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value
