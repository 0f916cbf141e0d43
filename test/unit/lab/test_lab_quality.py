"""Image quality settings, styles, merged vertices, and the lab's start position."""

from __future__ import annotations

import numpy as np
import pytest

from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import KinemaError, MeshError, RenderError
from kinema4d_ros.lab import SMALL, LabCamera, LabSimulation, Quality, Style
from kinema4d_ros.render.clusters import merge_vertices
from kinema4d_ros.robot import Robot
from kinema4d_ros.robot.primitives import sphere_mesh


@pytest.fixture(scope="module")
def yam() -> Robot:
    return Robot.load("yam")


def test_small_quality_changes_the_image_little_and_the_truth_not_at_all(yam: Robot) -> None:
    lab = LabSimulation("cluttered", seed=2, robot=yam)
    camera = PinholeCamera.look_at((0.95, -0.45, 0.65), (0.3, 0, 0.05), width=144, height=96, fov_y_deg=25)
    full = LabCamera(yam, camera).capture(lab, truth=True)
    small = LabCamera(yam, camera, quality=SMALL).capture(lab, truth=True)
    mse = float(np.mean((full.rgb.astype(float) - small.rgb) ** 2))
    assert 0.0 < mse < 255**2 / 10**3.8, "the images must differ, with a PSNR above 38 dB"
    assert full.depth_m is not None
    assert small.depth_m is not None
    assert np.array_equal(full.depth_m, small.depth_m, equal_nan=True)
    assert np.array_equal(full.segmentation, small.segmentation)  # type: ignore[arg-type]


def test_style_sets_the_colours_of_robot_and_table(yam: Robot) -> None:
    lab = LabSimulation("canonical", seed=2, robot=yam)
    camera = PinholeCamera.look_at((0.95, -0.45, 0.65), (0.3, 0, 0.15), width=144, height=96, fov_y_deg=35)
    plain = LabCamera(yam, camera, quality=SMALL).capture(lab, truth=True)
    style = Style(robot_rgb=(0.1, 0.2, 0.9), tint=(0.3, 1.0, 0.3))
    tinted = LabCamera(yam, camera, quality=SMALL, style=style).capture(lab)
    robot = plain.mask("link2") | plain.mask("link3")
    blueness = [float(np.mean(p.rgb[robot][:, 2].astype(float) - p.rgb[robot][:, 0])) for p in (plain, tinted)]
    assert blueness[1] > blueness[0] + 40
    table = plain.mask("table")
    greenness = [float(np.mean(p.rgb[table][:, 1].astype(float) - p.rgb[table][:, 0])) for p in (plain, tinted)]
    assert greenness[1] > greenness[0] + 40


def test_merged_vertices_stay_within_a_cell_and_are_fewer() -> None:
    sphere = sphere_mesh(0.05)
    coarse = merge_vertices(sphere, 0.01)
    assert len(coarse.vertices) < len(sphere.vertices)
    assert len(coarse.faces) < len(sphere.faces)
    nearest = np.linalg.norm(coarse.vertices[:, None] - sphere.vertices[None], axis=-1).min(axis=1)
    assert nearest.max() <= 0.01 * np.sqrt(3)
    assert len(np.unique(np.sort(coarse.faces, axis=1), axis=0)) <= len(coarse.faces)
    with pytest.raises(MeshError, match="grid_m"):
        merge_vertices(sphere, 0.0)


def test_invalid_quality_is_rejected() -> None:
    with pytest.raises(RenderError, match="shadow_pixels"):
        Quality(shadow_pixels=100)
    with pytest.raises(RenderError, match="shadow_grid_m"):
        Quality(shadow_grid_m=1.0)


def test_start_position_is_used_after_every_reset(yam: Robot) -> None:
    start = yam.home_position() + np.array([0.3, 0, 0, 0, 0, 0, 0])
    lab = LabSimulation("canonical", seed=0, robot=yam, start=start)
    assert lab.state().positions == pytest.approx(start, abs=5e-3)
    assert lab.reset(seed=1).commanded == pytest.approx(start)
    with pytest.raises(KinemaError, match="start"):
        LabSimulation("canonical", seed=0, robot=yam, start=[0.0])
