from __future__ import annotations

import cv2
import numpy as np
import pytest

from kinema4d_ros.calibration.boards import parse_board
from kinema4d_ros.calibration.collect import BLUR_PX, ViewCollector, blur_px, coverage_map
from kinema4d_ros.calibration.synthetic import BoardPainter, random_board_pose
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import CalibrationError

BOARD = parse_board("charuco:9x6:0.03:0.0225")
CAMERA = PinholeCamera(640, 480, [[600.0, 0, 322], [0, 600, 238], [0, 0, 1]], distortion=(-0.1, 0.02, 0, 0, 0))


@pytest.fixture(scope="module")
def painter() -> BoardPainter:
    return BoardPainter(BOARD, CAMERA, seed=1)


def pose(seed: int, spread: float = 0.3) -> np.ndarray:
    return random_board_pose(BOARD, CAMERA, np.random.default_rng(seed), spread=spread)


def smeared(image: np.ndarray, pixels: int, along: int) -> np.ndarray:
    """Blur an image as if the board moved along rows (0) or columns (1)."""
    kernel = np.ones((1, pixels) if along == 0 else (pixels, 1), np.float32) / pixels
    return np.asarray(cv2.filter2D(image, -1, kernel))


@pytest.mark.parametrize("sigma", [1.0, 1.5, 2.0])
def test_blur_is_measured(painter: BoardPainter, sigma: float) -> None:
    sharp = painter.draw(pose(0))
    view = BOARD.find(sharp, "sharp")
    own = blur_px(sharp, view, BOARD)
    assert 0.5 < own < BLUR_PX
    found = blur_px(cv2.GaussianBlur(sharp, (0, 0), sigma), view, BOARD)
    assert found == pytest.approx(np.hypot(own, sigma), rel=0.25)
    assert blur_px(cv2.GaussianBlur(sharp, (0, 0), 3.0), view, BOARD) > BLUR_PX


@pytest.mark.parametrize("along", [0, 1])
def test_motion_blur_in_one_direction_is_detected(painter: BoardPainter, along: int) -> None:
    image = painter.draw(pose(0))
    assert blur_px(smeared(image, 11, along), BOARD.find(image, ""), BOARD) > 1.4 * BLUR_PX


def test_only_sharp_images_of_new_poses_are_kept(painter: BoardPainter) -> None:
    collector = ViewCollector(BOARD)
    first = painter.draw(pose(0))
    assert collector.offer(first).word == "kept"
    nudged = pose(0)
    nudged[0, 3] += 0.003
    assert collector.offer(painter.draw(nudged)).word == "same"
    assert collector.offer(np.full((480, 640), 128, np.uint8)).word == "none"
    assert collector.offer(smeared(painter.draw(pose(1)), 9, 0)).word in ("blurred", "none")
    assert collector.offer(painter.draw(pose(1))).word == "kept"
    assert collector.offer(np.repeat(painter.draw(pose(2))[..., None], 3, axis=2)).word == "kept"
    assert len(collector.views) == 3
    assert 0.2 < collector.share < 1.0
    assert int(collector.coverage.sum()) == sum(len(view.ids) for view in collector.views)


def test_image_of_another_size_is_refused(painter: BoardPainter) -> None:
    collector = ViewCollector(BOARD)
    collector.offer(painter.draw(pose(0)))
    with pytest.raises(CalibrationError, match="320 x 240"):
        collector.offer(np.zeros((240, 320), np.uint8))


def test_coverage_map_marks_empty_cells() -> None:
    counts = np.array([[0, 8], [4, 0]])
    assert coverage_map(counts) == "· ██\n▅▅· "
