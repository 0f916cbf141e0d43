"""Where a gripper that points down can hold an object: grip points, closing directions and widths by shape.

A mug is held by its body with the handle between the fingers' planes, a bottle by its body or, if that is too wide, by
its neck, an L along one of its legs or, if that is too long, across it, a tapered block by its width at the height of
the fingers, and a hull or an odd shape that fell over by the section of its convex hull.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.core.transforms import apply
from kinema4d_ros.physics.objects import PLAIN_SHAPES, PlacedObject, parts_of
from kinema4d_ros.physics.parts import (
    BOTTLE_BODY,
    BOTTLE_NECK,
    BOTTLE_SHOULDER,
    MUG_SIDES,
    TAPER_TOP,
    ell_leg,
    hull_edges,
    mug_axis,
)
from kinema4d_ros.robot.gripper import Fingers

__all__ = ["FINGER_GAP_M", "Grip", "grips_of"]

Array = NDArray[np.float64]

FINGER_GAP_M = 0.014
"""Gap between each open finger and the object during the descent."""
BELOW_CENTER_M = 0.004
ABOVE_TABLE_M = 0.006
"""The fingers hold an object just below its centre, with their tips at least this far above the lowest possible."""
ROUND_WAYS = 16
"""Closing directions to try on a round object."""
BELOW_EDGE_M = 0.008
"""Smallest distance of the grip point below the top of the part that is held."""
BESIDE_M = 0.003
"""Gap between a finger and what stands beside it."""
UPRIGHT = 0.95
"""Smallest z component of a standing object's z axis."""


@dataclass(frozen=True)
class Grip:
    """A way to hold an object with the gripper pointing down.

    Attributes:
        x, y, z: point between the pads, metres, base frame.
        yaw: direction in which the fingers close, radians about the vertical, base frame.
        width_m: of the object between the pads.
    """

    x: float
    y: float
    z: float
    yaw: float
    width_m: float


def grips_of(placed: PlacedObject, fingers: Fingers, widest_m: float, lowest_m: float) -> list[Grip]:
    """List the ways to hold an object that promise about the same; empty if it is too wide for the gripper.

    Args:
        placed: the object; boxes, cylinders, spheres and bins are held at the bounding box in any pose.
        fingers: of the gripper.
        widest_m: width of the open gripper; odd shapes are held where they and the gaps fit into it.
        lowest_m: height of the grip point above the object's foot at which the finger tips almost touch the table.
    """
    thing = placed.object
    x, y, z = placed.position
    height = max(z - BELOW_CENTER_M, z - thing.height / 2 + lowest_m + ABOVE_TABLE_M)
    if thing.shape in PLAIN_SHAPES:
        width = min(thing.size[:2])
        return [Grip(float(x), float(y), float(height), yaw, width) for yaw in _ways(placed)]
    if thing.shape == "hull" or placed.base_T_object[2, 2] < UPRIGHT:
        found = _section_grips(placed, lowest_m)
    else:
        found = _odd_grips(placed, fingers, widest_m, float(height))
    return [grip for grip in found if grip.width_m + 2 * FINGER_GAP_M <= widest_m]


def _ways(placed: PlacedObject) -> list[float]:
    """List closing directions to try, radians: both face pairs of a box in two orientations, else 16 directions."""
    R = placed.base_T_object[:3, :3]
    if placed.object.shape in ("box", "bin"):
        # Use the axis closest to horizontal, so that a tipped box is also gripped by its faces.
        flat = R[:, int(np.argmin(np.abs(R[2])))]
        first, count = float(np.arctan2(flat[1], flat[0])), 4
    else:
        first, count = 0.0, ROUND_WAYS
    return [first + 2 * np.pi * i / count for i in range(count)]


