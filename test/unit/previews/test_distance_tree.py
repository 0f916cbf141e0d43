"""Triangle trees: nearest points and inside tests against brute force over all triangles."""

from __future__ import annotations

import numpy as np
import pytest
import trimesh
from hypothesis import given, settings
from hypothesis import strategies as st

from kinema4d_ros.previews.report._kernels import build_tree, is_inside, nearest
from kinema4d_ros.previews.report.clearance import RobotSurface
from kinema4d_ros.robot import Robot


def random_soup(seed: int, count: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, 1, 3)) + 0.3 * rng.normal(size=(count, 3, 3))


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32 - 1), count=st.integers(1, 300))
def test_nearest_equals_brute_force(seed: int, count: int) -> None:
    soup = random_soup(seed, count)
    order, box, child, span = build_tree(soup)
    assert sorted(order.tolist()) == list(range(count))
    triangles = np.ascontiguousarray(soup[order])
    out = np.empty(3)
    for p in np.random.default_rng(seed + 1).normal(scale=2.0, size=(5, 3)):
        wanted = np.linalg.norm(trimesh.triangles.closest_point(soup, np.tile(p, (count, 1))) - p, axis=1).min()
        found = nearest(p, 0, np.inf, triangles, box, child, span, out)
        assert found == pytest.approx(wanted, abs=1e-9)
        assert np.linalg.norm(out - p) == pytest.approx(found, abs=1e-12)
        assert nearest(p, 0, found * 0.999, triangles, box, child, span, out) == np.inf


def test_triangles_without_area_are_points_and_lines() -> None:
    flat = np.array([[[0, 0, 0], [1, 0, 0], [2, 0, 0]], [[5, 5, 5], [5, 5, 5], [5, 5, 5]]], dtype=np.float64)
    order, box, child, span = build_tree(flat)
    triangles = np.ascontiguousarray(flat[order])
    out = np.empty(3)
    assert nearest(np.array([1.5, 2.0, 0.0]), 0, np.inf, triangles, box, child, span, out) == pytest.approx(2.0)
    assert out == pytest.approx([1.5, 0, 0])
    assert nearest(np.array([5.0, 5.0, 6.0]), 0, np.inf, triangles, box, child, span, out) == pytest.approx(1.0)


@pytest.mark.parametrize(
    "mesh",
    [
        trimesh.creation.box((1, 2, 3)),
        trimesh.creation.icosphere(3, 1.3),
        trimesh.creation.torus(1.0, 0.3),
        trimesh.creation.annulus(0.4, 1.0, 0.7),
    ],
    ids=["box", "sphere", "torus", "ring"],
)
def test_inside_equals_the_solid_angle(mesh: trimesh.Trimesh) -> None:
    corners = np.ascontiguousarray(mesh.triangles, dtype=np.float64)
    order, box, child, span = build_tree(corners)
    triangles = np.ascontiguousarray(corners[order])
    points = np.random.default_rng(0).uniform(-1.6, 1.6, (400, 3))
    # Solid angle of the surface seen from a point: 4 pi inside, 0 outside.
    a, b, c = (corners[None, :, i] - points[:, None] for i in range(3))
    la, lb, lc = (np.linalg.norm(v, axis=-1) for v in (a, b, c))
    volume = np.einsum("ijk,ijk->ij", a, np.cross(b, c))
    dots = (np.einsum("ijk,ijk->ij", x, y) for x, y in ((a, b), (b, c), (c, a)))
    ab, bc, ca = dots
    angle = 2 * np.arctan2(volume, la * lb * lc + ab * lc + bc * la + ca * lb).sum(axis=1)
    inside = np.array([is_inside(p, 0, triangles, box, child, span) for p in points])
    assert np.array_equal(inside, angle > 2 * np.pi)
    assert 10 < inside.sum() < 390


def test_a_robots_surface_holds_every_triangle_once(yam: Robot) -> None:
    surface = RobotSurface.of(yam)
    assert len(surface.triangles) == sum(len(g.mesh.faces) for link in yam.links for g in link.visuals)
    assert surface.closed.all()
    leaves = surface.child < 0
    assert np.array_equal(np.sort(surface.span[leaves, 0])[1:], np.sort(surface.span[leaves, 1])[:-1])
    assert RobotSurface.of(yam) is surface
