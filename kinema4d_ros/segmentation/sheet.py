"""A contact sheet of masks over their images: one look tells whether they are right."""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.io.images import strip
from kinema4d_ros.segmentation.protocol import Segmentation, as_stack

__all__ = ["contact_sheet"]

_ROBOT = np.array([52, 168, 83], np.float32)
_MOST = 24


def contact_sheet(
    images: NDArray[np.uint8], found: Segmentation, *, width: int = 360, columns: int = 4
) -> NDArray[np.uint8]:
    """(h, w, 3) uint8 RGB: robot tinted green, the rest darker, score in the corner; at most 24 images, spread evenly.

    Args:
        images: (H, W, 3) or (T, H, W, 3) uint8 RGB, those that were segmented.
        found: their masks.
        width: of a tile, pixels.
        columns: of the sheet.
    """
    stack = as_stack(images)
    masks = found.masks[None] if found.masks.ndim == 2 else found.masks
    shown = np.unique(np.linspace(0, len(stack) - 1, min(_MOST, len(stack))).round().astype(int))
    height = max(1, round(width * stack.shape[1] / stack.shape[2]))
    tiles, labels = [], []
    for i in shown:
        tinted = np.where(masks[i][..., None], 0.5 * stack[i] + 0.5 * _ROBOT, 0.55 * stack[i])
        tiles.append(cv2.resize(tinted.astype(np.uint8), (width, height), interpolation=cv2.INTER_AREA))
        labels.append(f"{i}: {found.scores[i]:.2f}" if masks[i].any() else f"{i}: no robot")
    return strip(tiles, columns, labels)
