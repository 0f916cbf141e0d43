"""Images for checking a calibration: coverage, residuals, overlays, board corners and reconstructions.

All images are (H, W, 3) uint8 RGB.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import cv2
import numpy as np
from numpy.typing import ArrayLike, NDArray

from kinema4d_ros.calibration.boards import Board, BoardView
from kinema4d_ros.calibration.intrinsics import Intrinsics
from kinema4d_ros.calibration.recon import Reconstruction
from kinema4d_ros.calibration.surfaces import Surface
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import CalibrationError
from kinema4d_ros.core.transforms import apply

__all__ = [
    "BoardSeen",
    "Tone",
    "board_picture",
    "caption",
    "coverage_picture",
    "frame_axes",
    "outline_picture",
    "reconstruction_picture",
    "telling_views",
    "write_text",
]

Image = NDArray[np.uint8]

Tone = Literal["good", "doubtful", "bad"]
_TONES: dict[Tone, tuple[int, int, int]] = {"good": (130, 230, 150), "doubtful": (255, 200, 80), "bad": (255, 110, 100)}

SEEN, DRAWN, BOTH = (66, 133, 244), (234, 67, 53), (52, 168, 83)


def coverage_picture(result: Intrinsics, width: int = 720) -> Image:
    """Draw the coverage of the image by board corners as a heat map with counts, and the residual of each view."""
    camera = result.camera
    height = round(width * camera.height / camera.width)
    counts = result.coverage
    level = np.clip(255 * np.sqrt(counts / max(int(counts.max()), 1)), 0, 255).astype(np.uint8)
    map_ = cv2.applyColorMap(cv2.resize(level, (width, height), interpolation=cv2.INTER_NEAREST), cv2.COLORMAP_VIRIDIS)
    picture = np.ascontiguousarray(map_[..., ::-1])
    rows, columns = counts.shape
    for row in range(rows):
        for column in range(columns):
            at = (round((column + 0.35) * width / columns), round((row + 0.6) * height / rows))
            write_text(picture, str(int(counts[row, column])), at)
    bars = np.full((140, width, 3), 255, np.uint8)
    rms = result.view_rms_px
    top = max(float(np.nanmax(rms)), 1e-6)
    step = width / len(rms)
    for i, value in enumerate(rms):
        left, right = round(i * step + 0.15 * step), round(i * step + 0.85 * step)
        if np.isnan(value):
            cv2.rectangle(bars, (left, 30), (right, 120), (235, 200, 200), -1)
        else:
            cv2.rectangle(bars, (left, 120 - round(90 * float(value) / top)), (right, 120), SEEN, -1)
    text = f"residual of each view, largest {top:.3f} px; pale: left out"
    cv2.putText(bars, text, (8, 20), cv2.FONT_HERSHEY_SIMPLEX, 0.5, (60, 60, 60), 1, cv2.LINE_AA)
    return np.concatenate([picture, bars])


def outline_picture(image: Image, seen: NDArray[np.bool_] | None, drawn: NDArray[np.bool_], text: str = "") -> Image:
    """Draw outlines on an image: observed robot in blue, rendered robot in red, green where they agree."""
    if drawn.shape != image.shape[:2] or (seen is not None and seen.shape != drawn.shape):
        raise CalibrationError(
            f"image {image.shape}, rendered mask {drawn.shape}, observed mask {None if seen is None else seen.shape}",
            expected="images and masks of one size",
        )
    out = (0.75 * image + 0.25 * 255).astype(np.uint8) if image.mean() < 40 else image.copy()
    red = _outline(drawn)
    blue = np.zeros_like(red) if seen is None else _outline(seen)
    near = cv2.dilate(blue.astype(np.uint8), np.ones((3, 3), np.uint8)) > 0
    out[blue] = SEEN
    out[red] = DRAWN
    out[red & near] = BOTH
    write_text(out, text, (10, 24))
    return np.asarray(out, np.uint8)


def reconstruction_picture(result: Reconstruction, surface: Surface, robot: Surface, side: int = 360) -> Image:
    """Draw front, side and top views: the robot in grey, the reconstruction from green (on it) to red (1 cm away)."""
    p = apply(result.base_T_recon, result.scale * surface.points)
    low, high = robot.points.min(axis=0), robot.points.max(axis=0)
    size = float((high - low).max()) * 1.15
    centre = (low + high) / 2
    tiles = []
    bad = np.clip(result.distance_m / 0.01, 0, 1)[:, None]
    colours = (np.array(BOTH) * (1 - bad) + np.array(DRAWN) * bad).astype(np.uint8)
    for name, (x, y) in (("front: y z", (1, 2)), ("side: x z", (0, 2)), ("top: x y", (0, 1))):
        tile = np.full((side, side, 3), 255, np.uint8)
        for points, colour in ((robot.points, np.array([[190, 190, 190]], np.uint8)), (p, colours)):
            u = np.round((points[:, x] - centre[x]) / size * side + side / 2).astype(int)
            v = np.round(side / 2 - (points[:, y] - centre[y]) / size * side).astype(int)
            inside = (u >= 0) & (u < side) & (v >= 0) & (v < side)
            tile[v[inside], u[inside]] = colour if len(colour) == 1 else colour[inside]
        cv2.putText(tile, name, (8, 18), cv2.FONT_HERSHEY_SIMPLEX, 0.5, (60, 60, 60), 1, cv2.LINE_AA)
        tiles.append(tile)
    legend = np.full((30, 3 * side, 3), 255, np.uint8)
    words = (
        ("description", (150, 150, 150)),
        ("reconstruction on it", BOTH),
        ("reconstruction 1 cm or more off it", DRAWN),
    )
    x = 8
    for word, ink in words:
        cv2.rectangle(legend, (x, 9), (x + 14, 21), ink, -1)
        cv2.putText(legend, word, (x + 20, 20), cv2.FONT_HERSHEY_SIMPLEX, 0.5, (60, 60, 60), 1, cv2.LINE_AA)
        x += 50 + cv2.getTextSize(word, cv2.FONT_HERSHEY_SIMPLEX, 0.5, 1)[0][0]
    return np.concatenate([np.concatenate(tiles, axis=1), legend])


def caption(image: Image, text: str, tone: Tone = "good") -> None:
    """Write a line of text in the lower left corner of an image, in place, on a darkened strip."""
    size = min(0.5, image.shape[1] / 1000)
    (width, height), below = cv2.getTextSize(text, cv2.FONT_HERSHEY_SIMPLEX, size, 1)
    top, right = max(0, image.shape[0] - height - below - 6), min(image.shape[1], width + 10)
    image[top:, :right] //= 3
    at = (5, image.shape[0] - below - 2)
    cv2.putText(image, text, at, cv2.FONT_HERSHEY_SIMPLEX, size, _TONES[tone], 1, cv2.LINE_AA)


def _outline(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    inner = cv2.erode(mask.astype(np.uint8), np.ones((5, 5), np.uint8), borderValue=1) > 0
    return np.asarray(mask & ~inner)


def write_text(picture: Image, text: str, at: tuple[int, int]) -> None:
    """Write white text with a shadow, in place; `at` is the start of its baseline (column, row)."""
    for shift, colour in ((1, (0, 0, 0)), (0, (255, 255, 255))):
        place = (at[0] + shift, at[1] + shift)
        cv2.putText(picture, text, place, cv2.FONT_HERSHEY_SIMPLEX, 0.55, colour, 1, cv2.LINE_AA)


def frame_axes(
    image: Image, camera: PinholeCamera, base_T_thing: ArrayLike, length_m: float = 0.08, thickness: int = 2
) -> Image:
    """Draw the axes of a frame on an image, outlined in white: x red, y green, z blue."""
    T = np.asarray(base_T_thing, dtype=np.float64)
    ends = np.concatenate([T[:3, 3][None], T[:3, 3] + length_m * T[:3, :3].T])
    uv = camera.project(apply(camera.camera_T_base, ends))
    out = image.copy()
    if np.isfinite(uv).all():
        points = [(round(float(u)), round(float(v))) for u, v in uv]
        for end, colour in zip(points[1:], (DRAWN, BOTH, SEEN), strict=True):
            cv2.line(out, points[0], end, (255, 255, 255), thickness + 2, cv2.LINE_AA)
            cv2.line(out, points[0], end, colour, thickness, cv2.LINE_AA)
    return out


# Board images with detected and reprojected corners.

Array = NDArray[np.float64]

NEAR_PX = 1.0
"""A reprojected corner closer than this to the detected one is drawn in green."""


@dataclass(frozen=True, eq=False)
class BoardSeen:
    """One image with a board.

    Attributes:
        image: (H, W, 3) uint8, not rectified.
        view: the corners detected in it.
        camera_T_board: (4, 4) metres: estimated pose of the board.
    """

    image: Image
    view: BoardView
    camera_T_board: Array


def telling_views(rms_px: Sequence[float], count: int = 3) -> list[int]:
    """Pick indices of the worst, the best and views in between, worst first; views without a residual come first."""
    order = np.argsort([-np.inf if np.isnan(v) else -v for v in rms_px], kind="stable")
    pick = np.unique(np.linspace(0, len(order) - 1, min(count, len(order))).round().astype(int))
    return [int(order[i]) for i in pick]


def board_picture(seen: Sequence[BoardSeen], board: Board, camera: PinholeCamera, height: int = 420) -> Image:
    """Draw one row for each image: the whole image, and its board enlarged.

    Detected corners are blue rings. Reprojected corners are crosses: green within a pixel, red beyond.
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
    # Map pixel centres to pixel centres: the shift by half a pixel keeps the rings on their corners.
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
    """Return the pixel of a point, clipped to the range of the drawing routines."""
    u, v = np.clip(np.floor(uv), -1e4, 1e4)
    return int(u), int(v)
