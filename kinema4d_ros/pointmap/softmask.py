"""The soft mask that tells a generator where the robot is certain: 1 = exact, 0.5 = look for yourself, 0 = free."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.errors import PointmapError

__all__ = ["SOFT_VALUE", "soft_mask"]

SOFT_VALUE = 0.5


def soft_mask(mask: NDArray[np.bool_], *, seed: int, ratio: float = 0.1) -> NDArray[np.float32]:
    """A guided mask in which a share of the occupied pixels is weakened to 0.5.

    Args:
        mask: (...,) bool, True = robot; usually (T, H, W).
        seed: the same seed and mask give the same result.
        ratio: share of the True pixels, 0 to 1; exactly round(ratio * occupied) of them are chosen,
            without replacement, over the whole array.

    Returns:
        (...,) float32 of the mask's shape: 0, 0.5 or 1.
    """
    if mask.dtype != np.bool_:
        raise PointmapError(f"the mask is {mask.dtype}", expected="bool, True = robot")
    if not 0.0 <= ratio <= 1.0:
        raise PointmapError(f"the soft ratio is {ratio}", expected="a number from 0 to 1")
    out: NDArray[np.float32] = mask.astype(np.float32)
    occupied = np.flatnonzero(mask)
    chosen = np.random.default_rng(seed).choice(
        occupied.size, round(ratio * occupied.size), replace=False, shuffle=False
    )
    out.reshape(-1)[occupied[chosen]] = SOFT_VALUE
    return out
