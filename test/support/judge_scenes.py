"""Small scenes with exact depth for tests of judges: coloured balls on a table and a two-finger gripper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.rollout import Provenance, Rollout

CAMERA = PinholeCamera.look_at([1.0, 0.0, 0.6], [0.3, 0.0, 0.03], width=144, height=96, fov_y_deg=24.0)
TABLE = np.array([150.0, 130.0, 110.0])
RED, GREEN = (200.0, 40.0, 30.0), (40.0, 170.0, 60.0)
RADIUS = 0.025


@dataclass
class Ball:
    """A ball of one colour; centre (T, 3) or (3,) metres in the base frame; opacity in frames after the first."""

    centre: object
    colour: Sequence[float]
    radius: float = RADIUS
    opacity: float = 1.0
    robot: bool = False


def film(balls: list[Ball], frames: int, camera: PinholeCamera = CAMERA, noise: float = 0.0) -> Rollout:
    """Render a rollout of balls on the plane z = 0, with shading; opacity below 1 mixes colour and depth."""
    rng = np.random.default_rng(0)
    rays = camera.rays() @ camera.base_T_camera[:3, :3].T
    eye = camera.base_T_camera[:3, 3]
    shape = (frames, camera.height, camera.width)
    rgb, depth, mask = np.zeros((*shape, 3)), np.zeros(shape), np.zeros(shape, bool)
    for t in range(frames):
        z = -eye[2] / rays[..., 2]
        picture = np.broadcast_to(TABLE, (*shape[1:], 3)).copy()
        robot = np.zeros(shape[1:], bool)
        table = (picture.copy(), z.copy())
        for ball in balls:
            centre = np.asarray(ball.centre, float)
            centre = centre if centre.ndim == 1 else centre[t]
            a = (rays * rays).sum(-1)
            b = (rays * (eye - centre)).sum(-1)
            root = b * b - a * (((eye - centre) ** 2).sum() - ball.radius**2)
            near = (-b - np.sqrt(np.maximum(root, 0))) / a
            hit = (root > 0) & (near < z)
            normal = (eye + near[..., None] * rays - centre) / ball.radius
            light = np.clip(0.65 + 0.35 * normal @ np.array([0.5, 0.2, 0.84]), 0.2, 1.0)
            alpha = ball.opacity if t else 1.0
            picture[hit] = (alpha * light[..., None] * np.asarray(ball.colour) + (1 - alpha) * table[0])[hit]
            z = np.where(hit, alpha * near + (1 - alpha) * table[1], z)
            robot = (robot | hit) if ball.robot else (robot & ~hit)
        rgb[t], depth[t], mask[t] = picture + rng.normal(0, noise, picture.shape), z, robot
    xyz = (camera.rays() * depth[..., None]).astype(np.float32)
    pixels = np.clip(np.rint(rgb), 0, 255).astype(np.uint8)
    return Rollout(pixels, xyz, mask, camera, 0.1 * np.arange(frames), Provenance("scene"))


def fingers(path: np.ndarray) -> list[Ball]:
    """Return two columns of dark balls on both sides of a path (T, 3), at a constant distance."""
    return [
        Ball(path + np.array([0.0, side, up]), (35.0, 35.0, 40.0), 0.012, robot=True)
        for side in (-0.035, 0.035)
        for up in (0.0, 0.02, 0.04, 0.06)
    ]


@lru_cache(maxsize=8)
def pick(frames: int = 15, *, carried: bool = True, height: float = 0.09, opacity: float = 1.0, noise: float = 0.0):
    """Return (rollout, target mask, true path): a gripper descends, closes and rises, with or without the ball."""
    third = frames // 3
    z = np.concatenate(
        [
            np.linspace(0.15, RADIUS, third),
            np.full(third, RADIUS),
            np.linspace(RADIUS, RADIUS + height, frames - 2 * third),
        ]
    )
    path = np.stack([np.full(frames, 0.3), np.zeros(frames), z], axis=1)
    ball = path.copy()
    ball[:, 2] = np.where(np.arange(frames) < 2 * third, RADIUS, z) if carried else RADIUS
    balls = [Ball(ball, RED, opacity=opacity), Ball([0.28, 0.13, 0.02], GREEN, 0.02), *fingers(path)]
    rollout = film(balls, frames, noise=noise)
    target = ball_mask(ball[0], rollout)
    return rollout, target, ball


def ball_mask(centre: np.ndarray, rollout: Rollout, radius: float = RADIUS) -> np.ndarray:
    """Return (H, W) bool: pixels of frame 0 whose points lie on a ball."""
    distance = np.linalg.norm(rollout.points_base(0) - centre, axis=-1)
    return (distance < 1.02 * radius) & ~rollout.robot_mask[0]
