"""Calibration with a board at a measured pose: camera pose and uncertainty from one view."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kinema4d_ros.calibration import Extrinsics
from kinema4d_ros.calibration.boards import BoardView, parse_board
from kinema4d_ros.calibration.pose_estimate import changed, check_against, difference
from kinema4d_ros.calibration.table_board import calibrate_table_board
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import CalibrationError
from kinema4d_ros.core.transforms import apply, from_rpy

BOARD = parse_board("charuco:9x6:0.03:0.0225")
PLACE = from_rpy([np.pi, 0.0, 0.3], [0.3, 0.1, 0.0])
CAMERA = PinholeCamera.look_at(
    [1.0, -0.5, 0.8], [0.4, 0.0, 0.0], width=1280, height=960, focal_px=1100.0, distortion=(-0.1, 0.03, 0.0, 0.0, 0.0)
)


def view(rng: np.random.Generator, noise_px: float = 0.3, camera: PinholeCamera = CAMERA) -> BoardView:
    uv = camera.project(apply(camera.camera_T_base @ PLACE, BOARD.points))
    return BoardView(np.arange(len(uv)), uv + rng.normal(0, noise_px, uv.shape), "table")


def test_camera_pose_from_one_view() -> None:
    found = calibrate_table_board([view(np.random.default_rng(0))], PLACE, BOARD, CAMERA)
    d = difference(found.base_T_camera, CAMERA.base_T_camera)
    assert np.linalg.norm(d[:3]) < 0.004
    assert np.degrees(np.linalg.norm(d[3:])) < 0.3
    # One view cannot distinguish a larger board from a more distant one, so this is always reported.
    assert found.quality.names == ("unchecked_size",)
    assert found.quality.verdict == "usable"
    assert found.quality.views == (("table", pytest.approx(found.quality.px)),)
    assert found.quality.px == pytest.approx(0.3 * np.sqrt(2), rel=0.25)


def test_uncertainty_of_noise_and_board_pose_is_correct() -> None:
    rng = np.random.default_rng(1)
    inside = image_only = 0
    for _ in range(40):
        error = np.concatenate([rng.normal(0, 0.001, 3), np.radians(rng.normal(0, 0.2, 3))])
        found = calibrate_table_board([view(rng)], changed(PLACE, error), BOARD, CAMERA)
        inside += found.contains(CAMERA.base_T_camera)
        known = {"place_sigma_m": 0.0, "place_sigma_deg": 0.0, "size_sigma": 0.0}
        exact = calibrate_table_board([view(rng)], PLACE, BOARD, CAMERA, **known)
        image_only += exact.contains(CAMERA.base_T_camera)
    # 33 or fewer of 40 at 95 %: probability 0.5 %.
    assert inside > 33
    assert image_only > 33


def test_uncertainty_of_the_board_size_is_correct() -> None:
    """Check that the region contains the truth at the stated rate for boards of other sizes than stated."""
    rng = np.random.default_rng(4)
    inside = blind = 0
    for _ in range(40):
        stated = parse_board(f"charuco:9x6:{0.03 * (1 + rng.normal(0, 0.005)):.6f}:0.0225")
        exactly = {"place_sigma_m": 0.0, "place_sigma_deg": 0.0}
        seen = [view(rng)]
        inside += calibrate_table_board(seen, PLACE, stated, CAMERA, **exactly).contains(CAMERA.base_T_camera)
        found = calibrate_table_board(seen, PLACE, stated, CAMERA, **exactly, size_sigma=0.0)
        blind += found.contains(CAMERA.base_T_camera)
    assert inside > 33
    assert blind < 10


def test_wrong_board_size_is_detected_by_another_method() -> None:
    """A square stated 5 % too large is not detected by the view alone, but by a second method."""
    rng = np.random.default_rng(5)
    wrong = calibrate_table_board([view(rng)], PLACE, parse_board("charuco:9x6:0.0315:0.0225"), CAMERA)
    right = calibrate_table_board([view(rng)], PLACE, BOARD, CAMERA)
    assert np.linalg.norm(difference(wrong.base_T_camera, CAMERA.base_T_camera)[:3]) > 0.04
    assert wrong.quality.names == ("unchecked_size",)
    other = Extrinsics(
        "base_link", "eye", CAMERA.base_T_camera, "hand-eye", covariance=np.diag([1e-7] * 3 + [1e-8] * 3)
    )
    told, line = check_against(wrong, "hand.yaml", other)
    assert told.quality.verdict == "bad"
    assert "disagreement" in told.quality.names
    assert "beyond their uncertainties" in line
    told, line = check_against(right, "hand.yaml", other)
    assert told.quality.verdict == "good"
    assert "within" in line
    # The same method shares the mistake, so it confirms nothing.
    again, _ = check_against(wrong, "table.yaml", wrong.extrinsics())
    assert again.quality.names == ("unchecked_size",)


def test_more_views_and_a_bad_corner() -> None:
    rng = np.random.default_rng(2)
    views = [view(rng) for _ in range(8)]
    single = calibrate_table_board(views[:1], PLACE, BOARD, CAMERA)
    spoilt = views[3].uv.copy()
    spoilt[5] += 30.0
    views[3] = replace(views[3], uv=spoilt)
    found = calibrate_table_board(views, PLACE, BOARD, CAMERA)
    assert np.trace(found.image_covariance) < 0.4 * np.trace(single.image_covariance)
    assert np.linalg.norm(difference(found.base_T_camera, CAMERA.base_T_camera)[:3]) < 0.003


def test_distant_board_seen_face_on_is_reported() -> None:
    above = PinholeCamera.look_at(
        [0.42, 0.05, 3.0], [0.42, 0.051, 0.0], up=(1, 0, 0), width=640, height=480, focal_px=500.0
    )
    found = calibrate_table_board([view(np.random.default_rng(3), 0.5, above)], PLACE, BOARD, above)
    assert "ambiguous_view" in found.quality.names or "weak_geometry" in found.quality.names


def test_bad_input_is_refused() -> None:
    one = [view(np.random.default_rng(0))]
    with pytest.raises(CalibrationError, match="too_few_poses"):
        calibrate_table_board([], PLACE, BOARD, CAMERA)
    with pytest.raises(CalibrationError, match="rotation by 180 degrees"):
        calibrate_table_board(one, PLACE, parse_board("chessboard:9x5:0.03"), CAMERA)
    with pytest.raises(CalibrationError, match="place_sigma_m"):
        calibrate_table_board(one, PLACE, BOARD, CAMERA, place_sigma_m=-1.0)


def test_corners_of_another_board_are_rejected() -> None:
    one = view(np.random.default_rng(0))
    rng = np.random.default_rng(1)
    mixed = [replace(one, uv=rng.permutation(one.uv))]
    assert "poor_fit" in calibrate_table_board(mixed, PLACE, BOARD, CAMERA).quality.names
    assert calibrate_table_board(mixed, PLACE, BOARD, CAMERA).quality.verdict == "bad"
