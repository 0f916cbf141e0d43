from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinema4d_ros.robot.meshes import Soup, clean_mesh, weld
from kinema4d_ros.robot.primitives import box_mesh, sphere_mesh

CUBE = box_mesh((1.0, 2.0, 3.0))


def soup(corners: np.ndarray, rgb: np.ndarray | None = None) -> Soup:
    flat = np.asarray(corners, dtype=np.float64).reshape(-1, 3)
    return Soup(flat, np.arange(len(flat)).reshape(-1, 3), rgb)


def cube_corners() -> np.ndarray:
    return CUBE.vertices[CUBE.faces]


def signed_volume(vertices: np.ndarray, faces: np.ndarray) -> float:
    a, b, c = np.moveaxis(vertices[faces], 1, 0)
    return float(np.einsum("ij,ij->", a, np.cross(b, c)) / 6.0)


def test_equal_vertices_weld_and_zero_has_no_sign() -> None:
    vertices = np.array([[0.0, 0, 0], [1, 0, 0], [0, 1, 0], [-0.0, 0, -0.0], [0, 1, 0], [1, 0, 1e-12]])
    points, faces, kept = weld(vertices, np.array([[0, 1, 2], [3, 4, 5]]))
    assert len(points) == 4, "1e-12 apart is not equal"
    assert kept.all()
    assert len(np.intersect1d(faces[0], faces[1])) == 2


def test_degenerate_faces_are_dropped_with_their_colours() -> None:
    corners = np.concatenate([cube_corners(), [[[0, 0, 0], [0, 0, 0], [1, 0, 0]]]])
    rgb = np.arange(39, dtype=np.uint8).reshape(13, 3)
    mesh = clean_mesh(soup(corners, rgb))
    assert mesh.closed
    assert len(mesh.faces) == 12
    assert mesh.face_rgb is not None
    np.testing.assert_array_equal(mesh.face_rgb, rgb[:12])


def test_a_closed_mesh_keeps_its_faces() -> None:
    mesh = clean_mesh(soup(cube_corners()))
    assert mesh.closed
    np.testing.assert_array_equal(mesh.vertices[mesh.faces], cube_corners())


def test_an_inside_out_mesh_is_flipped() -> None:
    mesh = clean_mesh(soup(cube_corners()[:, ::-1]))
    assert mesh.closed
    assert signed_volume(mesh.vertices, mesh.faces) == pytest.approx(6.0)


@given(st.lists(st.booleans(), min_size=80, max_size=80))
@settings(max_examples=15, deadline=None)
def test_mixed_winding_is_repaired(flips: list[bool]) -> None:
    ball = sphere_mesh(0.003)
    corners = ball.vertices[ball.faces]
    reverse = np.resize(np.array(flips), len(corners))
    corners = np.where(reverse[:, None, None], corners[:, ::-1], corners)
    mesh = clean_mesh(soup(corners))
    assert mesh.closed
    expected = signed_volume(ball.vertices, ball.faces)
    assert signed_volume(mesh.vertices, mesh.faces) == pytest.approx(expected, rel=1e-9)


def test_an_open_mesh_is_not_closed_and_keeps_its_winding() -> None:
    corners = cube_corners()[:-1]
    mesh = clean_mesh(soup(corners))
    assert not mesh.closed
    np.testing.assert_array_equal(mesh.vertices[mesh.faces], corners)


def test_one_open_body_makes_the_mesh_open_and_closed_ones_are_still_flipped() -> None:
    far = cube_corners()[:-1] + 10.0
    mesh = clean_mesh(soup(np.concatenate([cube_corners()[:, ::-1], far])))
    assert not mesh.closed
    assert signed_volume(mesh.vertices, mesh.faces[:12]) == pytest.approx(6.0)


def test_an_edge_of_four_faces_is_not_closed() -> None:
    # Two cubes that share one edge exactly: at the edge "outside" is ambiguous.
    mesh = clean_mesh(soup(np.concatenate([cube_corners(), cube_corners() + np.array([1.0, 2.0, 0.0])])))
    assert not mesh.closed


def test_a_flat_sheet_of_two_sides_has_no_inside() -> None:
    triangle = np.array([[0.0, 0, 0], [1, 0, 0], [0, 1, 0]])
    assert not clean_mesh(soup(np.stack([triangle, triangle[::-1]]))).closed


def test_a_surface_with_one_side_is_not_closed() -> None:
    # The projective plane: an icosahedron with opposite vertices made one. Every edge has two faces,
    # and still no winding agrees everywhere.
    ball = sphere_mesh(1e-6)
    names: dict[tuple[float, ...], int] = {}
    label = np.array([names.setdefault(tuple(max(v, -v, key=tuple)), len(names)) for v in ball.vertices.round(12)])
    faces = {tuple(sorted(label[face])) for face in ball.faces}
    assert len(names) == 6
    assert len(faces) == 10
    points = np.random.default_rng(0).normal(size=(6, 3))
    assert not clean_mesh(Soup(points, np.array(sorted(faces)), None)).closed


def test_an_empty_mesh_is_open() -> None:
    mesh = clean_mesh(soup(np.zeros((1, 3, 3))))
    assert len(mesh.faces) == 0
    assert not mesh.closed
