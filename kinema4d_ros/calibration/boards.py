"""Calibration boards (ChArUco, chessboard, AprilTag): printing, detection, and pose from one view.

The board frame lies in the board: x to the right, y down, z into it, zero at the outer corner of the first
square (of the tag: its centre), metres. Image points follow the package's convention: pixel centres at
(u + 0.5, v + 0.5).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import cv2
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from kinema4d_ros.calibration.pose_estimate import changed
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import CalibrationError
from kinema4d_ros.core.transforms import apply

__all__ = ["Board", "BoardPose", "BoardView", "find_board_pose", "parse_board", "projection_jacobian", "residual_px"]

Kind = Literal["charuco", "chessboard", "apriltag"]
Gray = NDArray[np.uint8]

_KINDS = ("charuco", "chessboard", "apriltag")
_MIN_CORNERS = 6
"""Fewer corners than this do not constrain a pose and a lens."""

_SPELLING = (
    "charuco:COLSxROWS:SQUARE_M:MARKER_M[:DICTIONARY], chessboard:COLSxROWS:SQUARE_M or apriltag:ID:SIDE_M[:FAMILY]"
)


@dataclass(frozen=True, eq=False)
class BoardView:
    """Board corners detected in one image.

    Attributes:
        ids: (N,) int64, indices into `Board.points`.
        uv: (N, 2) float64, corner positions, pixels.
        name: image name, for messages.
    """

    ids: NDArray[np.int64]
    uv: NDArray[np.float64]
    name: str = ""


@dataclass(frozen=True)
class Board:
    """Geometry of a calibration board.

    Attributes:
        kind: "charuco", "chessboard" or "apriltag".
        columns, rows: squares (not inner corners) across and down; 1 x 1 for a tag.
        square_m: side of a square, or of the tag's black frame, metres.
        marker_m: side of a ChArUco marker, metres.
        dictionary: marker dictionary, OpenCV's name without "DICT_".
        tag_id: id of the AprilTag.
    """

    kind: Kind
    columns: int
    rows: int
    square_m: float
    marker_m: float = 0.0
    dictionary: str = "4X4_50"
    tag_id: int = 0

    def __post_init__(self) -> None:
        """Reject boards that cannot be printed."""
        if self.kind not in _KINDS:
            raise _refuse(f"kind is {self.kind!r}", f"one of {', '.join(_KINDS)}")
        if not (np.isfinite(self.square_m) and 1e-3 <= self.square_m <= 2.0):
            raise _refuse(f"a square is {self.square_m} m", "0.001 to 2 m", "give sizes in metres")
        if self.kind != "apriltag" and not (3 <= self.columns <= 64 and 3 <= self.rows <= 64):
            raise _refuse(f"it has {self.columns} x {self.rows} squares", "3 to 64 each way")
        if self.kind == "charuco" and not 0.3 * self.square_m <= self.marker_m < self.square_m:
            raise _refuse(
                f"a marker is {self.marker_m} m in a square of {self.square_m} m", "a marker smaller than its square"
            )
        if self.kind != "chessboard":
            bits = _dictionary(self.dictionary)
            needed = self.columns * self.rows // 2 if self.kind == "charuco" else self.tag_id + 1
            if not 0 < needed <= len(bits.bytesList):
                raise _refuse(
                    f"dictionary {self.dictionary} has {len(bits.bytesList)} markers, the board needs {needed}",
                    "a larger dictionary, such as 5X5_100",
                )

    @cached_property
    def points(self) -> NDArray[np.float64]:
        """Corners (N, 3) float64, metres, board frame: inner corners row by row, or the tag's corners clockwise."""
        if self.kind == "apriltag":
            half = self.square_m / 2
            return np.array([[-half, -half, 0], [half, -half, 0], [half, half, 0], [-half, half, 0]])
        x, y = np.meshgrid(np.arange(1, self.columns), np.arange(1, self.rows))
        grid = np.stack([x.ravel(), y.ravel(), np.zeros(x.size)], axis=1)
        return np.asarray(grid * self.square_m)

    @property
    def symmetric(self) -> bool:
        """True if the board looks the same after a rotation by 180 degrees, so that a view has two poses."""
        return self.kind == "chessboard" and (self.columns + self.rows) % 2 == 0

    @property
    def text(self) -> str:
        """The board as one line of text, as read by `parse_board`."""
        if self.kind == "apriltag":
            return f"apriltag:{self.tag_id}:{self.square_m:g}:{self.dictionary}"
        size = f"{self.kind}:{self.columns}x{self.rows}:{self.square_m:g}"
        return size if self.kind == "chessboard" else f"{size}:{self.marker_m:g}:{self.dictionary}"

    def picture(self, pixels_per_square: int = 80) -> Gray:
        """Draw the board for printing: (rows * p, columns * p) uint8; a tag gets a white rim of a quarter side."""
        p = pixels_per_square
        if p < 8:
            raise _refuse(f"{p} pixels per square", "8 or more")
        if self.kind == "chessboard":
            y, x = np.indices((self.rows, self.columns))
            squares = np.where((x + y) % 2 == 0, 0, 255).astype(np.uint8)
            return np.kron(squares, np.ones((p, p), np.uint8))
        if self.kind == "charuco":
            return _draw_charuco(self._charuco, (self.columns * p, self.rows * p))
        tag = _draw_marker(_dictionary(self.dictionary), self.tag_id, p)
        return np.pad(tag, p // 4, constant_values=255)

    @property
    def picture_area(self) -> tuple[float, float, float, float]:
        """Bounds of `picture` in the board frame: left, top, right, bottom, metres."""
        if self.kind == "apriltag":
            half = 0.75 * self.square_m
            return -half, -half, half, half
        return 0.0, 0.0, self.columns * self.square_m, self.rows * self.square_m

    def find(self, image: NDArray[np.uint8], name: str = "the image") -> BoardView:
        """Find the board in an image (H, W[, 3]) uint8.

        Raises:
            CalibrationError: the board is mirrored or was not found; the message lists the markers found instead.
        """
        gray = _gray(image, name)
        view = self._find(gray, name)
        if view is not None:
            return view
        if self.kind != "chessboard" and self._find(gray[:, ::-1], name) is not None:
            raise CalibrationError(
                f"{name} shows the board mirrored (mirrored_board)",
                expected="an unmirrored image of an unmirrored board",
                hint="disable mirroring in the camera driver, or print the board again",
            )
        raise CalibrationError(
            f"{name} shows no {self.text} (no_board){self._other_markers(gray)}",
            expected="most of the board in view, sharp, well lit and larger than a tenth of the image",
            hint="check the board size: count squares, not inner corners",
        )

    def _find(self, gray: Gray, name: str) -> BoardView | None:
        gray = np.ascontiguousarray(gray)
        if self.kind == "charuco":
            return self._find_charuco(gray, name)
        if self.kind == "apriltag":
            return self._find_tag(gray, name)
        return self._find_chessboard(gray, name)

    @cached_property
    def _charuco(self) -> Any:
        size, lengths = (self.columns, self.rows), (self.square_m, self.marker_m)
        if _NEW_ARUCO:
            return cv2.aruco.CharucoBoard(size, *lengths, _dictionary(self.dictionary))
        return cv2.aruco.CharucoBoard_create(*size, *lengths, _dictionary(self.dictionary))  # type: ignore[attr-defined]

    def _find_charuco(self, gray: Gray, name: str) -> BoardView | None:
        corners, ids = _detect_charuco(gray, self._charuco, _dictionary(self.dictionary))
        if ids is None or len(ids) < _MIN_CORNERS:
            return None
        ids = np.asarray(ids, np.int64).reshape(-1)
        uv = np.asarray(corners, np.float64).reshape(-1, 2)
        # Corners of a single row are collinear and do not determine a pose.
        if np.linalg.matrix_rank(self.points[ids, :2] - self.points[ids[0], :2], tol=1e-9) < 2:
            return None
        return BoardView(ids, _refined(gray, uv, 0.45 * (1 - self.marker_m / self.square_m)) + 0.5, name)

    def _find_chessboard(self, gray: Gray, name: str) -> BoardView | None:
        size = (self.columns - 1, self.rows - 1)
        found, corners = cv2.findChessboardCorners(
            gray, size, flags=cv2.CALIB_CB_ADAPTIVE_THRESH | cv2.CALIB_CB_NORMALIZE_IMAGE
        )
        if not found:
            return None
        uv = _refined(gray, np.asarray(corners, np.float64).reshape(-1, 2), 0.3)
        if not self.symmetric and not self._starts_black(gray, uv):
            uv = uv[::-1]
        return BoardView(np.arange(len(uv), dtype=np.int64), uv + 0.5, name)

    def _starts_black(self, gray: Gray, uv: NDArray[np.float64]) -> bool:
        """Check that the square before the first corner is darker than the one after the last."""
        H, _ = cv2.findHomography(self.points[:, :2], uv)
        ends = np.array([[0.5, 0.5], [self.columns - 0.5, self.rows - 0.5]]) * self.square_m
        (x0, y0), (x1, y1) = cv2.perspectiveTransform(ends[None], H)[0]
        first, last = (
            float(cv2.getRectSubPix(gray, (3, 3), (float(x), float(y))).mean()) for x, y in ((x0, y0), (x1, y1))
        )
        return first < last

    def _find_tag(self, gray: Gray, name: str) -> BoardView | None:
        corners, ids = _detect_markers(gray, _dictionary(self.dictionary), refine=True)
        for tag, quad in zip([] if ids is None else np.ravel(ids), corners, strict=False):
            if int(tag) == self.tag_id:
                return BoardView(np.arange(4), np.asarray(quad, np.float64).reshape(4, 2) + 0.5, name)
        return None

    def _other_markers(self, gray: Gray) -> str:
        if self.kind == "chessboard":
            return ""
        ids = _detect_markers(gray, _dictionary(self.dictionary))[1]
        return "" if ids is None else f", but markers {sorted(np.ravel(ids).tolist())[:20]}"


def parse_board(text: str) -> Board:
    """Parse a board from one line of text.

    >>> parse_board("charuco:7x5:0.03:0.022").points.shape
    (24, 3)
    """
    kind, _, rest = text.partition(":")
    parts = rest.split(":")
    try:
        if kind == "apriltag" and len(parts) in (2, 3):
            family = parts[2] if len(parts) == 3 else "APRILTAG_36h11"
            return Board("apriltag", 1, 1, float(parts[1]), dictionary=family, tag_id=int(parts[0]))
        columns, rows = (int(side) for side in parts[0].lower().split("x"))
        if kind == "chessboard" and len(parts) == 2:
            return Board("chessboard", columns, rows, float(parts[1]))
        if kind == "charuco" and len(parts) in (3, 4):
            name = parts[3] if len(parts) == 4 else "4X4_50"
            return Board("charuco", columns, rows, float(parts[1]), float(parts[2]), name)
    except ValueError:
        pass
    raise CalibrationError(f"'{text}' is not a valid board", expected=_SPELLING)


# OpenCV 4.6, which Ubuntu 24.04 ships, has the functions that 4.7 replaced by classes.

_NEW_ARUCO = hasattr(cv2.aruco, "ArucoDetector")


def _draw_charuco(board: Any, size: tuple[int, int]) -> Gray:
    return np.asarray(board.generateImage(size) if _NEW_ARUCO else board.draw(size), np.uint8)


def _draw_marker(dictionary: Any, number: int, pixels: int) -> Gray:
    draw = cv2.aruco.generateImageMarker if _NEW_ARUCO else cv2.aruco.drawMarker  # type: ignore[attr-defined]
    return np.asarray(draw(dictionary, number, pixels), np.uint8)


def _detect_markers(gray: Gray, dictionary: Any, *, refine: bool = False) -> tuple[Any, Any]:
    """Return the corners of the markers found and their ids (None = none found)."""
    parameters: Any = (
        cv2.aruco.DetectorParameters() if _NEW_ARUCO else cv2.aruco.DetectorParameters_create()  # type: ignore[attr-defined]
    )
    if refine:
        parameters.cornerRefinementMethod = cv2.aruco.CORNER_REFINE_SUBPIX
    if _NEW_ARUCO:
        corners, ids, _ = cv2.aruco.ArucoDetector(dictionary, parameters).detectMarkers(gray)
    else:
        corners, ids, _ = cv2.aruco.detectMarkers(gray, dictionary, parameters=parameters)  # type: ignore[attr-defined]
    return corners, ids


def _detect_charuco(gray: Gray, board: Any, dictionary: Any) -> tuple[Any, Any]:
    """Return the inner corners found and their ids (None = none found)."""
    if _NEW_ARUCO:
        corners, ids = cv2.aruco.CharucoDetector(board).detectBoard(gray)[:2]
        return corners, ids
    markers, numbers = _detect_markers(gray, dictionary)
    if numbers is None:
        return None, None
    _, corners, ids = cv2.aruco.interpolateCornersCharuco(markers, numbers, gray, board)  # type: ignore[attr-defined]
    return corners, ids


def _dictionary(name: str) -> Any:
    number = getattr(cv2.aruco, f"DICT_{name}", None)
    if not isinstance(number, int):
        known = sorted(n[5:] for n in dir(cv2.aruco) if n.startswith("DICT_"))
        raise _refuse(f"dictionary '{name}' is unknown", f"one of {', '.join(known)}")
    return cv2.aruco.getPredefinedDictionary(number)


def _refuse(why: str, expected: str, hint: str = "") -> CalibrationError:
    return CalibrationError(f"invalid board: {why}", expected=expected, hint=hint)


def _gray(image: NDArray[np.uint8], name: str) -> Gray:
    if image.dtype != np.uint8 or image.ndim not in (2, 3) or 0 in image.shape:
        raise CalibrationError(
            f"{name} is {image.dtype} of shape {image.shape}", expected="uint8 of shape (H, W) or (H, W, 3)"
        )
    return image if image.ndim == 2 else np.asarray(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), np.uint8)


