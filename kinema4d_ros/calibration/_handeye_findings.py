"""What is wrong with a hand-eye series: too few, too similar, parallel axes, wrong board size, moved camera."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.calibration.boards import Board
from kinema4d_ros.calibration.quality import Finding, PoseSpread, finding

if TYPE_CHECKING:
    from kinema4d_ros.calibration.handeye import Corners

__all__ = ["fit_findings", "series_findings"]

Array = NDArray[np.float64]

MIN_POSES, GOOD_POSES = 3, 8
MIN_TURN_DEG, GOOD_TURN_DEG = 5.0, 30.0
MIN_SECOND_DEG, GOOD_SECOND_DEG = 3.0, 10.0
GOOD_PX, WORST_PX = 1.0, 4.0
SCALE_STEP = 1e-5


def series_findings(count: int, spread: PoseSpread | None, board: Board) -> list[Finding]:
    """What can be said before any fit."""
    found = []
    if count < GOOD_POSES or spread is None:
        severity = "error" if count < MIN_POSES else "warning"
        found.append(finding("too_few_poses", f"{count} poses", severity))  # type: ignore[arg-type]
    if spread is not None and count >= MIN_POSES:
        if spread.rotation_deg < GOOD_TURN_DEG:
            text = f"the gripper turns by {spread.rotation_deg:.1f} degrees in all"
            found.append(finding("too_similar", text, "error" if spread.rotation_deg < MIN_TURN_DEG else "warning"))
        if spread.second_axis_deg < GOOD_SECOND_DEG and spread.rotation_deg >= MIN_TURN_DEG:
            text = f"the gripper turns by {spread.second_axis_deg:.1f} degrees across its main axis"
            worst = spread.second_axis_deg < MIN_SECOND_DEG
            found.append(finding("parallel_axes", text, "error" if worst else "warning"))
    if board.symmetric:
        text = f"{board.text} looks the same after half a turn, so its poses cannot be told apart"
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
    """What the fit itself shows."""
    found = []
    rms = float(np.sqrt((residual**2).sum(axis=1).mean()))
    out = [i for i in range(len(names)) if i not in kept]
    left_out = [names[i] or f"view {i}" for i in out]
    if len(out) >= 2 and (out == list(range(len(out))) or out[-1] - out[0] + 1 == len(out) == len(names) - out[0]):
        # Single bad views come anywhere; a whole end of the series comes from a jump.
        found.append(finding("moved_camera", f"{', '.join(left_out[:6])} do not fit the others", "error"))
    elif left_out:
        found.append(finding("views_dropped", f"{', '.join(left_out[:6])} did not fit"))
    scale, sigma = _board_scale(corners, X, Z, J, residual)
    if abs(scale - 1) > max(0.004, 5 * sigma):
        stated = 1e3 * board.square_m
        text = f"the arm's motion says that a square is {stated * scale:.2f} mm, not {stated:g}"
        found.append(finding("wrong_board_size", text, "error"))
    moved = _moved(corners, J, residual, kept)
    if moved is not None:
        view, millimetres, degrees = moved
        text = (
            f"from {names[view] or f'view {view}'} on the camera is {millimetres:.1f} mm / {degrees:.2f} degrees away"
        )
        found.append(finding("moved_camera", text, "error"))
    if rms > GOOD_PX:
        found.append(finding("poor_fit", f"residual {rms:.2f} px", "error" if rms > WORST_PX else "warning"))
    return found


def _board_scale(corners: Corners, X: Array, Z: Array, J: Array, residual: Array) -> tuple[float, float]:
    """Size of the board over its stated size, and its standard deviation: one Gauss-Newton step with it free."""
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
    """The first view after a jump of the camera, and how far it went; None if it stood still.

    For every place where the series may be cut, the camera gets a pose of its own after the cut. A jump explains most
    of the residual; noise does not.
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
