"""Camera pose from image edges, without masks: fit the rendered outline of the robot to the image.

rendered outline ─> intensity along its normals ─> nearest strong edge ─> robust Gauss-Newton ─> pose, covariance
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import ArrayLike, NDArray

from kinema4d_ros.calibration.pose_estimate import changed
from kinema4d_ros.calibration.silhouette import image_motion, signed_distance
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import CalibrationError
from kinema4d_ros.kinematics.forward import forward_all
from kinema4d_ros.render import Scene, render_poses
from kinema4d_ros.robot.model import Robot

__all__ = [
    "EdgeFit", "EdgeMatch", "fit_edges", "mask_edge_offsets", "match_edges", "outline_pixels", "outline_way",
]  # fmt: skip

Array = NDArray[np.float64]
Image = NDArray[np.uint8]

STEP_PX = 0.5
STRONG = 0.5
"""Smallest strength of an edge, relative to the strongest one on its normal; the nearest such edge is used."""

FAINT = 6.0
"""Edges weaker than this, in 8-bit steps over two pixels, are ignored as noise."""

CELLS = 30
"""Cells across the image width. Errors of outline pixels in one cell are correlated (same shadow, same mesh surface),
also between images: a part that does not move counts once."""

BIAS_PX = 0.15
"""Systematic error of a cell: shading, rounding, differences between mesh and arm."""

FINE_PX = 6.0
NEAR = (16.0, FINE_PX, FINE_PX, FINE_PX, FINE_PX, FINE_PX)
FAR = (16.0, 16.0, 12.0, 8.0)
"""Search distance in each step, pixels; the fine steps stop early on convergence."""

FOUND, ON_EDGE_PX = 0.6, 1.5
"""The robot counts as found if at least this fraction of its outline is within this distance of an edge."""

DONE_PX = 0.05
PRIOR = np.diag([1 / 0.03**2] * 3 + [1 / np.radians(3.0) ** 2] * 3)
"""Prior of one step, a few centimetres and degrees: directions not constrained by the image stay unchanged."""

_RIM_PX = 4
_AROUND_PX = 16
_MIN_POINTS = 40
_MIN_CELLS = 10


class EdgeMatch(NamedTuple):
    """Outline pixels of the robot rendered at one pose, and the image edges found near them.

    Attributes:
        offset_px: (N,) distance to the image edge, positive outward along the normal; NaN = no edge found.
        J: (N, 6) derivative of the outline along its normal by the camera pose, pixels.
        cell: (N,) int64, cell of each pixel; errors within one cell are correlated.
        p_camera: (N, 3) surface point at each pixel, camera frame, metres.
        pixels: rows (N,) and columns (N,) of the outline, image after image.
    """

    offset_px: Array
    J: Array
    cell: NDArray[np.int64]
    p_camera: Array
    pixels: tuple[NDArray[np.int64], NDArray[np.int64]]

    def support(self, near_px: float = ON_EDGE_PX) -> float:
        """Compute the fraction of the outline that has an edge within this distance."""
        near = np.abs(self.offset_px) < near_px
        return float(near.mean()) if len(near) else 0.0


class EdgeFit(NamedTuple):
    """Camera pose that best explains the image edges.

    Attributes:
        base_T_camera: (4, 4), metres.
        covariance: (6, 6) of a small change of the pose.
        freedom: degrees of freedom: independent pieces of outline minus the six parameters.
        rms_px: weighted root mean square of the offsets, pixels.
        before, after: `support` of the outline at the initial pose and at this one.
        seen_px: root mean square displacement of the outline between the two poses, pixels.
        seen_mm: the same at the robot's distance, millimetres.
        p_camera: (N, 3) outline at the initial pose, camera frame, metres.
    """

    base_T_camera: Array
    covariance: Array
    freedom: float
    rms_px: float
    before: float
    after: float
    seen_px: float
    seen_mm: float
    p_camera: Array


def match_edges(robot: Robot, q: ArrayLike, image: Image, camera: PinholeCamera, reach_px: float) -> EdgeMatch:
    """Render the robot, and search for image edges on both sides of its outline.

    Args:
        robot: with visual shapes.
        q: (J,) joint positions, or (C, J) for several images.
        image: (H, W, 3) uint8 without lens distortion, or (C, H, W, 3).
        camera: rectified, with its pose.
        reach_px: search distance, pixels.
    """
    positions, pictures = _series(q, image, camera)
    return _match(robot, positions, [_smooth(picture) for picture in pictures], camera, reach_px)


def _series(q: ArrayLike, image: Image, camera: PinholeCamera) -> tuple[Array, Image]:
    """Return joint positions (C, J) and images (C, H, W, 3), also for a single image."""
    positions = np.atleast_2d(np.asarray(q, dtype=np.float64))
    pictures = image[None] if image.ndim == 3 else image
    if pictures.shape[1:] != (camera.height, camera.width, 3) or camera.has_distortion:
        raise CalibrationError(
            f"the image has shape {image.shape}", expected="rectified images of the size of a rectified camera"
        )
    if len(positions) != len(pictures):
        raise CalibrationError(
            f"{len(positions)} joint configurations and {len(pictures)} images",
            expected="one joint configuration for each image",
        )
    return positions, pictures


def _smooth(image: Image) -> NDArray[np.float32]:
    return np.asarray(cv2.GaussianBlur(image, (0, 0), 1.0), np.float32)


def _match(
    robot: Robot, q: Array, smooth: Sequence[NDArray[np.float32]], camera: PinholeCamera, reach_px: float
) -> EdgeMatch:
    drawn = render_poses(Scene.from_robot(robot), forward_all(robot, q), camera, threads=1)
    found = [
        _match_one(mask, xyz, picture, camera, reach_px)
        for mask, xyz, picture in zip(drawn.mask, drawn.xyz, smooth, strict=True)
    ]
    offset, J, cell, p = (np.concatenate([getattr(one, name) for one in found]) for name in EdgeMatch._fields[:4])
    row, column = (np.concatenate([one.pixels[axis] for one in found]) for axis in (0, 1))
    return EdgeMatch(offset, J, cell, p, (row, column))


def _match_one(
    mask: NDArray[np.bool_],
    xyz: NDArray[np.float32],
    smooth: NDArray[np.float32],
    camera: PinholeCamera,
    reach_px: float,
) -> EdgeMatch:
    row, column = outline_pixels(mask)
    if len(row) == 0:
        nothing = np.empty(0)
        return EdgeMatch(nothing, np.empty((0, 6)), np.empty(0, np.int64), np.empty((0, 3)), (row, column))
    n = _normals(mask, row, column)
    offset = _edges_along(smooth, np.stack([column, row], axis=1), n, reach_px)
    p = xyz[row, column].astype(np.float64)
    J = np.einsum("nk,nkj->nj", n, image_motion(camera, camera.base_T_camera, p))
    cell = max(2, round(camera.width / CELLS))
    return EdgeMatch(offset, J, 4096 * (row // cell) + column // cell, p, (row, column))


def outline_pixels(mask: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Find rows and columns of the pixels inside a mask (H, W) along its outline, except at the image border."""
    inner = cv2.erode(mask.astype(np.uint8), cv2.getStructuringElement(cv2.MORPH_CROSS, (3, 3)), borderValue=1) > 0
    rim = mask & ~inner
    rim[:_RIM_PX], rim[-_RIM_PX:], rim[:, :_RIM_PX], rim[:, -_RIM_PX:] = False, False, False, False
    row, column = np.nonzero(rim)
    return row, column


