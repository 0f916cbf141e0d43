"""Mesh cleanup: welding, outward winding and an exact test for closed bodies."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import breadth_first_order, connected_components

from kinema4d_ros.robot.model import TriangleMesh

__all__ = ["Soup", "clean_mesh", "weld"]

FLAT_VOLUME = 1e-12
"""A body whose volume is below this times its cubed diagonal has no interior and counts as open."""


class Soup(NamedTuple):
    """Triangles as read from a file.

    Attributes:
        vertices: (V, 3) float64, not welded.
        faces: (F, 3) int64 indices.
        face_rgb: (F, 3) uint8, or None if the file has no colours.
    """

    vertices: NDArray[np.float64]
    faces: NDArray[np.int64]
    face_rgb: NDArray[np.uint8] | None


def weld(
    vertices: NDArray[np.float64], faces: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.bool_]]:
    """Merge vertices with equal coordinates; drop faces that lose a corner.

    Only exactly equal vertices are merged: a tolerance would close real gaps. Faces with three different
    but collinear corners are kept: they are invisible, but without them the mesh would be open.

    Returns:
        (V, 3) used vertices, (F, 3) faces, (N,) which of the given faces were kept.
    """
    points = vertices + 0.0  # turns -0.0 into 0.0, so that they are merged
    order = np.lexsort(points.T)
    ordered = points[order]
    new = np.ones(len(points), dtype=bool)
    new[1:] = np.any(ordered[1:] != ordered[:-1], axis=1)
    label = np.empty(len(points), dtype=np.int64)
    label[order] = np.cumsum(new) - 1
    welded = label[faces]
    a, b, c = welded.T
    kept = (a != b) & (b != c) & (c != a)
    welded = welded[kept]
    used, compact = np.unique(welded, return_inverse=True)
    return ordered[new][used], compact.reshape(-1, 3), kept


def clean_mesh(soup: Soup) -> TriangleMesh:
    """Weld triangles and wind every closed body outwards.

    A closed body that is inside out, including a cavity, is flipped: the renderer skips back faces, and a
    surface wound inwards would be invisible. Open bodies keep their winding. `closed` is True only if
    every body is closed.
    """
    points, triangles, kept = weld(soup.vertices, soup.faces)
    face_rgb = None if soup.face_rgb is None else soup.face_rgb[kept]
    triangles, closed = _wind_outwards(points, triangles)
    return TriangleMesh(vertices=points, faces=triangles.astype(np.int32), face_rgb=face_rgb, closed=closed)


def _wind_outwards(vertices: NDArray[np.float64], faces: NDArray[np.int64]) -> tuple[NDArray[np.int64], bool]:
    count = len(faces)
    if count == 0:
        return faces, False
    tail = faces.ravel()
    head = np.roll(faces, -1, axis=1).ravel()
    owner = np.repeat(np.arange(count), 3)
    key = np.minimum(tail, head) * len(vertices) + np.maximum(tail, head)
    order = np.argsort(key, kind="stable")
    sorted_key = key[order]
    starts = np.flatnonzero(np.r_[True, sorted_key[1:] != sorted_key[:-1]])
    sizes = np.diff(np.r_[starts, len(sorted_key)])

    pairs = starts[sizes == 2]
    first, second = order[pairs], order[pairs + 1]
    left, right = owner[first], owner[second]
    disagree = tail[first] == tail[second]
    body_count, body = connected_components(
        coo_matrix((np.ones(len(left)), (left, right)), shape=(count, count)), directed=False
    )
    closed = np.ones(body_count, dtype=bool)
    irregular = np.repeat(sizes != 2, sizes)
    closed[body[owner[order[irregular]]]] = False

    flip = np.zeros(count, dtype=bool)
    if np.any(disagree):
        flip = _flips(left, right, disagree, body)
        torn = (flip[left] ^ flip[right]) != disagree
        closed[body[left[torn]]] = False
        flip &= closed[body]
        faces = np.where(flip[:, None], faces[:, ::-1], faces)

    corners = vertices[faces]
    volume = np.zeros(body_count)
    low = np.full((body_count, 3), np.inf)
    high = np.full((body_count, 3), -np.inf)
    np.minimum.at(low, body, corners.min(axis=1))
    np.maximum.at(high, body, corners.max(axis=1))
    centre = (low + high) / 2.0
    relative = corners - centre[body][:, None]
    six_volumes = np.einsum("ij,ij->i", relative[:, 0], np.cross(relative[:, 1], relative[:, 2]))
    np.add.at(volume, body, six_volumes / 6.0)
    flat = FLAT_VOLUME * np.linalg.norm(high - low, axis=1) ** 3
    closed &= np.abs(volume) > flat
    inside_out = closed & (volume < 0)
    faces = np.where(inside_out[body][:, None], faces[:, ::-1], faces)
    return faces, bool(np.all(closed))


def _flips(
    left: NDArray[np.int64],
    right: NDArray[np.int64],
    disagree: NDArray[np.bool_],
    body: NDArray[np.int32],
) -> NDArray[np.bool_]:
    """Return (F,) which faces to reverse so that neighbours agree, starting from one face of each body."""
    count = len(body)
    links = coo_matrix((np.ones(len(left)), (left, right)), shape=(count, count)).tocsr()
    turned = {(int(a), int(b)) for a, b in zip(left[disagree], right[disagree], strict=True)}
    turned |= {(b, a) for a, b in turned}
    flip = np.zeros(count, dtype=bool)
    for seed in np.unique(body[left[disagree]], return_index=True)[1]:
        order, before = breadth_first_order(links, left[disagree][seed], directed=False)
        for face in order[1:]:
            flip[face] = flip[before[face]] ^ ((int(before[face]), int(face)) in turned)
    return flip
