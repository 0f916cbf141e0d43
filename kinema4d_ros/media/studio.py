"""A quiet background for pictures of a robot alone: a soft wall and a floor with a 10 cm grid."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.camera import PinholeCamera

__all__ = ["studio"]

GRID_M = 0.1
LINE_M = 0.0015
FADE_M = 1.6
"""Distance from the base at which the floor has melted into the wall."""

WALL_TOP = np.array([206.0, 212.0, 222.0])
WALL_FOOT = np.array([236.0, 238.0, 242.0])
FLOOR = np.array([224.0, 226.0, 230.0])
LINE = np.array([186.0, 191.0, 200.0])


def studio(camera: PinholeCamera) -> NDArray[np.uint8]:
    """(H, W, 3) uint8 RGB: what the camera sees of the plane z = 0 of the base frame, and of nothing else."""
    height, width = camera.height, camera.width
    rays = camera.rays() @ camera.base_T_camera[:3, :3].T
    eye = camera.base_T_camera[:3, 3]
    with np.errstate(divide="ignore", invalid="ignore"):
        distance = -eye[2] / rays[..., 2]
    on_floor = np.isfinite(distance) & (distance > 0)
    xy = eye[:2] + np.where(on_floor, distance, 0.0)[..., None] * rays[..., :2]

    shade = np.linspace(0.0, 1.0, height)[:, None, None]
    image = np.broadcast_to(WALL_TOP + shade * (WALL_FOOT - WALL_TOP), (height, width, 3)).copy()

    # A line narrower than a pixel would flicker: blend it over the width that one pixel covers.
    step = np.where(on_floor, distance, 1.0) / camera.K[0, 0]
    offset = np.abs((xy + GRID_M / 2) % GRID_M - GRID_M / 2).min(axis=-1)
    line = np.clip((LINE_M / 2 + step - offset) / step, 0.0, 1.0) * np.clip(LINE_M / step, 0.25, 1.0)
    floor = FLOOR + line[..., None] * (LINE - FLOOR)
    fade = np.clip(1.0 - np.linalg.norm(xy, axis=-1) / FADE_M, 0.0, 1.0) ** 0.5
    weight = np.where(on_floor, fade, 0.0)[..., None]
    mixed: NDArray[np.uint8] = np.rint(image + weight * (floor - image)).astype(np.uint8)
    return mixed
