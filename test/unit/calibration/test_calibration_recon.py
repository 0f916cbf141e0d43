"""Alignment of reconstructions: pose and scale by pairs and ICP; findings for mirrored and wrong meshes."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinema4d_ros.calibration.pictures import reconstruction_picture
from kinema4d_ros.calibration.recon import align_pairs, align_reconstruction, choose_engine
from kinema4d_ros.calibration.surfaces import Surface, load_surface, robot_surface, sample_surface
from kinema4d_ros.core.errors import CalibrationError, FileFormatError, SetupError
from kinema4d_ros.core.transforms import apply, from_rpy, invert, rotation_angle
from kinema4d_ros.io.ply import write_ply
from kinema4d_ros.robot import Robot

TRUTH = from_rpy([0.4, -0.2, 2.0], [0.3, -0.5, 0.8])
Q = np.array([0.3, 0.9, 1.1, 0.2, -0.3, 0.4, -0.02])
PICKS = np.array([[0.0, 0.0, 0.05], [0.25, 0.1, 0.3], [0.3, -0.05, 0.15], [0.05, 0.05, 0.25], [0.15, -0.1, 0.1]])


def reconstruction(robot: Robot, scale: float = 1.0, noise_m: float = 0.0005) -> Surface:
    """Sample the robot's surface in reconstruction coordinates, with noise and some points of the table."""
    rng = np.random.default_rng(0)
    surface = robot_surface(robot, Q, 12_000, seed=7)
    clutter = rng.uniform([-0.3, -0.3, -0.01], [0.5, 0.3, 0.0], (600, 3))
    points = np.concatenate([surface.points + rng.normal(0, noise_m, surface.points.shape), clutter])
    normals = np.concatenate([surface.normals, np.tile([0.0, 0.0, 1.0], (600, 1))])
    inverse = invert(TRUTH)
    return Surface(apply(inverse, points) / scale, normals @ inverse[:3, :3].T)


def picked(scale: float = 1.0, noise_m: float = 0.01) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    return apply(invert(TRUTH), PICKS + rng.normal(0, noise_m, PICKS.shape)) / scale, PICKS


@given(st.integers(0, 2**32 - 1), st.floats(0.05, 20.0), st.booleans())
def test_exact_pairs_give_the_transform(seed: int, size: float, similarity: bool) -> None:
    rng = np.random.default_rng(seed)
    pose = from_rpy(rng.uniform(-3, 3, 3), rng.uniform(-2, 2, 3))
    points = rng.normal(size=(6, 3))
    scale = size if similarity else 1.0
    found, found_scale = align_pairs(points, apply(pose, scale * points), similarity=similarity)
    np.testing.assert_allclose(found, pose, atol=1e-8 * max(scale, 1))
    assert found_scale == pytest.approx(scale, rel=1e-9)


@pytest.mark.parametrize(("scale", "similarity"), [(1.0, False), (0.37, True)])
def test_rough_picks_are_refined_to_a_fraction_of_a_millimetre(yam: Robot, scale: float, similarity: bool) -> None:
    surface = reconstruction(yam, scale)
    found = align_reconstruction(surface, yam, Q, *picked(scale), similarity=similarity)
    assert found.pairs_mm > 5.0
    assert 1e3 * np.linalg.norm(found.base_T_recon[:3, 3] - TRUTH[:3, 3]) < 1.0
    assert np.degrees(rotation_angle(found.base_T_recon, TRUTH)) < 0.1
    assert found.scale == pytest.approx(scale, rel=2e-3)
    assert found.quality.verdict == "good"
    assert found.quality.mm is not None
    assert found.quality.mm < 1.5
    np.testing.assert_allclose(apply(found.recon_T_base, PICKS) * 1.0, picked(scale, 0.0)[0], atol=0.003 / scale)
    picture = reconstruction_picture(found, surface, robot_surface(yam, Q, 5000))
    assert picture.shape == (360 + 30, 1080, 3)  # three views and the legend
    assert len(np.unique(picture.reshape(-1, 3), axis=0)) > 5


def test_it_agrees_with_open3d(yam: Robot) -> None:
    o3d = pytest.importorskip("open3d", reason="Open3D is the reference of this test")
    surface = reconstruction(yam)
    found = align_reconstruction(surface, yam, Q, *picked(), engine="own")
    start, _ = align_pairs(*picked())
    clouds = []
    for s in (surface, robot_surface(yam, Q)):
        cloud = o3d.geometry.PointCloud(o3d.utility.Vector3dVector(s.points))
        cloud.normals = o3d.utility.Vector3dVector(s.normals)
        clouds.append(cloud)
    method = o3d.pipelines.registration.TransformationEstimationPointToPlane()
    theirs = start
    for reach in (0.03, 0.01, 0.004):
        theirs = o3d.pipelines.registration.registration_icp(*clouds, reach, theirs, method).transformation
    assert 1e3 * np.linalg.norm(theirs[:3, 3] - found.base_T_recon[:3, 3]) < 1.0
    assert np.degrees(rotation_angle(theirs, found.base_T_recon)) < 0.1


