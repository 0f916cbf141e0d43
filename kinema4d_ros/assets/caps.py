"""Holes of an open mesh closed by fans: where links were cut apart, one sees a flat cap instead of the inside."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.assets.grid import ColouredMesh

__all__ = ["boundary_loops", "cap_holes"]


def boundary_loops(faces: NDArray[np.int64]) -> list[list[int]]:
    """Closed chains of vertices along edges that only one face has, in the direction of those faces."""
    edges = np.concatenate([faces[:, [0, 1]], faces[:, [1, 2]], faces[:, [2, 0]]])
    low, high = edges.min(axis=1), edges.max(axis=1)
    _, inverse, count = np.unique(low * (edges.max() + 1) + high, return_inverse=True, return_counts=True)
    after: dict[int, list[int]] = {}
    for a, b in edges[count[inverse.ravel()] == 1].tolist():
        after.setdefault(a, []).append(b)
    loops = []
    while after:
        start = next(iter(after))
        loop = [start]
        while True:
            ways = after.get(loop[-1])
            if not ways:
                break
            step = ways.pop()
            if not ways:
                del after[loop[-1]]
            if step == start:
                loops.append(loop)
                break
            loop.append(step)
    return [loop for loop in loops if len(loop) >= 3]


def cap_holes(mesh: ColouredMesh) -> tuple[ColouredMesh, int]:
    """The mesh with a fan over every hole, coloured as its rim, and how many there were."""
    if not len(mesh.faces):
        return mesh, 0
    loops = boundary_loops(mesh.faces)
    vertices, faces = [mesh.vertices], [mesh.faces]
    rgb = None if mesh.rgb is None else [mesh.rgb]
    next_ = len(mesh.vertices)
    for loop in loops:
        rim = np.array(loop)
        vertices.append(mesh.vertices[rim].mean(axis=0, keepdims=True))
        # Against the direction of the faces beside it, so that the cap looks outwards.
        faces.append(np.stack([np.roll(rim, -1), rim, np.full(len(rim), next_)], axis=1))
        if rgb is not None and mesh.rgb is not None:
            rgb.append(mesh.rgb[rim].mean(axis=0, keepdims=True).round().astype(np.uint8))
        next_ += 1
    colours = None if rgb is None else np.concatenate(rgb)
    return ColouredMesh(np.concatenate(vertices), np.concatenate(faces), colours), len(loops)
