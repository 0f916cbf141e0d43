"""Simplified link meshes for a browser: fewer triangles, sharp edges kept, one mesh per colour.

For display only: rendering, measurements and reports use the full meshes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from kinema4d_ros.core.transforms import apply
from kinema4d_ros.render.shading import CREASE_DEG, base_colours
from kinema4d_ros.robot.model import Geometry, Robot

__all__ = ["TRIANGLES", "DisplayMesh", "robot_display", "simplified", "split_creases"]

TRIANGLES = 25_000
"""Number of triangles of a whole robot."""

_KEEP = 1_500
"""Shapes with at most this many triangles are not simplified."""
_STEPS = 5
_MAX_COLOURS = 4

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class DisplayMesh:
    """Triangles of one colour, in the link's frame.

    Attributes:
        vertices: (V, 3) float32, metres; vertices at sharp edges are repeated, so averaged normals stay sharp.
        faces: (F, 3) int32.
        rgb: 0 to 255.
    """

    vertices: NDArray[np.float32]
    faces: NDArray[np.int32]
    rgb: tuple[int, int, int]


def robot_display(robot: Robot, triangles: int = TRIANGLES) -> dict[str, tuple[DisplayMesh, ...]]:
    """Return the meshes of each link that has some, by link name, with about `triangles` triangles in total."""
    parts = [
        (link.name, apply(shape.link_T_geometry, shape.mesh.vertices), shape.mesh.faces.astype(np.int64), shape)
        for link in robot.links
        for shape in link.visuals
        if len(shape.mesh.faces)
    ]
    heavy = [(vertices, faces) for _, vertices, faces, _ in parts if len(faces) > _KEEP]
    light = sum(len(faces) for _, _, faces, _ in parts if len(faces) <= _KEEP)
    cell_m = _cell_for(heavy, max(triangles - light, _KEEP))
    out: dict[str, list[DisplayMesh]] = {}
    for name, vertices, faces, shape in parts:
        for one_vertices, one_faces, rgb in _by_colour(vertices, faces, shape):
            if len(faces) > _KEEP and cell_m > 0.0:
                one_vertices, one_faces = simplified(one_vertices, one_faces, cell_m)
            split_vertices, split_faces = split_creases(one_vertices, one_faces)
            mesh = DisplayMesh(split_vertices.astype(np.float32), split_faces.astype(np.int32), rgb)
            out.setdefault(name, []).append(mesh)
    return {name: tuple(meshes) for name, meshes in out.items()}


def simplified(vertices: Floats, faces: Ints, cell_m: float) -> tuple[Floats, Ints]:
    """Merge all vertices of each cubic cell into the point that best fits the cell's planes.

    The planes meet in the merged vertex, so flat sides stay flat and edges stay sharp.
    """
    cell, kept = _merged(vertices, faces, cell_m)
    count = int(cell.max()) + 1
    corners = vertices[faces]
    normal = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    length = np.linalg.norm(normal, axis=1, keepdims=True)
    unit = np.divide(normal, length, out=np.zeros_like(normal), where=length > 0)
    weighted = unit * length
    # One plane n.x = d for each face and each cell that it has a corner in.
    A = (weighted[:, :, None] * unit[:, None, :]).reshape(-1, 9)
    b = weighted * np.einsum("ij,ij->i", unit, corners[:, 0])[:, None]
    owner = cell[faces]
    planes = np.zeros((count, 9))
    right = np.zeros((count, 3))
    for k in range(3):
        for j in range(9):
            planes[:, j] += np.bincount(owner[:, k], A[:, j], count)
        for j in range(3):
            right[:, j] += np.bincount(owner[:, k], b[:, j], count)
    members = np.bincount(cell, minlength=count)[:, None]
    middle = np.stack([np.bincount(cell, vertices[:, j], count) for j in range(3)], axis=1) / members
    Q = planes.reshape(-1, 3, 3)
    # Directions that the planes do not constrain (low weight) keep the cell's mean position.
    offset = np.linalg.pinv(Q, rcond=5e-3, hermitian=True) @ (right - (Q @ middle[:, :, None])[:, :, 0])[:, :, None]
    merged = middle + np.clip(offset[:, :, 0], -cell_m / 2, cell_m / 2)
    return merged, _without_doubles(cell[faces][kept])


def split_creases(vertices: Floats, faces: Ints, crease_deg: float = CREASE_DEG) -> tuple[Floats, Ints]:
    """Return the same triangles with the vertices of sharp edges repeated, one per smooth side."""
    if not len(faces):
        return vertices, faces
    corners = vertices[faces]
    normal = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    length = np.linalg.norm(normal, axis=1, keepdims=True)
    normal = np.divide(normal, length, out=np.zeros_like(normal), where=length > 0)
    start = faces.ravel()
    end = np.roll(faces, -1, axis=1).ravel()
    face = np.repeat(np.arange(len(faces)), 3)
    corner = np.arange(3 * len(faces))
    next_corner = 3 * face + (corner + 1) % 3
    low, high = np.minimum(start, end), np.maximum(start, end)
    order = np.lexsort((high, low))
    first, second = order[:-1], order[1:]
    smooth = (low[first] == low[second]) & (high[first] == high[second])
    smooth &= np.einsum("ij,ij->i", normal[face[first]], normal[face[second]]) >= np.cos(np.radians(crease_deg))
    first, second = first[smooth], second[smooth]
    # The two faces of an edge traverse it in opposite directions, unless the winding is inconsistent.
    opposite = start[first] == end[second]
    pairs = np.concatenate(
        [
            np.stack([corner[first], np.where(opposite, next_corner[second], corner[second])]),
            np.stack([next_corner[first], np.where(opposite, corner[second], next_corner[second])]),
        ],
        axis=1,
    )
    graph = coo_array((np.ones(pairs.shape[1], np.bool_), (pairs[0], pairs[1])), shape=(len(start), len(start)))
    count, label = connected_components(graph, directed=False)
    out = np.empty((count, 3))
    out[label] = vertices[start]
    return out, label.reshape(-1, 3).astype(np.int64)


def _by_colour(vertices: Floats, faces: Ints, shape: Geometry) -> list[tuple[Floats, Ints, tuple[int, int, int]]]:
    colours = np.rint(base_colours(shape)).astype(np.int64)
    unique, inverse = np.unique(colours, axis=0, return_inverse=True)
    if len(unique) > _MAX_COLOURS:
        unique, inverse = np.rint(colours.mean(0, keepdims=True)).astype(np.int64), np.zeros(len(faces), np.int64)
    out = []
    for k, colour in enumerate(unique):
        used, renumbered = np.unique(faces[inverse.ravel() == k], return_inverse=True)
        out.append((vertices[used], renumbered.reshape(-1, 3), (int(colour[0]), int(colour[1]), int(colour[2]))))
    return out


def _cell_for(meshes: list[tuple[Floats, Ints]], triangles: int) -> float:
    """Return the cell edge in metres that leaves about `triangles` triangles; 0 when there are no more than that."""
    if sum(len(faces) for _, faces in meshes) <= triangles:
        return 0.0
    area = 0.0
    for vertices, faces in meshes:
        a, b, c = (vertices[faces[:, k]] for k in range(3))
        area += float(np.linalg.norm(np.cross(b - a, c - a), axis=1).sum()) / 2
    cell_m = float(np.sqrt(2 * area / triangles))
    for _ in range(_STEPS):
        count = sum(len(_merged(*mesh, cell_m)[1]) for mesh in meshes)
        if abs(count - triangles) <= 0.1 * triangles:
            break
        # Twice the edge leaves a quarter of the triangles.
        cell_m *= float(np.sqrt(max(count, 1) / triangles))
    return cell_m


def _merged(vertices: Floats, faces: Ints, cell_m: float) -> tuple[Ints, Ints]:
    """Return the cell (V,) of each vertex, and the indices of faces with corners in three cells."""
    steps = np.floor((vertices - vertices.min(0)) / cell_m).astype(np.int64)
    size = steps.max(0) + 1
    _, cell = np.unique((steps[:, 0] * size[1] + steps[:, 1]) * size[2] + steps[:, 2], return_inverse=True)
    owner = cell.ravel()[faces]
    apart = (owner[:, 0] != owner[:, 1]) & (owner[:, 1] != owner[:, 2]) & (owner[:, 2] != owner[:, 0])
    return cell.ravel(), np.flatnonzero(apart)


def _without_doubles(faces: Ints) -> Ints:
    _, first = np.unique(np.sort(faces, axis=1), axis=0, return_index=True)
    return faces[np.sort(first)]
