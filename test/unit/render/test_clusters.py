"""Clusters: every face occurs once, and spheres and cones bound all vertices and normals."""

from __future__ import annotations

import numpy as np
import pytest

from kinema4d_ros.render.clusters import VERTEX_BLOCK, build_clusters, face_normals
from kinema4d_ros.robot import Robot, TriangleMesh
from kinema4d_ros.robot.primitives import box_mesh, cylinder_mesh, sphere_mesh


def meshes(yam: Robot) -> list[TriangleMesh]:
    return [box_mesh((1, 2, 3)), cylinder_mesh(0.1, 0.5), sphere_mesh(0.2), yam.links[1].visuals[0].mesh]


@pytest.mark.parametrize("index", range(4))
@pytest.mark.parametrize("size", [1, 7, 64])
def test_clusters_are_complete_and_bounded(yam: Robot, index: int, size: int) -> None:
    mesh = meshes(yam)[index]
    clusters = build_clusters(mesh.vertices, mesh.faces, size)
    assert np.array_equal(np.sort(clusters.faces), np.arange(len(mesh.faces)))
    assert np.diff(clusters.face_start).max() <= size
    assert np.all(clusters.vertex_start % VERTEX_BLOCK == 0)
    owner = np.repeat(np.arange(len(clusters.sphere)), np.diff(clusters.face_start))
    corners = clusters.vertices[clusters.local + clusters.vertex_start[owner, None]]
    assert np.array_equal(corners, mesh.faces[clusters.faces])
    center, radius = clusters.sphere[owner, :3], clusters.sphere[owner, 3]
    distance = np.linalg.norm(mesh.vertices[corners] - center[:, None], axis=-1)
    assert np.all(distance <= radius[:, None] + 1e-12)
    normals = face_normals(mesh.vertices, mesh.faces)[clusters.faces]
    axis, sine = clusters.cone[owner, :3], clusters.cone[owner, 3]
    cosine = np.einsum("ij,ij->i", normals, axis)
    coned = (sine < 1.5) & np.any(normals != 0, axis=1)
    assert coned.any() or size > 1
    assert np.all(cosine[coned] >= np.sqrt(np.maximum(1 - sine[coned] ** 2, 0)) - 1e-9)


def test_face_without_area_has_no_normal() -> None:
    vertices = np.array([[0.0, 0, 0], [1, 0, 0], [2, 0, 0], [0, 1, 0]])
    normals = face_normals(vertices, np.array([[0, 1, 2], [0, 1, 3]], np.int32))
    assert normals.tolist() == [[0, 0, 0], [0, 0, 1]]
