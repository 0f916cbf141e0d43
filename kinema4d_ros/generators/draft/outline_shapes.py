"""Shapes of the fit without depth: what votes say about their numbers, and how a search may change them.

A shape is a kind and seven numbers, see `_kernels`; votes are (8,): x, y, four widths, heights of bottom and top.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.core.transforms import make
from kinema4d_ros.generators.draft._kernels import BIN, BOX, CX, CY, CYLINDER, SPHERE, SX, SY, SZ, YAW, Z0
from kinema4d_ros.generators.draft.detection import DIRECTIONS
from kinema4d_ros.generators.draft.scene import Estimate
from kinema4d_ros.physics.objects import Shape

__all__ = [
    "FLOATING_M",
    "FREE",
    "NAMES",
    "inner_radius",
    "shape_estimate",
    "tall",
    "units",
    "voted_shape",
    "voted_spread",
    "walk_ways",
]

Array = NDArray[np.float64]

NAMES: dict[int, Shape] = {BOX: "box", CYLINDER: "cylinder", SPHERE: "sphere", BIN: "bin"}
FREE = {
    BOX: (CX, CY, YAW, SX, SY, SZ),
    BIN: (CX, CY, YAW, SX, SY, SZ),
    CYLINDER: (CX, CY, SX, SZ),
    SPHERE: (CX, CY, SX),
}
"""Numbers that a fit may change, by kind."""
FLOATING_M = 0.015
"""Objects that are seen this far above the table stand on another one, or are held."""
_YAW_SPREAD = 0.35
_LEAST_SPREAD_M = 0.003
_SQUARE = 0.02
"""Preference for equal sides where the four widths leave it open, metres per unit of log aspect."""


def voted_shape(kind: int, voted: Array, sigma: Array, right: Array, floor: float) -> Array:
    """Return the shape (7,) of a kind that the votes describe; `right` (2,) is the camera's right, base frame."""
    widths = voted[2:6]
    bottom = voted[6] if voted[6] > floor + max(FLOATING_M, 2 * sigma[6]) else floor
    shape = np.array([voted[0], voted[1], 0.0, 0.0, 0.0, max(voted[7] - bottom, 0.01), bottom])
    if kind in (CYLINDER, SPHERE):
        shape[SX] = shape[SY] = float(np.median(widths))
        if kind == SPHERE:
            shape[SX] = shape[SY] = shape[SZ] = (2 * shape[SX] + shape[SZ]) / 3
        return shape
    best = np.inf
    for turn in np.radians(np.arange(0, 90, 5)):
        a = np.stack([np.abs(np.cos(turn - DIRECTIONS)), np.abs(np.sin(turn - DIRECTIONS))], 1)
        sides = np.clip(np.linalg.lstsq(a, widths, rcond=None)[0], 0.008, 0.3)
        error = float(np.abs(a @ sides - widths).sum() + _SQUARE * abs(math.log(sides[0] / sides[1])))
        if error < best:
            best = error
            shape[YAW] = turn + math.atan2(right[1], right[0])
            shape[SX], shape[SY] = sides
    return shape


def voted_spread(kind: int, sigma: Array, right: Array) -> Array:
    """Return the covariance (F, F) of a kind's free numbers that the votes' spreads (8,) mean."""
    side = float(sigma[2:6].mean())
    deviation = {YAW: _YAW_SPREAD, SX: side, SY: side, SZ: float(sigma[7])}
    covariance = np.diag([max(deviation.get(i, 0.0), _LEAST_SPREAD_M) ** 2 for i in FREE[kind]])
    axes = np.stack([right, [-right[1], right[0]]], 1)
    covariance[:2, :2] = axes @ np.diag(np.maximum(sigma[:2], _LEAST_SPREAD_M) ** 2) @ axes.T
    return covariance


def walk_ways(kind: int, xy: Array, eye: Array, right: Array, floor: float) -> Array:
    """Return directions (W, 7) of a random walk: those in which an image changes least, and single numbers.

    `xy` (2,) is where the object stands, `eye` (3,) the camera.
    """
    away = xy - eye[:2]
    distance = float(np.hypot(*away))
    rise = (eye[2] - floor) / distance
    across, along, wider, deeper, taller, turned = np.zeros((6, 7))
    across[[CX, CY]] = right
    along[[CX, CY]] = away / distance
    wider[SX] = deeper[SY] = taller[SZ] = turned[YAW] = 1.0
    both = wider + deeper
    # Farther and lower keeps the outline of the top; larger with a fixed near side keeps that of the base.
    ways = [0.001 * across, 0.002 * along, 0.003 * (along - rise * taller), 0.003 * (both + 0.5 * along)]
    ways += [0.002 * (both - 0.5 * along), 0.002 * wider]
    if kind != SPHERE:
        ways += [0.002 * taller, 0.003 * (both + 0.5 * along - 0.5 * rise * taller)]
    if kind in (BOX, BIN):
        ways += [0.002 * deeper, 0.05 * turned, 0.002 * (wider - deeper), 0.05 * turned + 0.002 * both]
    return np.array(ways)


def units(kind: int) -> Array:
    """Return small steps of the free numbers: 1 mm, and 2 degrees of yaw."""
    return np.array([0.035 if i == YAW else 0.001 for i in FREE[kind]])


def inner_radius(kind: int, shape: Array) -> float:
    """Return the radius of the largest circle in the footprint, metres."""
    return float(min(shape[SX], shape[SX] if kind in (CYLINDER, SPHERE) else shape[SY])) / 2


def tall(kind: int, shape: Array) -> float:
    """Return the height of a shape, metres."""
    return float(shape[SX] if kind == SPHERE else shape[SZ])


def shape_estimate(kind: int, shape: Array, weight: float) -> Estimate:
    """Make the estimate of a shape."""
    x, z = float(shape[SX]), tall(kind, shape)
    y = x if kind in (CYLINDER, SPHERE) else float(shape[SY])
    c, s = (1.0, 0.0) if kind in (CYLINDER, SPHERE) else (math.cos(shape[YAW]), math.sin(shape[YAW]))
    pose = make([[c, -s, 0.0], [s, c, 0.0], [0.0, 0.0, 1.0]], [shape[CX], shape[CY], shape[Z0] + z / 2])
    return Estimate(NAMES[kind], (x, y, z), pose, weight)
