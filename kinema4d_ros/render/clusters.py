"""Triangle clusters for culling, and mesh simplification on a grid.

A cluster is a small group of neighbouring triangles with similar normals. It has its own vertex table, which fits the
L1 cache, a bounding sphere, and a cone that contains all its normals: one test culls a cluster that faces away.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.core.errors import MeshError
from kinema4d_ros.robot.model import TriangleMesh

__all__ = ["FACES_PER_CLUSTER", "Clusters", "build_clusters", "face_normals", "merge_vertices"]

FACES_PER_CLUSTER = 256
"""Compromise between tight cones and few clusters to test: 64 is 20 % slower on the YAM, 512 equally fast."""

VERTEX_BLOCK = 4
"""Vertex tables are padded to a multiple of this, so that the transform has no scalar remainder."""

_NORMAL_WEIGHT = 0.2
"""Weight of the normal against the position (relative to the mesh size) when clusters are split."""


class Clusters(NamedTuple):
    """Clusters of one mesh, in the mesh frame; `C` clusters, `F` faces, `V` padded vertices.

    Attributes:
        faces: (F,) int64, face indices in cluster order.
        face_start: (C + 1,) int64, start of each cluster's faces in `faces`.
        vertices: (V,) int64, indices of the mesh's vertices, cluster by cluster.
        vertex_start: (C + 1,) int64, start of each cluster's vertices.
        local: (F, 3) int64, corners as indices within the cluster's vertices.
        sphere: (C, 4) float64, centre and radius in metres.
        cone: (C, 4) float64, axis and sine of the half angle; sine 2 = the normals fit no cone.
    """

    faces: NDArray[np.int64]
    face_start: NDArray[np.int64]
    vertices: NDArray[np.int64]
    vertex_start: NDArray[np.int64]
    local: NDArray[np.int64]
    sphere: NDArray[np.float64]
    cone: NDArray[np.float64]


def face_normals(vertices: NDArray[np.float64], faces: NDArray[np.int32]) -> NDArray[np.float64]:
    """Compute unit normals (F, 3) float64 by the right-hand rule; zero for triangles without area."""
    a, b, c = (vertices[faces[:, i]] for i in range(3))
    normals = np.cross(b - a, c - a)
    length = np.linalg.norm(normals, axis=1, keepdims=True)
    unit: NDArray[np.float64] = np.divide(normals, length, out=np.zeros_like(normals), where=length > 0)
    return unit


def build_clusters(vertices: NDArray[np.float64], faces: NDArray[np.int32], size: int = FACES_PER_CLUSTER) -> Clusters:
    """Split a mesh with (V, 3) vertices in metres and (F, 3) faces, F > 0, into clusters of at most `size` faces."""
    normals = face_normals(vertices, faces)
    order, face_start = _split(vertices[faces].mean(axis=1), normals, size)
    owner = np.repeat(np.arange(len(face_start) - 1), np.diff(face_start))
    table, vertex_start, local = _vertex_tables(faces[order], owner, len(vertices))
    return Clusters(
        faces=order,
        face_start=face_start,
        vertices=table,
        vertex_start=vertex_start,
        local=local,
        sphere=_spheres(vertices[table], vertex_start),
        cone=_cones(normals[order], face_start, owner),
    )


def _split(
    centroids: NDArray[np.float64], normals: NDArray[np.float64], size: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Halve clusters along the position or normal axis that varies most, until they have at most `size` faces."""
    extent = max(float(np.ptp(centroids, axis=0).max()), 1e-12)
    features = np.hstack([centroids / extent, _NORMAL_WEIGHT * normals])
    order = np.arange(len(centroids))
    start = np.array([0, len(centroids)])
    while np.diff(start).max() > size:
        counts = np.diff(start)
        owner = np.repeat(np.arange(len(counts)), counts)
        x = features[order]
        mean = np.add.reduceat(x, start[:-1]) / counts[:, None]
        spread = np.add.reduceat((x - mean[owner]) ** 2, start[:-1])
        key = np.take_along_axis(x, np.argmax(spread, axis=1)[owner][:, None], axis=1)[:, 0]
        order = order[np.lexsort((key, owner))]
        middles = np.where(counts > size, start[:-1] + (counts + 1) // 2, start[1:])
        start = np.unique(np.concatenate([start, middles]))
    return order, start


def _vertex_tables(
    faces: NDArray[np.int32], owner: NDArray[np.int64], vertex_count: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    keys, inverse = np.unique((owner[:, None] * vertex_count + faces).ravel(), return_inverse=True)
    group, vertex = keys // vertex_count, keys % vertex_count
    counts = np.bincount(group, minlength=int(owner[-1]) + 1)
    first = np.concatenate([[0], np.cumsum(counts)])
    padded = -(-counts // VERTEX_BLOCK) * VERTEX_BLOCK
    start = np.concatenate([[0], np.cumsum(padded)])
    # Pad with the cluster's last vertex, which changes neither box nor sphere.
    block = np.repeat(np.arange(len(counts)), padded)
    within = np.arange(start[-1]) - start[block]
    table = vertex[first[block] + np.minimum(within, counts[block] - 1)]
    local = (inverse - first[group[inverse]]).reshape(-1, 3)
    return table, start, local


def _spheres(points: NDArray[np.float64], start: NDArray[np.int64]) -> NDArray[np.float64]:
    low = np.minimum.reduceat(points, start[:-1])
    high = np.maximum.reduceat(points, start[:-1])
    center = (low + high) / 2
    distance = np.linalg.norm(points - np.repeat(center, np.diff(start), axis=0), axis=1)
    radius = np.maximum.reduceat(distance, start[:-1])
    return np.column_stack([center, radius * (1 + 1e-9)])


def _cones(normals: NDArray[np.float64], start: NDArray[np.int64], owner: NDArray[np.int64]) -> NDArray[np.float64]:
    axis = np.add.reduceat(normals, start[:-1])
    length = np.linalg.norm(axis, axis=1, keepdims=True)
    axis = np.divide(axis, length, out=np.zeros_like(axis), where=length > 0)
    # Triangles without area have no normal and draw nothing, so they must not widen the cone.
    cosine = np.where(np.any(normals != 0, axis=1), np.einsum("ij,ij->i", normals, axis[owner]), 1.0)
    narrowest = np.clip(np.minimum.reduceat(cosine, start[:-1]), -1.0, 1.0)
    sine = np.where((narrowest > 0) & (length[:, 0] > 0), np.sqrt(1 - narrowest**2) + 1e-9, 2.0)
    return np.column_stack([axis, sine])


# Simplification that keeps the silhouette to within a grid cell, for shadows and small images.


def merge_vertices(mesh: TriangleMesh, grid_m: float) -> TriangleMesh:
    """Merge all vertices in each grid cell (a cube of `grid_m` metres) to their mean.

    No surface point moves by more than the diagonal of a cell. Collapsed and duplicate triangles are removed.
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
    # Rotate the smallest index to the front, so that equal triangles of equal winding become equal rows.
    first = np.argmin(faces, axis=1)
    turned = np.take_along_axis(faces, (first[:, None] + np.arange(3)) % 3, axis=1)
    kept = np.unique(turned, axis=0)
    # Thin walls may have collapsed: they still cover the silhouette, but the mesh is no longer a solid.
    return TriangleMesh(vertices=vertices, faces=kept.astype(np.int32), closed=False)
