from __future__ import annotations

import numpy as np
import pytest

from kinema4d_ros.kinematics.gripping import finger_links
from kinema4d_ros.lab.materials import TABLES, TEXTURE_PIXELS, Style, linear, table_texture
from kinema4d_ros.lab.scenario import hidden_fraction
from kinema4d_ros.lab.shapes import object_geometries, rounded_box, rounded_cylinder
from kinema4d_ros.physics.model import outer_points
from kinema4d_ros.physics.objects import SHAPES, LabObject, PlacedObject, boxes_of
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


@pytest.mark.parametrize("shape", SHAPES)
def test_rendered_size_equals_the_physical_size(shape: str) -> None:
    size = (0.08, 0.08, 0.08) if shape == "sphere" else (0.08, 0.08, 0.04)
    points = np.concatenate([g.mesh.vertices + g.link_T_geometry[:3, 3] for g in object_geometries(thing(shape, size))])
    np.testing.assert_allclose(points.min(axis=0), -np.array(size) / 2, atol=2e-4)
    np.testing.assert_allclose(points.max(axis=0), np.array(size) / 2, atol=2e-4)


def test_bin_is_open_above_and_closed_below() -> None:
    boxes = boxes_of(thing("bin", (0.08, 0.08, 0.04)))

    def solid(point: tuple[float, float, float]) -> bool:
        return any(np.all(np.abs(np.array(point) - center) < size / 2) for center, size in boxes)

    assert not solid((0.0, 0.0, 0.01))
    assert solid((0.0, 0.0, -0.018))
    assert all(solid((0.038 * s, 0.0, 0.0)) and solid((0.0, 0.038 * s, 0.0)) for s in (-1, 1))


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
