"""Is a refined mask worse than the prompt it came from? Told without truth, from outlines and the image's edges."""

from __future__ import annotations

from typing import Literal

import cv2
import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.calibration.edge_fit import FOUND, ON_EDGE_PX, mask_edge_offsets, outline_pixels
from kinema4d_ros.calibration.silhouette import signed_distance

__all__ = ["better_mask"]

Bools = NDArray[np.bool_]

OUTLINE_SHARE, AREA_SHARE = 0.12, 0.05
"""More of the outline, or of the prompt's area, lost and added in pieces: the two masks contradict each other."""

NEAR_SHARE = 0.01
"""Of the image's width: outlines this far apart, beyond what the prompt is off everywhere, are different outlines."""


def better_mask(image: NDArray[np.uint8], prompt: Bools, refined: Bools) -> Literal["refined", "prompt", "doubtful"]:
    """Which of two masks (H, W) of an image (H, W, 3) to believe.

    A prompt that is off by some pixels is off by about as much everywhere, and refining brings its outline to the
    image's. Where whole pieces come or go instead, one of the two is wrong: the refined one if the prompt's outline
    lies on edges of the image already; otherwise that cannot be told ("doubtful").
    """
    row, column = outline_pixels(prompt)
    if len(row) == 0:
        return "refined"
    near_px = NEAR_SHARE * image.shape[1]
    to_prompt, to_refined = signed_distance(prompt), signed_distance(refined)
    off = np.abs(to_refined[row, column])
    # Most of the outline may be lost: a low percentile is what the prompt is off where both see the same outline.
    off_px = min(float(np.percentile(off, 30)), image.shape[1] / 2)
    beyond = 3 * off_px + near_px
    lost = float(np.mean(to_refined[row, column] > beyond))
    added = np.mean(to_prompt[outline_pixels(refined)] > beyond) if refined.any() else 0.0
    # Pieces within the outline do not show there; a thin rim does not count.
    rim = 2 * float(np.median(off)) + 1
    pieces = ((to_prompt < -rim) & ~refined) | (refined & (to_prompt > rim))
    opened = cv2.morphologyEx(pieces.astype(np.uint8), cv2.MORPH_OPEN, np.ones((3, 3), np.uint8))
    area = np.count_nonzero(opened) / np.count_nonzero(prompt)
    if refined.any() and lost + added <= OUTLINE_SHARE and area <= AREA_SHARE:
        return "refined"
    reach = max(ON_EDGE_PX, min(off_px + ON_EDGE_PX, near_px))
    on_edges = np.abs(mask_edge_offsets(prompt, image, 2 * reach + 2)) < reach
    return "prompt" if float(on_edges.mean()) >= FOUND else "doubtful"
