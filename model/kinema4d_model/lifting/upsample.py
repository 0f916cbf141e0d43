"""From the network's size to the picture's: edges are taken from the picture, not from the small map."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

__all__ = ["guided_upsample", "upsample_within"]

Floats = NDArray[np.float32]


def guided_upsample(
    values: Floats, small: NDArray[np.uint8], large: NDArray[np.uint8], *, radius: int = 2, softness: float = 0.02
) -> Floats:
    """(h, w) values as (H, W), each neighbourhood a linear function of the picture's three colours.

    Args:
        values: at the small size.
        small: (h, w, 3) uint8, the picture at that size.
        large: (H, W, 3) uint8, the picture.
        radius: of a neighbourhood, pixels of the small size.
        softness: contrast, 0 to 1, below which the picture counts as plain.
    """
    guide = small.astype(np.float32) / 255
    mean_guide, mean_values = _mean(guide, radius), _mean(values, radius)
    pairs = _mean((guide[..., :, None] * guide[..., None, :]).reshape(*values.shape, 9), radius)
    covariance = pairs.reshape(*values.shape, 3, 3) - mean_guide[..., :, None] * mean_guide[..., None, :]
    together = _mean(guide * values[..., None], radius) - mean_guide * mean_values[..., None]
    slope = np.linalg.solve(covariance + softness**2 * np.eye(3, dtype=np.float32), together[..., None])[..., 0]
    offset = mean_values - (slope * mean_guide).sum(-1)
    line = _mean(np.concatenate([slope, offset[..., None]], -1).astype(np.float32), radius)
    full = _resize(line, large.shape)
    return np.asarray((full[..., :3] * (large.astype(np.float32) / 255)).sum(-1) + full[..., 3])


def upsample_within(values: Floats, weight: Floats, shape: tuple[int, ...]) -> Floats:
    """(h, w) values as (H, W), mixed only from where `weight` is large: the table does not bleed into a thing."""
    both = _resize(np.stack([values * weight, weight], -1), shape)
    return np.asarray(both[..., 0] / np.maximum(both[..., 1], 1e-6))


def _mean(values: NDArray[Any], radius: int) -> Floats:
    side = 2 * radius + 1
    planes = values.reshape(*values.shape[:2], -1).astype(np.float32)
    # OpenCV's box filter takes any number of channels.
    return np.asarray(cv2.blur(planes, (side, side), borderType=cv2.BORDER_REFLECT)).reshape(values.shape)


def _resize(values: Floats, shape: tuple[int, ...]) -> Floats:
    return np.asarray(cv2.resize(values, (shape[1], shape[0]), interpolation=cv2.INTER_LINEAR))
