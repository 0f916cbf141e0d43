"""Board images: rings at detected corners, reprojected corners coloured by their distance."""

from __future__ import annotations

import numpy as np

from kinema4d_ros.calibration.boards import BoardView, parse_board
from kinema4d_ros.calibration.pictures import BOTH, DRAWN, SEEN, BoardSeen, board_picture, telling_views
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.transforms import apply, from_rpy

BOARD = parse_board("charuco:7x5:0.02:0.015")
CAMERA = PinholeCamera(320, 240, [[300.0, 0, 160], [0, 300.0, 120], [0, 0, 1]])
POSE = from_rpy([0.3, 0.2, 0.1], [-0.06, -0.04, 0.35])


def count(picture: np.ndarray, colour: tuple[int, int, int]) -> int:
    return int((np.abs(picture.astype(int) - colour).max(axis=-1) < 12).sum())


def test_corner_colours_depend_on_residual() -> None:
    ids = np.arange(0, len(BOARD.points), 2)
    view = BoardView(ids, CAMERA.project(apply(POSE, BOARD.points[ids])), "a.png")
    image = np.full((240, 320, 3), 120, np.uint8)
    right = board_picture([BoardSeen(image, view, POSE)], BOARD, CAMERA, height=300)
    assert right.shape == (300, 400 + 300, 3)
    enlarged = right[:, 400:]
    assert count(enlarged, SEEN) > 10 * len(ids)
    assert count(enlarged, BOTH) > 10 * len(ids)
    assert count(enlarged, DRAWN) == 0
    off = from_rpy([0.3, 0.2, 0.1], [-0.05, -0.04, 0.35])
    wrong = board_picture([BoardSeen(image, view, off)], BOARD, CAMERA, height=300)[:, 400:]
    assert count(wrong, DRAWN) > 10 * len(ids)
    assert count(wrong, BOTH) == 0


def test_worst_and_best_views_are_chosen() -> None:
    assert telling_views([0.2, 0.9, 0.1, 0.5, 0.3]) == [1, 4, 2]
    assert telling_views([0.2, float("nan"), 0.1])[0] == 1
    assert telling_views([0.2]) == [0]
