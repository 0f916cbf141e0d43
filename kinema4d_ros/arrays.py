"""NumPy archives (.npz) from outside: plain arrays, as large as they say and no larger, never an object.

An archive is measured before it is unpacked, so that neither a bomb nor a forged header costs memory.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.errors import FileFormatError
from kinema4d_ros.files import read_bytes, reading

__all__ = ["MAX_ARRAY_BYTES", "read_arrays"]

MAX_ARRAY_BYTES = 256 * 2**20
"""All arrays of an archive together, unpacked."""

_KINDS = "biufU"
"""Booleans, numbers and text."""


def read_arrays(path: str | Path, names: Iterable[str], limit: int = MAX_ARRAY_BYTES) -> dict[str, NDArray[Any]]:
    """The named arrays of an archive.

    Args:
        path: of the .npz file.
        names: of the arrays that must be there; others are left alone.
        limit: bytes that the archive may have, packed and unpacked.

    Raises:
        FileFormatError: no archive, cut off, larger than the limit, without one of the arrays, or with objects in it.
    """
    wanted = list(names)
    expected = f"a NumPy archive with {', '.join(wanted)}"
    with reading(path, expected):
        size = len(read_bytes(path, limit))
        with zipfile.ZipFile(path) as archive:
            members = {entry.filename: entry for entry in archive.infolist()}
            unpacked = sum(entry.file_size for entry in members.values())
            if unpacked > limit or any(entry.compress_size > size for entry in members.values()):
                raise FileFormatError(f"{path} unpacks to {unpacked:,} bytes", expected=f"at most {limit:,}")
            found = {
                name: _read_member(path, archive, members[f"{name}.npy"]) for name in wanted if f"{name}.npy" in members
            }
    missing = [name for name in wanted if name not in found]
    if missing:
        raise FileFormatError(f"{path} has no array {', '.join(missing)}", expected=expected)
    return found


def _read_member(path: str | Path, archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> NDArray[Any]:
    with archive.open(entry) as file:
        version = np.lib.format.read_magic(file)
        if version not in ((1, 0), (2, 0)):
            raise FileFormatError(f"{path}: {entry.filename} is of version {version}", expected="version 1.0 or 2.0")
        header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran_order, dtype = header(file)
        claimed = math.prod(shape) * dtype.itemsize
        if dtype.kind not in _KINDS or any(n < 0 for n in shape) or claimed > entry.file_size:
            raise FileFormatError(
                f"{path}: {entry.filename} claims shape {shape} of {dtype}",
                expected="numbers and text, all of them there",
            )
        data = file.read(claimed + 1)
    if len(data) != claimed:
        raise FileFormatError(f"{path}: {entry.filename} has {len(data)} bytes", expected=f"{claimed}")
    array: NDArray[Any] = np.frombuffer(data, dtype).reshape(shape, order="F" if fortran_order else "C")
    return array.astype(dtype.newbyteorder("="), order="C")