def _normals(mask: NDArray[np.bool_], row: NDArray[np.int64], column: NDArray[np.int64]) -> Array:
    """Compute (N, 2) outward unit normals (column, row) of a mask's outline pixels."""
    # Crop to the surroundings of the robot for speed.
    top, left = max(0, int(row.min()) - _AROUND_PX), max(0, int(column.min()) - _AROUND_PX)
    part = mask[top : int(row.max()) + _AROUND_PX, left : int(column.max()) + _AROUND_PX]
    down, right = np.gradient(cv2.GaussianBlur(signed_distance(part), (0, 0), 1.5))
    at = (row - top, column - left)
    n = np.stack([right[at], down[at]], axis=1).astype(np.float64)
    return np.asarray(n / np.maximum(np.linalg.norm(n, axis=1, keepdims=True), 1e-9))


def mask_edge_offsets(mask: NDArray[np.bool_], image: Image, reach_px: float) -> Array:
    """Measure (N,) signed distances from a mask's `outline_pixels` to the nearest strong image edge; NaN = none."""
    row, column = outline_pixels(mask)
    if len(row) == 0:
        return np.empty(0)
    return _edges_along(_smooth(image), np.stack([column, row], axis=1), _normals(mask, row, column), reach_px)


def _edges_along(smooth: NDArray[np.float32], at: NDArray[np.int64], n: Array, reach_px: float) -> Array:
    """Measure (N,) signed distances along normals from the outline to the nearest strong edge; NaN = none."""
    # The outline is half a pixel outside the centre of the last robot pixel.
    s = np.arange(-reach_px - 1.0, reach_px + 1.0 + STEP_PX / 2, STEP_PX)
    where = (at[:, None] + (s[None, :, None] + 0.5) * n[:, None]).astype(np.float32)
    profile = cv2.remap(smooth, where[..., 0], where[..., 1], cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
    width = round(1.0 / STEP_PX)
    strength = np.linalg.norm(profile[:, 2 * width :] - profile[:, : -2 * width], axis=2)
    s = s[width:-width]
    peak = np.zeros(strength.shape, np.bool_)
    peak[:, 1:-1] = (strength[:, 1:-1] >= strength[:, :-2]) & (strength[:, 1:-1] > strength[:, 2:])
    peak &= strength > np.maximum(FAINT, STRONG * strength.max(axis=1, keepdims=True))
    far = np.where(peak, np.abs(s), np.inf)
    best = np.argmin(far, axis=1)
    rows = np.arange(len(best))
    found = np.isfinite(far[rows, best])
    inside = np.clip(best, 1, strength.shape[1] - 2)
    left, middle, right = (strength[rows, inside + k].astype(np.float64) for k in (-1, 0, 1))
    bend = left - 2 * middle + right
    sub = np.where(np.abs(bend) > 1e-6, 0.5 * (left - right) / np.where(np.abs(bend) > 1e-6, bend, 1.0), 0.0)
    return np.where(found, s[best] + STEP_PX * np.clip(sub, -1, 1), np.nan)


def fit_edges(
    robot: Robot, q: ArrayLike, image: Image, camera: PinholeCamera, *, near_px: float = ON_EDGE_PX
) -> EdgeFit | None:
    """Fit the camera pose, from an initial pose, so that the outline lies on image edges.

    Args:
        robot: with visual shapes.
        q: (J,) joint positions, or (C, J) for several images.
        image: (H, W, 3) uint8, without lens distortion, or (C, H, W, 3).
        camera: rectified, with the initial pose.
        near_px: distance at which outline and edge match; larger where model and image are known to differ.

    Returns:
        The fit; None if there are too few edges.
    """
    positions, pictures = _series(q, image, camera)
    whole = [_smooth(picture) for picture in pictures]
    first = _match(robot, positions, whole, camera, FINE_PX)
    tried = _descend(robot, positions, whole, camera, NEAR)
    last = first if tried is None else _match(robot, positions, whole, camera.posed(tried), FINE_PX)
    if tried is None or last.support(near_px) < FOUND:
        # Large offset: use downscaled images, in which the same search distance covers more.
        pose = camera.base_T_camera
        for share in (0.25, 0.5):
            width, height = round(share * camera.width), round(share * camera.height)
            small = [_smooth(_shrunk(picture, width, height)) for picture in pictures]
            found = _descend(robot, positions, small, camera.scaled(width, height).posed(pose), FAR)
            pose = pose if found is None else found
        again = _descend(robot, positions, whole, camera.posed(pose), NEAR)
        if again is not None:
            match = _match(robot, positions, whole, camera.posed(again), FINE_PX)
            # The downscaled fit may be wrong: keep the better of the two.
            if tried is None or match.support(near_px) > last.support(near_px):
                tried, last = again, match
        if tried is None:
            return None
    measured = _solve(last, FINE_PX)
    if measured is None:
        return None
    px, mm = outline_way(camera, first.p_camera, tried)
    return EdgeFit(tried, *measured[1:], first.support(near_px), last.support(near_px), px, mm, first.p_camera)


def _shrunk(image: Image, width: int, height: int) -> Image:
    return np.asarray(cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA), np.uint8)


