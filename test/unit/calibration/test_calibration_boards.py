"""Board detection: corners to a few hundredths of a pixel, and errors for missing, wrong and mirrored boards."""

from __future__ import annotations

import numpy as np
import pytest

from kinema4d_ros.calibration.boards import Board, parse_board
from kinema4d_ros.calibration.synthetic import BoardPainter
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import CalibrationError
from kinema4d_ros.core.transforms import apply, from_rpy

CAMERA = PinholeCamera(
    480, 360, [[470, 0, 242], [0, 472, 177], [0, 0, 1]], distortion=(-0.2, 0.05, 0.0008, -0.0005, 0.0)
)
CHARUCO = parse_board("charuco:7x5:0.03:0.0225")
CHESSBOARD = parse_board("chessboard:7x6:0.03")
TAG = parse_board("apriltag:3:0.12")
POSE = from_rpy([0.35, -0.3, 0.2], [-0.1, -0.07, 0.38])


@pytest.mark.parametrize("board", [CHARUCO, CHESSBOARD, TAG], ids=lambda b: b.kind)
def test_corner_positions_are_accurate(board: Board) -> None:
    pose = POSE if board is not TAG else from_rpy([0.35, -0.3, 0.2], [0.01, 0.0, 0.38])
    view = board.find(BoardPainter(board, CAMERA, seed=1).draw(pose))
    truth = CAMERA.project(apply(pose, board.points[view.ids]))
    error = view.uv - truth
    assert len(view.ids) == len(board.points)
    assert np.abs(error).max() < (0.5 if board is TAG else 0.3)
    # A wrong pixel convention (half a pixel) would appear as a mean offset.
    assert np.abs(error.mean(axis=0)).max() < (0.15 if board is TAG else 0.03)


def test_asymmetric_chessboard_rotated_by_180_degrees() -> None:
    pose = POSE @ from_rpy([0, 0, np.pi], [0.21, 0.18, 0])
    view = CHESSBOARD.find(BoardPainter(CHESSBOARD, CAMERA).draw(pose))
    truth = CAMERA.project(apply(pose, CHESSBOARD.points))
    assert np.abs(view.uv - truth).max() < 0.3
    assert not CHESSBOARD.symmetric
    assert parse_board("chessboard:7x5:0.03").symmetric


@pytest.mark.parametrize("board", [CHARUCO, TAG], ids=lambda b: b.kind)
def test_mirrored_board_is_reported(board: Board) -> None:
    pose = POSE if board is CHARUCO else from_rpy([0.2, 0.1, 0.0], [0.0, 0.0, 0.4])
    image = BoardPainter(board, CAMERA).draw(pose)
    with pytest.raises(CalibrationError, match="mirrored_board"):
        board.find(image[:, ::-1])


def test_missing_and_wrong_boards_are_reported() -> None:
    with pytest.raises(CalibrationError, match="no_board"):
        CHARUCO.find(np.full((360, 480), 120, np.uint8), "wall.png")
    with pytest.raises(CalibrationError, match=r"no_board.*but markers"):
        parse_board("apriltag:7:0.12").find(
            BoardPainter(TAG, CAMERA).draw(from_rpy([0.1, 0.1, 0.0], [0.0, 0.0, 0.4])), "other.png"
        )
    with pytest.raises(CalibrationError, match="float64"):
        CHARUCO.find(np.zeros((20, 20)))  # type: ignore[arg-type]


def test_blurred_board_is_not_detected() -> None:
    image = BoardPainter(CHARUCO, CAMERA, blur_px=14.0).draw(POSE)
    with pytest.raises(CalibrationError, match="no_board"):
        CHARUCO.find(image)


@pytest.mark.parametrize(
    "text",
    ["charuco:7x5:30:22", "charuco:7x5:0.03", "chessboard:2x2:0.03", "round:7x5:0.03", "charuco:7x5:0.03:0.04",
     "charuco:40x40:0.03:0.02", "charuco:7x5:0.03:0.02:9X9_5", "apriltag:900:0.1", "apriltag:-1:0.1", ""],
)  # fmt: skip
def test_invalid_board_text_is_refused(text: str) -> None:
    with pytest.raises(CalibrationError):
        parse_board(text)


@pytest.mark.parametrize("board", [CHARUCO, CHESSBOARD, TAG], ids=lambda b: b.kind)
def test_board_text_round_trip(board: Board) -> None:
    assert parse_board(board.text) == board
    assert board.picture(40).dtype == np.uint8