def test_open3d_refines_the_pose(yam: Robot) -> None:
    pytest.importorskip("open3d", reason="pip install open3d")
    found = align_reconstruction(reconstruction(yam), yam, Q, *picked())
    assert found.engine.name == "open3d"
    assert found.engine.text == "Open3D's ICP"
    assert 1e3 * np.linalg.norm(found.base_T_recon[:3, 3] - TRUTH[:3, 3]) < 0.2
    assert np.degrees(rotation_angle(found.base_T_recon, TRUTH)) < 0.05
    assert found.quality.verdict == "good"


def test_the_engine_and_its_fallback_are_reported(yam: Robot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "open3d", None)  # as if it were not installed
    found = align_reconstruction(reconstruction(yam), yam, Q, *picked())
    assert found.engine.text == "our own ICP (Open3D is not installed)"
    assert choose_engine("own").text == "our own ICP"
    assert "no scale" in choose_engine("auto", similarity=True).note
    with pytest.raises(SetupError, match="pip install open3d"):
        choose_engine("open3d")
    with pytest.raises(CalibrationError, match="no scale"):
        choose_engine("open3d", similarity=True)
    with pytest.raises(CalibrationError, match="the engine is 'icp'"):
        choose_engine("icp")


@pytest.mark.full
@pytest.mark.parametrize(("scale", "similarity"), [(1.0, False), (0.37, True)])
def test_pose_is_found_without_pairs(yam: Robot, scale: float, similarity: bool) -> None:
    surface = reconstruction(yam, scale, noise_m=0.001)
    found = align_reconstruction(surface, yam, Q, similarity=similarity)
    assert found.pairs_mm is None
    assert 1e3 * np.linalg.norm(found.base_T_recon[:3, 3] - TRUTH[:3, 3]) < 1.0
    assert np.degrees(rotation_angle(found.base_T_recon, TRUTH)) < 0.1
    assert found.scale == pytest.approx(scale, rel=2e-3)
    assert found.quality.verdict == "good"


@pytest.mark.full
def test_search_reports_mirrored_and_ambiguous_meshes(yam: Robot, tmp_path: Path) -> None:
    surface = robot_surface(yam, Q, 6000, seed=7)
    mirror = Surface(surface.points * (-1, 1, 1), surface.normals * (-1, 1, 1))
    assert "mirrored_model" in align_reconstruction(mirror, yam, Q).quality.names
    # A box is symmetric under a rotation by 180 degrees about each of its axes.
    box = '<visual><geometry><box size="0.3 0.2 0.1"/></geometry></visual>'
    (tmp_path / "brick.urdf").write_text(f'<robot name="brick"><link name="base">{box}</link></robot>')
    brick = Robot.load(tmp_path / "brick.urdf")
    found = align_reconstruction(robot_surface(brick, np.zeros(0), 6000, seed=7), brick, np.zeros(0))
    assert "ambiguous_place" in found.quality.names
    assert found.quality.verdict == "bad"
    with pytest.raises(CalibrationError, match="only one of p_recon and p_base"):
        align_reconstruction(surface, yam, Q, PICKS)


def test_mirrored_and_wrong_reconstructions_are_reported(yam: Robot, primitive_arm: Robot) -> None:
    surface = reconstruction(yam)
    p_recon, p_base = picked(noise_m=0.002)
    mirror = Surface(surface.points * (-1, 1, 1), surface.normals * (-1, 1, 1))
    found = align_reconstruction(mirror, yam, Q, p_recon * (-1, 1, 1), p_base)
    assert "mirrored_model" in found.quality.names
    assert found.quality.verdict == "bad"
    other = align_reconstruction(surface, primitive_arm, np.zeros(len(primitive_arm.joint_names)), p_recon, p_base)
    assert "poor_overlap" in other.quality.names or "poor_fit" in other.quality.names


def test_bad_pairs_are_refused() -> None:
    line = np.outer(np.arange(4.0), [1, 2, 3])
    with pytest.raises(CalibrationError, match="are collinear"):
        align_pairs(line, line)
    with pytest.raises(CalibrationError, match="2 picked pairs"):
        align_pairs(PICKS[:2], PICKS[:2])
    with pytest.raises(CalibrationError, match="shapes"):
        align_pairs(PICKS[:3], PICKS)
    with pytest.raises(CalibrationError, match="finite"):
        align_pairs(PICKS * np.nan, PICKS)


def test_mesh_files(tmp_path: Path) -> None:
    obj = tmp_path / "t.obj"
    obj.write_text("v 0 0 0\nv 1 0 0\nv 0 1 0\nf 1 2 3\n")
    surface = load_surface(obj, 500)
    assert surface.points.shape == (500, 3)
    assert np.allclose(surface.points[:, 2], 0)
    assert np.allclose(np.abs(surface.normals[:, 2]), 1)
    assert np.allclose(surface.points[:, :2].mean(axis=0), 1 / 3, atol=0.05)
    cloud = tmp_path / "cloud.ply"
    write_ply(cloud, PICKS.astype(np.float32), np.zeros((5, 3), np.uint8))
    with pytest.raises((FileFormatError, CalibrationError)):
        load_surface(cloud)
    with pytest.raises(FileFormatError, match="does not exist"):
        load_surface(tmp_path / "none.ply")
    with pytest.raises(CalibrationError, match="no area"):
        sample_surface(np.zeros((3, 3)), [[0, 1, 2]])
