from __future__ import annotations

import doctest
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinema4d_ros.core import camera as camera_module
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import CameraError, ErrorCode
from kinema4d_ros.core.transforms import apply, from_rpy

K_OPENCV = [[612.0, 0.0, 355.3], [0.0, 608.0, 243.9], [0.0, 0.0, 1.0]]
BARREL = (-0.28, 0.07, 1e-3, -5e-4, 0.0)
PINCUSHION = (0.15, 0.05, -1e-3, 2e-3)
RATIONAL = (5.1, 2.2, 6e-4, -3e-4, 0.11, 5.4, 3.4, 0.6)
LENSES: dict[str, dict[str, Any]] = {
    "none": {},
    "barrel": {"distortion": BARREL},
    "pincushion": {"distortion": PINCUSHION},
    "rational": {"distortion": RATIONAL, "distortion_model": "rational_polynomial"},
}
CAMERAS = {name: PinholeCamera.from_opencv(720, 480, K_OPENCV, **lens) for name, lens in LENSES.items()}

columns, rows, depths = st.floats(0.0, 720.0), st.floats(0.0, 480.0), st.floats(0.01, 20.0)


@pytest.fixture(params=CAMERAS)
def camera(request: pytest.FixtureRequest) -> PinholeCamera:
    return CAMERAS[request.param]


# --- the pixel convention ---------------------------------------------------------------------


def test_a_pixel_samples_its_centre() -> None:
    camera = PinholeCamera(4, 2, [[2.0, 0.0, 2.0], [0.0, 2.0, 1.0], [0.0, 0.0, 1.0]])
    rays = camera.rays()
    assert rays.shape == (2, 4, 3)
    assert rays.dtype == np.float64
    np.testing.assert_allclose(rays[0, 0], [(0.5 - 2) / 2, (0.5 - 1) / 2, 1.0])
    np.testing.assert_allclose(rays[1, 3], [(3.5 - 2) / 2, (1.5 - 1) / 2, 1.0])
    np.testing.assert_allclose(rays.mean((0, 1)), [0, 0, 1], atol=1e-15)


def test_opencv_intrinsics_differ_by_half_a_pixel(camera: PinholeCamera) -> None:
    points = np.random.default_rng(0).uniform([-0.5, -0.35, 0.9], [0.5, 0.35, 1.5], (400, 3))
    zero = np.zeros(3)
    expected = cv2.projectPoints(points, zero, zero, np.array(K_OPENCV), np.array(camera.distortion or (0.0,) * 4))[0]
    np.testing.assert_allclose(camera.project(points), expected[:, 0] + 0.5, atol=1e-10)
    np.testing.assert_allclose(camera.K_opencv, K_OPENCV, atol=1e-12)
    assert camera.K[0, 2] == pytest.approx(K_OPENCV[0][2] + 0.5)


def test_the_pixel_under_a_point_is_found_by_rounding_down() -> None:
    camera = CAMERAS["none"]
    ray = camera.rays()[17, 301]
    assert np.floor(camera.project(ray)).tolist() == [301.0, 17.0]


# --- projection and its inverse ---------------------------------------------------------------


@pytest.mark.parametrize("name", CAMERAS)
@given(u=columns, v=rows, z=depths)
def test_unproject_then_project_is_the_identity(name: str, u: float, v: float, z: float) -> None:
    camera = CAMERAS[name]
    p_camera = camera.unproject([u, v], z)
    assert p_camera[2] == z
    np.testing.assert_allclose(camera.project(p_camera), [u, v], atol=1e-6)


@pytest.mark.parametrize("name", CAMERAS)
@given(x=st.floats(-0.3, 0.3), y=st.floats(-0.2, 0.2), z=st.floats(0.6, 5.0))
def test_project_then_unproject_is_the_identity(name: str, x: float, y: float, z: float) -> None:
    camera = CAMERAS[name]
    np.testing.assert_allclose(camera.unproject(camera.project([x, y, z]), z), [x, y, z], atol=1e-9)


def test_every_pixel_of_a_distorted_image_has_a_direction(camera: PinholeCamera) -> None:
    u, v = np.meshgrid(np.arange(720) + 0.5, np.arange(480) + 0.5)
    error = np.abs(camera.project(camera.rays()) - np.stack([u, v], -1))
    assert error.max() < 1e-6