def outline_way(camera: PinholeCamera, p_camera: Array, base_T_camera: Array) -> tuple[float, float]:
    """Compute the displacement of the robot in the image between two camera poses: RMS pixels, millimetres.

    Args:
        camera: rectified, with the first pose.
        p_camera: (N, 3) points on the robot in the first camera frame, metres; without any, both results are NaN.
        base_T_camera: (4, 4) second pose, metres.
    """
    if len(p_camera) == 0:
        return float("nan"), float("nan")
    other = camera.posed(base_T_camera).camera_T_base @ camera.base_T_camera
    way = camera.project(p_camera @ other[:3, :3].T + other[:3, 3]) - camera.project(p_camera)
    px = float(np.sqrt(np.nanmean(np.sum(way**2, axis=1))))
    return px, 1e3 * px * float(np.median(p_camera[:, 2])) / float(camera.K[0, 0])


def _descend(
    robot: Robot, q: Array, smooth: Sequence[NDArray[np.float32]], camera: PinholeCamera, reaches_px: Sequence[float]
) -> Array | None:
    pose = camera.base_T_camera
    for reach in reaches_px:
        solved = _solve(_match(robot, q, smooth, camera.posed(pose), reach), reach)
        if solved is None:
            return None
        change = solved[0]
        shift_m, turn_rad = (float(np.linalg.norm(part)) + 1e-12 for part in (change[:3], change[3:]))
        change *= min(1.0, 0.05 / shift_m, 0.06 / turn_rad)
        pose = changed(pose, change)
        if camera.K[0, 0] * float(np.abs(change).max()) < DONE_PX and reach == reaches_px[-1]:
            break
    return pose


