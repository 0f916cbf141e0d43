"""Synthetic board images with known ground truth: lens distortion, blur, noise and uneven light.

Used for demonstrations and tests of the calibration.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.interpolate import RectBivariateSpline

from kinema4d_ros.calibration.boards import Board
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.transforms import make

__all__ = ["BoardPainter", "random_board_pose"]

_TEXTURE_PX = 96
"""Texture resolution of a square, pixels; finer than the images."""


@dataclass
class BoardPainter:
    """Renderer of one board as seen by one camera, by intersecting the ray of every subpixel with the board plane.

    Attributes:
        board: the board to render.
        camera: intrinsics and distortion.
        blur_px: standard deviation of the focus blur.
        noise: standard deviation of the sensor noise, 8-bit steps.
        light: brightness of the darkest side of the image relative to the brightest.
        seed: of noise and light.
        subpixels: rays along the side of a pixel.
    """

    board: Board
    camera: PinholeCamera
    blur_px: float = 0.6
    noise: float = 2.0
    light: float = 0.6
    seed: int = 0
    subpixels: int = 3

    def __post_init__(self) -> None:
        self._rays = _fine_rays(self.camera, self.subpixels)
        self._texture = self.board.picture(_TEXTURE_PX)
        self._rng = np.random.default_rng(self.seed)

    def draw(self, camera_T_board: ArrayLike) -> NDArray[np.uint8]:
        """Render the board at a pose (4, 4) in front of a grey wall: (H, W) uint8."""
        pose = np.asarray(camera_T_board, dtype=np.float64)
        left, top, right, bottom = self.board.picture_area
        height, width = self._texture.shape
        # Board metres to texture pixels; OpenCV's coordinates are integers at pixel centres.
        texture = np.diag([width / (right - left), height / (bottom - top), 1.0])
        texture[:2, 2] = -left * texture[0, 0] - 0.5, -top * texture[1, 1] - 0.5
        plane = texture @ np.linalg.inv(np.stack([pose[:3, 0], pose[:3, 1], pose[:3, 3]], axis=1))
        p = self._rays @ plane.T.astype(np.float32)
        with np.errstate(divide="ignore", invalid="ignore"):
            uv = p[..., :2] / p[..., 2:]
        # Map rays that miss the plane, or hit it behind the camera, far outside the texture.
        hit = (p[..., 2:] > 0) & (np.abs(uv) < 1e4)
        u, v = np.moveaxis(np.where(hit, uv, np.float32(-1e4)), -1, 0)
        paper = cv2.copyMakeBorder(self._texture, 48, 48, 48, 48, cv2.BORDER_CONSTANT, value=255)
        picture = cv2.remap(paper, u + 48, v + 48, cv2.INTER_LINEAR, borderMode=cv2.BORDER_CONSTANT, borderValue=110)
        size = (self.camera.width, self.camera.height)
        return self._spoil(np.asarray(cv2.resize(picture, size, interpolation=cv2.INTER_AREA), np.float64))

    def _spoil(self, picture: NDArray[np.float64]) -> NDArray[np.uint8]:
        height, width = picture.shape
        if self.blur_px > 0:
            picture = cv2.GaussianBlur(picture, (0, 0), self.blur_px)
        angle = self._rng.uniform(0, 2 * np.pi)
        y, x = np.indices(picture.shape)
        slope = (x / width - 0.5) * np.cos(angle) + (y / height - 0.5) * np.sin(angle)
        lit = (30 + 0.75 * picture) * (self.light + (1 - self.light) * (slope + 0.71) / 1.42)
        noisy = lit + self._rng.normal(0, self.noise, picture.shape)
        return np.asarray(np.clip(np.rint(noisy), 0, 255), np.uint8)


def _fine_rays(camera: PinholeCamera, n: int) -> NDArray[np.float32]:
    """Compute (n H, n W, 3) subpixel rays: undistort a grid and interpolate by splines, accurate to 1e-6 pixels."""
    u, v = (np.linspace(0.0, side, max(side // 8, 8) + 1) for side in (camera.width, camera.height))
    coarse = camera.unproject(np.stack(np.meshgrid(u, v), axis=-1), 1.0)
    fine_u, fine_v = ((np.arange(side * n) + 0.5) / n for side in (camera.width, camera.height))
    rays = np.ones((len(fine_v), len(fine_u), 3), np.float32)
    for axis in (0, 1):
        rays[..., axis] = RectBivariateSpline(v, u, coarse[..., axis])(fine_v, fine_u)
    return rays


def random_board_pose(
    board: Board,
    camera: PinholeCamera,
    rng: np.random.Generator,
    *,
    tilt_deg: float = 40.0,
    fill: float = 0.55,
    spread: float = 0.25,
) -> NDArray[np.float64]:
    """Sample `camera_T_board` (4, 4), metres: in view, tilted, filling about `fill` of the image width.

    The board's centre is within `spread` of the image size from the image centre.
    """
    left, top, right, bottom = board.picture_area
    centre = np.array([(left + right) / 2, (top + bottom) / 2, 0.0])
    distance = camera.K[0, 0] * (right - left) / (camera.width * fill * rng.uniform(0.7, 1.2))
    uv = np.array([camera.width, camera.height]) * rng.uniform(0.5 - spread, 0.5 + spread, 2)
    axis = rng.normal(size=3) * (1, 1, 0.3)
    rotation, _ = cv2.Rodrigues(axis / np.linalg.norm(axis) * np.radians(tilt_deg) * rng.uniform(0.4, 1.0))
    turn, _ = cv2.Rodrigues(np.array([0.0, 0.0, rng.uniform(-0.5, 0.5)]))
    R = rotation @ turn
    p_camera = camera.rectified().unproject(uv, distance)
    return make(R, p_camera - R @ centre)
