"""Triangle meshes of the lab's objects and furniture for rendering, with rounded edges."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.core.transforms import make
from kinema4d_ros.physics.objects import LabObject, boxes_of
from kinema4d_ros.robot.model import Geometry, TriangleMesh
from kinema4d_ros.robot.primitives import sphere_mesh

__all__ = ["box_geometry", "object_geometries", "rounded_box", "rounded_cylinder"]

EDGE_M = 0.0018
BEVELS = 3
SIDES = 72

RGB = tuple[float, float, float]


def object_geometries(thing: LabObject) -> list[Geometry]:
    """Make the object's geometries in its own frame: the collision shapes with edges rounded by `EDGE_M`."""
    if thing.shape == "sphere":
        return [_geometry("sphere", np.eye(4), sphere_mesh(thing.size[0] / 2), thing.rgb)]
    if thing.shape == "cylinder":
        return [_geometry("cylinder", np.eye(4), rounded_cylinder(thing.size[0] / 2, thing.size[2]), thing.rgb)]
    return [box_geometry(center, size, thing.rgb) for center, size in boxes_of(thing)]


def box_geometry(center: NDArray[np.float64], size: NDArray[np.float64], rgb: RGB) -> Geometry:
    """Make a box of full sizes (3,) at a centre (3,), metres, link frame."""
    return _geometry("box", make(None, center), rounded_box(size), rgb)


def _geometry(kind: str, link_T_geometry: NDArray[np.float64], mesh: TriangleMesh, rgb: RGB) -> Geometry:
    return Geometry(kind=kind, link_T_geometry=link_T_geometry, mesh=mesh, rgba=(*rgb, 1.0))  # type: ignore[arg-type]


def rounded_box(size: NDArray[np.float64], edge_m: float = EDGE_M) -> TriangleMesh:
    """Make a closed box mesh of full sizes (3,) in metres with rounded edges; its flat faces are those of the box."""
    half = np.asarray(size, dtype=np.float64) / 2
    edge = min(edge_m, 0.4 * float(half.min()))
    inner = half - edge
    reach = np.tan(np.radians(45.0) * np.arange(1, BEVELS + 1) / BEVELS) * edge
    lines = [np.concatenate([-(i + reach)[::-1], [-i, i], i + reach]) for i in inner]
    n = len(lines[0])
    points: list[NDArray[np.float64]] = []
    faces: list[NDArray[np.int64]] = []
    a, b = (g.ravel() for g in np.meshgrid(np.arange(n - 1), np.arange(n - 1), indexing="ij"))
    corner = a * n + b
    quads = np.stack([corner, corner + n, corner + n + 1, corner + 1], axis=1)
    for axis in range(3):
        i, j = (axis + 1) % 3, (axis + 2) % 3
        u, v = (g.ravel() for g in np.meshgrid(lines[i], lines[j], indexing="ij"))
        for side in (-1.0, 1.0):
            p = np.zeros((n * n, 3))
            p[:, axis], p[:, i], p[:, j] = side * half[axis], u, v
            ordered = quads if side > 0 else quads[:, ::-1]
            faces.append(ordered[:, [0, 1, 2, 0, 2, 3]].reshape(-1, 3) + len(points) * n * n)
            points.append(p)
    cube = np.concatenate(points)
    core = np.clip(cube, -inner, inner)
    away = cube - core
    vertices = core + edge * away / np.linalg.norm(away, axis=1, keepdims=True)
    return _welded(vertices, np.concatenate(faces))


def rounded_cylinder(radius: float, length: float, edge_m: float = EDGE_M) -> TriangleMesh:
    """Make a closed cylinder mesh along z, metres, with rounded rims."""
    edge = min(edge_m, 0.4 * radius, 0.2 * length)
    bend = np.radians(90.0) * np.arange(2 * BEVELS + 1) / (2 * BEVELS)
    rim_r, rim_z = radius - edge + edge * np.sin(bend), length / 2 - edge + edge * np.cos(bend)
    profile_r, profile_z = np.concatenate([rim_r, rim_r[::-1]]), np.concatenate([rim_z, -rim_z[::-1]])
    turn = 2 * np.pi * np.arange(SIDES) / SIDES
    rings = np.stack(
        [np.outer(profile_r, np.cos(turn)), np.outer(profile_r, np.sin(turn)), np.tile(profile_z[:, None], SIDES)], -1
    )
    count = len(profile_r)
    vertices = np.concatenate([rings.reshape(-1, 3), [[0.0, 0.0, length / 2], [0.0, 0.0, -length / 2]]])
    k, i = (g.ravel() for g in np.meshgrid(np.arange(count - 1), np.arange(SIDES), indexing="ij"))
    j = (i + 1) % SIDES
    a, b, c, d = k * SIDES + i, (k + 1) * SIDES + i, (k + 1) * SIDES + j, k * SIDES + j
    side = np.arange(SIDES)
    following, top = (side + 1) % SIDES, count * SIDES
    last = (count - 1) * SIDES
    faces = np.concatenate(
        [
            np.stack([a, b, c], 1),
            np.stack([a, c, d], 1),
            np.stack([side, following, np.full(SIDES, top)], 1),
            np.stack([last + following, last + side, np.full(SIDES, top + 1)], 1),
        ]
    )
    return _welded(vertices, faces)


def _welded(vertices: NDArray[np.float64], faces: NDArray[np.int64]) -> TriangleMesh:
    _, first, inverse = np.unique(np.round(vertices, 9), axis=0, return_index=True, return_inverse=True)
    corners = inverse.reshape(-1)[faces].astype(np.int32)
    a, b, c = corners.T
    solid = (a != b) & (b != c) & (c != a)
    return TriangleMesh(vertices=vertices[first], faces=corners[solid], closed=True)