@given(z=st.floats(-5.0, 0.0))
def test_points_behind_the_camera_are_nan(z: float) -> None:
    assert np.isnan(CAMERAS["none"].project([[0.1, 0.1, z]])).all()
    assert np.isnan(CAMERAS["barrel"].project([0.0, 0.0, z])).all()


def test_nan_points_stay_nan_and_do_not_spread() -> None:
    uv = CAMERAS["barrel"].project([[np.nan, 0.0, 1.0], [0.0, 0.0, 1.0]])
    assert np.isnan(uv[0]).all()
    np.testing.assert_allclose(uv[1], CAMERAS["barrel"].K[:2, 2])


def test_directions_beyond_the_lens_are_not_folded_into_the_image() -> None:
    camera = PinholeCamera.from_opencv(640, 480, [[500, 0, 320], [0, 500, 240], [0, 0, 1]], distortion=(-0.2, 0, 0, 0))
    zero = np.zeros(3)
    far_aside = np.array([[2.1, 0.0, 1.0]])
    folded = cv2.projectPoints(far_aside, zero, zero, camera.K_opencv, np.array(camera.distortion))[0][0, 0]
    assert 0 < folded[0] < 640
    assert np.isnan(camera.project(far_aside)).all()


def test_batches_and_depth_maps_broadcast() -> None:
    camera = CAMERAS["none"]
    points = camera.unproject(np.full((3, 5, 2), 100.0), np.arange(1.0, 6.0))
    assert points.shape == (3, 5, 3)
    np.testing.assert_array_equal(points[..., 2], np.broadcast_to(np.arange(1.0, 6.0), (3, 5)))
    assert camera.unproject([100.0, 100.0], np.ones(7)).shape == (7, 3)
    assert camera.project(points).shape == (3, 5, 2)


def test_distortion_can_be_left_out() -> None:
    camera = CAMERAS["barrel"]
    p_camera = np.array([0.4, 0.2, 1.0])
    np.testing.assert_array_equal(camera.project(p_camera, distort=False), camera.rectified().project(p_camera))
    uv = camera.project(p_camera, distort=False)
    np.testing.assert_allclose(camera.unproject(uv, 1.0, undistort=False), p_camera, atol=1e-12)


# --- resized, cropped, moved ------------------------------------------------------------------


@pytest.mark.parametrize("name", CAMERAS)
@settings(max_examples=25)
@given(width=st.integers(1, 3000), height=st.integers(1, 3000))
def test_scaling_scales_image_points(name: str, width: int, height: int) -> None:
    camera = CAMERAS[name]
    p_camera = np.array([0.2, -0.1, 0.9])
    expected = camera.project(p_camera) * [width / 720, height / 480]
    np.testing.assert_allclose(camera.scaled(width, height).project(p_camera), expected, rtol=1e-12)


def test_scaling_agrees_with_resizing_the_image() -> None:
    camera = CAMERAS["none"]
    x = camera.rays()[..., 0]
    halved = cv2.resize(x, (360, 240), interpolation=cv2.INTER_AREA)
    np.testing.assert_allclose(camera.scaled(360, 240).rays()[..., 0], halved, atol=1e-12)


def test_cropping_is_slicing() -> None:
    camera = CAMERAS["barrel"]
    np.testing.assert_allclose(camera.cropped(100, 50, 200, 120).rays(), camera.rays()[50:170, 100:300], atol=1e-12)


def test_poses_are_inverse_and_replaceable() -> None:
    base_T_camera = from_rpy([0.1, 0.2, 0.3], [1, 2, 3])
    camera = CAMERAS["none"].posed(base_T_camera)
    np.testing.assert_allclose(camera.camera_T_base @ base_T_camera, np.eye(4), atol=1e-15)
    assert camera.distortion == CAMERAS["none"].distortion


# --- look_at ----------------------------------------------------------------------------------


def test_look_at_centres_its_target_upright() -> None:
    eye, target = np.array([1.0, -0.5, 0.8]), np.array([0.2, 0.0, 0.1])
    camera = PinholeCamera.look_at(eye, target, width=720, height=480, fov_y_deg=45.0)

    def seen(p_base: Any) -> Any:
        return camera.project(apply(camera.camera_T_base, p_base))

    np.testing.assert_allclose(seen(target), [360, 240], atol=1e-9)
    np.testing.assert_allclose(camera.base_T_camera[:3, 3], eye)
    above, right = seen(target + np.array([0, 0, 0.1])), seen(target + 0.1 * np.array([0.5, 0.8, 0]))
    assert above[1] < 240
    assert above[0] == pytest.approx(360)
    assert right[0] > 360


