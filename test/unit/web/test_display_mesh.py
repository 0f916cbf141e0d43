"""Meshes for the browser: fewer triangles, the same shape."""

from __future__ import annotations

import numpy as np
import pytest
import trimesh

from kinema4d_ros.robot import Robot
from kinema4d_ros.web.display_mesh import TRIANGLES, robot_display, simplified, split_creases


def box(subdivisions: int) -> tuple[np.ndarray, np.ndarray]:
    mesh = trimesh.creation.box((0.1, 0.2, 0.3))
    for _ in range(subdivisions):
        mesh = mesh.subdivide()
    mesh.merge_vertices()
    return np.asarray(mesh.vertices), np.asarray(mesh.faces, dtype=np.int64)


def off_the_box(points: np.ndarray) -> np.ndarray:
    """Distance of points to the surface of the box."""
    beyond = np.abs(points) - (0.05, 0.1, 0.15)
    return np.abs(np.linalg.norm(np.maximum(beyond, 0), axis=1) + np.minimum(beyond.max(1), 0))


def test_a_box_keeps_its_corners() -> None:
    vertices, faces = box(5)
    small_vertices, small_faces = simplified(vertices, faces, 0.05)
    assert len(small_faces) < len(faces) / 20
    for bound in (np.min, np.max):
        assert np.allclose(bound(small_vertices, axis=0), bound(vertices, axis=0), atol=1e-6)
    assert off_the_box(small_vertices[small_faces].mean(1)).max() < 1e-6


def test_faces_keep_their_direction() -> None:
    vertices, faces = box(4)
    mesh = trimesh.Trimesh(*simplified(vertices, faces, 0.03), process=False)
    assert mesh.volume == pytest.approx(0.1 * 0.2 * 0.3, rel=0.02)


def test_sharp_edges_are_split_and_smooth_ones_are_not() -> None:
    vertices, faces = box(0)
    assert len(split_creases(vertices, faces)[0]) == 24
    ball = trimesh.creation.icosphere(subdivisions=3)
    assert len(split_creases(np.asarray(ball.vertices), np.asarray(ball.faces, dtype=np.int64))[0]) == len(
        ball.vertices
    )


def test_splitting_keeps_the_corner_positions() -> None:
    vertices, faces = box(2)
    split_vertices, split_faces = split_creases(vertices, faces)
    assert np.array_equal(split_vertices[split_faces], vertices[faces])


def test_splitting_a_mesh_without_faces() -> None:
    vertices, faces = split_creases(np.zeros((3, 3)), np.zeros((0, 3), np.int64))
    assert len(faces) == 0
    assert len(vertices) == 3


def test_the_simplified_yam_keeps_its_shape(yam: Robot) -> None:
    display = robot_display(yam)
    assert set(display) == {link.name for link in yam.links if link.visuals}
    total = sum(len(mesh.faces) for meshes in display.values() for mesh in meshes)
    assert 0.5 * TRIANGLES < total < 1.2 * TRIANGLES
    link = yam.link("link3")
    shape = link.visuals[0]
    full = shape.mesh.vertices @ shape.link_T_geometry[:3, :3].T + shape.link_T_geometry[:3, 3]
    (mesh,) = display["link3"]
    assert np.allclose(mesh.vertices.min(0), full.min(0), atol=3e-3)
    assert np.allclose(mesh.vertices.max(0), full.max(0), atol=3e-3)
    reference = trimesh.Trimesh(mesh.vertices, mesh.faces, process=False)
    nearest = trimesh.proximity.closest_point_naive(reference, full[:: max(1, len(full) // 300)])[1]
    assert np.quantile(nearest, 0.95) < 2e-3


def test_robots_with_few_triangles_are_unchanged(primitive_arm: Robot) -> None:
    display = robot_display(primitive_arm)
    for link in primitive_arm.links:
        faces = sum(len(shape.mesh.faces) for shape in link.visuals)
        assert sum(len(mesh.faces) for mesh in display.get(link.name, ())) == faces
