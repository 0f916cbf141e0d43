"""Markerless calibration: fit the rendered silhouette of the robot to masks of several arm poses.

initial guess ─> coarse images, both outlines matched ─> finer ─> full size, robust ─> pose, covariance, IoU
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kinema4d_ros.calibration.pose_estimate import PoseEstimate, changed, difference, region_threshold
from kinema4d_ros.calibration.quality import (
    FINDINGS,
    Finding,
    PoseSpread,
    Quality,
    finding,
    pose_spread,
    sorted_findings,
)
from kinema4d_ros.calibration.silhouette import Level, Masks, Silhouettes, outline_rows, weights
from kinema4d_ros.calibration.silhouette_fit import Fit, descend, fine_levels, last_level, same_place, shrink
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import CalibrationError
from kinema4d_ros.core.transforms import require_rigid
from kinema4d_ros.robot.model import Robot

__all__ = [
    "Jump",
    "Level",
    "Markerless",
    "calibrate_markerless",
    "distinct_poses",
    "find_jump",
    "lost_links",
    "refine_pose",
    "series_findings",
]

# Findings about a series of masks: too few or too similar arm poses, or a camera that moved between two images.

GOOD_POSES = 5
GOOD_TURN_DEG, GOOD_WAY_M = 20.0, 0.1

SURE = 0.999
MIN_JUMP_M, MIN_JUMP_RAD = 0.002, np.radians(0.15)
"""Smaller jumps are not reported; the drift check has the same tolerances."""

REACH_PX = 12.0

LEAST_COVER, LOST_SHARE = 0.5, 0.02
"""A link is lost if the masks cover less than LEAST_COVER of it; masks are unusable if the lost links make up
LOST_SHARE of the robot."""


def distinct_poses(base_T_link: Array) -> list[int]:
    """List the configurations that differ from all earlier ones in at least one link; link poses (C, L, 4, 4)."""
    kept: list[int] = []
    for i, links in enumerate(base_T_link):
        if not any(same_place(base_T_link[k], links).all() for k in kept):
            kept.append(i)
    return kept


def series_findings(images: int, distinct: int, spread: PoseSpread) -> list[Finding]:
    """List findings about the arm poses."""
    found = []
    if distinct < GOOD_POSES:
        found.append(finding("too_few_poses", f"{distinct} different arm pose{'s' if distinct > 1 else ''}"))
    if images > 1 and distinct == 1:
        found.append(
            finding("too_similar", f"all {images} images show the arm in the same pose, which counts once", "error")
        )
    elif 2 * distinct < images:
        found.append(finding("too_similar", f"{images} images show the arm in only {distinct} poses"))
    elif distinct > 1 and spread.rotation_deg < GOOD_TURN_DEG and spread.translation_m < GOOD_WAY_M:
        text = f"the tool link moves by only {1e3 * spread.translation_m:.0f} mm and {spread.rotation_deg:.0f} degrees"
        found.append(finding("too_similar", text))
    return found


def lost_links(silhouettes: Silhouettes, pose: Array) -> list[Finding]:
    """Find links missing from the masks over all images: a link that is missing every time biases the pose."""
    share, held = silhouettes.covered(pose)
    lost = [i for i in np.argsort(-share) if held[i] < LEAST_COVER]
    if share[lost].sum() < LOST_SHARE:
        return []
    names = [silhouettes.link_names[i] for i in lost]
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    part = float(np.average(held[lost], weights=share[lost]))
    return [finding("lost_link", f"the masks cover only {part:.0%} of {shown}", "error")]


@dataclass(frozen=True)
class Jump:
    """Jump of the camera before image `first`: shift in millimetres and rotation in degrees."""

    first: int
    shift_mm: float
    turn_deg: float

    def finding(self, name: str) -> Finding:
        """Convert to a finding; `name` is the name of image `first`."""
        text = f"from {name} on, the camera is offset by {self.shift_mm:.1f} mm and {self.turn_deg:.2f} degrees"
        return finding("moved_camera", text, "error")


def find_jump(silhouettes: Silhouettes, pose: Array) -> Jump | None:
    """Detect a camera jump within the series; None if one pose explains all images, or if there are too few images.

    Every cut of the series is tried with a separate pose after it, to first order. At the best cut both parts are
    then fitted in full: if the poses differ by more than their uncertainties allow, the camera moved.
    """
    count = len(silhouettes)
    if count < 4 or len(distinct_poses(silhouettes.base_T_link)) < 4:
        return None
    guessed = _best_cut(silhouettes, pose)
    if guessed is None:
        return None
    cut, jump = guessed
    ends = []
    for frames, start in ((range(cut), pose), (range(cut, count), changed(pose, jump))):
        part = silhouettes.part(list(frames))
        for level in fine_levels(part.camera):
            start, _ = descend(part, start, level)
        start, fit = descend(part, start, last_level(part.camera), offset=True)
        if fit is None:
            return None
        ends.append((start, fit))
    (before, one), (after, other) = ends
    d = difference(before, after)
    distance = float(d @ np.linalg.solve(one.covariance + other.covariance, d))
    shift, turn = float(np.linalg.norm(d[:3])), float(np.linalg.norm(d[3:]))
    if distance <= region_threshold(one.freedom + other.freedom, SURE) or (shift < MIN_JUMP_M and turn < MIN_JUMP_RAD):
        return None
    return Jump(cut, 1e3 * shift, float(np.degrees(turn)))


def _best_cut(silhouettes: Silhouettes, pose: Array) -> tuple[int, Array] | None:
    """Find the cut that explains most of the residual and the jump there (6,), to first order; None if negligible."""
    level = Level(shrink(silhouettes.camera, 360), 1, REACH_PX, False)
    rows = outline_rows(silhouettes, silhouettes.seen(level.scale), pose, level)
    if rows is None:
        return None
    J, r, cluster, _ = rows
    frame = cluster // 256
    root = np.sqrt(weights(r, level)[0])
    J, r = J * root[:, None], r * root
    best: tuple[float, int, Array] | None = None
    for cut in range(2, len(silhouettes) - 1):
        full = np.column_stack([J, J[:, :6] * (frame >= cut)[:, None]])
        step, *_ = np.linalg.lstsq(full, -r, rcond=None)
        rest = float(np.sum((r + full @ step) ** 2))
        if best is None or rest < best[0]:
            best = rest, cut, np.asarray(step[7:], np.float64)
    if best is None:
        return None
    _, cut, jump = best
    if np.linalg.norm(jump[:3]) < MIN_JUMP_M / 2 and np.linalg.norm(jump[3:]) < MIN_JUMP_RAD / 2:
        return None
    return cut, jump


Array = NDArray[np.float64]
Progress = Callable[[str], None]

GOOD_IOU, WORST_IOU, JUMP_IOU = 0.95, 0.80, 0.5


@dataclass(frozen=True, eq=False)
class Markerless(PoseEstimate):
    """Result of a markerless calibration.

    Attributes:
        mask_offset_px: uniform offset of the mask outlines, pixels; positive = masks larger than the robot.
    """

    mask_offset_px: float = 0.0


def calibrate_markerless(
    robot: Robot,
    q: ArrayLike,
    masks: Sequence[Masks] | Masks,
    camera: PinholeCamera,
    *,
    guess: ArrayLike | None = None,
    names: Sequence[str] = (),
    drawn: Sequence[int] = (),
    doubtful: Sequence[int] = (),
    progress: Progress | None = None,
) -> Markerless:
    """Estimate the camera pose from masks of the robot.

    Args:
        robot: the robot in the masks.
        q: (C, J) joint positions in `robot.joint_names` order, one row for each mask; 5 to 10 distinct rows are good.
        masks: (C, H, W) bool, as seen by the camera, lens distortion included.
        camera: intrinsics; its pose is the initial guess unless `guess` is given.
        guess: (4, 4) `base_T_camera`, metres, within about 5 cm and 5 degrees.
        names: image names, for findings.
        drawn, doubtful: indices of masks, as in `Segmentation`. Rendered ("drawn") masks would only reproduce the
            camera pose they were rendered with, so they are left out.
        progress: called with one line of text per stage.
    """
    told = [names[i] if i < len(names) else f"image {i}" for i in range(len(masks))]
    seen = [i for i in range(len(masks)) if i not in drawn]
    if not seen:
        raise CalibrationError(
            f"all {len(masks)} masks are rendered (drawn_masks)",
            expected="masks segmented from camera images",
            hint=f"rendered masks only reproduce the guess; {FINDINGS['drawn_masks']}",
        )
    if drawn:
        positions = np.atleast_2d(np.asarray(q, dtype=np.float64))
        found = calibrate_markerless(
            robot,
            positions[seen],
            [masks[i] for i in seen],
            camera,
            guess=guess,
            names=[told[i] for i in seen],
            doubtful=[seen.index(i) for i in doubtful if i in seen],
            progress=progress,
        )
        text = f"{len(masks) - len(seen)} of {len(masks)} masks are rendered, not observed: left out"
        return _with(found, finding("drawn_masks", text))
    silhouettes = Silhouettes(robot, q, masks, camera)
    start = require_rigid(camera.base_T_camera if guess is None else guess, "guess")
    say = progress or (lambda _: None)
    found = refine_pose(silhouettes, _search(silhouettes, start, say), say, told)
    if doubtful:
        text = f"{len(doubtful)} of {len(masks)} masks are doubtful: {', '.join(told[i] for i in doubtful[:4])}"
        found = _with(found, finding("doubtful_masks", text, "error" if 2 * len(doubtful) > len(masks) else "warning"))
    # Without a good overlap there is no valid pose, so a jump would be meaningless.
    explained = (found.quality.mask_iou or 0.0) > JUMP_IOU
    jump = find_jump(silhouettes, found.base_T_camera) if explained else None
    if jump is None:
        return found
    return _with(found, jump.finding(found.quality.views[jump.first][0]))


def _with(found: Markerless, more: Finding) -> Markerless:
    findings = sorted_findings([more, *found.quality.findings])
    return replace(found, quality=replace(found.quality, findings=findings))


def refine_pose(
    silhouettes: Silhouettes, start: Array, progress: Progress | None = None, names: Sequence[str] = ()
) -> Markerless:
    """Estimate the camera pose from an initial pose that is accurate to about a centimetre."""
    pose = start
    for level in fine_levels(silhouettes.camera):
        pose, _ = descend(silhouettes, pose, level)
        if progress is not None:
            progress(f"{level.scale:g} of the size: IoU {silhouettes.overlap(pose, level.scale):.4f}")
    pose, fit = descend(silhouettes, pose, last_level(silhouettes.camera), offset=True)
    if fit is None:
        raise CalibrationError(
            "the rendered robot has no outline in the image (did_not_converge)",
            expected="a guess with the robot in view",
            hint="check the guess, and that the robot and the joint states match the images",
        )
    quality = _quality(silhouettes, pose, fit, names)
    return Markerless(pose, fit.covariance, fit.freedom, quality, "markerless", "", fit.offset_px)


def _search(silhouettes: Silhouettes, start: Array, say: Progress) -> Array:
    """Find a pose from which the fine levels converge, from the guess or, if that fails, from others around it."""
    scale = shrink(silhouettes.camera, 180)
    rough = [Level(scale, 12, 12.0, True), Level(scale, 12, 4.0, True)]

    def attempt(pose: Array) -> tuple[float, Array]:
        for level in rough:
            pose, _ = descend(silhouettes, pose, level)
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
    """List rotations of the camera by a few degrees, which shift the image most."""
    turns = np.radians(5.0) * np.array(
        [[1, 0, 0], [-1, 0, 0], [0, 1, 0], [0, -1, 0], [0, 0, 1], [0, 0, -1], [1, 1, 0], [-1, -1, 0]]
    )
    return [np.concatenate([np.zeros(3), turn]) for turn in turns]


def _quality(silhouettes: Silhouettes, pose: Array, fit: Fit, names: Sequence[str]) -> Quality:
    iou = silhouettes.overlap(pose)
    found: list[Finding] = []
    if iou < GOOD_IOU:
        text = f"the IoU of rendered and observed robot is {iou:.3f}"
        found.append(finding("poor_overlap", text, "error" if iou < WORST_IOU else "warning"))
    if fit.share < 0.6:
        found.append(finding("poor_fit", f"only {fit.share:.0%} of the outline fits"))
    if fit.last_step > 1e-3:
        found.append(finding("did_not_converge", f"the last step was still {1e3 * fit.last_step:.1f} mm or mrad"))
    worst = 1e3 * float(np.sqrt(np.linalg.eigvalsh(fit.covariance[:3, :3])[-1]))
    if worst > 3.0:
        found.append(finding("wide_uncertainty", f"one sigma is {worst:.1f} mm"))
    found += lost_links(silhouettes, pose)
    distinct = len(distinct_poses(silhouettes.base_T_link))
    spread = pose_spread(silhouettes.base_T_link[:, silhouettes.tool])
    found += series_findings(len(silhouettes), distinct, spread)
    shown = [names[i] if i < len(names) else f"image {i}" for i in range(len(silhouettes))]
    views = tuple(zip(shown, map(float, fit.frame_px), strict=True))
    return Quality(fit.rms_px, fit.rms_mm, iou, distinct, spread, sorted_findings(found), views)
