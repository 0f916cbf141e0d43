"""What all readers share: the result with its notes, size bounds, and joints that a robot knows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.errors import ErrorCode, FileFormatError
from kinema4d_ros.robot.model import Robot
from kinema4d_ros.trajectory import JointTrajectory

__all__ = ["MAX_BYTES", "MAX_JOINTS", "MAX_SAMPLES", "Reading", "keep_known", "malformed", "require_file"]

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


def keep_known(
    path: Path, robot: Robot | None, names: Sequence[str], positions: NDArray[np.float64], notes: list[str]
) -> tuple[tuple[str, ...], NDArray[np.float64]]:
    """Names and columns (T, N) of the joints that the robot has; all of them without a robot.

    Recordings often hold other joints as well (a second arm, a base). They are left out with a
    note; when none is known, it is the wrong robot and an error.
    """
    if robot is None:
        return tuple(names), positions
    vendor = () if robot.gripper is None else tuple(v.name for v in robot.gripper.vendor)
    known = {joint.name for joint in robot.joints if joint.moves} | set(vendor)
    kept = [i for i, name in enumerate(names) if name in known]
    if not kept:
        raise FileFormatError(
            f"{path}: none of its joints {', '.join(names)} is a joint of robot '{robot.name}'",
            expected=f"some of {', '.join(sorted(known))}",
            hint="check that the robot is the one that was recorded, or give the joint names",
            code=ErrorCode.UNKNOWN_JOINT,
        )
    left_out = [name for name in names if name not in known]
    if left_out:
        notes.append(f"left out joints that robot '{robot.name}' does not have: {', '.join(left_out)}")
    return tuple(names[i] for i in kept), positions[:, kept]
