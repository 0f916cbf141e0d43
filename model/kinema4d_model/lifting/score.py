"""How good lifted depth is, against the truth and against the assumption that everything lies flat on the table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from kinema4d_model.lifting.frames import ROBOT, TARGET, THING, FrameSet
from kinema4d_model.lifting.geometry import view_plane
from kinema4d_model.lifting.protocol import LiftedDepth, Lifter
from kinema4d_ros.core.camera import PinholeCamera

__all__ = ["LiftScore", "PlaneLifter", "score_lifter", "target_overlap"]

FOUND = 0.5
NEAR_PX = 5
"""What is wrongly called a thing counts against the target within this many pixels of it."""


@dataclass(frozen=True)
class LiftScore:
    """Over all pictures.

    Attributes:
        pictures: how many.
        iou: of the pixels that show things, robot left out: shared by truth and guess, of those in either.
        depth_median_mm, depth_p90_mm: error of the depth of pixels that show things.
        depth_found_mm: median of the same where the pixel was recognised.
        found: share of the targets whose own pixels overlap by more than a half.
        false_share: of the pixels that show neither thing nor robot, those that are called one.
    """

    pictures: int
    iou: float
    depth_median_mm: float
    depth_p90_mm: float
    depth_found_mm: float
    found: float
    false_share: float


class PlaneLifter:
    """The assumption without learning: every pixel lies on the table's plane."""

    def lift(
        self,
        image: NDArray[np.uint8],
        camera: PinholeCamera,
        robot_mask: NDArray[np.bool_] | None = None,
        table_height_m: float = 0.0,
    ) -> LiftedDepth:
        """See `Lifter.lift`."""
        view = view_plane(camera, table_height_m)
        return LiftedDepth(view.depth_m.astype(np.float32), np.zeros(image.shape[:2], np.float32))


def target_overlap(thing: NDArray[np.bool_], kind: NDArray[np.uint8]) -> float:
    """Intersection over union of the target's own pixels; NaN if it is not in the picture."""
    target = kind == TARGET
    if not target.any():
        return float("nan")
    side = 2 * NEAR_PX + 1
    near = cv2.dilate(target.astype(np.uint8), np.ones((side, side), np.uint8)) > 0
    wrong = thing & near & (kind < THING) & (kind != ROBOT)
    return float((thing & target).sum() / (target.sum() + wrong.sum()))


def score_lifter(lifter: Lifter, frames: FrameSet, numbers: Iterable[int] | None = None) -> LiftScore:
    """Lift every picture and compare."""
    chosen = list(range(len(frames)) if numbers is None else numbers)
    shared = either = false = rest = 0
    errors, recognised, overlaps = [], [], []
    for n in chosen:
        kind, camera = frames.kind[n], frames.camera(n)
        lifted = lifter.lift(frames.rgb[n], camera, kind == ROBOT)
        truth, thing = kind >= THING, lifted.thing > 0.5
        shared += int((truth & thing).sum())
        either += int((truth | thing).sum())
        false += int((thing & ~truth).sum())
        rest += int((~truth & (kind != ROBOT)).sum())
        true_depth = view_plane(camera).depth_of(frames.height_m[n])
        error = 1e3 * np.abs(lifted.depth_m - true_depth)
        errors.append(error[truth])
        recognised.append(error[truth & thing])
        overlaps.append(target_overlap(thing, kind))
    all_errors, good = np.concatenate(errors), np.concatenate(recognised)
    known = np.array(overlaps)[np.isfinite(overlaps)]
    return LiftScore(
        pictures=len(chosen),
        iou=shared / max(1, either),
        depth_median_mm=float(np.median(all_errors)),
        depth_p90_mm=float(np.percentile(all_errors, 90)),
        depth_found_mm=float(np.median(good)) if len(good) else float("nan"),
        found=float((known > FOUND).mean()),
        false_share=false / max(1, rest),
    )