def _refined(gray: Gray, uv: NDArray[np.float64], share: float) -> NDArray[np.float64]:
    """Refine corners to a few hundredths of a pixel.

    The search window is a fraction (`share`) of a square, so that markers and neighbouring corners are excluded.
    """
    distances = np.linalg.norm(uv[:, None] - uv[None], axis=-1) + 1e9 * np.eye(len(uv))
    reach = int(np.clip(share * distances.min(), 2, 11))
    criteria = (cv2.TERM_CRITERIA_EPS + cv2.TERM_CRITERIA_MAX_ITER, 60, 1e-4)
    corners = cv2.cornerSubPix(gray, uv.astype(np.float32).reshape(-1, 1, 2), (reach, reach), (-1, -1), criteria)
    return np.asarray(corners, np.float64).reshape(-1, 2)


# Board pose from one view: closed form, then least squares on the reprojection error.

_STEP = 1e-6
BEHIND_PX = 1e3
"""Residual used for a point that the camera cannot see."""


@dataclass(frozen=True, eq=False)
class BoardPose:
    """Pose of a board and the alternative pose of a planar target.

    Attributes:
        camera_T_board: (4, 4) float64, metres.
        rms_px: residual, pixels.
        rival: (4, 4) second solution of the planar pose problem, or None.
        rival_rms_px: residual of the second solution, pixels; infinite without one.
    """

    camera_T_board: NDArray[np.float64]
    rms_px: float
    rival: NDArray[np.float64] | None
    rival_rms_px: float

    @property
    def ambiguous(self) -> bool:
        """True if the second solution fits nearly as well, so that noise decides between the two."""
        return self.rival_rms_px < 1.5 * self.rms_px + 0.05


