"""The scene without the robot: what was behind it, guessed from what is around it."""

from __future__ import annotations

import math

import cv2
import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.errors import ErrorCode, GeneratorError

__all__ = ["grow_mask", "remove_robot"]


def grow_mask(mask: NDArray[np.bool_], radius_px: float) -> NDArray[np.bool_]:
    """The mask (H, W) and every pixel within that distance of it."""
    radius = math.floor(radius_px)
    if radius < 1 or not mask.any():
        return np.array(mask)
    side = np.arange(-radius, radius + 1)
    disk = (side[:, None] ** 2 + side**2 <= radius_px**2).astype(np.uint8)
    grown: NDArray[np.bool_] = cv2.dilate(mask.astype(np.uint8), disk) != 0
    return grown


def remove_robot(image: NDArray[np.uint8], hole: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """The image (H, W, 3) uint8 with the pixels of `hole` (H, W) replaced by a guess; the rest is untouched."""
    if image.dtype != np.uint8 or image.ndim != 3 or hole.shape != image.shape[:2]:
        raise GeneratorError(
            f"image is {image.dtype} of shape {image.shape}, hole of shape {hole.shape}",
            expected="uint8 (H, W, 3) and bool (H, W)",
            code=ErrorCode.GENERATOR_BAD_REQUEST,
        )
    if not hole.any():
        return np.array(image)
    if hole.all():
        return np.full(image.shape, 127, np.uint8)
    filled: NDArray[np.uint8] = cv2.inpaint(image, hole.astype(np.uint8), 3, cv2.INPAINT_TELEA)
    return filled
