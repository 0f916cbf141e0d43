"""Intrinsic calibration: focal length, principal point and lens distortion from views of a board.

views of a board ─> OpenCV bundle adjustment ─> drop views and corners that do not fit ─> repeat ─> result
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.calibration.boards import Board, BoardView
from kinema4d_ros.calibration.camera_files import CameraInfo
from kinema4d_ros.calibration.quality import Finding, Quality, finding, pose_spread, sorted_findings
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.distortion import MODELS
from kinema4d_ros.core.errors import CalibrationError

__all__ = ["COVERAGE_CELLS", "Intrinsics", "calibrate_intrinsics", "coverage"]

COVERAGE_CELLS = (8, 6)
"""Columns and rows of the coverage map."""

MIN_VIEWS = 4
GOOD_VIEWS, GOOD_TILT_DEG, GOOD_COVERAGE = 8, 15.0, 0.6
_ROUNDS = 8
_K3_SIGMAS = 3.0


@dataclass(frozen=True, eq=False)
class Intrinsics:
    """Result of an intrinsic calibration, with residuals and uncertainty.

    Attributes:
        camera: intrinsics, at the origin; `info()` converts it to a CameraInfo file.
        rms_px: root mean square reprojection error of the kept corners, pixels.
        view_rms_px: (N,) the same for each input view; NaN for a view that was left out.
        kept: indices of the views used.
        dropped: names of the views left out.
        corners_dropped: number of single corners left out of kept views.
        sigma: standard deviations of fx, fy, cx, cy and the distortion coefficients, in this order.
        camera_T_board: (N, 4, 4) for the input views, metres; NaN for a view that was left out.
        coverage: (6, 8) int64, used corners in each cell of the image.
        tilt_deg: (N,) angle between the board's normal and the optical axis.
        names: of the input views.
    """

    camera: PinholeCamera
    rms_px: float
    view_rms_px: NDArray[np.float64]
    kept: tuple[int, ...]
    dropped: tuple[str, ...]
    corners_dropped: int
    sigma: NDArray[np.float64]
    camera_T_board: NDArray[np.float64]
    coverage: NDArray[np.int64]
    tilt_deg: NDArray[np.float64]
    names: tuple[str, ...]

    @property
    def quality(self) -> Quality:
        """Residuals and findings for the quality gate."""
        found: list[Finding] = []
        tilt = float(np.nanmax(self.tilt_deg))
        filled = float((self.coverage > 0).mean())
        if len(self.kept) < GOOD_VIEWS:
            found.append(finding("too_few_poses", f"{len(self.kept)} views"))
        if tilt < GOOD_TILT_DEG:
            text = f"the board is tilted by {tilt:.0f} degrees at most"
            found.append(finding("flat_views", text, "error" if tilt < 5.0 else "warning"))
        if filled < GOOD_COVERAGE:
            found.append(finding("poor_coverage", f"{filled:.0%} of the image cells contain a corner"))
        if self.dropped:
            found.append(finding("views_dropped", ", ".join(self.dropped[:6])))
        if self.rms_px > 1.0:
            found.append(
                finding("poor_fit", f"residual {self.rms_px:.2f} px", "error" if self.rms_px > 3 else "warning")
            )
        if self.sigma[0] > 0.005 * self.camera.K[0, 0]:
            text = f"one sigma of the focal length is {100 * self.sigma[0] / self.camera.K[0, 0]:.1f} %"
            found.append(finding("wide_uncertainty", text))
        used = self.camera_T_board[list(self.kept)]
        focal = float(np.sqrt(self.camera.K[0, 0] * self.camera.K[1, 1]))
        return Quality(
            px=self.rms_px,
            mm=1e3 * self.rms_px * float(np.median(np.linalg.norm(used[:, :3, 3], axis=1))) / focal,
            poses=len(self.kept),
            spread=pose_spread(used),
            findings=sorted_findings(found),
            views=tuple(zip(self.names, map(float, self.view_rms_px), strict=True)),
        )

    def info(self, name: str = "camera") -> CameraInfo:
        """Return the CameraInfo to write with `write_camera_info`."""
        return CameraInfo.of(self.camera, name)


class _Fit(NamedTuple):
    K: NDArray[np.float64]
    coefficients: NDArray[np.float64]
    sigma: NDArray[np.float64]
    poses: list[NDArray[np.float64]]
    residuals: list[NDArray[np.float64]]


def calibrate_intrinsics(
    views: Sequence[BoardView],
    board: Board,
    width: int,
    height: int,
    *,
    distortion_model: str = "plumb_bob",
) -> Intrinsics:
    """Fit the camera to the views.

    Args:
        views: of one camera at one focus setting, at least four; ten to thirty with the board tilted are good.
        board: the board in the views. Its size in metres has no effect here.
        width, height: image size, pixels.
        distortion_model: "plumb_bob" or "rational_polynomial" (wide lenses, needs views into the corners).
    """
    if distortion_model not in MODELS:
        raise CalibrationError(f"unknown distortion model '{distortion_model}'", expected=f"one of {', '.join(MODELS)}")
    if len(views) < MIN_VIEWS:
        raise CalibrationError(
            f"{len(views)} views show the board (too_few_poses)",
            expected=f"at least {MIN_VIEWS}, better 15",
            hint="show the board tilted in all directions, near, far and in every corner of the image",
        )
    _require_different(views)
    kept = list(range(len(views)))
    corners = [np.ones(len(view.ids), np.bool_) for view in views]
    flags = _flags(distortion_model, fix_k3=False)
    for _ in range(_ROUNDS):
        fit = _fit(views, corners, kept, board, (width, height), flags)
        if _drop_peaks(fit.residuals, corners, kept):
            continue
        bad = _bad_views(fit.residuals)
        if bad and len(kept) - len(bad) >= MIN_VIEWS:
            kept = [index for slot, index in enumerate(kept) if slot not in bad]
            continue
        if not _drop_corners(fit.residuals, corners, kept):
            break
    if distortion_model == "plumb_bob" and abs(fit.coefficients[4]) < _K3_SIGMAS * fit.sigma[8]:
        # An insignificant sixth-order term would only distort the corners of the image.
        fit = _fit(views, corners, kept, board, (width, height), _flags(distortion_model, fix_k3=True))
    count = max(MODELS[distortion_model])
    camera = PinholeCamera.from_opencv(
        width,
        height,
        fit.K,
        distortion=tuple(fit.coefficients[:count].tolist()),
        distortion_model=distortion_model,
    )
    return _result(views, corners, kept, fit, camera, count)


def coverage(views: Sequence[BoardView], width: int, height: int) -> NDArray[np.int64]:
    """Count the corners of all views in each cell of the image: (6, 8) int64."""
    columns, rows = COVERAGE_CELLS
    uv = np.concatenate([view.uv for view in views]) if views else np.empty((0, 2))
    counts, _, _ = np.histogram2d(uv[:, 1], uv[:, 0], bins=(rows, columns), range=((0, height), (0, width)))
    return np.asarray(counts, np.int64)


def _flags(model: str, *, fix_k3: bool) -> int:
    flags = int(cv2.CALIB_RATIONAL_MODEL) if model == "rational_polynomial" else 0
    return flags | (int(cv2.CALIB_FIX_K3) if fix_k3 else 0)


def _fit(
    views: Sequence[BoardView],
    corners: list[NDArray[np.bool_]],
    kept: list[int],
    board: Board,
    size: tuple[int, int],
    flags: int,
) -> _Fit:
    objects = [board.points[views[i].ids[corners[i]]].astype(np.float32) for i in kept]
    images = [(views[i].uv[corners[i]] - 0.5).astype(np.float32) for i in kept]
    try:
        _, K, coefficients, turns, shifts, sigma, _, _ = cv2.calibrateCameraExtended(
            objects, [image[:, None] for image in images], size, np.eye(3), np.zeros(5), flags=flags
        )
    except cv2.error as error:
        raise CalibrationError(
            f"the views do not determine the camera: {str(error).split('error:')[-1].strip()[:160]}",
            expected="views of a flat board, tilted in different directions",
        ) from None
    poses, residuals = [], []
    for points, image, turn, shift in zip(objects, images, turns, shifts, strict=True):
        seen, _ = cv2.projectPoints(points, turn, shift, K, coefficients)
        residuals.append(np.asarray(image - seen.reshape(-1, 2), np.float64))
        pose = np.eye(4)
        pose[:3, :3], pose[:3, 3] = cv2.Rodrigues(turn)[0], np.ravel(shift)
        poses.append(pose)
    flat = np.ravel(coefficients)
    spread = np.ravel(sigma)
    return _Fit(K, flat, spread[: 4 + len(flat)], poses, residuals)


def _rms(residual: NDArray[np.float64]) -> float:
    return float(np.sqrt((residual**2).sum(axis=-1).mean()))


def _bad_views(residuals: list[NDArray[np.float64]]) -> set[int]:
    """Find views whose median residual is much larger than that of the others; at most a quarter of them per round."""
    typical = np.array([float(np.median(np.linalg.norm(r, axis=1))) for r in residuals])
    limit = 2.5 * float(np.median(typical)) + 0.05
    worst = np.argsort(-typical)[: max(1, len(typical) // 4)]
    return {int(i) for i in worst if typical[i] > limit}


def _drop_peaks(residuals: list[NDArray[np.float64]], corners: list[NDArray[np.bool_]], kept: list[int]) -> bool:
    """Drop the worst corner of a view if it is an outlier: it biases the pose and the residuals of its neighbours."""
    usual = float(np.median(np.concatenate([np.linalg.norm(r, axis=1) for r in residuals])))
    dropped = False
    for residual, index in zip(residuals, kept, strict=True):
        lengths = np.linalg.norm(residual, axis=1)
        worst = int(np.argmax(lengths))
        if lengths[worst] > 5 * usual + 0.05 and lengths[worst] > 4 * float(np.median(lengths)) and len(lengths) > 8:
            corners[index][np.flatnonzero(corners[index])[worst]] = False
            dropped = True
    return dropped


def _drop_corners(residuals: list[NDArray[np.float64]], corners: list[NDArray[np.bool_]], kept: list[int]) -> bool:
    lengths = np.concatenate([np.linalg.norm(r, axis=1) for r in residuals])
    limit = 4.5 * float(np.median(lengths)) / 1.18 + 0.05
    dropped = False
    for residual, index in zip(residuals, kept, strict=True):
        bad = np.linalg.norm(residual, axis=1) > limit
        if bad.any() and (~bad).sum() >= 6:
            corners[index][np.flatnonzero(corners[index])[bad]] = False
            dropped = True
    return dropped


def _require_different(views: Sequence[BoardView]) -> None:
    """Reject a series of identical views: a small residual would mean nothing."""
    moves = []
    for view in views[1:]:
        common, a, b = np.intersect1d(views[0].ids, view.ids, return_indices=True)
        if len(common):
            moves.append(float(np.linalg.norm(views[0].uv[a] - view.uv[b], axis=1).max()))
    if len(moves) == len(views) - 1 and max(moves) < 5.0:
        raise CalibrationError(
            f"the board moves by only {max(moves):.1f} px between all {len(views)} views (too_similar)",
            expected="the board tilted differently in each view",
        )


def _result(
    views: Sequence[BoardView],
    corners: list[NDArray[np.bool_]],
    kept: list[int],
    fit: _Fit,
    camera: PinholeCamera,
    count: int,
) -> Intrinsics:
    names = tuple(view.name or f"view {i}" for i, view in enumerate(views))
    view_rms = np.full(len(views), np.nan)
    poses = np.full((len(views), 4, 4), np.nan)
    view_rms[kept] = [_rms(r) for r in fit.residuals]
    poses[kept] = fit.poses
    used = [BoardView(views[i].ids[corners[i]], views[i].uv[corners[i]]) for i in kept]
    return Intrinsics(
        camera=camera,
        rms_px=_rms(np.concatenate(fit.residuals)),
        view_rms_px=view_rms,
        kept=tuple(kept),
        dropped=tuple(names[i] for i in range(len(views)) if i not in kept),
        corners_dropped=sum(int((~corners[i]).sum()) for i in kept),
        sigma=fit.sigma[: 4 + count],
        camera_T_board=poses,
        coverage=coverage(used, camera.width, camera.height),
        tilt_deg=np.degrees(np.arccos(np.clip(np.abs(poses[:, 2, 2]), 0, 1))),
        names=names,
    )
