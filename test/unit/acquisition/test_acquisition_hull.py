"""Carving and surface extraction, compared with shapes of known size."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kinema4d_ros.acquisition.backends import FusionBackend, simplified
from kinema4d_ros.acquisition.drawing import coloured, coverage, draw_mesh, mesh_scene
from kinema4d_ros.acquisition.hull import (
    ColouredMesh,
    Grid,
    Outlines,
    carve,
    drop_crumbs,
    surface_net,
    vertex_normals,
    visual_hull,
)
from kinema4d_ros.acquisition.links import boundary_loops, cap_holes
from kinema4d_ros.acquisition.synthetic import orbit_cameras
from kinema4d_ros.acquisition.views import View
from kinema4d_ros.core.errors import AssetError, MeshError
from kinema4d_ros.robot.meshes import Soup, clean_mesh

CENTRE = np.array([0.18, 0.0, 0.20])
GRID = Grid.over(CENTRE - 0.12, CENTRE + 0.12, 0.006)


def ball(radius: float, grid: Grid = GRID, centre: NDArray[np.float64] = CENTRE) -> NDArray[np.float32]:
    return np.asarray(radius - np.linalg.norm(grid.centres() - centre, axis=-1), np.float32)


def volume(mesh: ColouredMesh) -> float:
    a, b, c = (mesh.vertices[mesh.faces[:, i]] for i in range(3))
    return float((a * np.cross(b, c)).sum() / 6)


def views_of(mesh: ColouredMesh, count: int = 14, depth: bool = False) -> list[View]:
    scene, out = mesh_scene(mesh), []
    for i, camera in enumerate(orbit_cameras(count, width=240, height=180, distortion=(), fov_y_deg=30)):
        drawn = draw_mesh(scene, camera)
        red = np.zeros((180, 240, 3), np.uint8)
        red[drawn.mask[0]] = (200, 40, 30)
        metres = drawn.xyz[0, ..., 2] if depth else None
        out.append(View(str(i), 0, red, camera, drawn.mask[0], metres))
    return out


@settings(max_examples=15)
@given(st.floats(0.045, 0.1), st.integers(0, 1000))
def test_surface_of_a_ball(radius: float, seed: int) -> None:
    centre = CENTRE + np.random.default_rng(seed).uniform(-0.006, 0.006, 3)
    mesh = surface_net(ball(radius, centre=centre), GRID)
    away = np.linalg.norm(mesh.vertices - centre, axis=1)
    assert np.abs(away - radius).max() < 0.0025
    assert volume(mesh) == pytest.approx(4 / 3 * np.pi * radius**3, rel=0.04)
    assert clean_mesh(Soup(mesh.vertices, mesh.faces, None)).closed
    outward = ((mesh.vertices - centre) * vertex_normals(mesh)).sum(axis=1)
    assert (outward > 0.8 * radius).all()


def test_a_surface_that_meets_the_border_is_closed_there() -> None:
    mesh = surface_net(ball(0.3), GRID)
    assert clean_mesh(Soup(mesh.vertices, mesh.faces, None)).closed
    assert not len(surface_net(np.full(GRID.shape, -1, np.float32), GRID).faces)


def test_small_components_and_cavities_are_removed() -> None:
    values = np.maximum(np.minimum(ball(0.08), -ball(0.04)), ball(0.02, centre=CENTRE + 0.09))
    mesh = surface_net(values, GRID)
    whole = drop_crumbs(mesh, 0.05)
    assert volume(whole) == pytest.approx(4 / 3 * np.pi * 0.08**3, rel=0.04)
    assert len(whole.faces) < len(mesh.faces)


def test_the_hull_of_a_ball() -> None:
    truth = surface_net(ball(0.08), GRID)
    views = views_of(truth)
    hull = visual_hull(views, 0.004)
    away = np.linalg.norm(hull.vertices - CENTRE, axis=1)
    # A hull of 14 views has corners; it cuts into the object by at most the size of a pixel (3 mm).
    assert away.min() > 0.077
    assert np.mean(away) < 0.086
    iou = coverage([draw_mesh(mesh_scene(hull), v.camera).mask[0] for v in views], views)
    assert iou.min() > 0.95
    floor = np.array([0.0, 0.0, 1.0, -0.2])
    assert visual_hull(views, 0.004, floor=floor).vertices[:, 2].min() > 0.196


def test_colours_come_from_the_images() -> None:
    truth = surface_net(ball(0.08), GRID)
    painted = coloured(truth, views_of(truth), slack=0.01)
    assert painted.rgb is not None
    assert np.abs(painted.rgb.astype(int) - (200, 40, 30)).max() < 30


def test_misses_tolerate_a_bad_mask() -> None:
    truth = surface_net(ball(0.08), GRID)
    views = views_of(truth)
    hole = views[3].robot.copy()
    hole[:, :120] = False
    views[3] = View("3", 0, views[3].image, views[3].camera, hole)
    cut, whole = visual_hull(views, 0.006), visual_hull(views, 0.006, misses=1)
    full = 4 / 3 * np.pi * 0.08**3
    assert volume(cut) < 0.75 * full
    assert volume(whole) > 0.97 * full


def test_depth_carves_cavities() -> None:
    # A bowl: a ball with a cavity on top, which no outline shows.
    values = np.minimum(ball(0.08), -ball(0.05, centre=CENTRE + np.array([0, 0, 0.06])))
    truth = surface_net(values, GRID)
    by_outline = visual_hull(views_of(truth), 0.005)
    by_depth = visual_hull(views_of(truth, depth=True), 0.005)
    assert volume(by_outline) > 1.12 * volume(truth)
    assert volume(by_depth) == pytest.approx(volume(truth), rel=0.07)


def test_depth_agrees_with_open3d() -> None:
    o3d = pytest.importorskip("open3d", reason="Open3D is the reference of this test")
    truth = surface_net(ball(0.08), GRID)
    views = views_of(truth, depth=True)
    fused = o3d.pipelines.integration.UniformTSDFVolume(
        length=0.3,
        resolution=60,
        sdf_trunc=0.015,
        color_type=o3d.pipelines.integration.TSDFVolumeColorType.NoColor,
        origin=(CENTRE - 0.15)[:, None],
    )
    for v in views:
        K = v.camera.K_opencv
        inner = o3d.camera.PinholeCameraIntrinsic(240, 180, K[0, 0], K[1, 1], K[0, 2], K[1, 2])
        depth = o3d.geometry.Image(np.nan_to_num(v.depth_m).astype(np.float32))
        grey = o3d.geometry.Image(np.zeros((180, 240, 3), np.uint8))
        rgbd = o3d.geometry.RGBDImage.create_from_color_and_depth(grey, depth, 1.0, 3.0, False)
        fused.integrate(rgbd, inner, v.camera.camera_T_base)
    theirs = np.asarray(fused.extract_triangle_mesh().vertices)
    ours = visual_hull(views, 0.005).vertices
    ours = ours[ours[:, 2] > 0.2]
    theirs = theirs[theirs[:, 2] > 0.2]
    away = [np.linalg.norm(p - CENTRE, axis=1) for p in (ours, theirs)]
    assert abs(away[0].mean() - away[1].mean()) < 0.001
    assert away[0].std() < 0.002


def test_open3d_fuses_the_measured_surface() -> None:
    pytest.importorskip("open3d", reason="pip install open3d")
    truth = surface_net(ball(0.08), GRID)
    views = views_of(truth, depth=True)
    mesh = FusionBackend(0.004).reconstruct(views, lambda done, total: None)
    p = mesh.vertices - CENTRE
    away = np.linalg.norm(p, axis=1)
    assert np.abs(away - 0.08).mean() < 0.001
    # All cameras look down: the underside is not measured and stays open.
    assert not clean_mesh(Soup(mesh.vertices, mesh.faces, None)).closed
    assert p[:, 2].max() > 0.075
    assert (p * vertex_normals(mesh)).sum(axis=1).mean() > 0.07  # wound outwards
    assert mesh.rgb is not None
    assert np.abs(np.median(mesh.rgb.astype(int), axis=0) - (200, 40, 30)).max() < 30
    floor = np.array([0.0, 0.0, 1.0, -0.2])
    assert FusionBackend(0.004, floor).reconstruct(views, lambda done, total: None).vertices[:, 2].min() > 0.19
    with pytest.raises(MeshError, match="no surface was measured"):
        FusionBackend(0.004).reconstruct(views_of(truth), lambda done, total: None)


def test_open3d_reduces_triangles() -> None:
    pytest.importorskip("open3d", reason="pip install open3d")
    mesh = coloured(surface_net(ball(0.08), GRID), views_of(surface_net(ball(0.08), GRID)), slack=0.01)
    small = simplified(mesh, 400)
    assert 300 < len(small.faces) <= 400
    assert clean_mesh(Soup(small.vertices, small.faces, None)).closed
    assert volume(small) == pytest.approx(volume(mesh), rel=0.05)
    assert small.rgb is not None
    assert small.rgb.shape == small.vertices.shape
    assert np.abs(small.rgb.astype(int) - (200, 40, 30)).max() < 30
    assert simplified(mesh, 10**6) is mesh


def test_carving_errors() -> None:
    views = views_of(surface_net(ball(0.05), GRID))
    moved = [View(v.name, 0, v.image, v.camera, np.roll(v.robot, 90 * (i % 2), axis=1)) for i, v in enumerate(views)]
    with pytest.raises(MeshError, match="no common volume"):
        visual_hull(moved, 0.005)
    with pytest.raises(AssetError, match="voxels"):
        Grid.over(np.zeros(3), np.ones(3), 1e-4)
    with pytest.raises(AssetError, match="the voxel size is 0"):
        Grid.over(np.zeros(3), np.ones(3), 0.0)
    with pytest.raises(AssetError, match="misses is 9"):
        carve(Outlines.of(views), GRID, misses=9)
    with pytest.raises(AssetError, match="0 has no mask"):
        Outlines.of([View("0", 0, views[0].image, views[0].camera)])


def test_holes_are_capped() -> None:
    mesh = surface_net(ball(0.08), GRID)
    centre = mesh.vertices[mesh.faces].mean(axis=1)
    cut = mesh.part((centre[:, 2] < 0.24) & (centre[:, 2] > 0.16))
    assert len(boundary_loops(cut.faces)) == 2
    closed, holes = cap_holes(cut)
    assert holes == 2
    assert clean_mesh(Soup(closed.vertices, closed.faces, None)).closed
    h = 0.04
    assert volume(closed) == pytest.approx(2 * np.pi * (0.08**2 * h - h**3 / 3), rel=0.06)
    assert cap_holes(mesh)[1] == 0
