from __future__ import annotations

import numpy as np
import pytest

from kinema4d_ros.core.transforms import apply, invert
from kinema4d_ros.kinematics.gripping import finger_links
from kinema4d_ros.lab.materials import TABLES, TEXTURE_PIXELS, Style, linear, table_texture
from kinema4d_ros.lab.occlusion import hidden_fraction
from kinema4d_ros.lab.shapes import object_geometries, rounded_box, rounded_cylinder
from kinema4d_ros.physics.model import outer_points
from kinema4d_ros.physics.objects import ODD_SHAPES, SHAPES, LabObject, PlacedObject, parts_of, volume_of
from kinema4d_ros.robot import Robot, TriangleMesh


def thing(shape: str = "box", size: tuple[float, float, float] = (0.05, 0.05, 0.05)) -> LabObject:
    return LabObject("thing", shape, size, (0.8, 0.2, 0.2), 0.05)  # type: ignore[arg-type]


def volume(mesh: TriangleMesh) -> float:
    a, b, c = (mesh.vertices[mesh.faces[:, i]] for i in range(3))
    return float(np.einsum("ij,ij->i", a, np.cross(b, c)).sum() / 6)


def is_closed(mesh: TriangleMesh) -> bool:
    edges = np.concatenate([mesh.faces[:, [0, 1]], mesh.faces[:, [1, 2]], mesh.faces[:, [2, 0]]])
    there, back = {tuple(e) for e in edges.tolist()}, {tuple(e[::-1]) for e in edges.tolist()}
    return len(there) == len(edges) and there == back


@pytest.mark.parametrize("size", [(0.05, 0.05, 0.05), (0.2, 0.03, 0.01), (0.004, 0.06, 0.03)])
def test_rounded_boxes_are_closed_and_keep_size_and_volume(size: tuple[float, float, float]) -> None:
    mesh = rounded_box(np.array(size))
    assert is_closed(mesh)
    assert 0.9 * np.prod(size) < volume(mesh) < np.prod(size)
    np.testing.assert_allclose(np.ptp(mesh.vertices, axis=0), size)


def test_rounded_cylinders_are_closed_and_keep_size_and_volume() -> None:
    mesh = rounded_cylinder(0.02, 0.06)
    assert is_closed(mesh)
    full = np.pi * 0.02**2 * 0.06
    assert 0.97 * full < volume(mesh) < full
    np.testing.assert_allclose(np.ptp(mesh.vertices, axis=0), [0.04, 0.04, 0.06], rtol=1e-6)


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape != "hull"])
def test_rendered_size_equals_the_physical_size(shape: str) -> None:
    size = (0.08, 0.08, 0.08) if shape == "sphere" else (0.10 if shape == "mug" else 0.08, 0.08, 0.04)
    points = np.concatenate([apply(g.link_T_geometry, g.mesh.vertices) for g in object_geometries(thing(shape, size))])
    # The rounded foot of a tapered block ends where its sides are already narrower.
    near = 6e-4 if shape == "taper" else 2e-4
    np.testing.assert_allclose(points.min(axis=0), -np.array(size) / 2, atol=near)
    np.testing.assert_allclose(points.max(axis=0), np.array(size) / 2, atol=near)


@pytest.mark.parametrize("shape", ["mug", "bottle", "taper"])
def test_meshes_of_odd_shapes_are_closed_and_have_the_volume_of_their_parts(shape: str) -> None:
    made = thing(shape, (0.07 if shape == "mug" else 0.05, 0.05, 0.06))
    meshes = [g.mesh for g in object_geometries(made)]
    assert all(is_closed(mesh) for mesh in meshes)
    assert all(volume(mesh) > 0 for mesh in meshes)
    assert sum(volume(mesh) for mesh in meshes) == pytest.approx(volume_of(made), rel=0.06)


@pytest.mark.parametrize("shape", ["hollow_box", "ell"])
def test_boxes_of_odd_shapes_are_drawn_without_seams(shape: str) -> None:
    """Every wall and leg is drawn in one piece to the end of the bounding box: its rounded end is the object's."""
    size = np.array([0.05, 0.06, 0.04])
    walls = object_geometries(thing(shape, tuple(size)))[-2:]
    assert all(is_closed(g.mesh) for g in walls)
    for g in walls:
        sides = np.ptp(g.mesh.vertices, axis=0)
        assert np.isclose(sides[:2], size[:2]).any()


def test_mesh_of_a_hull_is_closed_and_points_outwards() -> None:
    points = np.random.default_rng(3).normal(size=(30, 3)) * 0.02
    made, _ = LabObject.hull("thing", points, (0.8, 0.2, 0.2), 0.05)
    (geometry,) = object_geometries(made)
    assert is_closed(geometry.mesh)
    assert volume(geometry.mesh) == pytest.approx(volume_of(made))


