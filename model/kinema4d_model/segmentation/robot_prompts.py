"""The rendered robot as SAM's prompts: a box, points well inside, and logits at the size its decoder takes."""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

__all__ = ["mask_box", "mask_logits", "mask_points"]

POINTS = 6
_STRENGTH = 8.0
"""Logit far inside; far outside its negative. SAM's own masks reach about twice that."""

_SOFT_SHARE = 0.01
"""The logits pass zero over this share of the image's width: the rendered robot may be that far off."""


def mask_box(mask: NDArray[np.bool_], margin_share: float = 0.02) -> NDArray[np.float64]:
    """(4,) left, top, right, bottom in pixels around a mask (H, W) that is not empty, a little larger."""
    rows, columns = np.nonzero(mask)
    height, width = mask.shape
    margin = margin_share * max(height, width)
    box = np.array([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1], np.float64)
    box += (-margin, -margin, margin, margin)
    return np.asarray(np.clip(box, 0, (width, height, width, height)), np.float64)


def mask_points(mask: NDArray[np.bool_], count: int = POINTS) -> NDArray[np.float64]:
    """(N, 2) pixels x, y: up to `count` points deep inside the mask (H, W), far from each other, the deepest first."""
    depth = cv2.distanceTransform(np.pad(mask.astype(np.uint8), 1), cv2.DIST_L2, cv2.DIST_MASK_PRECISE)[1:-1, 1:-1]
    # Ridges: no neighbour is deeper.
    ridge = mask & (depth >= cv2.dilate(depth, np.ones((5, 5), np.uint8))) & (depth >= 0.3 * depth.max())
    rows, columns = np.nonzero(ridge)
    places = np.stack([columns, rows], axis=1) + 0.5
    chosen = [int(np.argmax(depth[rows, columns]))]
    away = np.linalg.norm(places - places[chosen[0]], axis=1)
    while len(chosen) < count and away.max() > 2 * depth.max():
        chosen.append(int(np.argmax(away)))
        away = np.minimum(away, np.linalg.norm(places - places[chosen[-1]], axis=1))
    return np.asarray(places[chosen], np.float64)


def mask_logits(mask: NDArray[np.bool_], side: int) -> NDArray[np.float32]:
    """(1, side, side) float32: the mask (H, W) as logits, soft around its outline."""
    inside = cv2.distanceTransform(mask.astype(np.uint8), cv2.DIST_L2, cv2.DIST_MASK_PRECISE)
    outside = cv2.distanceTransform(1 - mask.astype(np.uint8), cv2.DIST_L2, cv2.DIST_MASK_PRECISE)
    soft = _STRENGTH * np.tanh((inside - outside) / (_SOFT_SHARE * mask.shape[1]))
    return np.asarray(cv2.resize(soft, (side, side), interpolation=cv2.INTER_AREA), np.float32)[None]
