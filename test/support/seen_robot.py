"""Robot masks as from a segmenter: with lens distortion, noisy outlines and random cameras."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.calibration.pose_estimate import changed
from kinema4d_ros.calibration.silhouette import signed_distance
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.kinematics.forward import forward_all
from kinema4d_ros.lab.lens import Lens
from kinema4d_ros.render import Scene, render_poses
from kinema4d_ros.robot import Robot


@dataclass
class Seen:
    q: NDArray[np.float64]
    masks: NDArray[np.bool_]
    camera: PinholeCamera
    guess: NDArray[np.float64]


def random_camera(rng: np.random.Generator, width: int = 720, height: int = 480) -> PinholeCamera:
    """Sample a camera 0.8 to 1.3 m from the arm, from any side, roughly aimed at it, with a random lens."""
    distance, around, above = rng.uniform(0.8, 1.3), rng.uniform(-np.pi, np.pi), np.radians(rng.uniform(5, 60))
    target = np.array([0.2, 0.0, 0.25]) + rng.uniform(-0.08, 0.08, 3)
    eye = target + distance * np.array([np.cos(around) * np.cos(above), np.sin(around) * np.cos(above), np.sin(above)])
    return PinholeCamera.look_at(
        eye,
        target,
        width=width,
        height=height,
        fov_y_deg=rng.uniform(32, 42),
        distortion=(rng.uniform(-0.2, 0.08), rng.uniform(0, 0.04), *rng.uniform(-8e-4, 8e-4, 2), 0.0),
    )


def random_joints(robot: Robot, rng: np.random.Generator, count: int) -> NDArray[np.float64]:
    """Sample configurations above the table."""
    found: list[NDArray[np.float64]] = []
    while len(found) < count:
        low, high = (np.nan_to_num(a, posinf=2.0, neginf=-2.0) for a in (robot.lower, robot.upper))
        q = low + (high - low) * rng.uniform(0.12, 0.75, len(low))
        if forward_all(robot, q[None])[0, :, 2, 3].min() > -0.01:
            found.append(q)
    return np.stack(found)


def wobble(
    mask: NDArray[np.bool_], rng: np.random.Generator, sigma_px: float, offset_px: float, smooth_px: float = 6.0
) -> NDArray[np.bool_]:
    """Return the mask with outline noise of `sigma_px`, correlated over `smooth_px`, moved out by `offset_px`."""
    if sigma_px == 0 and offset_px == 0:
        return mask
    noise = cv2.GaussianBlur(rng.normal(size=mask.shape), (0, 0), smooth_px)
    noise *= sigma_px / noise.std()
    return np.asarray(signed_distance(mask) < noise + offset_px)


def draw_masks(robot: Robot, q: NDArray[np.float64], camera: PinholeCamera) -> NDArray[np.bool_]:
    """Render exact masks through the camera's lens."""
    lens = Lens(camera)
    drawn = render_poses(Scene.from_robot(robot), forward_all(robot, q), lens.pinhole, threads=1)
    return np.stack([lens.bend(mask.astype(np.uint8), "nearest") > 0 for mask in drawn.mask])


def see_robot(
    robot: Robot,
    seed: int,
    *,
    poses: int = 6,
    wobble_px: float = 0.7,
    offset_px: float = 0.3,
    guess_m: float = 0.05,
    guess_deg: float = 5.0,
    size: tuple[int, int] = (480, 320),
) -> Seen:
    """Sample a camera, configurations, masks, and an initial guess at exactly the given distance."""
    rng = np.random.default_rng([seed, 5])
    camera = random_camera(rng, *size)
    q = random_joints(robot, rng, poses)
    masks = np.stack([wobble(m, rng, wobble_px, offset_px) for m in draw_masks(robot, q, camera)])
    shift, turn = (v / np.linalg.norm(v) for v in (rng.normal(size=3), rng.normal(size=3)))
    guess = changed(camera.base_T_camera, np.concatenate([guess_m * shift, np.radians(guess_deg) * turn]))
    return Seen(q, masks, camera, guess)
