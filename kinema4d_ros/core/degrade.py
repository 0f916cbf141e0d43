"""Degraded pointmaps for measuring the effect of wrong control signals: dropout, noise, shift, rotation.

Every function returns a new sequence with consistent points, link ids and colours (NaN and 0 = no robot).
After `add_noise`, `shift_pixels` and `rotate_image` a pixel's point no longer lies on the pixel's ray, as with a
wrong calibration.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.core.errors import ErrorCode, PointmapError
from kinema4d_ros.core.pointmap import PointmapSequence

__all__ = [
    "DEGRADATIONS",
    "Degradation",
    "add_noise",
    "drop_points",
    "random_rotation",
    "random_shift",
    "rotate_image",
    "shift_pixels",
]

DROP_RATIO = 0.05
NOISE_M = 0.01
SHIFT_PX = 5
ROTATION_DEG = 5.0
"""Default strengths; the paper drops 5 % of the points."""


def drop_points(sequence: PointmapSequence, *, seed: int, ratio: float = DROP_RATIO) -> PointmapSequence:
    """Remove exactly round(ratio * points) of all robot points, chosen over the whole sequence."""
    if not 0.0 <= ratio <= 1.0:
        raise PointmapError(f"the share of points to drop is {ratio}", expected="a number from 0 to 1")
    occupied = np.flatnonzero(sequence.link_ids)
    chosen = np.random.default_rng(seed).choice(
        occupied.size, round(ratio * occupied.size), replace=False, shuffle=False
    )
    gone = occupied[chosen]
    xyz, ids = sequence.xyz.copy(), sequence.link_ids.copy()
    xyz.reshape(-1, 3)[gone] = np.nan
    ids.reshape(-1)[gone] = 0
    rgb = None
    if sequence.rgb is not None:
        rgb = sequence.rgb.copy()
        rgb.reshape(-1, 3)[gone] = 0
    return replace(sequence, xyz=xyz, link_ids=ids, rgb=rgb)


def add_noise(sequence: PointmapSequence, *, seed: int, sigma_m: float = NOISE_M) -> PointmapSequence:
    """Add independent Gaussian noise of standard deviation `sigma_m` metres to x, y and z of every robot point."""
    if not (np.isfinite(sigma_m) and sigma_m >= 0.0):
        raise PointmapError(f"the noise is {sigma_m} m", expected="a standard deviation in metres, 0 or more")
    rng = np.random.default_rng(seed)
    xyz = sequence.xyz.copy()
    for t in range(len(sequence)):
        points = xyz[t][sequence.mask[t]]
        points += np.float32(sigma_m) * rng.standard_normal(points.shape, dtype=np.float32)
        xyz[t][sequence.mask[t]] = points
    return replace(sequence, xyz=xyz)


def shift_pixels(sequence: PointmapSequence, columns: int, rows: int) -> PointmapSequence:
    """Shift every frame by whole pixels, right and down if positive; pixels that leave the image are discarded."""

    def move(image: NDArray[Any], empty: float) -> NDArray[Any]:
        out = np.full_like(image, empty)
        height, width = image.shape[1:3]
        if abs(columns) < width and abs(rows) < height:
            target = out[:, max(rows, 0) : height + min(rows, 0), max(columns, 0) : width + min(columns, 0)]
            target[...] = image[:, max(-rows, 0) : height - max(rows, 0), max(-columns, 0) : width - max(columns, 0)]
        return out

    return _each(sequence, move)


def rotate_image(sequence: PointmapSequence, angle_deg: float) -> PointmapSequence:
    """Rotate every frame about its centre, clockwise in the image if positive; nearest pixel, corners cut off."""
    if not np.isfinite(angle_deg):
        raise PointmapError(f"the angle is {angle_deg} degrees", expected="a finite number")
    height, width = sequence.link_ids.shape[1:]
    v, u = np.meshgrid(np.arange(height) + 0.5 - height / 2, np.arange(width) + 0.5 - width / 2, indexing="ij")
    c, s = np.cos(np.radians(angle_deg)), np.sin(np.radians(angle_deg))
    source_u = np.floor(c * u + s * v + width / 2).astype(np.float32)
    source_v = np.floor(-s * u + c * v + height / 2).astype(np.float32)

    def turn(images: NDArray[Any], empty: float) -> NDArray[Any]:
        out = np.empty_like(images)
        for image, turned in zip(images, out, strict=True):
            turned[...] = cv2.remap(
                image,
                source_u,
                source_v,
                cv2.INTER_NEAREST,
                borderMode=cv2.BORDER_CONSTANT,
                borderValue=(empty,) * 3,
            )
        return out

    return _each(sequence, turn)


def random_shift(sequence: PointmapSequence, *, seed: int, limit_px: int = SHIFT_PX) -> PointmapSequence:
    """Apply one shift to the whole sequence, each axis a random whole number from -limit_px to limit_px."""
    if limit_px < 0:
        raise PointmapError(f"the largest shift is {limit_px} px", expected="0 or more")
    columns, rows = np.random.default_rng(seed).integers(-limit_px, limit_px, 2, endpoint=True)
    return shift_pixels(sequence, int(columns), int(rows))


def random_rotation(sequence: PointmapSequence, *, seed: int, limit_deg: float = ROTATION_DEG) -> PointmapSequence:
    """Apply one rotation to the whole sequence, drawn uniformly from -limit_deg to limit_deg."""
    if not (np.isfinite(limit_deg) and limit_deg >= 0.0):
        raise PointmapError(f"the largest rotation is {limit_deg} degrees", expected="0 or more")
    return rotate_image(sequence, float(np.random.default_rng(seed).uniform(-limit_deg, limit_deg)))


def _each(sequence: PointmapSequence, change: Any) -> PointmapSequence:
    return replace(
        sequence,
        xyz=change(sequence.xyz, np.nan),
        link_ids=change(sequence.link_ids, 0),
        rgb=None if sequence.rgb is None else change(sequence.rgb, 0),
    )


# Degradations by name, as the command line gives them.


class _Kind(NamedTuple):
    apply: Callable[[PointmapSequence, int, float], PointmapSequence]
    default: float
    largest: float
    unit: str
    scale: float
    label: str


_KINDS = {
    "drop": _Kind(
        lambda sequence, seed, value: drop_points(sequence, seed=seed, ratio=value),
        DROP_RATIO, 1, "share of the points", 100, "drop {:g} %",
    ),
    "noise": _Kind(
        lambda sequence, seed, value: add_noise(sequence, seed=seed, sigma_m=value),
        NOISE_M, 10, "standard deviation in metres", 1000, "noise {:g} mm",
    ),
    "shift": _Kind(
        lambda sequence, seed, value: random_shift(sequence, seed=seed, limit_px=int(value)),
        SHIFT_PX, 10_000, "whole pixels", 1, "shift up to {:g} px",
    ),
    "rotate": _Kind(
        lambda sequence, seed, value: random_rotation(sequence, seed=seed, limit_deg=value),
        ROTATION_DEG, 180, "degrees", 1, "rotate up to {:g} deg",
    ),
}  # fmt: skip

DEGRADATIONS = tuple(_KINDS)
"""Valid names."""


@dataclass(frozen=True)
class Degradation:
    """A degradation of given strength: share of points, metres, pixels or degrees.

    >>> Degradation.parse("drop").label, Degradation.parse("noise=0.02").label
    ('drop 5 %', 'noise 20 mm')
    """

    name: str
    value: float

    @classmethod
    def parse(cls, text: str) -> Degradation:
        """Parse NAME or NAME=VALUE.

        Raises:
            PointmapError: ARGUMENT_INVALID with the valid names, or with the meaning of the value.
        """
        name, given, strength = text.partition("=")
        kind = _KINDS.get(name)
        if kind is None:
            raise PointmapError(
                f"degradation '{text}' is unknown",
                expected=f"NAME or NAME=VALUE with one of {', '.join(DEGRADATIONS)}",
                code=ErrorCode.ARGUMENT_INVALID,
            )
        try:
            value = float(strength) if given else float(kind.default)
        except ValueError:
            value = math.nan
        if not 0 <= value <= kind.largest or (name == "shift" and not value.is_integer()):
            raise PointmapError(
                f"degradation '{text}' has an invalid strength",
                expected=f"a number from 0 to {kind.largest} ({kind.unit}), as in {name}={kind.default:g}",
                code=ErrorCode.ARGUMENT_INVALID,
            )
        return cls(name, value)

    @property
    def label(self) -> str:
        """Name and strength with its unit."""
        kind = _KINDS[self.name]
        return kind.label.format(kind.scale * self.value)

    def apply(self, sequence: PointmapSequence, seed: int) -> PointmapSequence:
        """Return the degraded sequence; equal for equal seeds."""
        return _KINDS[self.name].apply(sequence, seed, self.value)
