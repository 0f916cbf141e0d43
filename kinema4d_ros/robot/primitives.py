"""Boxes, cylinders and spheres as closed triangle meshes, centred on their frame as in URDF."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.robot.model import TriangleMesh

__all__ = ["CHORD_ERROR_M", "box_mesh", "cylinder_mesh", "sphere_mesh"]

CHORD_ERROR_M = 1e-4
"""Largest distance of a cylinder or sphere mesh from the true surface, up to `MAX_SIDES` sides."""

MIN_SIDES = 24
MAX_SIDES = 256
"""Reached by a cylinder of 1.33 m radius; larger ones deviate by radius * 7.5e-5."""

MAX_SUBDIVISIONS = 5
"""10 * 4^5 + 2 vertices: enough for a sphere of 0.24 m radius at `CHORD_ERROR_M`."""


def box_mesh(size: tuple[float, float, float]) -> TriangleMesh:
    """Build the 12 triangles of a box with edges `size` (x, y, z) in metres."""
    corners = np.array([[x, y, z] for x in (-0.5, 0.5) for y in (-0.5, 0.5) for z in (-0.5, 0.5)])
    quads = [(0, 1, 3, 2), (4, 6, 7, 5), (0, 4, 5, 1), (2, 3, 7, 6), (0, 2, 6, 4), (1, 5, 7, 3)]
    faces = [face for a, b, c, d in quads for face in ((a, b, c), (a, c, d))]
    return _closed(corners * np.asarray(size), np.array(faces))


def cylinder_mesh(radius: float, length: float) -> TriangleMesh:
    """Build a cylinder along z; its sides are within `CHORD_ERROR_M` of the true surface.

    The polygon is inscribed: its vertices are on the true surface and nothing is outside of it.
    """
    n = _sides(radius)
    angle = 2.0 * np.pi * np.arange(n) / n
    ring = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    half = length / 2.0
    vertices = np.concatenate(
        [
            np.column_stack([ring, np.full(n, -half)]),
            np.column_stack([ring, np.full(n, half)]),
            [[0.0, 0.0, -half], [0.0, 0.0, half]],
        ]
    )
    i = np.arange(n)
    j = (i + 1) % n
    faces = np.concatenate(
        [
            np.stack([i, j, j + n], axis=1),
            np.stack([i, j + n, i + n], axis=1),
            np.stack([j, i, np.full(n, 2 * n)], axis=1),
            np.stack([i + n, j + n, np.full(n, 2 * n + 1)], axis=1),
        ]
    )
    return _closed(vertices, faces)


def sphere_mesh(radius: float) -> TriangleMesh:
    """Subdivide an icosahedron; faces are within `CHORD_ERROR_M` of the true surface up to 0.24 m radius."""
    vertices, faces = _icosahedron()
    for _ in range(MAX_SUBDIVISIONS):
        centroids = vertices[faces].mean(axis=1)
        if radius * (1.0 - float(np.linalg.norm(centroids, axis=1).min())) <= CHORD_ERROR_M:
            break
        vertices, faces = _subdivide(vertices, faces)
    return _closed(vertices * radius, faces)


def _sides(radius: float) -> int:
    # The sagitta of a chord over the angle 2 pi / n is radius * (1 - cos(pi / n)).
    cosine = 1.0 - min(CHORD_ERROR_M / radius, 1.0)
    n = int(np.ceil(np.pi / np.arccos(cosine)))
    return int(np.clip(n, MIN_SIDES, MAX_SIDES))


def _icosahedron() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    g = (1.0 + 5.0**0.5) / 2.0
    points = [(0, s, t * g) for s in (-1, 1) for t in (-1, 1)]
    vertices = np.array([np.roll(p, shift) for shift in range(3) for p in points], dtype=np.float64)
    # Faces are the vertex triples at edge length 2, computed instead of listed.
    distance = np.linalg.norm(vertices[:, None] - vertices[None], axis=2)
    near = np.isclose(distance, 2.0)
    faces = []
    for a in range(12):
        for b in range(a + 1, 12):
            for c in range(b + 1, 12):
                if near[a, b] and near[b, c] and near[a, c]:
                    outward = np.dot(np.cross(vertices[b] - vertices[a], vertices[c] - vertices[a]), vertices[a]) > 0
                    faces.append((a, b, c) if outward else (a, c, b))
    return vertices / np.linalg.norm(vertices[0]), np.array(faces)


def _subdivide(
    vertices: NDArray[np.float64], faces: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    edges = np.sort(faces[:, [[0, 1], [1, 2], [2, 0]]].reshape(-1, 2), axis=1)
    unique, inverse = np.unique(edges, axis=0, return_inverse=True)
    middles = vertices[unique].sum(axis=1)
    middles /= np.linalg.norm(middles, axis=1, keepdims=True)
    m = inverse.reshape(-1, 3) + len(vertices)
    a, b, c = faces.T
    ab, bc, ca = m.T
    parts = [(a, ab, ca), (b, bc, ab), (c, ca, bc), (ab, bc, ca)]
    return np.concatenate([vertices, middles]), np.concatenate([np.stack(part, axis=1) for part in parts])


def _closed(vertices: NDArray[np.float64], faces: NDArray[np.int64]) -> TriangleMesh:
    return TriangleMesh(vertices=vertices.astype(np.float64), faces=faces.astype(np.int32), closed=True)
