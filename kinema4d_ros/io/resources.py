"""Paths of the data files of this package: `urdf/`, `config/`, `calibration/` of a checkout or an install."""

from __future__ import annotations

import os
import sys
from functools import lru_cache
from pathlib import Path

from kinema4d_ros.core.errors import ErrorCode, FileFormatError

__all__ = ["calibration_path", "share_directory", "share_path"]


@lru_cache(maxsize=1)
def share_directory() -> Path:
    """Return the folder that contains `urdf/`: the checkout, an ament prefix's share folder, or the venv's."""
    checkout = Path(__file__).resolve().parents[2]
    prefixes = [Path(p) for p in os.environ.get("AMENT_PREFIX_PATH", "").split(os.pathsep) if p]
    candidates = [checkout, *(p / "share" / "kinema4d_ros" for p in [*prefixes, Path(sys.prefix)])]
    for candidate in candidates:
        if (candidate / "urdf").is_dir():
            return candidate
    raise FileFormatError(
        "the data files of kinema4d_ros were not found",
        expected=f"a folder urdf/ in one of {', '.join(map(str, candidates))}",
        hint="install the package with pip or colcon, or run it from its checkout",
        code=ErrorCode.FILE_MISSING,
    )


def share_path(relative: str) -> Path:
    """Return the path of a data file such as "urdf/yam.urdf"; raise an error if it is missing."""
    path = share_directory() / relative
    if not path.exists():
        raise FileFormatError(
            f"data file {relative} is missing from {share_directory()}",
            expected="a complete install of kinema4d_ros",
            hint="install the package again",
            code=ErrorCode.FILE_MISSING,
        )
    return path


def calibration_path(calibration: str) -> Path:
    """Return the file of a calibration; without a path it is a name in `calibration/`."""
    path = Path(calibration)
    if not path.suffix and len(path.parts) == 1:
        return share_directory() / "calibration" / f"{calibration}.yaml"
    return path
