"""Objects on the lab's table: shape, size, colour, mass and pose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.core.transforms import make

__all__ = ["SHAPES", "LabObject", "PlacedObject", "Shape", "boxes_of"]

Shape = Literal["box", "cylinder", "sphere", "bin"]
SHAPES: tuple[Shape, ...] = ("box", "cylinder", "sphere", "bin")

BIN_WALL_M = 0.005
"""Thickness of a bin's walls and floor."""


@dataclass(frozen=True)
class LabObject:
    """An object without a pose; its frame is at the centre of its bounding box, z up when it stands.

    Attributes:
        name: unique in its scene, such as "red_box".
        shape: "box", "cylinder" (axis z), "sphere" or "bin" (an open box: floor and four walls).
        size: (x, y, z) of the bounding box, metres.
        rgb: 0 to 1, sRGB.
        mass: kg.
        friction: sliding friction against the table and other objects; contacts with fingers use the fingers' friction.
        center_of_mass: offset of the centre of mass from that of a uniform body of this shape, object frame, metres.
    """

    name: str
    shape: Shape
    size: tuple[float, float, float]
    rgb: tuple[float, float, float]
    mass: float
    friction: float = 0.5
    center_of_mass: tuple[float, float, float] = (0.0, 0.0, 0.0)

    @property
    def height(self) -> float:
        """Height of the standing object, metres."""
        return self.size[2]

    @property
    def radius(self) -> float:
        """Radius of the circle around its centre that encloses it, seen from above, metres."""
        x, y, _ = self.size
        return float(np.hypot(x, y) / 2) if self.shape in ("box", "bin") else max(x, y) / 2


@dataclass(frozen=True, eq=False)
class PlacedObject:
    """An object and its pose `base_T_object` (4, 4) float64, metres."""

    object: LabObject
    base_T_object: NDArray[np.float64]

    @property
    def name(self) -> str:
        """The object's name."""
        return self.object.name

    @property
    def position(self) -> NDArray[np.float64]:
        """(3,) centre in the base frame, metres."""
        return self.base_T_object[:3, 3]

    @classmethod
    def standing(cls, thing: LabObject, x: float, y: float, yaw: float, table_z: float = 0.0) -> PlacedObject:
        """Place an object upright on the table at x, y metres, rotated by `yaw` radians about the vertical."""
        c, s = np.cos(yaw), np.sin(yaw)
        R = np.array([[c, -s, 0.0], [s, c, 0.0], [0.0, 0.0, 1.0]])
        return cls(thing, make(R, [x, y, table_z + thing.height / 2]))


def boxes_of(thing: LabObject) -> list[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """List centres (3,) and full sizes (3,) in metres of the boxes that form a box or a bin, object frame."""
    x, y, z = thing.size
    if thing.shape == "box":
        return [(np.zeros(3), np.array([x, y, z]))]
    t = BIN_WALL_M
    # Walls of full length overlap in the corners, so that there are no visible seams and no edges to catch on.
    return [
        (np.array([0.0, 0.0, (t - z) / 2]), np.array([x - t, y - t, t])),
        (np.array([(x - t) / 2, 0.0, 0.0]), np.array([t, y, z])),
        (np.array([(t - x) / 2, 0.0, 0.0]), np.array([t, y, z])),
        (np.array([0.0, (y - t) / 2, 0.0]), np.array([x, t, z])),
        (np.array([0.0, (t - y) / 2, 0.0]), np.array([x, t, z])),
    ]
