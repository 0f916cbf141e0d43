"""Synthetic orbit around the lab's arm with ground truth: images with a board on the table, poses, masks and depth.

Used for demonstrations and tests of the acquisition. The camera moves on a spiral around the arm; the images have lens
distortion, focus blur, sensor noise and, in some frames, motion blur.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import ArrayLike, NDArray

from kinema4d_ros.calibration.boards import Board, parse_board
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.transforms import apply, from_rpy
from kinema4d_ros.io.video import VideoWriter
from kinema4d_ros.kinematics.forward import forward_all
from kinema4d_ros.lab.lens import Lens
from kinema4d_ros.lab.materials import Style, linear
from kinema4d_ros.lab.picture import LabCamera, Quality
from kinema4d_ros.lab.simulation import LabState
from kinema4d_ros.physics.model import Room
from kinema4d_ros.robot.model import Robot

__all__ = ["ORBIT_BOARD", "Orbit", "OrbitFrame", "board_on_table", "orbit_cameras", "write_orbit_video"]

Array = NDArray[np.float64]

ORBIT_BOARD = parse_board("charuco:14x10:0.04:0.03:5X5_100")
"""Larger than the arm's base, so that part of it is visible from every side."""

_ROOM = Room(table=(-0.75, 0.95, -0.85, 0.85), back_wall_x=-2.9, side_wall_y=2.9)
_PAPER, _INK = linear((0.93, 0.93, 0.92)), linear((0.07, 0.07, 0.08))


def board_on_table(board: Board = ORBIT_BOARD, corner: tuple[float, float] = (0.09, 0.22)) -> Array:
    """Compute `base_T_board` (4, 4) of a board lying face up in front of the arm, with its first corner at x, y."""
    # x of the board along the base's x, y against the base's y, z into the table.
    return from_rpy([np.pi, 0.0, 0.0], [corner[0], corner[1], 0.0])


def orbit_cameras(
    count: int,
    *,
    width: int = 960,
    height: int = 720,
    distance_m: float = 1.0,
    turns: float = 2.0,
    elevation_deg: tuple[float, float] = (20.0, 62.0),
    target: tuple[float, float, float] = (0.18, 0.0, 0.20),
    fov_y_deg: float = 46.0,
    distortion: tuple[float, ...] = (-0.08, 0.02, 0.0004, -0.0003, 0.0),
    seed: int = 0,
) -> list[PinholeCamera]:
    """Sample cameras on a spiral around the arm, with small random offsets as from a hand-held camera."""
    rng = np.random.default_rng([seed, 11])
    low, high = np.radians(elevation_deg)
    cameras = []
    for s in (np.arange(count) + 0.5) / count:
        around, above = 2 * np.pi * turns * s, low + (high - low) * s
        way = np.array([np.cos(around) * np.cos(above), np.sin(around) * np.cos(above), np.sin(above)])
        eye = np.array(target) + distance_m * way + rng.normal(0, 0.012, 3)
        aim = np.array(target) + rng.normal(0, 0.008, 3)
        camera = PinholeCamera.look_at(eye, aim, width=width, height=height, fov_y_deg=fov_y_deg, distortion=distortion)
        cameras.append(camera)
    return cameras


@dataclass(frozen=True, eq=False)
class OrbitFrame:
    """One image with ground truth; all arrays include lens distortion.

    Attributes:
        rgb: (H, W, 3) uint8.
        mask: (H, W) bool, True = robot, exact at pixel centres.
        depth_m: (H, W) float32, metres along the optical axis, NaN = no surface.
        camera: intrinsics and pose.
    """

    rgb: NDArray[np.uint8]
    mask: NDArray[np.bool_]
    depth_m: NDArray[np.float32]
    camera: PinholeCamera


