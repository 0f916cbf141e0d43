from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinema4d_ros.robot.meshes import Soup, clean_mesh
from kinema4d_ros.robot.model import TriangleMesh
from kinema4d_ros.robot.primitives import CHORD_ERROR_M, box_mesh, cylinder_mesh, sphere_mesh

LENGTH = st.floats(0.002, 0.2)


def volume(mesh: TriangleMesh) -> float:
    a, b, c = np.moveaxis(mesh.vertices[mesh.faces], 1, 0)
    return float(np.einsum("ij,ij->", a, np.cross(b, c)) / 6.0)


def require_closed(mesh: TriangleMesh) -> None:
    cleaned = clean_mesh(Soup(mesh.vertices, mesh.faces.astype(np.int64), None))
    assert mesh.closed
    assert cleaned.closed
    assert len(cleaned.faces) == len(mesh.faces)
    assert volume(mesh) > 0


@given(LENGTH, LENGTH, LENGTH)
@settings(max_examples=20, deadline=None)
def test_box(x: float, y: float, z: float) -> None:
    mesh = box_mesh((x, y, z))
    require_closed(mesh)
    assert volume(mesh) == pytest.approx(x * y * z, rel=1e-12)
    np.testing.assert_allclose(np.ptp(mesh.vertices, axis=0), [x, y, z], rtol=1e-12)
    np.testing.assert_allclose(mesh.vertices.mean(axis=0), 0, atol=1e-15)


@given(LENGTH, LENGTH)
@settings(max_examples=20, deadline=None)
def test_cylinder_is_inscribed_and_within_the_chord_error(radius: float, length: float) -> None:
    mesh = cylinder_mesh(radius, length)
    require_closed(mesh)
    corners = mesh.vertices[mesh.faces]
    side = np.ptp(corners[..., 2], axis=1) > 0
    middles = (corners[side] + np.roll(corners[side], 1, axis=1)) / 2.0
    distance = radius - np.linalg.norm(middles[..., :2], axis=2)
    assert distance.min() >= -1e-12
    assert distance.max() <= CHORD_ERROR_M
    np.testing.assert_allclose(np.abs(mesh.vertices[:, 2]), length / 2, rtol=1e-12)


@given(st.floats(0.002, 0.24))
@settings(max_examples=10, deadline=None)
def test_sphere_is_inscribed_and_within_the_chord_error(radius: float) -> None:
    mesh = sphere_mesh(radius)
    require_closed(mesh)
    np.testing.assert_allclose(np.linalg.norm(mesh.vertices, axis=1), radius, rtol=1e-12)
    # The flat triangle is nearest to the middle at the foot of the perpendicular.
    a, b, c = np.moveaxis(mesh.vertices[mesh.faces], 1, 0)
    normal = np.cross(b - a, c - a)
    depth = np.einsum("ij,ij->i", a, normal) / np.linalg.norm(normal, axis=1)
    assert radius - depth.min() <= CHORD_ERROR_M


def test_sizes_are_bounded() -> None:
    assert len(cylinder_mesh(100.0, 1.0).faces) == 4 * 256
    assert len(sphere_mesh(100.0).faces) == 20 * 4**5
    assert len(cylinder_mesh(1e-6, 1.0).faces) == 4 * 24
