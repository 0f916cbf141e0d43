"""Live selection of board images for calibration: keep sharp images that show a new board pose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import cv2
import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.calibration.boards import Board, BoardView
from kinema4d_ros.calibration.intrinsics import COVERAGE_CELLS, coverage
from kinema4d_ros.core.errors import CalibrationError

__all__ = ["Offer", "ViewCollector", "blur_px", "coverage_map"]

Array = NDArray[np.float64]

BLUR_PX = 1.8
"""Largest edge width (one sigma) of a sharp image, for an image width of 640 pixels; scales with the width."""

NEW_SHARE = 0.06
"""A pose is new if the board's corners moved by this fraction of the image width, root mean square."""

_PATCH_PX = 6
_STEP_TO_SIGMA = 1 / np.sqrt(2 * np.pi)
"""Largest slope of a blurred step of height 1, times sigma."""


@dataclass(frozen=True)
class Offer:
    """Result for one image: `word` is kept, blurred, same or none; `text` gives the details."""

    word: Literal["kept", "blurred", "same", "none"]
    text: str


class ViewCollector:
    """Collection of views of one board by one camera.

    Args:
        board: the board that is moved in front of the camera.
    """

    def __init__(self, board: Board) -> None:
        self.board = board
        self.views: list[BoardView] = []
        self.size: tuple[int, int] | None = None
        self._outlines: list[Array] = []

    @property
    def coverage(self) -> NDArray[np.int64]:
        """Corner counts (6, 8) int64 in each cell of the image."""
        if self.size is None or not self.views:
            return np.zeros(COVERAGE_CELLS[::-1], np.int64)
        return coverage(self.views, *self.size)

    @property
    def share(self) -> float:
        """Fraction of image cells with at least one corner, 0 to 1."""
        return float((self.coverage > 0).mean())

    def offer(self, image: NDArray[np.uint8], name: str = "") -> Offer:
        """Check an image (H, W, 3) or (H, W) uint8, and keep its view if it is sharp and shows a new pose.

        Raises:
            CalibrationError: the board is mirrored, or the image size differs from that of earlier images.
        """
        size = (int(image.shape[1]), int(image.shape[0]))
        if self.size is not None and size != self.size:
            raise CalibrationError(
                f"an image is {size[0]} x {size[1]}, earlier images are {self.size[0]} x {self.size[1]}",
                expected="images of one camera at one size",
            )
        self.size = size
        try:
            view = self.board.find(image, name)
        except CalibrationError as error:
            if "mirrored_board" in error.what:
                raise
            return Offer("none", "no board")
        blur = blur_px(image, view, self.board)
        if not blur <= BLUR_PX * size[0] / 640:
            return Offer("blurred", f"blurred by {blur:.1f} px")
        outline = _outline(view, self.board)
        apart = [float(np.sqrt(np.mean(np.sum((outline - other) ** 2, axis=1)))) for other in self._outlines]
        if apart and min(apart) < NEW_SHARE * size[0]:
            return Offer("same", "pose already kept: move or tilt the board")
        self.views.append(view)
        self._outlines.append(outline)
        return Offer("kept", f"kept, blur {blur:.1f} px")


def blur_px(image: NDArray[np.uint8], view: BoardView, board: Board) -> float:
    """Measure the blur of the board's edges: standard deviation in the worse of their two directions, pixels.

    Motion blurs one direction only, so both are measured. A sharp image has about 0.5, the width of a pixel.
    """
    gray = image if image.ndim == 2 else cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
    gray = gray.astype(np.float32)
    right = cv2.Sobel(gray, cv2.CV_32F, 1, 0, ksize=3, scale=1 / 8)
    down = cv2.Sobel(gray, cv2.CV_32F, 0, 1, ksize=3, scale=1 / 8)
    axes = _affine(view, board)[:2]
    # Measure the contrast over whole squares: within a blurred edge alone it would be too low, and the edge too sharp.
    square = max(_PATCH_PX, round(float(np.linalg.norm(axes, axis=1).min()) * board.square_m))
    axes = axes / np.linalg.norm(axes, axis=1, keepdims=True)
    widths: list[list[float]] = [[], []]
    for u, v in np.round(view.uv - 0.5).astype(int):
        patch, whole = (
            np.s_[max(v - side, 0) : v + side + 1, max(u - side, 0) : u + side + 1] for side in (_PATCH_PX, square)
        )
        low, high = np.percentile(gray[whole], (10, 90))
        for across, found in zip(axes, widths, strict=True):
            slope = float(np.abs(across[0] * right[patch] + across[1] * down[patch]).max())
            found.append(float(high - low) * _STEP_TO_SIGMA / max(slope, 1e-6))
    return float(max(np.median(found) for found in widths))


def coverage_map(counts: NDArray[np.int64]) -> str:
    """Draw the coverage as text: a dot for an empty cell, otherwise a block whose height grows with the count."""
    full = max(int(counts.max()), 1)
    marks = " ▁▂▃▄▅▆▇█"
    cell = [["·" if n == 0 else marks[1 + round(7 * int(n) / full)] * 2 for n in row] for row in counts]
    return "\n".join("".join(mark.ljust(2) for mark in row) for row in cell)


def _affine(view: BoardView, board: Board) -> Array:
    """Fit an affine map from board to image: (3, 2) rows are pixels along x, along y, and the origin."""
    flat = np.column_stack([board.points[view.ids, :2], np.ones(len(view.ids))])
    return np.asarray(np.linalg.lstsq(flat, view.uv, rcond=None)[0], np.float64)


def _outline(view: BoardView, board: Board) -> Array:
    """Compute the outer corners (4, 2) of the whole board in the image, pixels, also if they are not visible."""
    H, _ = cv2.findHomography(board.points[view.ids, :2], view.uv)
    left, top, right, bottom = board.picture_area
    ends = np.array([[left, top, 1.0], [right, top, 1.0], [right, bottom, 1.0], [left, bottom, 1.0]])
    if H is None:
        return np.asarray(ends @ _affine(view, board), np.float64)
    p = ends @ np.asarray(H, np.float64).T
    return np.asarray(p[:, :2] / p[:, 2:], np.float64)
