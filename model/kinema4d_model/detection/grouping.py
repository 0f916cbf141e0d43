"""Groups the votes of pixels into objects: pixels that name the same centre show the same object."""

from __future__ import annotations

from dataclasses import dataclass, replace

import cv2
import numpy as np
from numpy.typing import NDArray

from kinema4d_model.detection.views import CLASSES, NONE
from kinema4d_ros.core.transforms import apply, invert
from kinema4d_ros.generators.draft.detection import Detected

__all__ = ["Votes", "group_votes"]

BANDWIDTH_M = 0.012
"""Votes this near to each other name one centre; larger objects have wider votes, see WIDE."""
WIDE = 0.22
"""Bandwidth as a share of the voted width, where that is more."""
LEAST_PIXELS = 16
"""Groups that cover fewer pixels of the image are not objects."""
LEAST_SHARE = 0.35
"""A pixel counts for an object with at least this probability of showing any."""
SUREST_M = 0.002
"""No vote counts as more certain than this."""
SMALLEST_M = 0.006
"""Smallest width and height of an object."""
_LAPLACE = np.sqrt(2.0)
"""Standard deviation of a Laplace distribution in units of its scale."""


@dataclass(frozen=True, eq=False)
class Votes:
    """Network output for one image; h, w are half its size. Metres, frame of `level_frame`.

    Attributes:
        values: (h, w, 9) `network.VOTES`.
        scale: (h, w, 9) Laplace scale of each.
        shapes: (h, w, C) probabilities of CLASSES.
        faces: (H, W, 3) probabilities of NONE, TOP and SIDE.
        table: (h, w, 2) point of the table that the pixel's ray meets.
        met: (h, w) bool, the pixel meets the table and does not show the robot.
    """

    values: NDArray[np.float32]
    scale: NDArray[np.float32]
    shapes: NDArray[np.float32]
    faces: NDArray[np.float32]
    table: NDArray[np.float32]
    met: NDArray[np.bool_]


def group_votes(votes: Votes, level_T_base: NDArray[np.float64], size: tuple[int, int] | None = None) -> list[Detected]:
    """Group the votes; the object with the most pixels first. `size` is (H, W) of the returned shares."""
    thing = 1.0 - votes.faces[::2, ::2, NONE]
    use = votes.met & (thing > LEAST_SHARE)
    rows = np.flatnonzero(use)
    if not len(rows):
        return []
    values = votes.values.reshape(-1, votes.values.shape[-1])
    center = votes.table.reshape(-1, 2) + values[:, :2]
    # Objects on top of each other have one centre: the height of the bottom tells them apart.
    point = np.concatenate([center, values[:, 6:7]], 1).astype(np.float64)
    reach = np.maximum(BANDWIDTH_M, WIDE * values[:, 2:6].mean(1)).astype(np.float64)
    scale = votes.scale.reshape(values.shape)
    certainty = thing.ravel() / np.maximum(scale[:, :2].mean(1), SUREST_M)
    both = np.concatenate([center, values[:, 2:8]], 1)
    shapes = votes.shapes.reshape(-1, len(CLASSES))
    found, scores = [], []
    for group in _modes(point[rows], reach[rows], certainty[rows]):
        members = rows[group]
        weight = certainty[members]
        middle = np.array([_median(both[members, k], weight) for k in range(8)])
        far = ((point - middle[[0, 1, 6]]) ** 2).sum(1)
        scores.append(np.exp(-0.5 * far / float(np.median(reach[members])) ** 2).reshape(thing.shape))
        found.append(
            Detected(
                center=apply(invert(level_T_base), [middle[0], middle[1], 0.0])[:2],
                widths=np.maximum(middle[2:6], SMALLEST_M),
                bottom=float(middle[6]),
                top=float(max(middle[7], middle[6] + SMALLEST_M)),
                spread=_spread(both[members], scale[members, :8], middle, weight),
                shapes=dict(zip(CLASSES, np.average(shapes[members], axis=0, weights=weight).tolist(), strict=True)),
                share=np.zeros((0, 0), np.float32),
                pixels=0,
            )
        )
    if not found:
        return []
    best = np.argmax(scores, axis=0)
    height, width = size or votes.faces.shape[:2]
    kept = []
    for number, (one, score) in enumerate(zip(found, scores, strict=True)):
        pixels = 4 * int((use & (best == number)).sum())
        if pixels >= LEAST_PIXELS:
            share = cv2.resize(score.astype(np.float32), (width, height), interpolation=cv2.INTER_LINEAR)
            kept.append(replace(one, share=np.asarray(share, np.float32), pixels=pixels))
    return sorted(kept, key=lambda d: -d.pixels)


def _modes(
    point: NDArray[np.float64], reach: NDArray[np.float64], weight: NDArray[np.float64]
) -> list[NDArray[np.int64]]:
    """Split points (N, 3) into groups around their densest places; returns the members of each."""
    squared = (point**2).sum(1)
    distance = squared[:, None] + squared[None] - 2 * point @ point.T
    near = np.maximum(1.0 - distance / (reach[None] ** 2), 0.0) * weight[None]
    free = np.ones(len(point), bool)
    centres: list[NDArray[np.float64]] = []
    radii: list[float] = []
    for _ in range(40):
        density = (near[:, free].sum(1)) * free
        top = int(np.argmax(density))
        if density[top] <= 0 or free.sum() < 3:
            break
        # A few steps of mean shift from the densest vote.
        centre, radius = point[top], float(reach[top])
        for _ in range(3):
            kernel = np.maximum(1.0 - ((point - centre) ** 2).sum(1) / radius**2, 0.0) * weight * free
            if kernel.sum() <= 0:
                break
            centre = (kernel[:, None] * point).sum(0) / kernel.sum()
        inside = ((point - centre) ** 2).sum(1) < (2.0 * radius) ** 2
        taken = inside & free
        if not taken.any():
            free[top] = False
            continue
        free &= ~inside
        if taken.sum() >= 3:
            centres.append(centre)
            radii.append(radius)
    if not centres:
        return []
    far = np.stack([((point - c) ** 2).sum(1) / r**2 for c, r in zip(centres, radii, strict=True)])
    owner, nearest = far.argmin(0), far.min(0)
    groups = [np.flatnonzero((owner == k) & (nearest < 9.0)) for k in range(len(centres))]
    return [g for g in groups if len(g) >= 3]


def _median(values: NDArray[np.floating], weight: NDArray[np.floating]) -> float:
    order = np.argsort(values)
    total = np.cumsum(weight[order])
    return float(values[order][np.searchsorted(total, 0.5 * total[-1])])


def _spread(
    both: NDArray[np.floating], scale: NDArray[np.floating], middle: NDArray[np.float64], weight: NDArray[np.floating]
) -> NDArray[np.float64]:
    """Return standard deviations (8,): what the pixels state, or how much they disagree, whichever is larger."""
    stated = _LAPLACE * np.average(scale, axis=0, weights=weight)
    apart = np.array([_median(np.abs(both[:, k] - middle[k]), weight) for k in range(8)])
    return np.asarray(np.maximum(stated, apart), np.float64)
