"""Fewer triangles for the same silhouette, to within a grid: for shadows and other rough looks at a robot."""

from __future__ import annotations

import numpy as np

from kinema4d_ros.core.errors import MeshError
from kinema4d_ros.robot.model import TriangleMesh

__all__ = ["merge_vertices"]


def merge_vertices(mesh: TriangleMesh, grid_m: float) -> TriangleMesh:
    """The mesh with all vertices of one grid cell (a cube of `grid_m` metres) at their mean.

    No point of the surface moves by more than the diagonal of a cell. Triangles that collapse or coincide go.
    """
    if not (np.isfinite(grid_m) and grid_m > 0):
        raise MeshError(f"grid_m is {grid_m}", expected="more than 0 metres")
    if len(mesh.vertices) == 0:
        return mesh
    cells = np.floor(mesh.vertices / grid_m).astype(np.int64)
    _, owner, count = np.unique(cells, axis=0, return_inverse=True, return_counts=True)
    owner = owner.reshape(-1)
    vertices = np.zeros((len(count), 3))
    np.add.at(vertices, owner, mesh.vertices)
    vertices /= count[:, None]
    faces = owner[mesh.faces]
    a, b, c = faces.T
    faces = faces[(a != b) & (b != c) & (c != a)]
    # Turned so that the smallest index is first: equal triangles, and only those of equal winding, become equal rows.
    first = np.argmin(faces, axis=1)
    turned = np.take_along_axis(faces, (first[:, None] + np.arange(3)) % 3, axis=1)
    kept = np.unique(turned, axis=0)
    # Thin walls may have closed up: their two sides still cover the silhouette, but are no longer a solid.
    return TriangleMesh(vertices=vertices, faces=kept.astype(np.int32), closed=False)