def _solve(match: EdgeMatch, reach_px: float) -> tuple[Array, Array, float, float] | None:
    """Solve one robust step: change (6,), covariance (6, 6), degrees of freedom, root mean square offset.

    None if there are too few edge points or cells.
    """
    found = np.isfinite(match.offset_px)
    if np.count_nonzero(found) < _MIN_POINTS:
        return None
    r, J, cell = match.offset_px[found], match.J[found], match.cell[found]
    # A camera move shifts all offsets together, so measure the scatter around the median, not around zero.
    sigma = max(1.48 * float(np.median(np.abs(r - np.median(r)))), 0.4)
    cut = min(max(4.0 * sigma, 2.0), reach_px)
    change: Array = np.zeros(6)
    weight = np.ones(len(r))
    for _ in range(8):
        left = r - J @ change
        weight = np.where(np.abs(left) < cut, (1 - (left / cut) ** 2) ** 2, 0.0)
        A = J.T @ (weight[:, None] * J) + sigma**2 * PRIOR
        change = np.asarray(np.linalg.solve(A, J.T @ (weight * r)), np.float64)
    left = r - J @ change
    inverse = np.linalg.inv(A)
    _, piece = np.unique(cell, return_inverse=True)
    groups = int(piece.max()) + 1
    scores, pulls = np.zeros((groups, 6)), np.zeros((groups, 6))
    np.add.at(scores, piece, J * (weight * left)[:, None])
    np.add.at(pulls, piece, J * weight[:, None])
    if groups <= _MIN_CELLS:
        return None
    meat = groups / (groups - 6) * scores.T @ scores + BIAS_PX**2 * pulls.T @ pulls
    rms = float(np.sqrt(np.average(left**2, weights=weight + 1e-12)))
    return change, inverse @ meat @ inverse, float(groups - 6), rms