def _odd_grips(placed: PlacedObject, fingers: Fingers, widest_m: float, height: float) -> list[Grip]:
    """List the grips of a standing odd shape at a height in the base frame, metres."""
    thing = placed.object
    x, y, tall = thing.size
    foot = placed.position[2] - tall / 2
    if thing.shape == "mug":
        # Across the handle, on flat pieces of the wall.
        turns = np.pi / 2 + 2 * np.pi / MUG_SIDES * np.array([0, -1, 1])
        return [g for turn in turns for g in _both(placed, mug_axis(thing.size), 0.0, height, turn, y)]
    if thing.shape == "bottle":
        body = x + 2 * FINGER_GAP_M <= widest_m
        width = x if body else BOTTLE_NECK * x
        level = min(height, foot + BOTTLE_BODY * tall - BELOW_EDGE_M)
        level = level if body else foot + (BOTTLE_SHOULDER + 1.0) / 2 * tall
        turns = 2 * np.pi * np.arange(ROUND_WAYS // 2) / ROUND_WAYS
        return [g for turn in turns for g in _both(placed, 0.0, 0.0, level, turn, width)]
    if thing.shape == "ell":
        leg = ell_leg(thing.size)
        along = [
            *_both(placed, 0.0, (leg - y) / 2, height, 0.0, x),
            *_both(placed, (leg - x) / 2, 0.0, height, np.pi / 2, y),
        ]
        if min(x, y) + 2 * FINGER_GAP_M <= widest_m:
            return along
        # Across a leg one finger stands between the legs, and must not touch the other leg.
        clear = leg + fingers.width_m / 2 + BESIDE_M
        return [
            *_both(placed, min(clear - x / 2, x / 2), (leg - y) / 2, height, np.pi / 2, leg),
            *_both(placed, (leg - x) / 2, min(clear - y / 2, y / 2), height, 0.0, leg),
        ]
    shrink = 1.0 - (1.0 - TAPER_TOP) * (height - foot) / tall if thing.shape == "taper" else 1.0
    return [
        *_both(placed, 0.0, 0.0, height, 0.0, x * shrink),
        *_both(placed, 0.0, 0.0, height, np.pi / 2, y * shrink),
    ]


def _both(placed: PlacedObject, x: float, y: float, z: float, turn: float, width: float) -> list[Grip]:
    """Make the two grips at x, y in the object's frame that close along `turn` there, at height z in the base frame."""
    R = placed.base_T_object[:3, :3]
    point = apply(placed.base_T_object, [x, y, 0.0])
    yaw = float(np.arctan2(R[1, 0], R[0, 0])) + float(turn)
    return [Grip(float(point[0]), float(point[1]), z, yaw + half, width) for half in (0.0, np.pi)]


def _section_grips(placed: PlacedObject, lowest_m: float) -> list[Grip]:
    """List grips of the convex hull of an object in any pose: the narrower half of the directions at its section."""
    points = apply(placed.base_T_object, np.concatenate([part.corners() for part in parts_of(placed.object)]))
    foot, top = float(points[:, 2].min()), float(points[:, 2].max())
    z = max((foot + top) / 2 - BELOW_CENTER_M, foot + lowest_m + ABOVE_TABLE_M)
    edges = hull_edges(points)
    a, b = points[edges[:, 0]], points[edges[:, 1]]
    across = (a[:, 2] - z) * (b[:, 2] - z) < 0
    if not across.any():
        return []
    a, b = a[across], b[across]
    section = a[:, :2] + ((z - a[:, 2]) / (b[:, 2] - a[:, 2]))[:, None] * (b - a)[:, :2]
    found = []
    for turn in 2 * np.pi * np.arange(ROUND_WAYS // 2) / ROUND_WAYS:
        axes = np.array([[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]])
        along = section @ axes.T
        x, y = axes.T @ (along.min(axis=0) + along.max(axis=0)) / 2
        width = float(np.ptp(along[:, 0]))
        found += [Grip(float(x), float(y), z, float(turn) + half, width) for half in (0.0, np.pi)]
    return sorted(found, key=lambda grip: grip.width_m)[: len(found) // 2]