@dataclass
class Orbit:
    """Renderer of images of a static robot next to a board.

    Attributes:
        robot, q: the robot and its joint positions (J,).
        board, base_T_board: the board on the table and its pose; None = no board.
        blur_px: standard deviation of the focus blur.
        noise: standard deviation of the sensor noise, 8-bit steps.
        seed: of the noise.
        style: of table, walls and light.
        texture_pixels: side of the table's texture.
    """

    robot: Robot
    q: ArrayLike
    board: Board | None = ORBIT_BOARD
    base_T_board: Array = field(default_factory=board_on_table)
    blur_px: float = 0.6
    noise: float = 2.0
    seed: int = 0
    style: Style = field(default_factory=lambda: Style(wall_rgb=(0.74, 0.80, 0.86)))
    texture_pixels: int = 4096

    def __post_init__(self) -> None:
        """Render the table once."""
        positions = np.atleast_2d(np.asarray(self.q, dtype=np.float64))
        poses = forward_all(self.robot, positions)[0]
        still = np.zeros(positions.shape[1])
        self._state = LabState(
            0.0, self.robot.joint_names, positions[0], still, still, poses, positions[0], {}, "", np.zeros(2), False
        )
        self._camera = _OrbitCamera(self.robot, self.style, self.texture_pixels)
        if self.board is not None:
            self._camera.lay(self.board, self.base_T_board)
        self._rng = np.random.default_rng([self.seed, 21])

    def take(self, camera: PinholeCamera, smear_px: float = 0.0) -> OrbitFrame:
        """Render an image from a camera; `smear_px` is the motion during the exposure, pixels."""
        self._camera.move(camera)
        seen = self._camera.capture(self._state, truth=True)
        if seen.segmentation is None or seen.depth_m is None:
            raise TypeError("capture(truth=True) returned no ground truth")
        links = len(self.robot.links)
        mask = (seen.segmentation > 0) & (seen.segmentation <= links)
        picture = seen.rgb.astype(np.float32)
        if smear_px > 0:
            picture = cv2.filter2D(picture, -1, _line(smear_px, self._rng.uniform(0, np.pi)))
        if self.blur_px > 0:
            picture = cv2.GaussianBlur(picture, (0, 0), self.blur_px)
        picture = picture + self._rng.normal(0, self.noise, picture.shape).astype(np.float32)
        return OrbitFrame(np.asarray(np.clip(np.rint(picture), 0, 255), np.uint8), mask, seen.depth_m, camera)

    def film(self, cameras: list[PinholeCamera], smeared: float = 0.25, smear_px: float = 14.0) -> Iterator[OrbitFrame]:
        """Render images along a path; the fraction `smeared` of them has motion blur."""
        for camera in cameras:
            yield self.take(camera, smear_px if self._rng.random() < smeared else 0.0)


def write_orbit_video(path: str | Path, frames: list[OrbitFrame], fps: float = 15.0) -> None:
    """Write an orbit as MP4."""
    height, width = frames[0].rgb.shape[:2]
    with VideoWriter(path, fps, (width, height), crf=12) as video:
        for frame in frames:
            video.write(frame.rgb)


class _OrbitCamera(LabCamera):
    """Movable lab camera, with a board printed on the table."""

    def __init__(self, robot: Robot, style: Style, texture_pixels: int) -> None:
        start = orbit_cameras(1)[0]
        super().__init__(robot, start, room=_ROOM, style=style, quality=Quality(texture_pixels=texture_pixels))

    def move(self, camera: PinholeCamera) -> None:
        self.camera, self._lens, self._last_poses = camera, Lens(camera), None
        pinhole = self._lens.pinhole
        self._double = pinhole.scaled(2 * pinhole.width, 2 * pinhole.height)

    def lay(self, board: Board, base_T_board: Array) -> None:
        """Paint the board, with a white rim of half a square, into the table's texture."""
        side = self._texture.shape[0]
        x0, x1, y0, y1 = _ROOM.table
        middle = (np.arange(side) + 0.5) / side
        x, y = np.meshgrid(x0 + (x1 - x0) * middle, y0 + (y1 - y0) * middle)
        board_T_base = np.linalg.inv(base_T_board)
        p = apply(board_T_base, np.stack([x, y, np.full_like(x, _ROOM.table_z)], axis=-1).reshape(-1, 3))
        left, top, right, bottom = board.picture_area
        picture = board.picture(96)
        u = (p[:, 0] - left) / (right - left) * picture.shape[1] - 0.5
        v = (p[:, 1] - top) / (bottom - top) * picture.shape[0] - 0.5
        columns, rows = (a.reshape(side, side).astype(np.float32) for a in (u, v))
        ink = (
            cv2.remap(picture, columns, rows, cv2.INTER_LINEAR, borderMode=cv2.BORDER_CONSTANT, borderValue=255) / 255.0
        )
        rim = board.square_m / 2
        inside = (p[:, 0] > left - rim) & (p[:, 0] < right + rim) & (p[:, 1] > top - rim) & (p[:, 1] < bottom + rim)
        colour = ink[..., None] * np.array(_PAPER) + (1 - ink[..., None]) * np.array(_INK)
        self._texture = np.where(inside.reshape(side, side, 1), colour, self._texture).astype(np.float32)


def _line(length_px: float, angle: float) -> NDArray[np.float32]:
    """Build a motion blur kernel along a line."""
    side = 2 * int(np.ceil(length_px / 2)) + 1
    kernel = np.zeros((side, side), np.float32)
    for s in np.linspace(-0.5, 0.5, 4 * side) * length_px:
        u, v = side / 2 - 0.5 + s * np.cos(angle), side / 2 - 0.5 + s * np.sin(angle)
        kernel[round(v), round(u)] += 1
    return np.asarray(kernel / kernel.sum())
