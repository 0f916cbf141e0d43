"""What all readers share: the result with its notes, size bounds, and errors of files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kinema4d_ros.core.errors import ErrorCode, FileFormatError
from kinema4d_ros.core.trajectory import JointTrajectory

__all__ = ["MAX_BYTES", "MAX_JOINTS", "MAX_SAMPLES", "Reading", "malformed", "require_file"]

MAX_BYTES = 256 * 2**20
"""Largest table file that is read: hours of motion at 1 kHz."""

MAX_SAMPLES = 4_000_000
MAX_JOINTS = 256


@dataclass(frozen=True, eq=False)
class Reading:
    """A trajectory from a file, and in plain sentences what the reader chose, merged or left out."""

    trajectory: JointTrajectory
    notes: tuple[str, ...] = ()


def malformed(path: Path, what: str, expected: str, hint: str = "") -> FileFormatError:
    """The error for a file that is not what its name or header says."""
    return FileFormatError(f"{path}: {what}", expected=expected, hint=hint)


def require_file(path: Path, max_bytes: int = MAX_BYTES) -> None:
    """An error unless the path is a file that is neither empty nor larger than the bound."""
    if not path.is_file():
        raise FileFormatError(f"{path} is not a file", expected="an existing file", code=ErrorCode.FILE_MISSING)
    size = path.stat().st_size
    if size == 0:
        raise malformed(path, "the file is empty", "a trajectory", "the recording or the copy may have been cut off")
    if size > max_bytes:
        raise malformed(path, f"the file has {size:,} bytes", f"at most {max_bytes:,}", "cut out the part to preview")
