"""Hand-eye calibration: camera pose from views of a board on the gripper in several arm poses.

views ─> board pose in each ─> closed form (A X = X B) ─> robust fit of all corners of all views ─> result
Unknowns are `base_T_camera` and `gripper_T_board`; neither needs to be measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import least_squares
from scipy.spatial.transform import Rotation

from kinema4d_ros.calibration.boards import Board, BoardView, find_board_pose, projection_jacobian, residual_px, skew
from kinema4d_ros.calibration.pose_estimate import PoseEstimate, changed, mean_pose
from kinema4d_ros.calibration.quality import Finding, PoseSpread, Quality, finding, pose_spread, sorted_findings
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import CalibrationError
from kinema4d_ros.core.transforms import invert, make

__all__ = ["HandEye", "calibrate_hand_eye", "fit_findings", "series_findings", "solve_ax_xb"]

# Findings about a hand-eye series: too few or too similar poses, parallel axes, wrong board size, moved camera.

MIN_POSES, GOOD_POSES = 3, 8
MIN_TURN_DEG, GOOD_TURN_DEG = 5.0, 30.0
MIN_SECOND_DEG, GOOD_SECOND_DEG = 3.0, 10.0
GOOD_PX, WORST_PX = 1.0, 4.0
SCALE_STEP = 1e-5


def series_findings(count: int, spread: PoseSpread | None, board: Board) -> list[Finding]:
    """List findings about the arm poses and the board, before any fit."""
    found = []
    if count < GOOD_POSES or spread is None:
        severity = "error" if count < MIN_POSES else "warning"
        found.append(finding("too_few_poses", f"{count} poses", severity))  # type: ignore[arg-type]
    if spread is not None and count >= MIN_POSES:
        if spread.rotation_deg < GOOD_TURN_DEG:
            text = f"the gripper rotates by only {spread.rotation_deg:.1f} degrees over all poses"
            found.append(finding("too_similar", text, "error" if spread.rotation_deg < MIN_TURN_DEG else "warning"))
        if spread.second_axis_deg < GOOD_SECOND_DEG and spread.rotation_deg >= MIN_TURN_DEG:
            text = f"the gripper rotates by only {spread.second_axis_deg:.1f} degrees about a second axis"
            worst = spread.second_axis_deg < MIN_SECOND_DEG
            found.append(finding("parallel_axes", text, "error" if worst else "warning"))
    if board.symmetric:
        text = f"{board.text} looks the same after a rotation by 180 degrees, so its pose is ambiguous"
        found.append(finding("ambiguous_view", text, "error"))
    return found


def fit_findings(
    corners: Corners,
    X: Array,
    Z: Array,
    J: Array,
    residual: Array,
    kept: Sequence[int],
    names: Sequence[str],
    board: Board,
) -> list[Finding]:
    """List findings about the fit."""
    found = []
    rms = float(np.sqrt((residual**2).sum(axis=1).mean()))
    out = [i for i in range(len(names)) if i not in kept]
    left_out = [names[i] or f"view {i}" for i in out]
    if len(out) >= 2 and (out == list(range(len(out))) or out[-1] - out[0] + 1 == len(out) == len(names) - out[0]):
        # Single bad views occur anywhere; if one end of the series is bad, the camera moved.
        found.append(finding("moved_camera", f"{', '.join(left_out[:6])} do not fit the others", "error"))
    elif left_out:
        found.append(finding("views_dropped", f"{', '.join(left_out[:6])} did not fit"))
    scale, sigma = _board_scale(corners, X, Z, J, residual)
    if abs(scale - 1) > max(0.004, 5 * sigma):
        stated = 1e3 * board.square_m
        text = f"according to the arm's motion a square is {stated * scale:.2f} mm, not {stated:g} mm"
        found.append(finding("wrong_board_size", text, "error"))
    moved = _moved(corners, J, residual, kept)
    if moved is not None:
        view, millimetres, degrees = moved
        text = (
            f"from {names[view] or f'view {view}'} on, the camera is offset by {millimetres:.1f} mm and "
            f"{degrees:.2f} degrees"
        )
        found.append(finding("moved_camera", text, "error"))
    if rms > GOOD_PX:
        found.append(finding("poor_fit", f"residual {rms:.2f} px", "error" if rms > WORST_PX else "warning"))
    return found


def _board_scale(corners: Corners, X: Array, Z: Array, J: Array, residual: Array) -> tuple[float, float]:
    """Estimate the ratio of true to stated board size and its standard deviation, by one Gauss-Newton step."""
    column = (corners.residual(X, Z, 1 + SCALE_STEP) - corners.residual(X, Z, 1 - SCALE_STEP)).ravel() / (
        2 * SCALE_STEP
    )
    full = np.column_stack([J, column])
    step, *_ = np.linalg.lstsq(full, -residual.ravel(), rcond=None)
    rest = residual.ravel() + full @ step
    variance = float(rest @ rest) / max(len(rest) - 13, 1)
    sigma = float(np.sqrt(max(np.linalg.pinv(full.T @ full)[12, 12] * variance, 0.0)))
    return 1 + float(step[12]), sigma


def _moved(corners: Corners, J: Array, residual: Array, kept: Sequence[int]) -> tuple[int, float, float] | None:
    """Detect a camera jump: index of the first view after it, millimetres and degrees; None if there was none.

    Every cut of the series is tried with a separate camera pose after the cut. A jump explains most of the residual;
    noise does not.
    """
    if len(kept) < 6:
        return None
    pose = np.repeat(corners.pose[corners.use], 2)
    flat = residual.ravel()
    best: tuple[float, int, Array] | None = None
    for cut in range(3, len(kept) - 2):
        full = np.column_stack([J, J[:, :6] * (pose >= kept[cut])[:, None]])
        step, *_ = np.linalg.lstsq(full, -flat, rcond=None)
        rest = float(np.sum((flat + full @ step) ** 2))
        if best is None or rest < best[0]:
            best = rest, kept[cut], np.asarray(step[12:], np.float64)
    if best is None:
        return None
    rest, view, jump = best
    millimetres, degrees = 1e3 * float(np.linalg.norm(jump[:3])), float(np.degrees(np.linalg.norm(jump[3:])))
    if rest > 0.5 * float(flat @ flat) or (millimetres < 1.0 and degrees < 0.1):
        return None
    return view, millimetres, degrees


Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class HandEye(PoseEstimate):
    """Result of a hand-eye calibration.

    Attributes:
        gripper_T_board: (4, 4) float64, metres: pose of the board on the gripper.
        pose_rms_px: (N,) residual of each input pose; NaN for one that was left out.
        kept: indices of the poses used.
    """

    gripper_T_board: Array = None  # type: ignore[assignment]
    pose_rms_px: Array = None  # type: ignore[assignment]
    kept: tuple[int, ...] = ()


class Corners:
    """All corners of all views as flat arrays."""

    def __init__(self, views: Sequence[BoardView], base_T_gripper: Array, board: Board, camera: PinholeCamera) -> None:
        self.camera = camera
        self.pose = np.repeat(np.arange(len(views)), [len(view.ids) for view in views])
        self.points = np.concatenate([board.points[view.ids] for view in views])
        self.uv = np.concatenate([view.uv for view in views])
        self.gripper = base_T_gripper
        self.use = np.ones(len(self.uv), np.bool_)

    def p_camera(self, base_T_camera: Array, gripper_T_board: Array, scale: float = 1.0) -> Array:
        """Transform the corners in use to the optical frame: (N, 3) metres."""
        camera_T_board = invert(base_T_camera) @ self.gripper @ gripper_T_board
        T = camera_T_board[self.pose[self.use]]
        return np.asarray((T[:, :3, :3] @ (scale * self.points[self.use])[..., None])[..., 0] + T[:, :3, 3])

    def residual(self, base_T_camera: Array, gripper_T_board: Array, scale: float = 1.0) -> Array:
        """Compute reprojection errors (N, 2), pixels."""
        return residual_px(self.camera, self.p_camera(base_T_camera, gripper_T_board, scale), self.uv[self.use])

    def jacobian(self, base_T_camera: Array, gripper_T_board: Array) -> Array:
        """Compute (2 N, 12) derivatives of the residual by small changes of both poses."""
        arm = self.gripper[self.pose[self.use]]
        p_board = self.points[self.use]
        p_camera = self.p_camera(base_T_camera, gripper_T_board)
        P = projection_jacobian(self.camera, p_camera)
        turn = base_T_camera[:3, :3].T
        hand = P @ turn @ arm[:, :3, :3]
        parts = [-P @ turn, P @ skew(p_camera), hand, -hand @ gripper_T_board[:3, :3] @ skew(p_board)]
        return np.asarray(np.concatenate(parts, axis=2).reshape(-1, 12))


def calibrate_hand_eye(
    views: Sequence[BoardView], base_T_gripper: ArrayLike, board: Board, camera: PinholeCamera
) -> HandEye:
    """Estimate the pose of a fixed camera from views of a board on the gripper.

    Args:
        views: of the board, one for each arm pose; at least 3, better 15.
        base_T_gripper: (N, 4, 4) metres: pose of the link that carries the board, in each view.
        board: fixed to that link at an unknown pose.
        camera: intrinsics; its pose is ignored.
    """
    arms = np.asarray(base_T_gripper, dtype=np.float64)
    if arms.shape != (len(views), 4, 4) or not np.isfinite(arms).all():
        raise CalibrationError(
            f"{len(views)} views and arm poses of shape {arms.shape}", expected="one finite 4 x 4 pose for each view"
        )
    spread = pose_spread(arms) if len(arms) else None
    early = series_findings(len(views), spread, board)
    Quality(poses=len(views), findings=sorted_findings(early)).require("the hand-eye calibration")
    camera_T_board = np.stack([find_board_pose(view, board, camera).camera_T_board for view in views])
    X = solve_ax_xb(arms, camera_T_board)
    Z = mean_pose(invert(arms) @ X @ camera_T_board)
    corners = Corners(views, arms, board, camera)
    X, Z = _fit(corners, X, Z, loss="soft_l1", scale_px=2.0)
    kept = _drop_outliers(corners, X, Z, len(views))
    X, Z = _fit(corners, X, Z)
    residual = corners.residual(X, Z)
    J = corners.jacobian(X, Z)
    covariance, dof = _covariance(J, residual.ravel(), np.repeat(corners.pose[corners.use], 2))
    rms = np.array([_rms(residual[corners.pose[corners.use] == i]) if i in kept else np.nan for i in range(len(views))])
    depth = corners.p_camera(X, Z)[:, 2]
    focal = float(np.sqrt(camera.K[0, 0] * camera.K[1, 1]))
    late = fit_findings(corners, X, Z, J, residual, kept, [view.name for view in views], board)
    quality = Quality(
        px=_rms(residual),
        mm=float(1e3 * np.sqrt((residual**2 * (depth / focal)[:, None] ** 2).sum(axis=1).mean())),
        poses=len(kept),
        spread=pose_spread(arms[list(kept)]),
        findings=sorted_findings([*early, *late]),
        views=tuple((view.name or f"view {i}", float(rms[i])) for i, view in enumerate(views)),
    )
    return HandEye(X, covariance[:6, :6], dof, quality, "hand-eye", "", Z, rms, kept)


def solve_ax_xb(base_T_gripper: Array, camera_T_board: Array) -> Array:
    """Solve for `base_T_camera` (4, 4) in closed form from N arm poses and board poses, using all pairs of motions.

    Arm and board rotate by the same angle about corresponding axes, which gives the rotation (Park and Martin); the
    position is then a linear problem.
    """
    i, j = np.triu_indices(len(base_T_gripper), 1)
    A = base_T_gripper[j] @ invert(base_T_gripper[i])
    B = camera_T_board[j] @ invert(camera_T_board[i])
    a, b = (Rotation.from_matrix(M[:, :3, :3]).as_rotvec() for M in (A, B))
    # Near 180 degrees a rotation vector may flip its sign; ignore those motions.
    good = (np.linalg.norm(a, axis=1) < 3.0) & (np.linalg.norm(b, axis=1) < 3.0)
    if good.sum() < 2:
        good[:] = True
    U, _, Vt = np.linalg.svd(a[good].T @ b[good])
    R = U @ np.diag([1.0, 1.0, np.linalg.det(U @ Vt)]) @ Vt
    left = (A[:, :3, :3] - np.eye(3)).reshape(-1, 3)
    right = (B[:, :3, 3] @ R.T - A[:, :3, 3]).ravel()
    t, *_ = np.linalg.lstsq(left, right, rcond=None)
    return make(R, t)


def _fit(corners: Corners, X: Array, Z: Array, loss: str = "linear", scale_px: float = 1.0) -> tuple[Array, Array]:
    def residual(x: Array) -> Array:
        return corners.residual(changed(X, x[:6]), changed(Z, x[6:])).ravel()

    def jacobian(x: Array) -> Array:
        return corners.jacobian(changed(X, x[:6]), changed(Z, x[6:]))

    # The Jacobian of the rotation is exact at zero; restarting from the solution makes it exact there.
    for _ in range(3):
        fit = least_squares(
            residual, np.zeros(12), jac=jacobian, loss=loss, f_scale=scale_px, x_scale=0.05, max_nfev=40
        )
        X, Z = changed(X, fit.x[:6]), changed(Z, fit.x[6:])
        if np.abs(fit.x).max() < 1e-6:
            break
    return X, Z


def _drop_outliers(corners: Corners, X: Array, Z: Array, poses: int) -> tuple[int, ...]:
    """Exclude poses and corners that do not fit; return the indices of the poses that remain."""
    length = np.linalg.norm(corners.residual(X, Z), axis=1)
    typical = np.array([np.median(length[corners.pose == i]) for i in range(poses)])
    limit = 4.0 * float(np.median(typical)) + 0.2
    kept = [i for i in range(poses) if typical[i] <= limit]
    if len(kept) < max(MIN_POSES, poses // 2):
        kept = list(range(poses))
    corners.use &= np.isin(corners.pose, kept)
    usual = float(np.median(length[corners.use]))
    corners.use &= length < 6.0 * usual + 0.2
    return tuple(kept)


def _covariance(J: Array, residual: Array, cluster: NDArray[np.int64]) -> tuple[Array, float]:
    """Estimate the covariance (12, 12) of the parameters, and its degrees of freedom.

    Errors of the arm move all corners of a view together, so the views, not the corners, are independent. If the
    scatter between views exceeds the corner noise, it gives the covariance; otherwise the corner noise does.
    """
    inverse = np.linalg.pinv(J.T @ J)
    freedom = len(residual) - J.shape[1]
    plain = inverse * float(residual @ residual) / freedom
    groups = np.unique(cluster)
    scores = np.stack([J[cluster == g].T @ residual[cluster == g] for g in groups])
    n = len(groups)
    between = inverse @ (scores.T @ scores) @ inverse * n / max(n - 2, 1)
    if float(np.trace(np.linalg.pinv(plain) @ between)) / len(plain) < 1.6:
        return plain, float(freedom)
    return between + plain, float(n - 2)


def _rms(residual: Array) -> float:
    return float(np.sqrt((residual**2).sum(axis=-1).mean())) if len(residual) else float("nan")
