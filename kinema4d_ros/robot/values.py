"""Numbers of a URDF, checked: the right count, finite, as float64."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kinema4d_ros.core.errors import RobotError
from kinema4d_ros.core.transforms import from_rpy

__all__ = ["finite", "pose_matrix"]


def finite(values: ArrayLike, where: str, count: int) -> NDArray[np.float64]:
    """(count,) float64, or a RobotError that says where the number that is none stands."""
    array = np.asarray(values, dtype=np.float64).ravel()
    if array.size != count or not np.all(np.isfinite(array)):
        raise RobotError(f"{where} is {array.tolist()}", expected=f"{count} finite number{'s' if count > 1 else ''}")
    return array


def pose_matrix(origin: Any, where: str) -> NDArray[np.float64]:
    """(4, 4) of a parsed <origin>, identity when there is none; xyz in metres, rpy in radians."""
    if origin is None:
        return np.eye(4)
    xyz = finite([0.0, 0.0, 0.0] if origin.xyz is None else origin.xyz, f"{where} xyz", 3)
    rpy = finite([0.0, 0.0, 0.0] if origin.rpy is None else origin.rpy, f"{where} rpy", 3)
    return from_rpy(rpy, xyz)