def residual_px(camera: PinholeCamera, p_camera: NDArray[np.float64], uv: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compute (..., 2) projected minus observed, pixels; `BEHIND_PX` for points that the camera cannot see."""
    return np.nan_to_num(camera.project(p_camera) - uv, nan=BEHIND_PX)


def projection_jacobian(camera: PinholeCamera, p_camera: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compute (N, 2, 3) derivatives of image points by 3D points, pixels per metre; 0 where not visible."""
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
    """Estimate the pose of the board in one view; the pose of `camera` is not used."""
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
        raise CalibrationError(
            f"no board pose was found in {view.name or 'the view'}", expected="corners that are not collinear"
        )
    (best, rms), *rest = found
    # Both starts may converge to the same pose; then there is no second solution.
    rivals = [(T, r) for T, r in rest if np.linalg.norm(T[:3, :3] - best[:3, :3]) > 0.02]
    return BoardPose(best, rms, *(rivals[0] if rivals else (None, float("inf"))))


def skew(p: NDArray[np.float64]) -> NDArray[np.float64]:
    """Build (N, 3, 3) cross-product matrices of p (N, 3)."""
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
        # Rotations are about the board's axes: exact at x = 0, accurate enough near it.
        return np.concatenate([P, -P @ pose[:3, :3] @ skew(points)], axis=2).reshape(-1, 6)

    fit = least_squares(residual, np.zeros(6), jac=jacobian, x_scale=0.05, max_nfev=40)
    return changed(start, fit.x), float(np.sqrt(2 * (fit.fun**2).mean()))
