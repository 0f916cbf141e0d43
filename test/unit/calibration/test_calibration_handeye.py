"""Hand-eye calibration: accuracy of a millimetre, correct uncertainty, findings for bad series."""

from __future__ import annotations

from dataclasses import replace

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.board_on_arm import BOARD, GRIPPER_T_BOARD, Series, moved, show_board

from kinema4d_ros.calibration.boards import find_board_pose, parse_board
from kinema4d_ros.calibration.handeye import Corners, HandEye, calibrate_hand_eye, solve_ax_xb
from kinema4d_ros.calibration.pose_estimate import changed, difference
from kinema4d_ros.core.errors import CalibrationError
from kinema4d_ros.core.transforms import from_rpy, invert
from kinema4d_ros.robot import Robot


def solve(series: Series) -> HandEye:
    return calibrate_hand_eye(series.views, series.base_T_gripper, BOARD, series.camera)


def errors(found: HandEye, series: Series) -> tuple[float, float]:
    d = difference(found.base_T_camera, series.camera.base_T_camera)
    return 1e3 * float(np.linalg.norm(d[:3])), float(np.degrees(np.linalg.norm(d[3:])))


@pytest.mark.parametrize("seed", range(3))
def test_fifteen_poses_with_a_third_of_a_pixel_of_noise(yam: Robot, seed: int) -> None:
    series = show_board(yam, 15, seed)
    found = solve(series)
    millimetres, degrees = errors(found, series)
    assert millimetres < 1.0
    assert degrees < 0.1
    assert found.quality.verdict == "good"
    assert found.quality.px == pytest.approx(0.3 * np.sqrt(2), rel=0.15)
    assert found.quality.poses == 15
    assert 1e3 * np.linalg.norm(found.gripper_T_board[:3, 3] - GRIPPER_T_BOARD[:3, 3]) < 1.0


@pytest.mark.full
@pytest.mark.parametrize("arm", [(0.0, 0.0), (3e-4, 5e-4)], ids=["pixel noise", "arm errors"])
def test_stated_uncertainty_is_correct(yam: Robot, arm: tuple[float, float]) -> None:
    inside = 0
    for seed in range(16):
        series = show_board(yam, 15, 100 + seed, arm_m=arm[0], arm_rad=arm[1])
        inside += solve(series).contains(series.camera.base_T_camera)
    # 12 or fewer of 16 at 95 %: probability below 1 % with correct sigmas. Sigmas half as large would give about 3.
    assert inside > 12


@given(st.integers(0, 2**32 - 1))
def test_the_closed_form_is_exact_without_noise(seed: int) -> None:
    rng = np.random.default_rng(seed)
    arms = np.stack([from_rpy(rng.uniform(-1, 1, 3), rng.uniform(-0.5, 0.5, 3)) for _ in range(5)])
    X, Z = from_rpy(rng.uniform(-3, 3, 3), rng.uniform(-2, 2, 3)), from_rpy(rng.uniform(-3, 3, 3), rng.normal(size=3))
    found = solve_ax_xb(arms, invert(X) @ arms @ Z)
    np.testing.assert_allclose(found, X, atol=1e-6)


@given(st.lists(st.floats(-0.3, 0.3), min_size=6, max_size=6))
def test_change_and_difference_are_inverse(change: list[float]) -> None:
    pose = from_rpy([0.3, -1.0, 2.0], [0.4, 0.5, -0.6])
    np.testing.assert_allclose(difference(pose, changed(pose, change)), change, atol=1e-9)


def test_jacobian_matches_the_residual(yam: Robot) -> None:
    series = show_board(yam, 4, 12, noise_px=2.0)
    corners = Corners(series.views, series.base_T_gripper, BOARD, series.camera)
    X, Z, step = series.camera.base_T_camera, GRIPPER_T_BOARD, 1e-6
    for k, d in enumerate(step * np.eye(12)):
        high, low = (corners.residual(changed(X, s * d[:6]), changed(Z, s * d[6:])) for s in (1, -1))
        np.testing.assert_allclose(
            corners.jacobian(X, Z)[:, k], (high - low).ravel() / (2 * step), rtol=1e-4, atol=0.01
        )


def test_bad_view_is_left_out(yam: Robot) -> None:
    series = show_board(yam, 15, 7)
    series.views[6] = replace(series.views[6], uv=series.views[6].uv + 9.0)
    found = solve(series)
    assert errors(found, series)[0] < 1.0
    assert 6 not in found.kept
    assert "views_dropped" in found.quality.names
    assert np.isnan(found.pose_rms_px[6])


def test_one_pose_and_two_are_refused(yam: Robot) -> None:
    series = show_board(yam, 2, 1)
    for count in (0, 1, 2):
        with pytest.raises(CalibrationError, match="too_few_poses"):
            calibrate_hand_eye(series.views[:count], series.base_T_gripper[:count], BOARD, series.camera)


def test_parallel_axes_are_refused(yam: Robot) -> None:
    with pytest.raises(CalibrationError, match="parallel_axes"):
        solve(show_board(yam, 8, 3, wrist_only=True))


def test_similar_poses_are_refused(yam: Robot) -> None:
    series = show_board(yam, 1, 1)
    views, arms = series.views * 6, np.repeat(series.base_T_gripper, 6, axis=0)
    with pytest.raises(CalibrationError, match="too_similar"):
        calibrate_hand_eye(views, arms, BOARD, series.camera)


def test_few_poses_are_a_warning(yam: Robot) -> None:
    found = solve(show_board(yam, 5, 2))
    assert found.quality.names == ("too_few_poses",)
    assert found.quality.verdict == "usable"


