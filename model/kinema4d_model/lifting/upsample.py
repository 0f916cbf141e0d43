"""From the network's size to the picture's: edges are taken from the picture, not from the small map."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

__all__ = ["guided_upsample", "upsample_within"]

Floats = NDArray[np.float32]


def guided_upsample(
    values: Floats,
    small: NDArray[np.uint8],
    large: NDArray[np.uint8],
    known: NDArray[np.bool_] | None = None,
    *,
    radius: int = 3,
    softness: float = 0.05,
) -> Floats:
    """(h, w) values as (H, W), each neighbourhood a linear function of the picture's three colours.

    Useful at the same size too: it moves blurred borders onto those of the picture.

    Args:
        values: at the small size.
        small: (h, w, 3) uint8, the picture at that size.
        large: (H, W, 3) uint8, the picture.
        known: (h, w) where values mean something; None = everywhere. The others get theirs from around them.
        radius: of a neighbourhood, pixels of the small size.
        softness: contrast, 0 to 1, below which the picture counts as plain.
    """
    weight = np.full(values.shape, 1.0, np.float32) if known is None else known.astype(np.float32) + 1e-4
    total = _mean(weight, radius)

    def mean(x: NDArray[Any]) -> Floats:
        extra = (...,) + (None,) * (x.ndim - 2)
        return np.asarray(_mean(x * weight[extra], radius) / total[extra])

    guide = small.astype(np.float32) / 255
    mean_guide, mean_values = mean(guide), mean(values)
    covariance = mean(guide[..., :, None] * guide[..., None, :]) - mean_guide[..., :, None] * mean_guide[..., None, :]
    together = mean(guide * values[..., None]) - mean_guide * mean_values[..., None]
    slope = np.linalg.solve(covariance + softness**2 * np.eye(3, dtype=np.float32), together[..., None])[..., 0]
    offset = mean_values - (slope * mean_guide).sum(-1)
    full = _resize(mean(np.concatenate([slope, offset[..., None]], -1)), large.shape)
    return np.asarray((full[..., :3] * (large.astype(np.float32) / 255)).sum(-1) + full[..., 3])


def upsample_within(values: Floats, weight: Floats, shape: tuple[int, ...]) -> Floats:
    """(h, w) values as (H, W), mixed only from where `weight` is large: the table does not bleed into a thing."""
    both = _resize(np.stack([values * weight, weight], -1), shape)
    return np.asarray(both[..., 0] / np.maximum(both[..., 1], 1e-6))


def _mean(values: NDArray[Any], radius: int) -> Floats:
    side = 2 * radius + 1
    planes = values.reshape(*values.shape[:2], -1).astype(np.float32)
    return np.asarray(cv2.blur(planes, (side, side), borderType=cv2.BORDER_REFLECT)).reshape(values.shape)


def _resize(values: Floats, shape: tuple[int, ...]) -> Floats:
    return np.asarray(cv2.resize(values, (shape[1], shape[0]), interpolation=cv2.INTER_LINEAR))
