"""Boards as they were seen and as the result puts them: found corners ringed, computed ones crossed, on the images.

All images are (H, W, 3) uint8 RGB.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.calibration.boards import Board, BoardView
from kinema4d_ros.calibration.pictures import BOTH, DRAWN, SEEN, write_text
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.transforms import apply

__all__ = ["BoardSeen", "board_picture", "telling_views"]

Image = NDArray[np.uint8]
Array = NDArray[np.float64]

NEAR_PX = 1.0
"""A computed corner nearer to the found one than this is drawn in green."""


@dataclass(frozen=True, eq=False)
class BoardSeen:
    """One image with a board.

    Attributes:
        image: as the camera took it.
        view: the corners found in it.
        camera_T_board: (4, 4) metres: where the result puts the board.
    """

    image: Image
    view: BoardView
    camera_T_board: Array


def telling_views(rms_px: Sequence[float], count: int = 3) -> list[int]:
    """Positions of the worst, the best and views between them, worst first; those without a residual come first."""
    order = np.argsort([-np.inf if np.isnan(v) else -v for v in rms_px], kind="stable")
    pick = np.unique(np.linspace(0, len(order) - 1, min(count, len(order))).round().astype(int))
    return [int(order[i]) for i in pick]


def board_picture(seen: Sequence[BoardSeen], board: Board, camera: PinholeCamera, height: int = 420) -> Image:
    """A row for each image: the whole of it, and its board enlarged.

    Found corners have blue rings, computed ones crosses: green within a pixel of theirs, red beyond.
    """
    rows = []
    for one in seen:
        uv = camera.project(apply(one.camera_T_board, board.points[one.view.ids]))
        apart = np.linalg.norm(uv - one.view.uv, axis=1)
        rms = float(np.sqrt(np.nanmean(apart**2))) if np.isfinite(apart).any() else float("nan")
        rows.append(np.concatenate([_whole(one, uv, height), _enlarged(one, uv, height)], axis=1))
        write_text(rows[-1], f"{one.view.name or 'view'}: {rms:.2f} px, {len(uv)} corners", (10, 26))
    return np.concatenate(rows)


def _whole(one: BoardSeen, uv: Array, height: int) -> Image:
    scale = height / one.image.shape[0]
    tile = np.ascontiguousarray(
        cv2.resize(one.image, (round(one.image.shape[1] * scale), height), interpolation=cv2.INTER_AREA)
    )
    hull = cv2.convexHull((scale * one.view.uv).astype(np.float32)).round().astype(np.int32)
    cv2.polylines(tile, [hull], True, SEEN, 2, cv2.LINE_AA)
    for end in scale * uv[np.isfinite(uv).all(axis=1)]:
        cv2.circle(tile, _at(end), 1, DRAWN, -1, cv2.LINE_AA)
    return np.asarray(tile, np.uint8)


def _enlarged(one: BoardSeen, uv: Array, height: int) -> Image:
    low, high = one.view.uv.min(axis=0), one.view.uv.max(axis=0)
    side = float(max(*(high - low), 20.0)) * 1.35
    corner = (low + high) / 2 - side / 2
    scale = height / side
    # From pixel centres to pixel centres: the shift by half a pixel keeps rings on the corners that they ring.
    M = np.array([[scale, 0, -scale * corner[0] + scale / 2 - 0.5], [0, scale, -scale * corner[1] + scale / 2 - 0.5]])
    tile = cv2.warpAffine(one.image, M, (height, height), flags=cv2.INTER_LINEAR, borderValue=(245, 245, 245))
    tile = np.ascontiguousarray(0.6 * tile + 0.4 * 255, np.float64).astype(np.uint8)
    for found, computed in zip(one.view.uv, uv, strict=True):
        cv2.circle(tile, _at(scale * (found - corner)), 7, SEEN, 2, cv2.LINE_AA)
        if np.isfinite(computed).all():
            x, y = _at(scale * (computed - corner))
            colour = BOTH if np.linalg.norm(computed - found) < NEAR_PX else DRAWN
            cv2.line(tile, (x - 5, y), (x + 5, y), colour, 2, cv2.LINE_AA)
            cv2.line(tile, (x, y - 5), (x, y + 5), colour, 2, cv2.LINE_AA)
    return tile


def _at(uv: Array) -> tuple[int, int]:
    """The pixel that holds a point; far ones are brought near enough for the drawing routines."""
    u, v = np.clip(np.floor(uv), -1e4, 1e4)
    return int(u), int(v)
