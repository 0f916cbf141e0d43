"""Camera pose from a board at a measured pose, for example on the table; one view is enough."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import least_squares

from kinema4d_ros.calibration.boards import Board, BoardView, find_board_pose, residual_px
from kinema4d_ros.calibration.pose_estimate import PoseEstimate, changed, difference
from kinema4d_ros.calibration.quality import Finding, Quality, finding, sorted_findings
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import CalibrationError
from kinema4d_ros.core.transforms import apply, invert, require_rigid

__all__ = ["TableBoard", "calibrate_table_board"]

Array = NDArray[np.float64]

_STEP = 1e-6
GOOD_PX, WORST_PX = 1.0, 4.0


@dataclass(frozen=True, eq=False)
class TableBoard(PoseEstimate):
    """Result of the calibration with a board at a measured pose.

    Attributes:
        image_covariance: (6, 6), the part due to the images; `covariance` adds that of the board's pose and size.
    """

    image_covariance: Array = None  # type: ignore[assignment]


def calibrate_table_board(
    views: Sequence[BoardView],
    base_T_board: ArrayLike,
    board: Board,
    camera: PinholeCamera,
    *,
    place_sigma_m: float = 0.001,
    place_sigma_deg: float = 0.2,
    size_sigma: float = 0.005,
) -> TableBoard:
    """Estimate the camera pose from views of a board at a known pose.

    Args:
        views: one, or several of the same static scene to average out noise.
        base_T_board: (4, 4) metres: measured pose of the board.
        board: the board in the views.
        camera: intrinsics; its pose is ignored.
        place_sigma_m, place_sigma_deg: standard deviation of the measured pose; included in the result's covariance.
        size_sigma: relative standard deviation of the size of a square. A board that is 1 % larger and 1 % further
            away looks the same, so the images do not determine it.
    """
    place = require_rigid(base_T_board, "base_T_board")
    if not views:
        raise CalibrationError("no view shows the board (too_few_poses)", expected="at least one")
    if not (0 <= place_sigma_m < 1 and 0 <= place_sigma_deg < 90 and 0 <= size_sigma < 0.5):
        raise CalibrationError(
            f"place_sigma_m is {place_sigma_m}, place_sigma_deg is {place_sigma_deg}, size_sigma is {size_sigma}",
            expected="small positive numbers",
        )
    if board.symmetric:
        raise CalibrationError(
            f"{board.text} looks the same after a rotation by 180 degrees (ambiguous_view)",
            expected="a ChArUco board, a tag, or a chessboard with an odd and an even number of squares",
        )
    poses = [find_board_pose(view, board, camera) for view in views]
    best = min(poses, key=lambda pose: pose.rms_px)
    start = place @ invert(best.camera_T_board)

    def residual(x: Array, size: float = 1.0) -> Array:
        camera_T_board = invert(changed(start, x)) @ place
        parts = [residual_px(camera, apply(camera_T_board, size * board.points[v.ids]), v.uv) for v in views]
        return np.concatenate(parts).ravel()

    fit = least_squares(residual, np.zeros(6), loss="soft_l1", f_scale=1.5, x_scale=0.05)
    result = changed(start, fit.x)
    left = residual(fit.x)
    used = np.abs(left) < 6 * float(np.median(np.abs(left))) / 0.67 + 0.2
    J = np.stack([(residual(fit.x + d) - residual(fit.x - d)) / (2 * _STEP) for d in _STEP * np.eye(6)], axis=1)[used]
    by_size = (residual(fit.x, 1 + _STEP) - residual(fit.x, 1 - _STEP))[used] / (2 * _STEP)
    way: Array = -np.linalg.pinv(J) @ by_size
    variance = float(left[used] @ left[used]) / max(int(used.sum()) - 6, 1)
    image = np.asarray(np.linalg.pinv(J.T @ J) * variance)
    covariance = image + _place_covariance(place, best.camera_T_board, place_sigma_m, np.radians(place_sigma_deg))
    covariance += size_sigma**2 * np.outer(way, way)
    rms = float(np.sqrt(2 * np.mean(left[used] ** 2)))
    depth = float(np.linalg.norm(best.camera_T_board[:3, 3]))
    quality = Quality(
        px=rms,
        mm=float(1e3 * rms * depth / np.sqrt(camera.K[0, 0] * camera.K[1, 1])),
        poses=len(views),
        findings=sorted_findings(
            [*_findings(rms, all(pose.ambiguous for pose in poses), views, camera), _unchecked(board, way, size_sigma)]
        ),
        views=tuple(_view_residuals(views, left, used)),
    )
    freedom = float(max(int(used.sum()) - 6, 1))
    return TableBoard(result, covariance, freedom, quality, "board on the table", "", image)


def _unchecked(board: Board, way: Array, size_sigma: float) -> Finding:
    text = (
        f"the square size of {1e3 * board.square_m:g} mm is assumed accurate to {size_sigma:.1%}; "
        f"an error of 1 % moves the camera by {10 * float(np.linalg.norm(way[:3])):.1f} mm"
    )
    return finding("unchecked_size", text)


def _view_residuals(views: Sequence[BoardView], left: Array, used: NDArray[np.bool_]) -> Iterator[tuple[str, float]]:
    ends = np.cumsum([2 * len(view.ids) for view in views])
    for i, (view, end) in enumerate(zip(views, ends, strict=True)):
        at = slice(int(end) - 2 * len(view.ids), int(end))
        mine = left[at][used[at]]
        yield view.name or f"view {i}", float(np.sqrt(2 * np.mean(mine**2))) if len(mine) else float("nan")


def _place_covariance(place: Array, camera_T_board: Array, sigma_m: float, sigma_rad: float) -> Array:
    """Compute the covariance (6, 6) of the camera pose due to that of the board pose, through the lever arm."""
    board_T_camera = invert(camera_T_board)
    reference = place @ board_T_camera
    columns = [difference(reference, changed(place, _STEP * unit) @ board_T_camera) / _STEP for unit in np.eye(6)]
    A = np.stack(columns, axis=1)
    return np.asarray(A @ np.diag([sigma_m**2] * 3 + [sigma_rad**2] * 3) @ A.T)


def _findings(rms: float, ambiguous: bool, views: Sequence[BoardView], camera: PinholeCamera) -> list[Finding]:
    found = []
    if rms > GOOD_PX:
        found.append(finding("poor_fit", f"residual {rms:.2f} px", "error" if rms > WORST_PX else "warning"))
    if ambiguous:
        found.append(finding("ambiguous_view", "two poses of the board explain the image", "error"))
    size = max(float(np.ptp(view.uv, axis=0).max()) for view in views)
    if size < 0.1 * camera.width:
        text = f"the board is {size:.0f} px large in an image of {camera.width}"
        found.append(finding("weak_geometry", text))
    return found
