"""Atomic file and folder writes, bounded reads of YAML, JSON and NumPy archives, and uniform file errors.

Writers use a temporary sibling path. A killed writer leaves it behind; the next writer of the same file removes it.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import math
import os
import platform
import re
import shutil
import stat
import uuid
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from kinema4d_ros.core.errors import ErrorCode, FileFormatError, KinemaError
from kinema4d_ros.io.documents import parse_json, parse_yaml

__all__ = [
    "MAX_ARRAY_BYTES",
    "read_arrays",
    "read_bytes",
    "read_json",
    "read_yaml",
    "reading",
    "replacing_file",
    "replacing_folder",
    "require_plain",
    "swap",
    "what_it_is",
    "write_yaml",
    "writing",
]

_MAX_YAML_BYTES = 1_000_000
_MAX_JSON_BYTES = 50_000_000

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
_OS_ERROR = re.compile(r"\(os error (\d{1,3})\)")
_NEIGHBOUR = re.compile(r"\.(.+)\.([0-9a-f]{8})-(\d+)-[0-9a-f]{12}(\.[^.]*)?")


@lru_cache(maxsize=1)
def _here() -> str:
    """Return an id of this host and PID namespace: on a shared disk, other machines have their own process ids."""
    with suppress(OSError):
        return hashlib.sha256(f"{platform.node()} {Path('/proc/self/ns/pid').readlink()}".encode()).hexdigest()[:8]
    return hashlib.sha256(platform.node().encode()).hexdigest()[:8]


def _neighbour(path: Path) -> Path:
    return path.with_name(f".{path.stem}.{_here()}-{os.getpid()}-{uuid.uuid4().hex[:12]}{path.suffix}")


def _sweep(target: Path) -> None:
    """Remove temporary siblings of `target` whose writers were killed."""
    with suppress(OSError):
        for path in target.parent.glob(f".{_literal(target.stem)}.{_here()}-*"):
            found = _NEIGHBOUR.fullmatch(path.name)
            if found is None or (found[1], found[2], found[4] or "") != (target.stem, _here(), target.suffix):
                continue
            if Path(f"/proc/{found[3]}").exists():
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()


def _literal(text: str) -> str:
    return re.sub(r"([*?[])", r"[\1]", text)


def swap(one: Path, other: Path) -> bool:
    """Exchange two paths atomically, so that a kill leaves either the old or the new one; False if unsupported."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    return bool(rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0)


def _is_about(error: OSError, temporary: Path, target: Path) -> bool:
    """Return True for errors about this file or a full disk; other errors belong to the caller's block."""
    if error.filename is None:
        return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)
    name = Path(os.fsdecode(error.filename))
    return name.is_relative_to(temporary) or target.is_relative_to(name)


def _os_error(error: Exception) -> OSError | None:
    """Extract the OSError from a library's exception: libraries written in Rust raise their own types."""
    if isinstance(error, OSError):
        return error
    found = _OS_ERROR.search(str(error))
    return None if found is None else OSError(int(found[1]), os.strerror(int(found[1])))


def _not_writable(target: Path, error: OSError) -> FileFormatError:
    return FileFormatError(
        f"{target} cannot be written: {error.strerror or error}",
        expected="a path that this user may write to, with free space",
        code=ErrorCode.FILE_NOT_WRITABLE,
    )


@contextmanager
def writing(target: str | Path, temporary: Path | None = None) -> Iterator[None]:
    """Convert OS errors about `target` or a full disk in this block to FILE_NOT_WRITABLE of `target`.

    `temporary` is the path that the block writes in place of `target`; messages name the target instead.
    """
    path = Path(target)
    written = path if temporary is None else temporary
    try:
        yield
    except FileFormatError as error:
        if error.code == ErrorCode.FILE_NOT_WRITABLE and str(written) in error.what:
            error.what = error.what.replace(str(written), str(path))
        raise
    except Exception as error:
        cause = _os_error(error)
        if cause is None or not _is_about(cause, written, path):
            raise
        raise _not_writable(path, cause) from error


