"""Camera pose without a board: the drawn robot's silhouette is laid over the seen one, in several arm poses at once.

rough guess ─> coarse images, both outlines pull ─> finer ─> full size, robust ─> pose, covariance, IoU
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kinema4d_ros.calibration.outlines import Level, outline_rows, slopes, weights
from kinema4d_ros.calibration.pose_estimate import PoseEstimate, changed
from kinema4d_ros.calibration.quality import Finding, Quality, finding, pose_spread, sorted_findings
from kinema4d_ros.calibration.silhouette import Masks, SeenSilhouettes, Silhouettes
from kinema4d_ros.camera import PinholeCamera
from kinema4d_ros.errors import CalibrationError
from kinema4d_ros.robot.model import Robot
from kinema4d_ros.transforms import require_rigid

__all__ = ["Level", "Markerless", "calibrate_markerless", "refine_pose"]

Array = NDArray[np.float64]
Progress = Callable[[str], None]

OFFSET_SIGMA_PX = 1.0
"""How much larger or smaller than the robot masks may be all around: segmenters have habits."""

LINK_SIGMA_PX = 0.1
"""What a link's outline is off in the same way in every image: its mesh, its segmenter, rounding."""

SCATTER_FACTOR = 1.6
"""The scatter between links alone makes regions too small: with 1, 42 of 50 simulated cameras were in theirs."""

GOOD_IOU, WORST_IOU = 0.95, 0.80


@dataclass(frozen=True, eq=False)
class Markerless(PoseEstimate):
    """The camera's pose, and how much larger than the robot the masks were all around, in pixels."""

    mask_offset_px: float = 0.0


def calibrate_markerless(
    robot: Robot,
    q: ArrayLike,
    masks: Sequence[Masks] | Masks,
    camera: PinholeCamera,
    *,
    guess: ArrayLike | None = None,
    progress: Progress | None = None,
) -> Markerless:
    """The pose of the camera from masks of the robot.

    Args:
        robot: that the masks show.
        q: (C, J) joint positions in `robot.joint_names` order, one for each mask; 5 to 10 that differ are good.
        masks: (C, H, W) bool, as the camera saw the robot, lens distortion included.
        camera: intrinsics; its pose is the rough guess unless `guess` is given.
        guess: (4, 4) `base_T_camera`, within about 5 cm and 5 degrees.
        progress: called with a line of text now and then.
    """
    silhouettes = Silhouettes(robot, q, masks, camera)
    start = require_rigid(camera.base_T_camera if guess is None else guess, "guess")
    say = progress or (lambda _: None)
    return refine_pose(silhouettes, _search(silhouettes, start, say), say)


def refine_pose(silhouettes: Silhouettes, start: Array, progress: Progress | None = None) -> Markerless:
    """The same from a pose that is right to about a centimetre."""
    pose = start
    for level in _fine_levels(silhouettes.camera):
        pose, _ = _descend(silhouettes, pose, level)
        if progress is not None:
            progress(f"{level.scale:g} of the size: IoU {silhouettes.overlap(pose, level.scale):.4f}")
    pose, fit = _descend(silhouettes, pose, _last_level(silhouettes.camera), offset=True)
    if fit is None:
        raise CalibrationError(
            "the drawn robot has no outline in the image (did_not_converge)",
            expected="a guess from which the camera sees the robot",
            hint="check the guess, and that the robot and the joint states are those of the images",
        )
    quality = _quality(silhouettes, pose, fit)
    return Markerless(pose, fit.covariance, fit.freedom, quality, "markerless", "", fit.offset_px)


class _Fit(NamedTuple):
    covariance: Array
    freedom: float
    rms_px: float
    rms_mm: float
    offset_px: float
    share: float
    last_step: float


def _shrink(camera: PinholeCamera, pixels: int) -> float:
    """The share at which the longer side has that many pixels; 1 at most."""
    return min(1.0, pixels / max(camera.width, camera.height))


def _fine_levels(camera: PinholeCamera) -> list[Level]:
    return [Level(_shrink(camera, 360), 8, 4.0, False)]


def _last_level(camera: PinholeCamera) -> Level:
    return Level(_shrink(camera, 1280), 8, 4.0, False)


def _search(silhouettes: Silhouettes, start: Array, say: Progress) -> Array:
    """A pose from which the fine levels converge: from the guess, or from guesses around it where that fails."""
    scale = _shrink(silhouettes.camera, 180)
    rough = [Level(scale, 12, 12.0, True), Level(scale, 12, 4.0, True)]

    def attempt(pose: Array) -> tuple[float, Array]:
        for level in rough:
            pose, _ = _descend(silhouettes, pose, level)
        return silhouettes.overlap(pose, scale), pose

    best = attempt(start)
    say(f"rough: IoU {best[0]:.3f}")
    if best[0] < 0.88:
        for change in _other_starts():
            tried = attempt(changed(start, change))
            if tried[0] > best[0]:
                best = tried
                say(f"rough, another start: IoU {best[0]:.3f}")
            if best[0] >= 0.9:
                break
    return best[1]


