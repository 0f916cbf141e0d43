"""Gauss-Newton fit of rendered outlines to observed ones at one image scale, with the covariance from the scatter."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.calibration.pose_estimate import changed
from kinema4d_ros.calibration.silhouette import Level, SeenSilhouettes, Silhouettes, outline_rows, slopes, weights
from kinema4d_ros.core.camera import PinholeCamera

__all__ = ["Fit", "descend", "fine_levels", "last_level", "same_place", "shrink"]

Array = NDArray[np.float64]

OFFSET_SIGMA_PX = 1.0
"""Prior of the uniform offset between mask and robot outline, one sigma: segmenters have systematic errors."""

SCATTER_FACTOR = 1.25
"""Inflation of the scatter between links, which alone is too small: with 1 the 50 % region held 30 % of 50 cameras."""

FINE_PX = 1.0
HABIT_SHARE = 0.2
"""Fraction of the outline distance in excess of FINE_PX, occluded and missing parts included, that is taken as
common to all images.

A segmenter that loses parts or includes shadows does so on the same side every time, of a link and of the whole robot.
The scatter between images does not contain that error.
"""

SAME_M, SAME_RAD = 0.01, np.radians(3.0)
"""A link that moved less than this between two images shows the same outline, with the same errors."""

FAR_PX = 20.0
"""Cap of the residuals in the figure of one image."""


class Fit(NamedTuple):
    """Result of `descend`; pixels are those of the full image."""

    covariance: Array
    freedom: float
    rms_px: float
    rms_mm: float
    offset_px: float
    share: float
    last_step: float
    frame_px: Array


def shrink(camera: PinholeCamera, pixels: int) -> float:
    """Compute the scale at which the longer side has that many pixels; 1 at most."""
    return min(1.0, pixels / max(camera.width, camera.height))


def fine_levels(camera: PinholeCamera) -> list[Level]:
    """List the levels from a pose that is accurate to about a centimetre to one for the last level."""
    return [Level(shrink(camera, 360), 8, 4.0, False)]


def last_level(camera: PinholeCamera) -> Level:
    """Return the last level: the full image, scaled down to at most 1280 pixels."""
    return Level(shrink(camera, 1280), 8, 4.0, False)


def descend(silhouettes: Silhouettes, pose: Array, level: Level, *, offset: bool = False) -> tuple[Array, Fit | None]:
    """Run Gauss-Newton on the outlines at one level; with `offset`, estimate the mask offset and return a `Fit`."""
    seen = silhouettes.seen(level.scale)
    shift, last, prior = 0.0, np.inf, 0.0
    columns = 7 if offset else 6
    for step in range(level.steps):
        rows = outline_rows(silhouettes, seen, pose, level)
        if rows is None:
            return pose, None
        J, r, cluster, depth = rows
        J = J[:, :columns]
        r = r - shift
        weight, sigma = weights(r, level)
        A = J.T @ (weight[:, None] * J) + np.diag([1e-9] * columns)
        g = J.T @ (weight * r)
        if offset:
            prior = (sigma / (OFFSET_SIGMA_PX * level.scale)) ** 2
            A[6, 6] += prior
            g[6] += prior * shift
        if step == level.steps - 1 or last < 1e-5:
            break
        change = -np.linalg.solve(A, g)
        # Limit the step: the linearisation is only valid locally.
        shift_m, turn_rad = (float(np.linalg.norm(part)) + 1e-12 for part in (change[:3], change[3:6]))
        change *= min(1.0, 0.06 / shift_m, 0.1 / turn_rad)
        pose = changed(pose, change[:6])
        last = float(np.abs(change[:6]).max())
        if offset:
            shift += float(change[6])
    if not offset:
        return pose, None
    # Errors are correlated along a link (joint, mesh and segmentation errors). So each link in each image is one
    # independent sample, and their scatter gives the covariance of this robust estimate. A link that did not move
    # between images is one sample: a shadow at the base is the same in all of them.
    bread = J.T @ (slopes(r, level)[:, None] * J)
    bread *= _sensitivity(silhouettes, seen, pose, level, shift, bread)
    bread[6, 6] += prior
    inverse = np.linalg.inv(bread)
    frame, link = cluster // 256, cluster % 256
    again = _first_seen(silhouettes.base_T_link)
    _, piece = np.unique(256 * again[frame, link] + link, return_inverse=True)
    groups = int(piece.max()) + 1
    scores = np.zeros((groups, columns))
    np.add.at(scores, piece, J * (weight * r)[:, None])
    meat = SCATTER_FACTOR * groups / max(groups - columns, 1) * scores.T @ scores
    _, kind = np.unique(link, return_inverse=True)
    pulls = np.zeros((int(kind.max()) + 1, columns))
    np.add.at(pulls, kind, J * weight[:, None])
    frame_px = _frame_px(r / level.scale, frame, len(silhouettes))
    habit_px = HABIT_SHARE * max(float(np.nanmean(frame_px)) - FINE_PX, 0.0)
    meat += (habit_px * level.scale) ** 2 * pulls.T @ pulls
    covariance = inverse @ meat @ inverse
    # A common shift of all outlines is a rotation of the camera about its x and y axes.
    covariance[[3, 4], [3, 4]] += (habit_px * level.scale / np.diag(seen.camera.K)[[1, 0]]) ** 2
    good = weight > 0.1
    rms = float(np.sqrt(np.average(r**2, weights=weight))) / level.scale
    focal = float(seen.camera.K[0, 0]) / level.scale
    fit = Fit(
        covariance=covariance[:6, :6],
        freedom=float(max(groups - columns, 1)),
        rms_px=rms,
        rms_mm=1e3 * rms * float(np.median(depth)) / focal,
        offset_px=-shift / level.scale,
        share=float(good.mean()),
        last_step=last,
        frame_px=frame_px,
    )
    return pose, fit


def _sensitivity(
    silhouettes: Silhouettes, seen: SeenSilhouettes, pose: Array, level: Level, shift: float, bread: Array
) -> float:
    """Measure which fraction of a real outline shift appears in the residuals, 0.3 to 1.2, by moving the camera.

    The nearest point of a rough outline is closer than the point along the normal, and pixels round. Without this
    factor the covariance would be too small.
    """
    values, vectors = np.linalg.eigh(bread[:6, :6])
    rng = np.random.default_rng(0)
    shares = []
    for _ in range(2):
        d = vectors @ (rng.normal(size=6) / np.sqrt(values))
        moves = silhouettes.camera.K[0, 0] * level.scale * (abs(d[:3]).max() + abs(d[3:]).max())
        d *= 0.7 / moves
        scores = []
        for sign in (1.0, -1.0):
            rows = outline_rows(silhouettes, seen, changed(pose, sign * d), level)
            if rows is None:
                return 1.0
            J, r = rows[0][:, :6], rows[1] - shift
            scores.append(float(d @ J.T @ (weights(r, level)[0] * r)))
        shares.append((scores[0] - scores[1]) / (2 * float(d @ bread[:6, :6] @ d)))
    return float(np.clip(np.mean(shares), 0.3, 1.2))


def _first_seen(base_T_link: Array) -> NDArray[np.int64]:
    """Find (C, L) int64: the first configuration in which each link has the same pose, to 1 cm and 3 degrees."""
    count, links = base_T_link.shape[:2]
    first = np.tile(np.arange(count)[:, None], (1, links))
    for later in range(1, count):
        for earlier in range(later - 1, -1, -1):
            same = same_place(base_T_link[earlier], base_T_link[later])
            first[later] = np.where(same, first[earlier], first[later])
    return np.asarray(first, np.int64)


def same_place(a: Array, b: Array) -> NDArray[np.bool_]:
    """Check (...,) whether poses (..., 4, 4) are equal to 1 cm and 3 degrees."""
    near = np.linalg.norm(a[..., :3, 3] - b[..., :3, 3], axis=-1) < SAME_M
    cosine = (np.trace(a[..., :3, :3].swapaxes(-1, -2) @ b[..., :3, :3], axis1=-2, axis2=-1) - 1) / 2
    return np.asarray(near & (cosine > np.cos(SAME_RAD)))


def _frame_px(r: Array, frame: NDArray[np.int64], count: int) -> Array:
    """Compute (C,) root mean square residual of each image, occluded parts included; NaN without an outline."""
    number = np.bincount(frame, minlength=count)
    total = np.bincount(frame, np.clip(r, -FAR_PX, FAR_PX) ** 2, minlength=count)
    mean = np.divide(total, number, out=np.full(count, np.nan), where=number > 0)
    return np.asarray(np.sqrt(mean), np.float64)
