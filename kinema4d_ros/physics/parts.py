"""Shapes of objects as unions of convex parts, from a bounding box: what physics, images and grasps are made from.

    shape, size (x, y, z) ─> shape_parts() ─> boxes, cylinders, spheres and convex hulls, each with its pose

All proportions that the bounding box does not fix are constants of this module. The object's frame is at the centre of
the bounding box, z up when the object stands.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import ConvexHull

from kinema4d_ros.core.transforms import apply, make

__all__ = [
    "ODD_SHAPES",
    "PLAIN_SHAPES",
    "SHAPES",
    "Part",
    "Shape",
    "ell_leg",
    "handle_path",
    "hull_edges",
    "mug_axis",
    "odd_size",
    "ring",
    "shape_parts",
]

Array = NDArray[np.float64]
Size = tuple[float, float, float]

Shape = Literal["box", "cylinder", "sphere", "bin", "mug", "bottle", "hollow_box", "taper", "ell", "hull"]
SHAPES: tuple[Shape, ...] = get_args(Shape)
PLAIN_SHAPES: tuple[Shape, ...] = ("box", "cylinder", "sphere", "bin")
ODD_SHAPES: tuple[Shape, ...] = ("mug", "bottle", "hollow_box", "taper", "ell")
"""Shapes that no box, cylinder or sphere fits exactly, and that a size alone determines."""

BIN_WALL_M = 0.005
"""Thickness of a bin's walls and floor."""
HOLLOW_WALL_M = 0.008
"""Thickness of a hollow box's walls and floor."""
MUG_WALL_M = 0.0035
"""Thickness of a mug's wall and floor."""
MUG_SIDES = 16
"""Flat pieces of a mug's wall; four of them face along x and y, at the radius of the mug."""
HANDLE_M = (0.007, 0.005)
"""Width across and thickness of a mug's handle."""
HANDLE_RISE = 0.29
"""Height of the handle's upper arm above the middle of the mug, as a share of the mug's height."""
BOTTLE_BODY, BOTTLE_SHOULDER, BOTTLE_NECK = 0.60, 0.76, 0.42
"""Top of the body and of the shoulder as shares of the height; diameter of the neck as a share of the body's."""
TAPER_TOP = 0.65
"""Width of a tapered block's top as a share of its bottom's."""
ELL_LEG = 0.40
"""Thickness of an L's legs as a share of its shorter side."""
RING_POINTS = 32


@dataclass(frozen=True, eq=False)
class Part:
    """A convex part of an object.

    Attributes:
        kind: "box", "cylinder" (axis z), "sphere" or "hull".
        object_T_part: (4, 4) float64, metres.
        size: (x, y, z) of its bounding box in its own frame, metres.
        vertices: (P, 3) float64 of a "hull", part frame, metres; None for the others.
    """

    kind: Literal["box", "cylinder", "sphere", "hull"]
    object_T_part: Array
    size: Size
    vertices: Array | None = None

    @property
    def volume(self) -> float:
        """Volume in cubic metres."""
        if self.vertices is not None:
            return float(ConvexHull(self.vertices).volume)
        fill = {"box": 1.0, "cylinder": np.pi / 4, "sphere": np.pi / 6}[self.kind]
        return float(fill * np.prod(self.size))

    def corners(self) -> Array:
        """Return points (P, 3) whose convex hull is the part, object frame, metres; round parts as inscribed rings."""
        x, y, z = self.size
        if self.vertices is not None:
            points = self.vertices
        elif self.kind == "box":
            points = np.array([[i, j, k] for i in (-x, x) for j in (-y, y) for k in (-z, z)]) / 2
        elif self.kind == "cylinder":
            points = np.concatenate([ring(x / 2, -z / 2), ring(x / 2, z / 2)])
        else:
            bend = np.radians(np.arange(-75.0, 90.0, 15.0))
            rings = [ring(x / 2 * np.cos(a), x / 2 * np.sin(a)) for a in bend]
            points = np.concatenate([*rings, [[0.0, 0.0, -x / 2], [0.0, 0.0, x / 2]]])
        return apply(self.object_T_part, points)


def ring(radius: float, z: float, count: int = RING_POINTS) -> Array:
    """Return `count` points (N, 3) of a horizontal circle around the z axis, metres."""
    turn = 2 * np.pi * np.arange(count) / count
    return np.stack([radius * np.cos(turn), radius * np.sin(turn), np.full(count, z)], axis=1)


def hull_edges(vertices: Array) -> NDArray[np.int32]:
    """Return the edges (E, 2) of the convex hull of points (P, 3), as indices of points; faces are triangles."""
    faces = ConvexHull(vertices).simplices
    return np.unique(np.sort(faces[:, [[0, 1], [1, 2], [2, 0]]].reshape(-1, 2), axis=1), axis=0)


def shape_parts(shape: Shape, size: Size, vertices: Array | None = None) -> tuple[Part, ...]:
    """List the convex parts of a shape with a bounding box (x, y, z) in metres; `vertices` (P, 3) of a "hull".

    Parts of the odd shapes do not overlap (but for the ends of a mug's handle), so that their volumes add up.
    """
    x, y, z = size
    if shape == "sphere":
        return (Part("sphere", np.eye(4), (x, x, x)),)
    if shape == "cylinder":
        return (Part("cylinder", np.eye(4), (x, x, z)),)
    if shape == "bin":
        return _bin(size)
    if shape == "hollow_box":
        return _hollow_box(size)
    if shape == "mug":
        return (*_cup(size), *_handle(size))
    if shape == "bottle":
        return _bottle(size)
    if shape == "ell":
        return _ell(size)
    if shape == "taper":
        top = np.array([TAPER_TOP, TAPER_TOP, 1.0])
        corners = np.array([[i, j, k] for i in (-x, x) for j in (-y, y) for k in (-z, z)]) / 2
        return (Part("hull", np.eye(4), size, np.where(corners[:, 2:] > 0, corners * top, corners)),)
    if vertices is not None:
        return (Part("hull", np.eye(4), size, vertices),)
    return (_box((0.0, 0.0, 0.0), size),)