def _other_starts() -> list[Array]:
    """Turns of the camera by some degrees: they move the picture most."""
    turns = np.radians(5.0) * np.array(
        [[1, 0, 0], [-1, 0, 0], [0, 1, 0], [0, -1, 0], [0, 0, 1], [0, 0, -1], [1, 1, 0], [-1, -1, 0]]
    )
    return [np.concatenate([np.zeros(3), turn]) for turn in turns]


def _descend(silhouettes: Silhouettes, pose: Array, level: Level, *, offset: bool = False) -> tuple[Array, _Fit | None]:
    """Gauss-Newton on the outlines at one level; with `offset`, the masks' offset is free and the fit is measured."""
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
        # Far from the goal the linear picture is only good for so much.
        change *= min(1.0, 0.06 / float(np.linalg.norm(change[:3]) + 1e-12), 0.1 / float(np.linalg.norm(change[3:6])))
        pose = changed(pose, change[:6])
        last = float(np.abs(change[:6]).max())
        if offset:
            shift += float(change[6])
    if not offset:
        return pose, None
    # Errors are alike along a link: its joint's, its mesh's, the segmenter's. So links in images are the independent
    # pieces, and their scatter gives the covariance of this robust estimate.
    bread = J.T @ (slopes(r, level)[:, None] * J)
    bread *= _sensitivity(silhouettes, seen, pose, level, shift, bread)
    bread[6, 6] += prior
    inverse = np.linalg.inv(bread)
    _, piece = np.unique(cluster, return_inverse=True)
    groups = int(piece.max()) + 1
    scores = np.zeros((groups, columns))
    np.add.at(scores, piece, J * (weight * r)[:, None])
    meat = SCATTER_FACTOR * groups / max(groups - columns, 1) * scores.T @ scores
    _, link = np.unique(cluster % 256, return_inverse=True)
    pulls = np.zeros((int(link.max()) + 1, columns))
    np.add.at(pulls, link, J * weight[:, None])
    meat += (LINK_SIGMA_PX * level.scale) ** 2 * pulls.T @ pulls
    covariance = inverse @ meat @ inverse
    good = weight > 0.1
    rms = float(np.sqrt(np.average(r**2, weights=weight))) / level.scale
    focal = float(seen.camera.K[0, 0]) / level.scale
    fit = _Fit(
        covariance=covariance[:6, :6],
        freedom=float(max(groups - columns, 1)),
        rms_px=rms,
        rms_mm=1e3 * rms * float(np.median(depth)) / focal,
        offset_px=-shift / level.scale,
        share=float(good.mean()),
        last_step=last,
    )
    return pose, fit


def _sensitivity(
    silhouettes: Silhouettes, seen: SeenSilhouettes, pose: Array, level: Level, shift: float, bread: Array
) -> float:
    """How much of a real shift of the outlines the residuals show, 0.3 to 1.2: measured by moving the camera.

    The nearest point of a wobbly outline is nearer than the point across; pixels round. Without this the covariance
    would be too small.
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


def _quality(silhouettes: Silhouettes, pose: Array, fit: _Fit) -> Quality:
    iou = silhouettes.overlap(pose)
    found: list[Finding] = []
    if iou < GOOD_IOU:
        text = f"the drawn robot covers the seen one with IoU {iou:.3f}"
        found.append(finding("poor_overlap", text, "error" if iou < WORST_IOU else "warning"))
    if fit.share < 0.6:
        found.append(finding("poor_fit", f"only {fit.share:.0%} of the outline fits"))
    if fit.last_step > 1e-3:
        found.append(finding("did_not_converge", f"the last step was still {1e3 * fit.last_step:.1f} mm or mrad"))
    if len(silhouettes) < 3:
        found.append(finding("too_few_poses", f"{len(silhouettes)} joint configurations"))
    worst = 1e3 * float(np.sqrt(np.linalg.eigvalsh(fit.covariance[:3, :3])[-1]))
    if worst > 3.0:
        found.append(finding("wide_uncertainty", f"one sigma is {worst:.1f} mm"))
    tip = silhouettes.base_T_link[:, -1]
    return Quality(fit.rms_px, fit.rms_mm, iou, len(silhouettes), pose_spread(tip), sorted_findings(found))
