"""What changed against an empty scene: the background under today's light, and the changes that are not shadows."""

from __future__ import annotations

from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

__all__ = ["MIN_VIDEO", "Change", "compare", "median_background", "relight"]

Floats = NDArray[np.float32]
Bools = NDArray[np.bool_]

MIN_VIDEO = 5
"""With fewer images their median shows the robot, not what is behind it."""

_SHRINK = 6
_FIT_ROUNDS = 12
_DARK = 4.0
"""8-bit steps added to both sides of a ratio: below that, sensors count noise."""

_CHANGED, _SURE = 4.0, 7.0
"""Differences, in standard deviations of the noise, that are a change, and one beyond doubt."""

_SHADOW = (0.42, 1.03)
_SHADOW_COLOUR = 0.12
"""A shadow leaves this share of the light, alike in all colours within that much: no lamp is the only one."""

_SHARP = 0.25
"""A grey robot before a grey wall looks like that too; but its outline falls by this share of its whole depth within a
pixel, and that of a shadow, which has a penumbra, by less."""

_LEAST_PX = 30


class Change(NamedTuple):
    """An image beside its background.

    Attributes:
        features: (H, W, 3) uint8: light kept (110 = all), how its colour shifted, brightness: what tells robot from
            shadow.
        changed: (H, W) bool: differs by more than noise.
        solid: (H, W) bool: differs as no shadow does.
        sure: (H, W) bool: the part of it that is beyond doubt.
    """

    features: NDArray[np.uint8]
    changed: Bools
    solid: Bools
    sure: Bools


def relight(background: NDArray[np.uint8], image: NDArray[np.uint8]) -> Floats:
    """(H, W, 3) float32: the background as it would look in the image's light.

    Each colour gets a gain that varies smoothly over the image (a quadratic), fitted robustly: the robot and its
    shadow, as long as they fill less than about half of the image, do not pull it.
    """
    height, width = image.shape[:2]
    size = (max(1, width // _SHRINK), max(1, height // _SHRINK))
    new, old = (cv2.resize(i, size, interpolation=cv2.INTER_AREA).astype(np.float64) for i in (image, background))
    ratio = np.log((new + _DARK) / (old + _DARK)).reshape(-1, 3)
    good = ((new < 250) & (old < 250)).all(axis=2).reshape(-1)
    if np.count_nonzero(good) < 60:
        return np.asarray(background, np.float32)
    basis = _quadratic(size[1], size[0])
    rest = ratio - np.median(ratio[good], axis=0)
    gains = np.zeros((6, 3))
    for _ in range(_FIT_ROUNDS):
        spread = 1.4826 * np.median(np.abs(rest[good]), axis=0) + 0.01
        weight = np.sqrt(good) / (1 + np.sum((rest / spread) ** 2, axis=1) / 4)
        gains = np.linalg.lstsq(basis * weight[:, None], ratio * weight[:, None], rcond=None)[0]
        rest = ratio - basis @ gains
    # Smooth: computed small, enlarged.
    gain = cv2.resize(np.exp((basis @ gains).reshape(size[1], size[0], 3)), (width, height))
    return np.asarray(np.clip((background + _DARK) * gain - _DARK, 0, 255), np.float32)


def median_background(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """(H, W, 3) uint8: what most of the images (T, H, W, 3) show at each pixel, in the light of the first.

    What never moves, such as the robot's foot, is part of it.
    """
    first = images[0]
    lit = [first, *(np.rint(relight(image, first)).astype(np.uint8) for image in images[1:])]
    return np.asarray(np.median(np.stack(lit), axis=0), np.uint8)


def compare(image: NDArray[np.uint8], background: NDArray[np.uint8]) -> Change:
    """An image (H, W, 3) uint8 against the background of the same size."""
    new = cv2.GaussianBlur(image.astype(np.float32), (0, 0), 0.7)
    old = cv2.GaussianBlur(relight(background, image), (0, 0), 0.7)
    ratio = (new + _DARK) / (old + _DARK)
    kept = ratio.mean(axis=2)
    colour = np.abs(ratio / kept[..., None] - 1).max(axis=2)
    difference = new - old
    noise = 1.4826 * float(np.median(np.abs(difference - np.median(difference, axis=(0, 1))))) + 1.0
    distance = np.sqrt(np.mean(difference**2, axis=2)) / noise
    changed = distance > _CHANGED
    shadow = (kept > _SHADOW[0]) & (kept < _SHADOW[1]) & (colour < _SHADOW_COLOUR)
    solid = changed & ~shadow
    solid |= _sharp_pieces(np.log(kept), changed, solid)
    sure = cv2.morphologyEx((solid & (distance > _SURE)).astype(np.uint8), cv2.MORPH_OPEN, np.ones((5, 5), np.uint8))
    warm = 128 + 200 * (ratio[..., 0] - ratio[..., 2]) / kept
    features = np.stack([110 * kept, warm, new.mean(axis=2)], axis=2)
    return Change(np.clip(features, 0, 255).astype(np.uint8), changed, solid, sure > 0)


def _sharp_pieces(depth: Floats, changed: Bools, solid: Bools) -> Bools:
    """(H, W) bool: pieces of changes that have a shadow's colour but not its soft outline.

    Args:
        depth: (H, W) float32 logarithm of the light kept.
        changed, solid: as in `Change`.
    """
    square = np.ones((3, 3), np.uint8)
    soft = cv2.GaussianBlur(depth, (0, 0), 0.7)
    slope = np.hypot(*(cv2.Sobel(soft, cv2.CV_32F, 1 - axis, axis, scale=1 / 8) for axis in (0, 1)))
    steepest = cv2.dilate(slope, np.ones((5, 5), np.uint8))
    rest = cv2.morphologyEx(changed.astype(np.uint8), cv2.MORPH_CLOSE, square) == 0
    found = np.zeros(changed.shape, np.bool_)
    if not rest.any():
        return found
    noise = float(np.median(steepest[rest]))
    count, pieces, stats, _ = cv2.connectedComponentsWithStats(
        cv2.morphologyEx((changed & ~solid).astype(np.uint8), cv2.MORPH_OPEN, square), connectivity=4
    )
    rim = (cv2.dilate(rest.astype(np.uint8), square) > 0) & (pieces > 0)
    for i in range(1, count):
        outline = steepest[rim & (pieces == i)]
        if stats[i, cv2.CC_STAT_AREA] < _LEAST_PX or len(outline) < 10:
            continue
        fall = max(-float(np.median(soft[pieces == i])), 0.05)
        if float(np.median(outline)) - noise > _SHARP * fall:
            found |= pieces == i
    return found


def _quadratic(height: int, width: int) -> NDArray[np.float64]:
    y, x = np.meshgrid(np.linspace(-1, 1, height), np.linspace(-1, 1, width), indexing="ij")
    return np.stack([np.ones_like(x), x, y, x * x, x * y, y * y], axis=2).reshape(-1, 6)
