"""Safetensors and pickled tensor files as untrusted input: no code execution, names and shapes compared."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from kinema4d_ros.core.errors import ErrorCode, FileFormatError
from kinema4d_ros.io.files import read_json, require_plain

__all__ = [
    "differences",
    "file_metadata",
    "find_shards",
    "load_pickled",
    "name_some",
    "raise_if",
    "read_tensors",
    "tensor_shapes",
]

Shape = tuple[int, ...]
PICKLE_SUFFIXES = (".pt", ".pth", ".bin", ".ckpt", ".pkl")
SHOWN = 8
"""Number of names listed in an error; the rest is counted."""


def tensor_shapes(path: Path) -> dict[str, Shape]:
    """Read names and shapes from the header of a safetensors file."""
    _refuse_pickle(path)
    try:
        with safe_open(str(path), framework="pt") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise _broken(path, error) from None


def file_metadata(path: Path) -> dict[str, str]:
    """Read the metadata strings from the header of a safetensors file."""
    _refuse_pickle(path)
    try:
        with safe_open(str(path), framework="pt") as file:
            return dict(file.metadata() or {})
    except (SafetensorError, OSError, ValueError) as error:
        raise _broken(path, error) from None


def read_tensors(path: Path, names: Iterable[str] | None = None) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of a safetensors file one by one, on the CPU."""
    _refuse_pickle(path)
    try:
        with safe_open(str(path), framework="pt") as file:
            for name in file.keys() if names is None else names:
                yield name, file.get_tensor(name)
    except (SafetensorError, OSError, ValueError) as error:
        raise _broken(path, error) from None


def find_shards(folder: Path, stem: str) -> list[Path]:
    """Find the safetensors files of a model in `folder`: one file, or those named by its index; others are an error."""
    single, index = folder / f"{stem}.safetensors", folder / f"{stem}.safetensors.index.json"
    here = sorted(p.name for p in (single, *folder.glob(f"{stem}-*.safetensors")) if p.is_file())
    if single.is_file():
        _refuse_spare(folder, here, [single.name])
        return [single]
    if index.is_file():
        try:
            names = sorted(set(read_json(index)["weight_map"].values()))
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise FileFormatError(f"{index} is not an index of shards: {error!r}") from None
        # A name with a path separator could point outside this folder.
        bad = [n for n in names if not isinstance(n, str) or Path(n).name != n or not (folder / n).is_file()]
        raise_if([f"shard {name!r} is missing" for name in bad], index, ErrorCode.FILE_MISSING)
        _refuse_spare(folder, here, names)
        return [folder / name for name in names]
    pickles = [p.name for p in sorted(folder.glob("*")) if p.suffix in PICKLE_SUFFIXES]
    if pickles:
        raise FileFormatError(
            f"{folder} holds only pickle files ({', '.join(pickles)})",
            expected=f"{single.name}: a pickle can run code when it is read",
            hint="convert it to safetensors if you trust it",
            code=ErrorCode.FILE_UNSUPPORTED,
        )
    raise FileFormatError(
        f"{folder} holds no weights", expected=f"{single.name} or {index.name}", code=ErrorCode.FILE_MISSING
    )


def differences(expected: Mapping[str, Shape], found: Mapping[str, Shape]) -> list[str]:
    """Describe missing, unexpected and differently shaped tensors; an empty list if all agree."""
    missing = [name for name in expected if name not in found]
    unexpected = [name for name in found if name not in expected]
    shapes = [
        f"{name} is {list(found[name])}, not {list(shape)}"
        for name, shape in expected.items()
        if name in found and tuple(found[name]) != tuple(shape)
    ]
    kinds = (("missing", missing), ("unexpected", unexpected), ("wrong shape", shapes))
    return [f"{len(names)} {kind}: {name_some(names)}" for kind, names in kinds if names]


def raise_if(
    problems: list[str],
    path: Path,
    code: ErrorCode = ErrorCode.FILE_MALFORMED,
    hint: str = "",
    expected: str = "exactly the tensors that the network has",
) -> None:
    """Raise a `FileFormatError` that lists the problems of a file, if there are any."""
    if problems:
        raise FileFormatError(f"{path} does not fit: " + "; ".join(problems), expected=expected, hint=hint, code=code)


def name_some(names: list[str]) -> str:
    """Join the first names of a list and the number of the others."""
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")


def _refuse_spare(folder: Path, here: list[str], used: list[str]) -> None:
    spare = [name for name in here if name not in used]
    if spare:
        raise FileFormatError(
            f"{folder} holds unused weights: {name_some(spare)}",
            expected=f"only {name_some(used)}",
            hint="remove the files of another download or version",
        )


def _refuse_pickle(path: Path) -> None:
    if not path.is_file():
        raise FileFormatError(f"{path} does not exist", expected="a safetensors file", code=ErrorCode.FILE_MISSING)
    if path.suffix in PICKLE_SUFFIXES:
        raise _pickle(path)


def _pickle(path: Path) -> FileFormatError:
    return FileFormatError(
        f"{path} is a pickle file",
        expected="a safetensors file: a pickle can run code when it is read",
        hint="convert it to safetensors if you trust it",
        code=ErrorCode.FILE_UNSUPPORTED,
    )


def _broken(path: Path, error: Exception) -> FileFormatError:
    with path.open("rb") as file:
        head = file.read(2)
    # A pickle starts with its protocol number, torch's own container is a zip archive. Tested only after a failure: a
    # valid safetensors file can start with the same bytes, which are its header length.
    if head == b"PK" or head[:1] == b"\x80":
        return _pickle(path)
    return FileFormatError(
        f"{path} cannot be read as safetensors: {error}",
        expected="a complete safetensors file",
        hint="download it again; `kinema4d fetch-weights` checks hashes",
    )


# `.pt` files, as other projects publish weights: read by torch's weights-only reader, which runs no code.


def load_pickled(path: str | Path, expected: str = "tensors alone") -> Any:
    """Load tensors, and plain containers of tensors, from a file to the CPU.

    Raises:
        FileFormatError: the file is missing, damaged, or holds other data.
    """
    file = Path(path)
    if not file.exists():
        raise FileFormatError(f"{file} does not exist", expected=expected, code=ErrorCode.FILE_MISSING)
    require_plain(file)
    try:
        return torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise FileFormatError(
            f"{file} cannot be read: it is not a complete pickle, or holds more than tensors",
            expected=f"{expected}: code in a pickle is never run",
            hint="convert it to safetensors if you trust it",
            code=ErrorCode.FILE_UNSUPPORTED,
        ) from None
    except Exception as error:  # damaged bytes can make an unpickler raise any exception
        raise FileFormatError(f"{file} cannot be read: {_short(error)}", expected=expected) from None


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:160] or type(error).__name__
