"""Objects on the lab's table: shape, size, colour, mass and pose."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.core.errors import ErrorCode, KinemaError
from kinema4d_ros.core.transforms import make
from kinema4d_ros.physics.parts import ODD_SHAPES, PLAIN_SHAPES, SHAPES, Part, Shape, shape_parts

__all__ = [
    "ODD_SHAPES",
    "PLAIN_SHAPES",
    "SHAPES",
    "LabObject",
    "Part",
    "PlacedObject",
    "Shape",
    "part_masses",
    "parts_of",
    "volume_of",
]

HULL_TOLERANCE_M = 0.001
"""Largest difference of a hull's vertices from the bounding box that its size gives."""


@dataclass(frozen=True)
class LabObject:
    """An object without a pose; its frame is at the centre of its bounding box, z up when it stands.

    Attributes:
        name: unique in its scene, such as "red_box".
        shape: "box", "cylinder" (axis z), "sphere", "bin" (an open box: floor and four walls), "mug" (an open
            cylinder with a handle at +x), "bottle" (body, shoulder and neck along z), "hollow_box" (an open box with
            thick walls), "taper" (a block whose top is smaller than its bottom), "ell" (an L seen from above: legs
            along x at -y and along y at -x) or "hull" (the convex hull of `vertices`). `physics.parts` has their
            proportions.
        size: (x, y, z) of the bounding box, metres.
        rgb: 0 to 1, sRGB.
        mass: kg.
        friction: sliding friction against the table and other objects; contacts with fingers use the fingers' friction.
        vertices: (P, 3) float64 of a "hull", object frame, metres; None for the other shapes.
    """

    name: str
    shape: Shape
    size: tuple[float, float, float]
    rgb: tuple[float, float, float]
    mass: float
    friction: float = 0.5
    vertices: NDArray[np.float64] | None = field(default=None, compare=False)
    _outline: bytes = field(init=False, repr=False, default=b"")

    def __post_init__(self) -> None:
        """Reject an unknown shape, and a hull without vertices or with ones that do not fill its size."""
        if self.shape not in SHAPES:
            raise KinemaError(
                f"object '{self.name}' has the shape {self.shape!r}",
                expected=f"one of {', '.join(SHAPES)}",
                code=ErrorCode.SCENARIO_UNKNOWN,
            )
        if (self.shape == "hull") != (self.vertices is not None):
            raise KinemaError(
                f"object '{self.name}' is a {self.shape} {'without' if self.vertices is None else 'with'} vertices",
                expected='vertices for the shape "hull" and for no other',
                code=ErrorCode.SCENARIO_UNKNOWN,
            )
        if self.vertices is not None:
            points = np.array(self.vertices, dtype=np.float64)
            if points.ndim != 2 or points.shape[1] != 3 or len(points) < 4 or not np.all(np.isfinite(points)):
                raise KinemaError(
                    f"object '{self.name}' has vertices of shape {points.shape}",
                    expected="four or more finite points (P, 3)",
                    code=ErrorCode.SCENARIO_UNKNOWN,
                )
            half = np.array(self.size) / 2
            off = max(float(np.abs(points.min(axis=0) + half).max()), float(np.abs(points.max(axis=0) - half).max()))
            if off > HULL_TOLERANCE_M or np.linalg.matrix_rank(points - points.mean(axis=0), tol=1e-6) < 3:
                raise KinemaError(
                    f"the vertices of '{self.name}' are flat, or {1000 * off:.1f} mm from the bounding box of its size",
                    expected="a solid hull whose bounding box is centred on the frame and has the object's size",
                    hint="use LabObject.hull(), which centres the vertices",
                    code=ErrorCode.SCENARIO_UNKNOWN,
                )
            points.flags.writeable = False
            object.__setattr__(self, "vertices", points)
            # Arrays do not compare to one truth value; their bytes do.
            object.__setattr__(self, "_outline", points.tobytes())

    @classmethod
    def hull(
        cls,
        name: str,
        vertices: NDArray[np.float64],
        rgb: tuple[float, float, float],
        mass: float,
        friction: float = 0.5,
    ) -> tuple[LabObject, NDArray[np.float64]]:
        """Make the convex hull of points (P, 3) in any frame, metres; return it and its frame's origin (3,) there."""
        points = np.asarray(vertices, dtype=np.float64)
        low, high = points.min(axis=0), points.max(axis=0)
        x, y, z = (float(side) for side in high - low)
        center = (low + high) / 2
        return cls(name, "hull", (x, y, z), rgb, mass, friction, points - center), center

    @property
    def height(self) -> float:
        """Height of the standing object, metres."""
        return self.size[2]

    @property
    def radius(self) -> float:
        """Radius of the circle around its centre that encloses it, seen from above, metres."""
        x, y, _ = self.size
        if self.shape in ("mug", "hull"):
            return _radius(self)
        return max(x, y) / 2 if self.shape in ("cylinder", "sphere", "bottle") else float(np.hypot(x, y) / 2)


@lru_cache(maxsize=256)
def parts_of(thing: LabObject) -> tuple[Part, ...]:
    """List the convex parts that form an object, object frame."""
    return shape_parts(thing.shape, thing.size, thing.vertices)


@lru_cache(maxsize=256)
def _radius(thing: LabObject) -> float:
    return max(float(np.hypot(*part.corners()[:, :2].T).max()) for part in parts_of(thing))


@lru_cache(maxsize=256)
def part_masses(thing: LabObject) -> tuple[float, ...]:
    """Return the mass of each part of `parts_of` in kg: by volume; the five parts of a bin weigh the same."""
    parts = parts_of(thing)
    if thing.shape == "bin":
        # Its walls overlap, so volumes do not add up; and recorded episodes have this distribution.
        return (thing.mass / len(parts),) * len(parts)
    volumes = [part.volume for part in parts]
    return tuple(thing.mass * (volume / sum(volumes)) for volume in volumes)


def volume_of(thing: LabObject) -> float:
    """Return the volume of material in cubic metres; the corners of a bin, which two walls share, count twice."""
    return sum(part.volume for part in parts_of(thing))


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
