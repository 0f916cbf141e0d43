"""What is wrong with a series of masks: too few or too similar arm poses, a camera that moved between two images."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.calibration.outlines import Level, outline_rows, weights
from kinema4d_ros.calibration.pose_estimate import changed, difference, region_threshold
from kinema4d_ros.calibration.quality import Finding, PoseSpread, finding
from kinema4d_ros.calibration.silhouette import Silhouettes
from kinema4d_ros.calibration.silhouette_fit import descend, fine_levels, last_level, same_place, shrink

__all__ = ["Jump", "distinct_poses", "find_jump", "lost_links", "series_findings"]

Array = NDArray[np.float64]

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
