"""Camera pose without a board: the drawn robot's silhouette is laid over the seen one, in several arm poses at once.

rough guess ─> coarse images, both outlines pull ─> finer ─> full size, robust ─> pose, covariance, IoU
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

# What is wrong with a series of masks: too few or too similar arm poses, a camera that moved between two images.

GOOD_POSES = 5
GOOD_TURN_DEG, GOOD_WAY_M = 20.0, 0.1

SURE = 0.999
MIN_JUMP_M, MIN_JUMP_RAD = 0.002, np.radians(0.15)
"""Less is not worth a warning: the drift check has the same tolerances."""

REACH_PX = 12.0

LEAST_COVER, LOST_SHARE = 0.5, 0.02
"""Links of which the masks hold less than this were lost; with so much of the robot lost, masks are not usable."""


def distinct_poses(base_T_link: Array) -> list[int]:
    """Configurations (of C, each with L link poses) that differ from all before them in at least one link."""
    kept: list[int] = []
    for i, links in enumerate(base_T_link):
        if not any(same_place(base_T_link[k], links).all() for k in kept):
            kept.append(i)
    return kept


def series_findings(images: int, distinct: int, spread: PoseSpread) -> list[Finding]:
    """What the arm poses alone say."""
    found = []
    if distinct < GOOD_POSES:
        found.append(finding("too_few_poses", f"{distinct} different arm pose{'s' if distinct > 1 else ''}"))
    if images > 1 and distinct == 1:
        found.append(
            finding("too_similar", f"all {images} images show the arm in one pose, which counts once", "error")
        )
    elif 2 * distinct < images:
        found.append(finding("too_similar", f"{images} images show the arm in only {distinct} poses"))
    elif distinct > 1 and spread.rotation_deg < GOOD_TURN_DEG and spread.translation_m < GOOD_WAY_M:
        text = (
            f"the arm's tip moves by {1e3 * spread.translation_m:.0f} mm and {spread.rotation_deg:.0f} degrees in all"
        )
        found.append(finding("too_similar", text))
    return found


def lost_links(silhouettes: Silhouettes, pose: Array) -> list[Finding]:
    """Links that the masks do not hold, in all images together: the same part lost each time pulls the camera away."""
    share, held = silhouettes.covered(pose)
    lost = [i for i in np.argsort(-share) if held[i] < LEAST_COVER]
    if share[lost].sum() < LOST_SHARE:
        return []
    names = [silhouettes.link_names[i] for i in lost]
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    part = float(np.average(held[lost], weights=share[lost]))
    return [finding("lost_link", f"the masks hold only {part:.0%} of {shown}", "error")]


@dataclass(frozen=True)
class Jump:
    """The camera stood elsewhere from image `first` on, by so much."""

    first: int
    shift_mm: float
    turn_deg: float

    def finding(self, name: str) -> Finding:
        """For the gate; `name` is that image's."""
        text = f"from {name} on the camera is {self.shift_mm:.1f} mm / {self.turn_deg:.2f} degrees away"
        return finding("moved_camera", text, "error")


def find_jump(silhouettes: Silhouettes, pose: Array) -> Jump | None:
    """Whether one pose of the camera explains all images; None if it does, or if there are too few to tell.

    Every cut of the series is tried with a pose of its own after it, to first order. The best cut is then fitted for
    good, both parts apart: if they differ by more than their uncertainties allow, the camera moved.
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
    """The cut that explains most, and (6,) the jump there, to first order; None if no jump is worth a look."""
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
    """The camera's pose, and how much larger than the robot the masks were all around, in pixels."""

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
    """The pose of the camera from masks of the robot.

    Args:
        robot: that the masks show.
        q: (C, J) joint positions in `robot.joint_names` order, one for each mask; 5 to 10 that differ are good.
        masks: (C, H, W) bool, as the camera saw the robot, lens distortion included.
        camera: intrinsics; its pose is the rough guess unless `guess` is given.
        guess: (4, 4) `base_T_camera`, within about 5 cm and 5 degrees.
        names: of the images, for findings.
        drawn, doubtful: positions of masks, as in `Segmentation`. The drawn robot would only give back the camera that
            it was drawn with: such masks are left out.
        progress: called with a line of text now and then.
    """
    told = [names[i] if i < len(names) else f"image {i}" for i in range(len(masks))]
    seen = [i for i in range(len(masks)) if i not in drawn]
    if not seen:
        raise CalibrationError(
            f"all {len(masks)} masks are the drawn robot (drawn_masks)",
            expected="masks of what the camera saw",
            hint=f"they would only give the guess back; {FINDINGS['drawn_masks']}",
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
        text = f"{len(masks) - len(seen)} of {len(masks)} masks are the drawn robot, not the seen one: left out"
        return _with(found, finding("drawn_masks", text))
    silhouettes = Silhouettes(robot, q, masks, camera)
    start = require_rigid(camera.base_T_camera if guess is None else guess, "guess")
    say = progress or (lambda _: None)
    found = refine_pose(silhouettes, _search(silhouettes, start, say), say, told)
    if doubtful:
        text = f"{len(doubtful)} of {len(masks)} masks are doubtful: {', '.join(told[i] for i in doubtful[:4])}"
        found = _with(found, finding("doubtful_masks", text, "error" if 2 * len(doubtful) > len(masks) else "warning"))
    # Masks of something else have no pose, and so no two.
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
    """The same from a pose that is right to about a centimetre."""
    pose = start
    for level in fine_levels(silhouettes.camera):
        pose, _ = descend(silhouettes, pose, level)
        if progress is not None:
            progress(f"{level.scale:g} of the size: IoU {silhouettes.overlap(pose, level.scale):.4f}")
    pose, fit = descend(silhouettes, pose, last_level(silhouettes.camera), offset=True)
    if fit is None:
        raise CalibrationError(
            "the drawn robot has no outline in the image (did_not_converge)",
            expected="a guess from which the camera sees the robot",
            hint="check the guess, and that the robot and the joint states are those of the images",
        )
    quality = _quality(silhouettes, pose, fit, names)
    return Markerless(pose, fit.covariance, fit.freedom, quality, "markerless", "", fit.offset_px)


def _search(silhouettes: Silhouettes, start: Array, say: Progress) -> Array:
    """A pose from which the fine levels converge: from the guess, or from guesses around it where that fails."""
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
    """Turns of the camera by some degrees: they move the picture most."""
    turns = np.radians(5.0) * np.array(
        [[1, 0, 0], [-1, 0, 0], [0, 1, 0], [0, -1, 0], [0, 0, 1], [0, 0, -1], [1, 1, 0], [-1, -1, 0]]
    )
    return [np.concatenate([np.zeros(3), turn]) for turn in turns]


def _quality(silhouettes: Silhouettes, pose: Array, fit: Fit, names: Sequence[str]) -> Quality:
    iou = silhouettes.overlap(pose)
    found: list[Finding] = []
    if iou < GOOD_IOU:
        text = f"the drawn robot covers the seen one with IoU {iou:.3f}"
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