MUG_REACH = 0.45
"""Reach of a mug's handle as a share of its diameter, for mugs made by `odd_size`."""


def odd_size(shape: Shape, width: float, height: float) -> Size:
    """Return the bounding box of an odd shape whose body is `width` wide, metres; a mug's handle comes on top."""
    return (1.0 + MUG_REACH) * width if shape == "mug" else width, width, height


def handle_path(size: Size) -> Array:
    """Return the middle line (6, 3) of a mug's handle from its upper to its lower end, object frame, metres."""
    x, y, z = size
    thick = HANDLE_M[1]
    out, high = x / 2 - thick / 2, HANDLE_RISE * z
    start = mug_axis(size) + y / 2 - MUG_WALL_M / 2
    cut = min(0.4 * (out - start), 0.5 * high)
    line = [(start, high), (out - cut, high), (out, high - cut), (out, cut - high), (out - cut, -high), (start, -high)]
    return np.array([[a, 0.0, b] for a, b in line])


def mug_axis(size: Size) -> float:
    """Return x of a mug's axis in the object's frame, metres: the handle is at +x of it."""
    return (size[1] - size[0]) / 2


def _box(center: tuple[float, float, float], size: Size) -> Part:
    return Part("box", make(None, center), size)


def _bin(size: Size) -> tuple[Part, ...]:
    x, y, z = size
    t = BIN_WALL_M
    # Walls of full length overlap in the corners, so that there are no visible seams and no edges to catch on.
    return (
        _box((0.0, 0.0, (t - z) / 2), (x - t, y - t, t)),
        _box(((x - t) / 2, 0.0, 0.0), (t, y, z)),
        _box(((t - x) / 2, 0.0, 0.0), (t, y, z)),
        _box((0.0, (y - t) / 2, 0.0), (x, t, z)),
        _box((0.0, (t - y) / 2, 0.0), (x, t, z)),
    )


def _hollow_box(size: Size) -> tuple[Part, ...]:
    x, y, z = size
    t = HOLLOW_WALL_M
    return (
        _box((0.0, 0.0, (t - z) / 2), (x - 2 * t, y - 2 * t, t)),
        _box(((x - t) / 2, 0.0, 0.0), (t, y, z)),
        _box(((t - x) / 2, 0.0, 0.0), (t, y, z)),
        _box((0.0, (y - t) / 2, 0.0), (x - 2 * t, t, z)),
        _box((0.0, (t - y) / 2, 0.0), (x - 2 * t, t, z)),
    )


def _cup(size: Size) -> tuple[Part, ...]:
    _, y, z = size
    t, axis, radius = MUG_WALL_M, mug_axis(size), y / 2
    floor = Part("cylinder", make(None, [axis, 0.0, (t - z) / 2]), (2 * (radius - t), 2 * (radius - t), t))
    # Pieces as long as the middle of the wall: overlaps inside and gaps outside cancel, so the volume is the wall's.
    length = 2 * (radius - t / 2) * np.tan(np.pi / MUG_SIDES)
    walls = []
    for i in range(MUG_SIDES):
        c, s = np.cos(2 * np.pi * i / MUG_SIDES), np.sin(2 * np.pi * i / MUG_SIDES)
        R = np.array([[c, -s, 0.0], [s, c, 0.0], [0.0, 0.0, 1.0]])
        center = [axis + c * (radius - t / 2), s * (radius - t / 2), 0.0]
        walls.append(Part("box", make(R, center), (t, float(length), z)))
    return (floor, *walls)


def _handle(size: Size) -> tuple[Part, ...]:
    wide, thick = HANDLE_M
    path = handle_path(size)
    parts = []
    for a, b in pairwise(path):
        along = (b - a) / np.linalg.norm(b - a)
        R = np.stack([np.cross([0.0, 1.0, 0.0], along), [0.0, 1.0, 0.0], along], axis=1)
        parts.append(Part("box", make(R, (a + b) / 2), (thick, wide, float(np.linalg.norm(b - a)))))
    return tuple(parts)


def _bottle(size: Size) -> tuple[Part, ...]:
    x, _, z = size
    body, shoulder, neck = BOTTLE_BODY * z, BOTTLE_SHOULDER * z, BOTTLE_NECK * x
    slope = np.concatenate([ring(x / 2, body - z / 2), ring(neck / 2, shoulder - z / 2)])
    middle = (body + shoulder - z) / 2
    return (
        Part("cylinder", make(None, [0.0, 0.0, (body - z) / 2]), (x, x, body)),
        Part("hull", make(None, [0.0, 0.0, middle]), (x, x, shoulder - body), slope - [0.0, 0.0, middle]),
        Part("cylinder", make(None, [0.0, 0.0, shoulder / 2]), (neck, neck, z - shoulder)),
    )


def ell_leg(size: Size) -> float:
    """Return the thickness of an L's legs, metres."""
    return ELL_LEG * min(size[:2])


def _ell(size: Size) -> tuple[Part, ...]:
    x, y, z = size
    t = ell_leg(size)
    # One leg along x at -y, the other along y at -x, from where the first one ends.
    return (
        _box((0.0, (t - y) / 2, 0.0), (x, t, z)),
        _box(((t - x) / 2, t / 2, 0.0), (t, y - t, z)),
    )
