"""Tests of the table plane seen by a camera: exact depths and heights, invariance to the base pose."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinema4d_model.pipeline.lifting.geometry import GEOMETRY_CHANNELS, view_plane
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import CameraError, KinemaError
from kinema4d_ros.core.transforms import make
from kinema4d_ros.generators.carry import plane_depth


def camera_at(azimuth_deg: float = -30, elevation_deg: float = 40, distance_m: float = 0.9) -> PinholeCamera:
    a, e = np.radians([azimuth_deg, elevation_deg])
    eye = np.array([0.3, 0.05, 0.05]) + distance_m * np.array([np.cos(a) * np.cos(e), np.sin(a) * np.cos(e), np.sin(e)])
    return PinholeCamera.look_at(eye, (0.3, 0.05, 0.05), width=36, height=24, focal_px=70)


def about_z(turn: float, shift: tuple[float, float, float]) -> np.ndarray:
    c, s = np.cos(turn), np.sin(turn)
    return make(np.array([[c, -s, 0], [s, c, 0], [0, 0, 1.0]]), np.array(shift))


def test_the_plane_equals_that_of_the_composite_generator() -> None:
    camera = camera_at(elevation_deg=12)
    expected = plane_depth(camera, 0.03, 2.0)
    assert 0 < np.isnan(expected).sum() < expected.size
    view = view_plane(camera, 0.03, max_range_m=2.0)
    assert np.allclose(view.depth_m, expected, equal_nan=True, rtol=1e-12)
    assert view.channels.shape == (GEOMETRY_CHANNELS, 24, 36)
    assert np.isfinite(view.channels).all()
    assert np.array_equal(view.channels[7] > 0, np.isfinite(expected))


@settings(deadline=None, max_examples=40)
@given(
    st.floats(-180, 180), st.floats(10, 90), st.floats(0.4, 1.5), st.floats(-0.2, 0.1), st.floats(-0.1, 0.2),
)  # fmt: skip
def test_heights_and_depths_round_trip(
    azimuth: float, elevation: float, distance: float, table: float, above: float
) -> None:
    camera = camera_at(azimuth, min(elevation, 89.9), distance)
    view = view_plane(camera, table)
    met = np.isfinite(view.depth_m)
    if not met.any() or above > 0.8 * view.camera_height_m:
        return
    depth = view.depth_of(np.full(met.shape, above))
    p_base = (camera.rays() * depth[..., None]) @ camera.base_T_camera[:3, :3].T + camera.base_T_camera[:3, 3]
    assert np.allclose(p_base[met][:, 2], table + above, atol=1e-9)
    assert np.allclose(view.height_of(depth)[met], above, atol=1e-9)


@settings(deadline=None, max_examples=30)
@given(st.floats(-np.pi, np.pi), st.floats(-2, 2), st.floats(-2, 2), st.floats(-1, 1))
def test_channels_do_not_depend_on_the_base_pose(turn: float, x: float, y: float, z: float) -> None:
    camera = camera_at()
    moved = camera.posed(about_z(turn, (x, y, z)) @ camera.base_T_camera)
    assert np.allclose(view_plane(moved, 0.02 + z).channels, view_plane(camera, 0.02).channels, atol=1e-5)


def test_a_mirrored_view_has_mirrored_channels() -> None:
    camera = camera_at(azimuth_deg=-30)
    mirror = np.diag([1.0, -1.0, 1.0])
    # Two reflections, of the world and of the image's x axis, make a rotation.
    R = mirror @ camera.base_T_camera[:3, :3] @ np.diag([-1.0, 1.0, 1.0])
    other = camera.posed(make(R, mirror @ camera.base_T_camera[:3, 3]))
    expected = view_plane(camera).channels[..., ::-1].copy()
    expected[[0, 3]] *= -1
    assert np.allclose(view_plane(other).channels, expected, atol=1e-5)


def test_a_larger_world_looks_the_same_from_further_away() -> None:
    camera = camera_at()
    pose = camera.base_T_camera.copy()
    pose[:3, 3] *= 1.4
    larger = view_plane(camera.posed(pose))
    scaled = view_plane(camera, scale=1.4)
    assert np.allclose(scaled.depth_m, larger.depth_m)
    assert np.allclose(scaled.channels, larger.channels, atol=1e-5)
    assert scaled.camera_height_m == pytest.approx(larger.camera_height_m)


def test_a_camera_that_looks_straight_down_has_a_forward_direction() -> None:
    R = np.array([[0.0, -1, 0], [-1, 0, 0], [0, 0, -1]])
    camera = PinholeCamera(36, 24, [[70, 0, 18], [0, 70, 12], [0, 0, 1]], base_T_camera=make(R, np.array([0, 0, 1.0])))
    channels = view_plane(camera).channels
    assert (np.diff(channels[3], axis=1) > 0).all()
    assert (np.diff(channels[4], axis=0) < 0).all(), "up in the picture is forward"


def test_a_camera_below_the_table_is_refused() -> None:
    with pytest.raises(CameraError, match="below the table") as caught:
        view_plane(camera_at(), 2.0)
    assert isinstance(caught.value, KinemaError)
    assert "table_height_m" in str(caught.value)