def test_wrong_board_size_is_measured_by_the_arm(yam: Robot) -> None:
    series = show_board(yam, 15, 4)
    scaled = parse_board("charuco:7x5:0.021:0.01575")
    found = calibrate_hand_eye(series.views, series.base_T_gripper, scaled, series.camera)
    assert found.quality.verdict == "bad"
    text = next(str(f) for f in found.quality.findings if f.name == "wrong_board_size")
    assert "20.0" in text or "19.9" in text
    with pytest.raises(CalibrationError, match="wrong_board_size"):
        found.quality.require("the calibration")


@pytest.mark.parametrize("cut", [5, 8, 12])
def test_camera_moved_during_the_series_is_reported(yam: Robot, cut: int) -> None:
    before = show_board(yam, 15, 5)
    after = show_board(yam, 15, 6, camera=moved(before.camera, (0.004, -0.003, 0.0)))
    views = before.views[:cut] + after.views[cut:]
    arms = np.concatenate([before.base_T_gripper[:cut], after.base_T_gripper[cut:]])
    found = calibrate_hand_eye(views, arms, BOARD, before.camera)
    assert "moved_camera" in found.quality.names
    assert found.quality.verdict == "bad"


def test_shuffled_arm_poses_are_reported(yam: Robot) -> None:
    series = show_board(yam, 12, 8)
    found = calibrate_hand_eye(series.views, series.base_T_gripper[::-1], BOARD, series.camera)
    assert "poor_fit" in found.quality.names
    assert found.quality.verdict == "bad"


def test_mirrored_chessboard_corners_are_rejected(yam: Robot) -> None:
    board = parse_board("chessboard:7x6:0.02")
    series = show_board(yam, 12, 9, board=board)
    width = series.camera.width
    views = [replace(view, uv=view.uv * (-1, 1) + (width, 0)) for view in series.views]
    found = calibrate_hand_eye(views, series.base_T_gripper, board, series.camera)
    assert found.quality.verdict == "bad"


def test_symmetric_boards_and_wrong_shapes_are_refused(yam: Robot) -> None:
    series = show_board(yam, 8, 1)
    with pytest.raises(CalibrationError, match="rotation by 180 degrees"):
        calibrate_hand_eye(series.views, series.base_T_gripper, parse_board("chessboard:7x5:0.02"), series.camera)
    with pytest.raises(CalibrationError, match="one finite 4 x 4 pose"):
        calibrate_hand_eye(series.views, series.base_T_gripper[:4], BOARD, series.camera)


def test_file_contains_residuals_and_uncertainty(yam: Robot) -> None:
    extrinsics = solve(show_board(yam, 15, 0)).extrinsics("base_link", "camera_optical_frame")
    assert extrinsics.residuals.poses == 15
    assert extrinsics.residuals.px is not None
    assert "one sigma" in extrinsics.notes
    assert extrinsics.from_document(extrinsics.document(), "file").residuals == extrinsics.residuals


def test_fitting_all_corners_is_better_than_the_closed_form(yam: Robot) -> None:
    """Compare with the closed form of Park and Martin on the same board poses, which OpenCV offers as well."""
    ours, closed = [], []
    for seed in range(6):
        data = show_board(yam, 12, 40 + seed)
        truth = data.camera.base_T_camera[:3, 3]
        boards = np.stack([find_board_pose(view, BOARD, data.camera).camera_T_board for view in data.views])
        ours.append(float(np.linalg.norm(solve(data).base_T_camera[:3, 3] - truth)))
        closed.append(float(np.linalg.norm(solve_ax_xb(data.base_T_gripper, boards)[:3, 3] - truth)))
    assert np.median(closed) < 0.02  # both solve the same problem
    assert np.median(ours) < np.median(closed)
    assert max(ours) < 0.002


@pytest.mark.skipif(not hasattr(cv2, "calibrateHandEye"), reason="this OpenCV has no hand-eye calibration")
def test_not_worse_than_opencv(yam: Robot) -> None:
    """Compare with OpenCV's closed forms on the same board poses, an independent implementation."""
    ours, theirs = [], []
    for seed in range(6):
        data = show_board(yam, 12, 40 + seed)
        truth = data.camera.base_T_camera[:3, 3]
        boards = np.stack([find_board_pose(view, BOARD, data.camera).camera_T_board for view in data.views])
        # Eye-to-hand is eye-in-hand with gripper and base exchanged.
        hand = invert(data.base_T_gripper)
        _, shift = cv2.calibrateHandEye(
            list(hand[:, :3, :3]), list(hand[:, :3, 3]), list(boards[:, :3, :3]), list(boards[:, :3, 3])
        )
        ours.append(float(np.linalg.norm(solve(data).base_T_camera[:3, 3] - truth)))
        theirs.append(float(np.linalg.norm(shift.ravel() - truth)))
    assert np.median(ours) <= np.median(theirs)


@pytest.mark.parametrize("side_m", [0.06, 0.1])
def test_a_tag_on_the_gripper(yam: Robot, side_m: float) -> None:
    """Four corners per view are fewer than those of a board, but enough."""
    tag = parse_board(f"apriltag:7:{side_m}")
    for seed in range(3):
        data = show_board(yam, 15, 60 + seed, board=tag)
        found = calibrate_hand_eye(data.views, data.base_T_gripper, tag, data.camera)
        error = np.linalg.norm(found.base_T_camera[:3, 3] - data.camera.base_T_camera[:3, 3])
        assert error < 0.002
        assert found.quality.verdict != "bad"
        assert found.contains(data.camera.base_T_camera, 0.9999)
