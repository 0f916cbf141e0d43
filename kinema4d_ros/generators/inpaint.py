"""Inpainting of the robot: the hidden scene is estimated from its surroundings.

    hole ─ smooth fill at the coarsest size ─> matching patches from elsewhere in the image, searched and painted
    from coarse to fine ─> image

Patches continue edges and textures where a smooth fill blurs them. The result is an estimate: the hidden scene was
never observed.
"""

from __future__ import annotations

import math

import cv2
import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import binary_dilation

from kinema4d_ros.core.errors import ErrorCode, GeneratorError
from kinema4d_ros.generators._kernels import paint_patches, search_patches

__all__ = ["grow_mask", "remove_robot"]

_RADIUS = 3
_COARSEST_PX = 40
_LEAST_SOURCES = 200
_BIN = 16
_RIM = 0.015
"""Width of the hole's border as a share of the image's longer side."""
_FAMILIAR = 0.95
_EFFORT = ((1, 1), (2, 1), (4, 2))
"""Passes, and rounds of search in each, at full size, half, and smaller."""

Image = NDArray[np.float32]
Mask = NDArray[np.bool_]


def grow_mask(mask: Mask, radius_px: float) -> Mask:
    """Dilate a mask (H, W) by `radius_px`."""
    radius = math.floor(radius_px)
    if radius < 1 or not mask.any():
        return np.array(mask)
    side = np.arange(-radius, radius + 1)
    disk = (side[:, None] ** 2 + side**2 <= radius_px**2).astype(np.uint8)
    grown: Mask = cv2.dilate(mask.astype(np.uint8), disk) != 0
    return grown


def remove_robot(image: NDArray[np.uint8], hole: Mask, *, quick: bool = False) -> NDArray[np.uint8]:
    """Inpaint the pixels of `hole` (H, W) in an image (H, W, 3) uint8; other pixels are unchanged.

    The result is deterministic. `quick` skips the patches: it takes milliseconds and blurs textures.
    """
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
    if quick:
        smooth: NDArray[np.uint8] = cv2.inpaint(image, hole.astype(np.uint8), 3, cv2.INPAINT_TELEA)
        return smooth
    sizes = _pyramid(image, hole)
    filled, coarse = _smooth(*sizes[-1]), len(sizes) - 1
    match: NDArray[np.int32] | None = None
    for level in range(coarse, -1, -1):
        known, gap = sizes[level]
        if level != coarse:
            larger = cv2.resize(filled, gap.shape[::-1], interpolation=cv2.INTER_LINEAR)
            filled = np.where(gap[..., None], larger, known)
        answer = _continue(filled, gap, match, level, coarse)
        if answer is not None:
            filled, match = answer
    guess = np.clip(np.rint(filled), 0, 255).astype(np.uint8)
    result: NDArray[np.uint8] = np.where(hole[..., None], guess, image)
    return result


def _pyramid(image: NDArray[np.uint8], hole: Mask) -> list[tuple[Image, Mask]]:
    """Build a pyramid of image and hole (1, 1/2, 1/4, ...); hole pixels are not averaged into known ones."""
    known = (~hole).astype(np.float32)
    colours = image.astype(np.float32) * known[..., None]
    levels = [(colours, hole)]
    while min(known.shape) >= 2 * _COARSEST_PX:
        size = (known.shape[1] // 2, known.shape[0] // 2)
        known = cv2.resize(known, size, interpolation=cv2.INTER_AREA)
        colours = cv2.resize(colours, size, interpolation=cv2.INTER_AREA)
        levels.append((colours / np.maximum(known, 1e-6)[..., None], known < 0.5))
    return levels


def _smooth(colours: Image, hole: Mask) -> Image:
    picture = np.clip(np.rint(colours), 0, 255).astype(np.uint8)
    if not hole.any() or hole.all():
        return colours
    filled: NDArray[np.uint8] = cv2.inpaint(picture, hole.astype(np.uint8), 3, cv2.INPAINT_TELEA)
    return np.where(hole[..., None], filled.astype(np.float32), colours)


def _bordering(colours: Image, hole: Mask) -> Mask:
    """Mark pixels whose colour also occurs at the hole's border: objects elsewhere must not be copied into the hole."""
    bins = np.clip(colours / _BIN, 0, 255 // _BIN).astype(np.int64)
    count = 255 // _BIN + 1
    index = (bins[..., 0] * count + bins[..., 1]) * count + bins[..., 2]
    width = max(2, round(_RIM * max(hole.shape)))
    rim = (cv2.dilate(hole.astype(np.uint8), np.ones((2 * width + 1, 2 * width + 1), np.uint8)) != 0) & ~hole
    seen = np.bincount(index[rim], minlength=count**3).reshape(count, count, count) > 0
    # Include neighbouring bins for shading and noise.
    familiar: Mask = binary_dilation(seen, np.ones((3, 3, 3))).ravel()[index]
    return familiar


def _continue(
    filled: Image, hole: Mask, coarser: NDArray[np.int32] | None, level: int, coarsest: int
) -> tuple[Image, NDArray[np.int32]] | None:
    """Inpaint the hole at one level; None if the image has too few complete source patches."""
    size = 2 * _RADIUS + 1
    square = np.ones((size, size), np.uint8)
    whole = cv2.erode((~hole).astype(np.uint8), square, borderType=cv2.BORDER_CONSTANT, borderValue=0) != 0
    whole &= cv2.blur(_bordering(filled, hole).astype(np.float32), (size, size)) > _FAMILIAR
    places = np.argwhere(whole).astype(np.int32)
    if len(places) < _LEAST_SOURCES or not hole.any():
        return None
    near: Mask = cv2.dilate(hole.astype(np.uint8), square) != 0
    targets = np.argwhere(near).astype(np.int32)
    match = np.full((*hole.shape, 2), -1, np.int32)
    rng = np.random.default_rng(level)
    match[near] = places[rng.integers(0, len(places), len(targets))]
    if coarser is not None:
        rows = np.minimum(targets[:, 0] // 2, coarser.shape[0] - 1)
        columns = np.minimum(targets[:, 1] // 2, coarser.shape[1] - 1)
        guess = 2 * coarser[rows, columns] + targets % 2
        inside = (coarser[rows, columns, 0] >= 0) & (guess < hole.shape).all(axis=1)
        inside[inside] = whole[guess[inside, 0], guess[inside, 1]]
        match[targets[inside, 0], targets[inside, 1]] = guess[inside]
    cost = np.full(hole.shape, np.inf, np.float32)
    pixels = np.argwhere(hole).astype(np.int32)
    # Structure is decided at the coarse levels, where passes are cheap: many there, one at full size.
    passes, rounds = (10, 4) if level == coarsest else _EFFORT[min(level, len(_EFFORT) - 1)]
    picture = np.ascontiguousarray(filled, dtype=np.float32)
    for turn in range(passes):
        search_patches(picture, targets, whole, match, cost, _RADIUS, rounds, 31 * level + turn)
        typical = float(np.median(cost[near]))
        softness = max(1.0, typical * (0.5 if turn < passes - 1 or level > 0 else 0.05))
        paint_patches(picture, picture.copy(), pixels, match, cost, _RADIUS, softness, picture)
    return picture, match
