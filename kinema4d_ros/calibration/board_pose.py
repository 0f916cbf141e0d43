"""Where a board is in front of a camera, from one view of it: closed form, then least squares on the pixels."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from kinema4d_ros.calibration.boards import Board, BoardView
from kinema4d_ros.calibration.pose_estimate import changed
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import CalibrationError
from kinema4d_ros.core.transforms import apply

__all__ = ["BoardPose", "find_board_pose", "projection_jacobian", "residual_px"]

_STEP = 1e-6
BEHIND_PX = 1e3
"""Stands in for the residual of a point that the camera cannot see."""


@dataclass(frozen=True, eq=False)
class BoardPose:
    """A pose and its rival.

    Attributes:
        camera_T_board: (4, 4) float64, metres.
        rms_px: residual, pixels.
        rival: the other pose of a flat board that explains the view nearly as well, or None.
        rival_rms_px: its residual; infinite without one.
    """

    camera_T_board: NDArray[np.float64]
    rms_px: float
    rival: NDArray[np.float64] | None
    rival_rms_px: float

    @property
    def ambiguous(self) -> bool:
        """The rival is nearly as good: noise chose between the two."""
        return self.rival_rms_px < 1.5 * self.rms_px + 0.05


def residual_px(camera: PinholeCamera, p_camera: NDArray[np.float64], uv: NDArray[np.float64]) -> NDArray[np.float64]:
    """(..., 2) projected minus seen, pixels; a large number for points that the camera cannot see."""
    return np.nan_to_num(camera.project(p_camera) - uv, nan=BEHIND_PX)


def projection_jacobian(camera: PinholeCamera, p_camera: NDArray[np.float64]) -> NDArray[np.float64]:
    """(N, 2, 3) pixels per metre: how the image point follows the point; 0 where the camera cannot see it."""
    z = p_camera[:, 2]
    xy = p_camera[:, :2] / z[:, None]
    bend = np.empty((len(xy), 2, 2))
    for k in (0, 1):
        step = np.zeros(2)
        step[k] = _STEP
        bend[:, :, k] = (camera.lens.distort(xy + step) - camera.lens.distort(xy - step)) / (2 * _STEP)
    pinhole = np.zeros((len(xy), 2, 3))
    pinhole[:, 0, 0] = pinhole[:, 1, 1] = 1 / z
    pinhole[:, :, 2] = -xy / z[:, None]
    J = np.diag(camera.K)[:2, None] * (bend @ pinhole)
    J[~(z > 0)] = 0.0
    return np.nan_to_num(J)


def find_board_pose(view: BoardView, board: Board, camera: PinholeCamera) -> BoardPose:
    """The pose of the board in one view; `camera` needs no pose of its own."""
    points = board.points[view.ids]
    straight = camera.lens.undistort((view.uv - camera.K[:2, 2]) / np.diag(camera.K)[:2])
    seen = np.isfinite(straight).all(axis=1)
    if seen.sum() < 4:
        raise CalibrationError(f"{view.name or 'the view'} has {seen.sum()} usable corners", expected="at least 4")
    _, turns, shifts, _ = cv2.solvePnPGeneric(
        points[seen], straight[seen], np.eye(3), np.zeros(4), flags=cv2.SOLVEPNP_IPPE
    )
    found = sorted(
        (_refine(camera, points, view.uv, _pose(t, s)) for t, s in zip(turns, shifts, strict=True)), key=lambda p: p[1]
    )
    if not found:
        raise CalibrationError(f"{view.name or 'the view'} has no pose", expected="corners that are not on a line")
    (best, rms), *rest = found
    # Both starts may end in the same place; then there is no rival.
    rivals = [(T, r) for T, r in rest if np.linalg.norm(T[:3, :3] - best[:3, :3]) > 0.02]
    return BoardPose(best, rms, *(rivals[0] if rivals else (None, float("inf"))))


def skew(p: NDArray[np.float64]) -> NDArray[np.float64]:
    """(N, 3, 3) matrices of the cross products with p (N, 3)."""
    S = np.zeros((len(p), 3, 3))
    S[:, 0, 1], S[:, 0, 2], S[:, 1, 2] = -p[:, 2], p[:, 1], -p[:, 0]
    return np.asarray(S - S.swapaxes(1, 2))


def _pose(turn: NDArray[np.float64], shift: NDArray[np.float64]) -> NDArray[np.float64]:
    pose = np.eye(4)
    pose[:3, :3], pose[:3, 3] = cv2.Rodrigues(turn)[0], np.ravel(shift)
    return pose


def _refine(
    camera: PinholeCamera, points: NDArray[np.float64], uv: NDArray[np.float64], start: NDArray[np.float64]
) -> tuple[NDArray[np.float64], float]:
    def residual(x: NDArray[np.float64]) -> NDArray[np.float64]:
        return residual_px(camera, apply(changed(start, x), points), uv).ravel()

    def jacobian(x: NDArray[np.float64]) -> NDArray[np.float64]:
        pose = changed(start, x)
        P = projection_jacobian(camera, apply(pose, points))
        # Turns are about the board's axes here, exact at x = 0 and good enough around it.
        return np.concatenate([P, -P @ pose[:3, :3] @ skew(points)], axis=2).reshape(-1, 6)

    fit = least_squares(residual, np.zeros(6), jac=jacobian, x_scale=0.05, max_nfev=40)
    return changed(start, fit.x), float(np.sqrt(2 * (fit.fun**2).mean()))