@pytest.mark.parametrize("shape", ["bin", "hollow_box", "mug"])
def test_vessels_are_open_above_and_closed_below(shape: str) -> None:
    vessel = thing(shape, (0.10 if shape == "mug" else 0.08, 0.08, 0.04))
    x = -0.01 if shape == "mug" else 0.0

    def solid(point: tuple[float, float, float]) -> bool:
        p = np.array(point)
        near = [(apply(invert(part.object_T_part), p), part.size) for part in parts_of(vessel)]
        return any(bool(np.all(np.abs(q) < np.array(size) / 2)) for q, size in near)

    assert not solid((x, 0.0, 0.01))
    assert solid((x, 0.0, -0.018))
    assert all(solid((x + 0.038 * s, 0.0, 0.0)) and solid((x, 0.038 * s, 0.0)) for s in (-1, 1))


def test_outer_points_keep_the_size_of_a_link(yam: Robot) -> None:
    for link in yam.links:
        for shape in link.visuals:
            points = outer_points(shape.mesh)
            assert len(points) <= 134
            np.testing.assert_array_equal(points.min(axis=0), shape.mesh.vertices.min(axis=0))
            np.testing.assert_array_equal(points.max(axis=0), shape.mesh.vertices.max(axis=0))


def test_finger_links_are_moved_by_the_gripper(yam: Robot) -> None:
    assert finger_links(yam) == ("left_finger", "right_finger")


@pytest.mark.parametrize("table", TABLES)
def test_table_texture_is_seeded(table: str) -> None:
    texture = table_texture(Style(table=table, seed=1), (1.0, 1.0))
    assert texture.shape == (TEXTURE_PIXELS, TEXTURE_PIXELS, 3)
    assert texture.min() >= 0
    assert texture.max() <= 1
    assert texture.std() > 0.003
    assert np.array_equal(texture, table_texture(Style(table=table, seed=1), (1.0, 1.0)))


def test_linear_light_of_srgb() -> None:
    assert linear((0.0, 1.0, 0.5)) == pytest.approx((0.0, 1.0, 0.2140), abs=1e-4)


def test_hidden_fraction_without_with_partial_and_with_full_occlusion() -> None:
    target = PlacedObject.standing(thing(), 0.3, 0.0, 0.2)
    eye = (1.3, 0.0, 0.025)
    wall = PlacedObject.standing(thing("box", (0.02, 0.4, 0.3)), 0.5, 0.0, 0.0)
    half = PlacedObject.standing(thing("box", (0.02, 0.4, 0.3)), 0.5, 0.2, 0.0)
    behind = PlacedObject.standing(thing("box", (0.02, 0.4, 0.3)), 0.1, 0.0, 0.0)
    post = PlacedObject.standing(thing("cylinder", (0.02, 0.02, 0.3)), 0.5, 0.0, 0.0)
    assert hidden_fraction(target, [], eye) == 0.0
    assert hidden_fraction(target, [behind], eye) == 0.0
    assert hidden_fraction(target, [wall], eye) == 1.0
    assert hidden_fraction(target, [half], eye) == pytest.approx(0.5, abs=0.1)
    assert 0.2 < hidden_fraction(target, [post], eye) < 0.6


@pytest.mark.parametrize("shape", ODD_SHAPES)
def test_odd_shapes_hide_and_are_hidden(shape: str) -> None:
    eye = (1.3, 0.0, 0.03)
    size = (0.07 if shape == "mug" else 0.05, 0.05, 0.05)
    odd = PlacedObject.standing(thing(shape, size), 0.3, 0.0, 0.0)
    wall = PlacedObject.standing(thing("box", (0.02, 0.4, 0.3)), 0.5, 0.0, 0.0)
    half = PlacedObject.standing(thing("box", (0.02, 0.4, 0.3)), 0.5, 0.2, 0.0)
    small = PlacedObject.standing(thing("box", (0.02, 0.02, 0.02)), 0.2, 0.0, 0.0)
    assert hidden_fraction(odd, [], eye) == 0.0
    assert hidden_fraction(odd, [wall], eye) == 1.0
    assert 0.2 < hidden_fraction(odd, [half], eye) < 0.8
    assert hidden_fraction(small, [odd], eye) > 0.9
    assert hidden_fraction(odd, [small], eye) == 0.0


def test_one_can_look_past_the_neck_of_a_bottle() -> None:
    bottle = PlacedObject.standing(thing("bottle", (0.05, 0.05, 0.1)), 0.4, 0.0, 0.0)
    behind = PlacedObject.standing(thing("box", (0.05, 0.05, 0.1)), 0.3, 0.0, 0.0)
    block = PlacedObject.standing(thing("box", (0.05, 0.05, 0.1)), 0.4, 0.0, 0.0)
    eye = (1.4, 0.0, 0.05)
    assert hidden_fraction(behind, [bottle], eye) < hidden_fraction(behind, [block], eye) - 0.1