@contextmanager
def replacing_file(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path, same suffix and folder, that is renamed to `path` if the block ends without an error.

    The folder is created. On any error the temporary file is removed and an existing `path` is kept.
    """
    target = Path(path)
    temporary = _neighbour(target)
    _sweep(target)
    try:
        with writing(target, temporary):
            target.parent.mkdir(parents=True, exist_ok=True)
            yield temporary
            temporary.replace(target)
    finally:
        with suppress(OSError):
            temporary.unlink()


@contextmanager
def replacing_folder(path: str | Path, is_ours: Callable[[Path], bool]) -> Iterator[Path]:
    """Yield a temporary folder that is renamed to `path` if the block ends without an error.

    An existing `path` is replaced only if it is an empty folder or `is_ours(path)` is true; anything else is
    rejected before any work is done.
    """
    target = Path(path)
    if target.exists() and not (target.is_dir() and (not any(target.iterdir()) or is_ours(target))):
        raise FileFormatError(
            f"{target} exists and holds something else",
            expected="a new path, an empty folder, or an earlier result of the same kind",
            hint="choose another path, or move the existing one",
            code=ErrorCode.FILE_NOT_WRITABLE,
        )
    temporary = _neighbour(target)
    # Without an atomic exchange, a kill in between leaves the old folder under this name, which `_sweep` keeps.
    old = target.with_name(f".{target.stem}.replaced-{uuid.uuid4().hex[:12]}{target.suffix}")
    _sweep(target)
    try:
        with writing(target, temporary):
            temporary.mkdir(parents=True)
            yield temporary
            if not (target.exists() and swap(temporary, target)):
                if target.exists():
                    target.rename(old)
                try:
                    temporary.rename(target)
                except OSError:
                    if old.exists():
                        old.rename(target)
                    raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def read_bytes(path: str | Path, limit: int | None = None) -> bytes:
    """Return the content of a file, or raise an error that names it; `limit` is the largest accepted size in bytes."""
    source = Path(path)
    try:
        status = source.stat()
        if what_it_is(status):
            raise FileFormatError(f"{source} cannot be read: it is {what_it_is(status)}", expected="a file")
        if limit is not None and status.st_size > limit:
            raise FileFormatError(f"{source} has {status.st_size} bytes", expected=f"at most {limit}")
        return source.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise FileFormatError(
            f"{source} does not exist",
            expected=f"a file; {source.parent} {'exists' if source.parent.is_dir() else 'does not exist either'}",
            hint=f"relative paths start at {Path.cwd()}" if not source.is_absolute() else "",
            code=ErrorCode.FILE_MISSING,
        ) from None
    except OSError as error:
        raise FileFormatError(f"{source} cannot be read: {error.strerror or error}", expected="a file") from error


def require_plain(path: str | Path) -> None:
    """Reject pipes, sockets and devices at a path and directly in it, for parsers that open files themselves."""
    there = Path(path)
    entries = sorted(there.iterdir()) if there.is_dir() else [there]
    for entry in entries:
        if entry.exists() and not entry.is_dir() and what_it_is(entry.stat()):
            raise FileFormatError(f"{entry} cannot be read: it is {what_it_is(entry.stat())}", expected="a file")


def what_it_is(status: os.stat_result) -> str:
    """Return "" for a plain file, else its type: reading a pipe blocks forever, reading a device never ends."""
    mode = status.st_mode
    if stat.S_ISREG(mode):
        return ""
    if stat.S_ISDIR(mode):
        return "a folder"
    return "a device" if stat.S_ISCHR(mode) or stat.S_ISBLK(mode) else "a pipe or a socket"


def read_yaml(path: str | Path) -> dict[str, Any]:
    """Return the top-level mapping of a small YAML file, plain data only."""
    document = parse_yaml(read_bytes(path, _MAX_YAML_BYTES), path)
    if not isinstance(document, dict) or not all(isinstance(key, str) for key in document):
        raise FileFormatError(
            f"{path} holds {type(document).__name__} instead of named values", expected="lines such as `key: value`"
        )
    return document


def read_json(path: str | Path, limit: int = _MAX_JSON_BYTES) -> Any:
    """Return the document of a JSON file, plain data with bounded size and depth."""
    return parse_json(read_bytes(path, limit), path)


@contextmanager
def reading(
    path: str | Path, expected: str, *, error: type[KinemaError] = FileFormatError, code: ErrorCode | None = None
) -> Iterator[None]:
    """Add the file name to every error of the block; convert parser exceptions to `error`.

    Args:
        path: of the file or folder.
        expected: what it should have been.
        error, code: type and code for unexpected exceptions.
    """
    try:
        yield
    except KinemaError as found:
        found.name_file(path)
        raise
    except Exception as damage:  # a damaged file can raise any exception in its parser
        detail = f"{type(damage).__name__}: {damage}" if str(damage) else type(damage).__name__
        raise error(f"{path} cannot be read: {detail}", expected=expected, code=code) from damage


def write_yaml(path: str | Path, document: Mapping[str, Any], comment: str = "") -> None:
    """Write a YAML file, keys in the given order, numbers in full precision, short lists on one line."""
    lines = "".join(f"# {line}\n" for line in comment.splitlines())
    text = yaml.safe_dump(dict(document), sort_keys=False, default_flow_style=None, width=110, allow_unicode=True)
    with replacing_file(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.write(lines + text)
        file.flush()
        os.fsync(file.fileno())


# Untrusted NumPy archives (.npz): plain arrays only, no pickled objects. Sizes are checked before unpacking, so that
# neither a zip bomb nor a forged header allocates memory.

MAX_ARRAY_BYTES = 256 * 2**20
"""Total uncompressed size of the arrays in an archive."""

_KINDS = "biufU"
"""Booleans, numbers and text."""


def read_arrays(path: str | Path, names: Iterable[str], limit: int = MAX_ARRAY_BYTES) -> dict[str, NDArray[Any]]:
    """Read the named arrays of an archive.

    Args:
        path: of the .npz file.
        names: of the required arrays; others are ignored.
        limit: maximum size of the archive in bytes, packed and unpacked.

    Raises:
        FileFormatError: not an archive, truncated, larger than the limit, an array is missing, or it has objects.
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
                expected="complete arrays of numbers or text",
            )
        data = file.read(claimed + 1)
    if len(data) != claimed:
        raise FileFormatError(f"{path}: {entry.filename} has {len(data)} bytes", expected=f"{claimed}")
    array: NDArray[Any] = np.frombuffer(data, dtype).reshape(shape, order="F" if fortran_order else "C")
    return array.astype(dtype.newbyteorder("="), order="C")
