"""Intrinsic calibration: ground truth of rendered board images, bad views left out, bad series refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kinema4d_ros.calibration.boards import BoardView, parse_board
from kinema4d_ros.calibration.camera_files import read_camera_info, write_camera_info
from kinema4d_ros.calibration.intrinsics import Intrinsics, calibrate_intrinsics, coverage
from kinema4d_ros.calibration.synthetic import BoardPainter, random_board_pose
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import CalibrationError
from kinema4d_ros.core.transforms import apply

BOARD = parse_board("charuco:9x6:0.03:0.0225")
TRUTH = PinholeCamera(
    640, 480, [[612, 0, 322.3], [0, 614, 236.1], [0, 0, 1]], distortion=(-0.21, 0.06, 0.0008, -0.0006, 0.0)
)


def views_of(camera: PinholeCamera, count: int, seed: int, noise_px: float = 0.1) -> list[BoardView]:
    """Compute board corners with noise, without rendering images."""
    rng = np.random.default_rng(seed)
    views: list[BoardView] = []
    while len(views) < count:
        uv = camera.project(apply(random_board_pose(BOARD, camera, rng, spread=0.4), BOARD.points))
        inside = np.all((uv > 4) & (uv < (camera.width - 4, camera.height - 4)), axis=1)
        if inside.sum() >= 12:
            ids = np.flatnonzero(inside)
            views.append(BoardView(ids, uv[ids] + rng.normal(0, noise_px, (len(ids), 2)), f"view{len(views)}"))
    return views


def reprojection_px(found: PinholeCamera, truth: PinholeCamera) -> float:
    """Compute the largest image distance between the projections of a ray by both cameras, after the best rotation.

    The rotation is part of the extrinsics, which are measured later with the same intrinsics.
    """
    u, v = np.meshgrid(np.linspace(0, truth.width, 25), np.linspace(0, truth.height, 19))
    uv = np.stack([u.ravel(), v.ravel()], axis=1)
    true_rays, rays = (camera.unproject(uv, 1.0) for camera in (truth, found))
    true_rays, rays = (r / np.linalg.norm(r, axis=1, keepdims=True) for r in (true_rays, rays))
    U, _, Vt = np.linalg.svd(rays.T @ true_rays)
    R = U @ np.diag([1, 1, np.linalg.det(U @ Vt)]) @ Vt
    return float(np.linalg.norm(found.project(true_rays @ R.T) - uv, axis=1).max())


@pytest.fixture(scope="module")
def drawn() -> Intrinsics:
    """Calibrate from rendered images with blur, noise and uneven light."""
    painter, rng = BoardPainter(BOARD, TRUTH, seed=3), np.random.default_rng(3)
    images = [painter.draw(random_board_pose(BOARD, TRUTH, rng, spread=0.38)) for _ in range(14)]
    views = [BOARD.find(image, f"view{i}") for i, image in enumerate(images)]
    return calibrate_intrinsics(views, BOARD, 640, 480)


def test_rendered_images_give_the_true_camera(drawn: Intrinsics) -> None:
    assert abs(drawn.camera.K[0, 0] / TRUTH.K[0, 0] - 1) < 0.005
    assert abs(drawn.camera.K[1, 1] / TRUTH.K[1, 1] - 1) < 0.005
    assert np.abs(drawn.camera.K[:2, 2] - TRUTH.K[:2, 2]).max() < 2.0
    assert reprojection_px(drawn.camera, TRUTH) < 1.0
    assert drawn.rms_px < 0.2
    assert (drawn.coverage > 0).mean() > 0.8


def test_camera_file_round_trip(drawn: Intrinsics, tmp_path: object) -> None:
    path = f"{tmp_path}/camera.yaml"
    write_camera_info(path, drawn.info("bench"))
    again = read_camera_info(path).camera(np.eye(4))
    np.testing.assert_allclose(again.K, drawn.camera.K, rtol=1e-12)
    assert again.distortion == drawn.camera.distortion


def test_bad_views_and_corners_are_left_out() -> None:
    views = views_of(TRUTH, 16, seed=5)
    rng = np.random.default_rng(0)
    views[4] = replace(views[4], uv=views[4].uv + rng.normal(0, 4.0, views[4].uv.shape))
    spoilt = views[9].uv.copy()
    spoilt[3] += 12.0
    views[9] = replace(views[9], uv=spoilt)
    result = calibrate_intrinsics(views, BOARD, 640, 480)
    assert result.dropped == ("view4",)
    assert np.isnan(result.view_rms_px[4])
    assert result.corners_dropped >= 1
    assert reprojection_px(result.camera, TRUTH) < 1.0


def test_a_wide_lens_with_eight_coefficients() -> None:
    wide = PinholeCamera(
        640,
        480,
        [[420, 0, 316], [0, 421, 243], [0, 0, 1]],
        distortion=(0.3, 0.02, 0.0005, -0.0004, 0.0, 0.62, 0.08, 0.0),
        distortion_model="rational_polynomial",
    )
    result = calibrate_intrinsics(views_of(wide, 25, seed=2), BOARD, 640, 480, distortion_model="rational_polynomial")
    assert abs(result.camera.K[0, 0] / wide.K[0, 0] - 1) < 0.005
    assert reprojection_px(result.camera, wide) < 1.0


def test_stated_sigma_of_the_focal_length_is_correct() -> None:
    inside = 0
    for seed in range(24):
        result = calibrate_intrinsics(views_of(TRUTH, 12, seed, noise_px=0.2), BOARD, 640, 480)
        inside += abs(result.camera.K[0, 0] - TRUTH.K[0, 0]) < 1.96 * result.sigma[0]
    # 18 or fewer of 24 at 95 %: probability 0.1 % with correct sigmas; sigmas half as large give about 16.
    assert inside >= 19


def test_too_few_and_too_similar_views_are_refused() -> None:
    views = views_of(TRUTH, 6, seed=1)
    with pytest.raises(CalibrationError, match="too_few_poses"):
        calibrate_intrinsics(views[:3], BOARD, 640, 480)
    with pytest.raises(CalibrationError, match="too_similar"):
        calibrate_intrinsics([views[0]] * 6, BOARD, 640, 480)
    with pytest.raises(CalibrationError, match="fisheye"):
        calibrate_intrinsics(views, BOARD, 640, 480, distortion_model="fisheye")


def test_coverage_counts_every_corner_once() -> None:
    views = views_of(TRUTH, 5, seed=7)
    counts = coverage(views, 640, 480)
    assert counts.shape == (6, 8)
    assert counts.sum() == sum(len(view.ids) for view in views)
    assert coverage([BoardView(np.array([0]), np.array([[1.0, 479.0]]))], 640, 480)[5, 0] == 1
    assert coverage([], 640, 480).sum() == 0
