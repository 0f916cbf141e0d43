"""Scores and figure of docs/lifting.md: `python -m kinema4d_model.pipeline.lifting.evaluate`.

python -m kinema4d_model.pipeline.lifting.evaluate --data runs/data/nano/val --data runs/data/nano/ood \\
    --picture out/lifting.png
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

from kinema4d_model.pipeline.lifting.frames import ROBOT, TARGET, THING, FrameSet, load_frames
from kinema4d_model.pipeline.lifting.geometry import LiftedDepth, Lifter, view_plane
from kinema4d_model.pipeline.lifting.lifter import LearnedLifter, load_lifter
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.io.files import replacing_file
from kinema4d_ros.io.png import encode_png

__all__ = ["LiftScore", "PlaneLifter", "draw_cases", "main", "score_lifter", "target_overlap"]

# Scores of lifted depth against the ground truth; the baseline assumes that everything lies flat on the table.

FOUND = 0.5
NEAR_PX = 5
"""False object pixels within this distance of the target count against it."""


@dataclass(frozen=True)
class LiftScore:
    """Scores over all images.

    Attributes:
        pictures: number of images.
        iou: intersection over union of object pixels, robot excluded.
        depth_median_mm, depth_p90_mm: depth error on object pixels.
        depth_found_mm: median depth error on recognised object pixels.
        found: share of the targets whose own pixels overlap by more than a half.
        false_share: share of the pixels without object or robot that are classified as object.
    """

    pictures: int
    iou: float
    depth_median_mm: float
    depth_p90_mm: float
    depth_found_mm: float
    found: float
    false_share: float


class PlaneLifter:
    """Baseline without learning: every pixel lies on the table's plane."""

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
    """Compute the intersection over union of the target's own pixels; NaN if it is not in the image."""
    target = kind == TARGET
    if not target.any():
        return float("nan")
    side = 2 * NEAR_PX + 1
    near = cv2.dilate(target.astype(np.uint8), np.ones((side, side), np.uint8)) > 0
    wrong = thing & near & (kind < THING) & (kind != ROBOT)
    return float((thing & target).sum() / (target.sum() + wrong.sum()))


def score_lifter(lifter: Lifter, frames: FrameSet, numbers: Iterable[int] | None = None) -> LiftScore:
    """Lift every image and score the results."""
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


HIGHEST_SHOWN_M = 0.1
GAP_PX = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Print a table of scores and write an image of example cases."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, action="append", required=True, help="folder of shards; may be repeated")
    parser.add_argument("--weights", type=Path, help="folder of a lifter (default: the package's)")
    parser.add_argument("--cache", type=Path, default=Path("runs/lifter/cache"), help="cache of decoded images")
    parser.add_argument("--picture", type=Path, help="PNG of good, middling and bad cases of every folder")
    arguments = parser.parse_args(argv)
    lifter = load_lifter(arguments.weights)
    sheets = []
    print("| episodes | lifter | IoU | target found | median mm | p90 mm | median mm, recognised | false pixels |")
    print("|---|---|---|---|---|---|---|---|")
    for folder in arguments.data:
        frames = load_frames(folder, arguments.cache)
        print(_row(folder.name, "plane", score_lifter(PlaneLifter(), frames)))
        print(_row(folder.name, "learned", score_lifter(lifter, frames)))
        if arguments.picture:
            sheets.append(draw_cases(lifter, frames))
    milliseconds = _time(lifter, frames)
    height, width = frames.rgb.shape[1:3]
    print(
        f"{milliseconds:.1f} ms of CPU per image of {width} x {height}, median of 50, {torch.get_num_threads()} threads"
    )
    if arguments.picture:
        with replacing_file(arguments.picture) as temporary:
            temporary.write_bytes(encode_png(np.concatenate(sheets)))
        print(arguments.picture)
    return 0


def draw_cases(lifter: LearnedLifter, frames: FrameSet, columns: int = 6) -> NDArray[np.uint8]:
    """Draw images above their true and lifted heights, from the best target to the worst, evenly by rank."""
    lifted = [lifter.lift(frames.rgb[n], frames.camera(n), frames.kind[n] == ROBOT) for n in range(len(frames))]
    overlaps = np.array([target_overlap(lift.thing > 0.5, frames.kind[n]) for n, lift in enumerate(lifted)])
    seen = np.flatnonzero([bool((kind == TARGET).any()) for kind in frames.kind])
    ranked = seen[np.argsort(-overlaps[seen], kind="stable")]
    # Half over the whole range, half from its worst 5 %, which is the most informative part.
    good = np.linspace(0, len(ranked) - 1, columns // 2 + 1)[:-1]
    bad = np.linspace(0.95 * (len(ranked) - 1), len(ranked) - 1, columns - columns // 2)
    tiles = []
    for n in ranked[np.concatenate([good, bad]).astype(int)]:
        view, kind = view_plane(frames.camera(n)), frames.kind[n]
        truth = np.where(kind >= THING, frames.height_m[n].astype(np.float64), 0.0)
        guess = np.where(lifted[n].thing > 0.5, view.height_of(lifted[n].depth_m), 0.0)
        column = [_framed(part) for part in (frames.rgb[n], _colours(truth, kind), _colours(guess, kind))]
        tiles.append(np.concatenate(column))
    return np.pad(np.concatenate(tiles, axis=1), ((GAP_PX, GAP_PX), (0, 0), (0, 0)), constant_values=255)


def _framed(picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.pad(picture, ((GAP_PX, GAP_PX), (GAP_PX, GAP_PX), (0, 0)), constant_values=255)


def _colours(height_m: NDArray[np.float64], kind: NDArray[np.uint8]) -> NDArray[np.uint8]:
    level = (np.clip(height_m / HIGHEST_SHOWN_M, 0, 1) * 255).astype(np.uint8)
    coloured = np.asarray(cv2.applyColorMap(level, cv2.COLORMAP_TURBO))[..., ::-1]
    plain = np.where((kind == ROBOT)[..., None], 90, 235).astype(np.uint8)
    return np.where((height_m > 0)[..., None], coloured, plain).astype(np.uint8)


def _row(folder: str, name: str, s: LiftScore) -> str:
    figures = f"{s.iou:.3f} | {s.found:.3f} | {s.depth_median_mm:.1f} | {s.depth_p90_mm:.1f} | {s.depth_found_mm:.1f}"
    return f"| {s.pictures} {folder} | {name} | {figures} | {s.false_share:.4f} |"


def _time(lifter: LearnedLifter, frames: FrameSet) -> float:
    camera, robot, seconds = frames.camera(0), frames.kind[0] == ROBOT, []
    for _ in range(55):
        start = time.process_time()
        lifter.lift(frames.rgb[0], camera, robot)
        seconds.append(time.process_time() - start)
    return 1e3 * float(np.median(seconds[5:]))


if __name__ == "__main__":
    sys.exit(main())
