"""What the physics needs to know of a robot's shapes: few points for each mesh."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.robot.model import TriangleMesh

__all__ = ["outer_points"]

DIRECTIONS = 128

_POINTS: WeakKeyDictionary[TriangleMesh, NDArray[np.float64]] = WeakKeyDictionary()


def outer_points(mesh: TriangleMesh) -> NDArray[np.float64]:
    """(P, 3) the farthest vertices in `DIRECTIONS` + 6 directions all around, metres; their hull is the shape."""
    if mesh not in _POINTS:
        i = np.arange(DIRECTIONS) + 0.5
        polar, turn = np.arccos(1 - 2 * i / DIRECTIONS), np.pi * (1 + 5**0.5) * i
        directions = np.stack([np.cos(turn) * np.sin(polar), np.sin(turn) * np.sin(polar), np.cos(polar)])
        # The axes too, so that the box around the points is that of the mesh.
        directions = np.concatenate([directions, np.eye(3), -np.eye(3)], axis=1)
        _POINTS[mesh] = mesh.vertices[np.unique(np.argmax(mesh.vertices @ directions, axis=0))]
    return _POINTS[mesh]