def test_look_at_takes_a_field_of_view_or_a_focal_length() -> None:
    by_angle = PinholeCamera.look_at([1, 0, 0], [0, 0, 0], width=64, height=48, fov_y_deg=60.0)
    top = by_angle.unproject([32, 0], 1.0)
    assert np.degrees(np.arctan(-top[1])) == pytest.approx(30.0)
    by_focal = PinholeCamera.look_at([1, 0, 0], [0, 0, 0], width=64, height=48, focal_px=100.0)
    assert by_focal.K[0, 0] == by_focal.K[1, 1] == 100.0


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"fov_y_deg": None}, ErrorCode.CAMERA_BAD_INTRINSICS),
        ({"focal_px": 100.0}, ErrorCode.CAMERA_BAD_INTRINSICS),
        ({"fov_y_deg": 180.0}, ErrorCode.CAMERA_BAD_INTRINSICS),
        ({"fov_y_deg": float("nan")}, ErrorCode.CAMERA_BAD_INTRINSICS),
        ({"target": [1, 0, 0]}, ErrorCode.NOT_A_ROTATION),
        ({"target": [1, 0, 5]}, ErrorCode.NOT_A_ROTATION),
        ({"target": [np.nan, 0, 0]}, ErrorCode.NOT_A_ROTATION),
        ({"up": [0, 0, 0]}, ErrorCode.NOT_A_ROTATION),
    ],
)
def test_look_at_refuses_views_without_an_orientation(changes: dict[str, Any], code: ErrorCode) -> None:
    arguments = {"eye": [1, 0, 0], "target": [0, 0, 0], "width": 64, "height": 48, "fov_y_deg": 60.0, **changes}
    with pytest.raises(CameraError) as caught:
        PinholeCamera.look_at(**arguments)
    assert caught.value.code == code


# --- rectification ----------------------------------------------------------------------------


def smooth_image(camera: PinholeCamera) -> Any:
    """Render a wall painted with slow waves as seen through the lens."""
    x, y, _ = np.moveaxis(camera.rays(), -1, 0)
    return (127 + 100 * np.sin(9 * x) * np.cos(11 * y)).astype(np.float32)


@pytest.mark.parametrize("name", ["barrel", "rational"])
def test_rectified_images_match_a_pinhole(name: str) -> None:
    camera = CAMERAS[name]
    image, truth = camera.rectify(smooth_image(camera), "cubic"), smooth_image(camera.rectified())
    inside = cv2.erode(camera.rectify(np.ones((480, 720), np.float32), "nearest"), np.ones((7, 7)))[4:-4, 4:-4] > 0
    assert inside.mean() > 0.9
    assert np.abs(image - truth)[4:-4, 4:-4][inside].max() < 0.2
    assert np.abs(smooth_image(camera) - truth).max() > 20


@pytest.mark.parametrize("name", ["barrel", "pincushion", "rational"])
def test_rectification_agrees_with_opencv(name: str) -> None:
    camera = CAMERAS[name]
    image = smooth_image(camera).astype(np.uint8)
    expected = cv2.undistort(image, camera.K_opencv, np.array(camera.distortion))
    difference = np.abs(camera.rectify(image).astype(int) - expected)[4:-4, 4:-4]
    assert np.percentile(difference, 99) <= 1


def test_rectified_camera_keeps_size_k_and_pose() -> None:
    camera = CAMERAS["barrel"].posed(from_rpy([0.1, 0, 0], [0, 0, 1]))
    straight = camera.rectified()
    assert camera.has_distortion
    assert not straight.has_distortion
    assert (straight.width, straight.height) == (camera.width, camera.height)
    np.testing.assert_array_equal(straight.K, camera.K)
    np.testing.assert_array_equal(straight.base_T_camera, camera.base_T_camera)
    assert straight.rectified() is straight


def test_rectifying_without_distortion_copies() -> None:
    image = np.arange(480 * 720, dtype=np.uint16).reshape(480, 720)
    out = CAMERAS["none"].rectify(image)
    np.testing.assert_array_equal(out, image)
    assert out is not image


