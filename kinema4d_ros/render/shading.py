"""Shading of the rendered robot: smooth normals, base colours and lamps."""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.render.clusters import Clusters, face_normals
from kinema4d_ros.robot.model import Geometry, TriangleMesh

__all__ = ["CREASE_DEG", "LAMPS", "base_colours", "cluster_normals", "corner_normals"]

CREASE_DEG = 35.0
"""Faces that meet at a smaller angle than this are shaded as one smooth surface."""

_DEFAULT_RGBA = (0.74, 0.76, 0.79, 1.0)
_DARKEST = 40.0
_KEY = np.array([-0.45, -0.75, -0.55])
_FILL = np.array([0.80, -0.10, -0.50])

LAMPS: NDArray[np.float64] = np.concatenate(
    [_KEY / np.linalg.norm(_KEY), _FILL / np.linalg.norm(_FILL), [0.34, 0.60, 0.24, 0.45, 0.35]]
)
"""(11,) directions to the key and the fill lamp in the camera frame (they move with the camera, so the visible side is
lit), then the strengths of ambient light, key, fill, specular and rim."""


def base_colours(geometry: Geometry) -> NDArray[np.float32]:
    """Return face colours (F, 3) float32, 0 to 255: the URDF's material, else the file's colours, else light grey."""
    if geometry.rgba is None and geometry.mesh.face_rgb is not None:
        return _lifted(geometry.mesh.face_rgb.astype(np.float32))
    rgba = _DEFAULT_RGBA if geometry.rgba is None else geometry.rgba
    colour = np.clip(np.asarray(rgba[:3], dtype=np.float64), 0.0, 1.0) * 255.0
    return np.tile(_lifted(colour.astype(np.float32)), (len(geometry.mesh.faces), 1))


def _lifted(colour: NDArray[np.float32]) -> NDArray[np.float32]:
    """Raise black to dark grey, so that the shape of a black robot is visible."""
    return np.float32(_DARKEST) + colour * np.float32(1 - _DARKEST / 255)


def corner_normals(mesh: TriangleMesh, crease_deg: float = CREASE_DEG) -> NDArray[np.float32]:
    """Compute unit normals (F, 3, 3) float32 per face corner: area-weighted mean of neighbours within the crease."""
    vertices, faces = mesh.vertices, mesh.faces
    normals = face_normals(vertices, faces)
    a, b, c = (vertices[faces[:, i]] for i in range(3))
    areas = np.linalg.norm(np.cross(b - a, c - a), axis=1)
    by_vertex = np.argsort(faces.ravel(), kind="stable")
    start = np.concatenate([[0], np.cumsum(np.bincount(faces.ravel(), minlength=len(vertices)))])
    smooth: NDArray[np.float32] = _average(
        faces, normals, areas, by_vertex // 3, start, float(np.cos(np.radians(crease_deg)))
    )
    return smooth


def cluster_normals(
    corners: NDArray[np.float32], clusters: Clusters
) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int64]]:
    """Deduplicate the normals of each cluster: normals (N, 3), cluster starts (C + 1,), indices (F, 3)."""
    count = len(clusters.face_start) - 1
    owner = np.repeat(np.arange(count), 3 * np.diff(clusters.face_start))
    ordered = corners[clusters.faces].reshape(-1, 3)
    # Round to 1/500: fine enough for 8-bit shades, coarse enough to merge nearly equal normals.
    steps = np.rint(ordered * 500.0).astype(np.int64) + 512
    key = ((owner * 1024 + steps[:, 0]) * 1024 + steps[:, 1]) * 1024 + steps[:, 2]
    unique, first, inverse = np.unique(key, return_index=True, return_inverse=True)
    start = np.concatenate([[0], np.cumsum(np.bincount(unique >> 30, minlength=count))])
    return ordered[first], start, (inverse - start[owner]).reshape(-1, 3)


def _average_loop(faces, normals, areas, by_vertex, start, cosine):  # type: ignore[no-untyped-def]
    out = np.empty((len(faces), 3, 3), np.float32)
    for f in range(len(faces)):
        for k in range(3):
            x = y = z = 0.0
            for i in range(start[faces[f, k]], start[faces[f, k] + 1]):
                g = by_vertex[i]
                n = normals[g]
                if n[0] * normals[f, 0] + n[1] * normals[f, 1] + n[2] * normals[f, 2] >= cosine:
                    x += areas[g] * n[0]
                    y += areas[g] * n[1]
                    z += areas[g] * n[2]
            length = np.sqrt(x * x + y * y + z * z)
            out[f, k, 0] = x / length if length > 0.0 else normals[f, 0]
            out[f, k, 1] = y / length if length > 0.0 else normals[f, 1]
            out[f, k, 2] = z / length if length > 0.0 else normals[f, 2]
    return out


try:
    _average = numba.njit(nogil=True, cache=True)(_average_loop)
except RuntimeError:  # no writable cache folder: compile in every process
    _average = numba.njit(nogil=True)(_average_loop)
