"""How blurred a picture is, in pixels: from how fast its strongest edges fade when it is blurred a little more.

An edge blurred with standard deviation s has a gradient in proportion to 1 / sqrt(s^2 + t^2) after a further blur t.
Two such gradients, t = 1 and t = 2, give s; the contrast of the edge cancels, and sensor noise hardly counts because
only the strongest edges are asked. A smear by motion spares the edges along it, so edges are asked by direction, and
the most blurred direction that has strong edges speaks for the picture. Beyond 4 pixels noise makes it read too little.
"""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.assets.errors import AssetError

__all__ = ["MAX_BLUR_PX", "blur_px"]

MAX_BLUR_PX = 2.5
"""More than this moves outlines and board corners."""

_DIRECTIONS = 4
_STRONGEST = 300
"""Edges asked in each direction."""

_WEAK = 0.15
"""A direction whose edges are weaker than this share of the strongest direction's says nothing."""

_FLAT = 3.0
"""Grey levels per pixel; a picture without any stronger edge shows nothing, or only blur."""


def blur_px(image: NDArray[np.uint8]) -> float:
    """Standard deviation of the blur of an (H, W[, 3]) uint8 picture, pixels; infinite if there are no edges at all."""
    if image.dtype != np.uint8 or image.ndim not in (2, 3) or min(image.shape[:2]) < 16:
        raise AssetError(
            f"the picture is {image.dtype} of shape {image.shape}", expected="uint8, (H, W) or (H, W, 3), 16 px or more"
        )
    gray = image if image.ndim == 2 else cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
    (size1, angle), (size2, _) = (_gradient(np.asarray(gray, np.float32), t) for t in (1.0, 2.0))
    # The widest place of an edge is its flank; its middle is where the gradient is largest.
    peak = size1 >= cv2.dilate(size1, np.ones((3, 3), np.uint8))
    bin_ = np.floor((angle + np.pi / (2 * _DIRECTIONS)) / (np.pi / _DIRECTIONS)).astype(int) % _DIRECTIONS
    found: list[tuple[float, float]] = []
    for direction in range(_DIRECTIONS):
        here = peak & (bin_ == direction)
        strong = size1[here]
        if len(strong) < 20:
            continue
        count = min(_STRONGEST, max(20, len(strong) // 20))
        pick = np.argpartition(strong, -count)[-count:]
        ratio = np.clip(strong[pick] / np.maximum(size2[here][pick], 1e-6), 1.0 + 1e-6, 2.0)
        found.append((float(np.median(strong[pick])), float(np.median((4 - ratio**2) / (ratio**2 - 1)))))
    if not found or max(strength for strength, _ in found) < _FLAT:
        return float("inf")
    limit = _WEAK * max(strength for strength, _ in found)
    return float(np.sqrt(max(square for strength, square in found if strength >= limit)))


def _gradient(gray: NDArray[np.float32], t: float) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Size and direction (0 to pi) of the gradient after a blur of t pixels."""
    soft = cv2.GaussianBlur(gray, (0, 0), t, borderType=cv2.BORDER_REPLICATE)
    # Central differences: Sobel would blur once more.
    x = np.zeros_like(soft)
    y = np.zeros_like(soft)
    x[:, 1:-1], y[1:-1] = (soft[:, 2:] - soft[:, :-2]) / 2, (soft[2:] - soft[:-2]) / 2
    return np.hypot(x, y), np.mod(np.arctan2(y, x), np.pi)
