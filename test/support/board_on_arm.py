"""Views of a board on the YAM's gripper in random arm poses: noisy corners and ground truth."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.calibration.boards import Board, BoardView, parse_board
from kinema4d_ros.calibration.pose_estimate import changed
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.transforms import apply, from_rpy, invert
from kinema4d_ros.kinematics.forward import forward_all
from kinema4d_ros.robot import Robot

BOARD = parse_board("charuco:7x5:0.02:0.015")
GRIPPER_T_BOARD = from_rpy([0.1, 0.05, -0.1], [-0.07, -0.05, 0.15])


@dataclass
class Series:
    views: list[BoardView]
    base_T_gripper: NDArray[np.float64]
    camera: PinholeCamera
    q: NDArray[np.float64]


def workshop_camera(seed: int, distance_m: float = 0.8) -> PinholeCamera:
    """Return a camera in front of the workspace, with lens distortion."""
    rng = np.random.default_rng([seed, 11])
    angle = rng.uniform(-0.9, 0.9)
    eye = np.array([0.35 + distance_m * np.cos(angle), distance_m * np.sin(angle), rng.uniform(0.3, 0.7)])
    return PinholeCamera.look_at(
        eye,
        [0.35, 0.0, 0.3],
        width=1280,
        height=960,
        focal_px=1150.0,
        distortion=(-0.12, 0.04, 0.0006, -0.0005, 0.0),
    )


def show_board(
    robot: Robot,
    count: int,
    seed: int,
    *,
    noise_px: float = 0.3,
    arm_m: float = 0.0,
    arm_rad: float = 0.0,
    board: Board = BOARD,
    camera: PinholeCamera | None = None,
    wrist_only: bool = False,
    square_px: float = 0.0,
    facing: float = 0.5,
) -> Series:
    """Sample arm poses in which most of the board is visible, squares of at least `square_px`, not too oblique."""
    rng = np.random.default_rng(seed)
    camera = camera or workshop_camera(seed)
    link = [link.name for link in robot.links].index("gripper")
    views: list[BoardView] = []
    arms, joints = [], []
    while len(views) < count:
        q = robot.lower + (robot.upper - robot.lower) * rng.uniform(0.1, 0.9, len(robot.lower))
        if wrist_only and joints:
            q = joints[0].copy()
            q[5] += rng.uniform(-0.6, 0.6)
        base_T_gripper = forward_all(robot, q[None])[0, link]
        camera_T_board = camera.camera_T_base @ base_T_gripper @ GRIPPER_T_BOARD
        p = apply(camera_T_board, board.points)
        uv = camera.project(p)
        inside = np.all((uv > 5) & (uv < (camera.width - 5, camera.height - 5)), axis=1)
        frontal = camera_T_board[:3, 2] @ p.mean(axis=0) / np.linalg.norm(p.mean(axis=0))
        size = camera.K[0, 0] * board.square_m / p[:, 2].mean()
        enough = inside.sum() >= min(14, len(board.points))
        if not enough or frontal < facing or size < square_px or base_T_gripper[2, 3] < 0.05:
            continue
        ids = np.flatnonzero(inside)
        views.append(BoardView(ids, uv[ids] + rng.normal(0, noise_px, (len(ids), 2)), f"pose{len(views)}"))
        error = np.concatenate([rng.normal(0, 1, 3) * arm_m, rng.normal(0, 1, 3) * arm_rad])
        arms.append(changed(base_T_gripper, error))
        joints.append(q)
    return Series(views, np.stack(arms), camera, np.stack(joints))


def moved(camera: PinholeCamera, shift_m: tuple[float, float, float]) -> PinholeCamera:
    """Return the camera moved by a bump, in base axes."""
    pose = camera.base_T_camera.copy()
    pose[:3, 3] += shift_m
    return camera.posed(pose)


__all__ = ["BOARD", "GRIPPER_T_BOARD", "Series", "invert", "moved", "show_board", "workshop_camera"]