def test_nearest_keeps_labels() -> None:
    labels = np.random.default_rng(0).choice(np.array([0, 7, 200], np.uint8), (480, 720))
    assert set(np.unique(CAMERAS["barrel"].rectify(labels, "nearest"))) <= {0, 7, 200}


def test_an_image_of_the_wrong_size_is_refused_with_both_sizes() -> None:
    with pytest.raises(CameraError, match=r"640 x 480.*720 x 480") as caught:
        CAMERAS["barrel"].rectify(np.zeros((480, 640, 3), np.uint8))
    assert caught.value.code == ErrorCode.CAMERA_BAD_SIZE


# --- invalid cameras --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("K", "why"),
    [
        (np.zeros((3, 3)), "last row"),
        (np.diag([500.0, 0.0, 1.0]), "singular"),
        (np.diag([-500.0, 500.0, 1.0]), "mirrored"),
        (np.diag([np.nan, 500.0, 1.0]), "NaN"),
        (np.diag([np.inf, 500.0, 1.0]), "infinity"),
        (np.diag([500.0, 500.0, 2.0]), "last row"),
        (np.eye(4), "shape"),
        ([[500.0, 1.0, 0.0], [0.0, 500.0, 0.0], [0.0, 0.0, 1.0]], "skew"),
        (np.array(K_OPENCV).T, "last row"),
        ([[1, 2], [3]], "not a matrix"),
        (None, r"shape|not a matrix"),
    ],
)
def test_bad_intrinsics_are_refused(K: Any, why: str) -> None:
    for build in (PinholeCamera, PinholeCamera.from_opencv):
        with pytest.raises(CameraError, match=why) as caught:
            build(720, 480, K)
        assert caught.value.code == ErrorCode.CAMERA_BAD_INTRINSICS


@pytest.mark.parametrize("size", [(0, 480), (720, -1), (720.0, 480), (10**6, 480), ("720", 480), (True, 480)])
def test_bad_sizes_are_refused(size: tuple[Any, Any]) -> None:
    with pytest.raises(CameraError, match=r"width|height") as caught:
        PinholeCamera(*size, K_OPENCV)
    assert caught.value.code == ErrorCode.CAMERA_BAD_SIZE
    with pytest.raises(CameraError):
        CAMERAS["none"].scaled(*size)


def test_a_pose_that_is_not_rigid_is_refused() -> None:
    with pytest.raises(CameraError, match="base_T_camera") as caught:
        PinholeCamera(720, 480, K_OPENCV, base_T_camera=np.diag([2.0, 1, 1, 1]))
    assert caught.value.code == ErrorCode.NOT_A_ROTATION


@pytest.mark.parametrize(
    ("distortion", "model"),
    [((-0.9, 0.0, 0.0, 0.0), "plumb_bob"), ((0.1, 0.2), "plumb_bob"), ((0.0,) * 4, "fisheye")],
)
def test_bad_distortion_is_refused(distortion: tuple[float, ...], model: str) -> None:
    with pytest.raises(CameraError) as caught:
        PinholeCamera.from_opencv(720, 480, K_OPENCV, distortion=distortion, distortion_model=model)
    assert caught.value.code == ErrorCode.CAMERA_BAD_DISTORTION


def test_a_lens_may_fold_outside_the_image_but_not_inside() -> None:
    lens = {"distortion": (-0.3, 0.0, 0.0, 0.0)}
    PinholeCamera.from_opencv(720, 480, [[700, 0, 360], [0, 700, 240], [0, 0, 1]], **lens)
    with pytest.raises(CameraError, match="folds over"):
        PinholeCamera.from_opencv(720, 480, [[500, 0, 360], [0, 500, 240], [0, 0, 1]], **lens)


def test_a_camera_is_immutable() -> None:
    K = np.array(K_OPENCV)
    camera = PinholeCamera(720, 480, K)
    K[0, 0] = 1.0
    assert camera.K[0, 0] == 612.0
    with pytest.raises(ValueError, match="read-only"):
        camera.K[0, 0] = 1.0
    with pytest.raises(ValueError, match="read-only"):
        camera.base_T_camera[0, 3] = 1.0
    camera.K_opencv[0, 0] = 1.0
    assert camera.K[0, 0] == 612.0


def test_docstring_examples_hold() -> None:
    result = doctest.testmod(camera_module)
    assert result.attempted > 0
    assert result.failed == 0
