"""Fitted shapes as convex parts, for casting rays and shadows: half-spaces, elliptic cylinders and ellipsoids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import ConvexHull

from kinema4d_ros.core.errors import ErrorCode, GeneratorError
from kinema4d_ros.generators.draft.scene import Estimate
from kinema4d_ros.physics.parts import shape_parts

__all__ = ["Solids", "make_solids"]

Doubles = NDArray[np.float64]
Ints = NDArray[np.int64]

_PLANES, _CYLINDER, _ELLIPSOID = 0, 1, 2
_MOST_POINTS = 3000
"""Sample points of one object for its shadow."""


@dataclass(frozen=True, eq=False)
class Solids:
    """N objects, each a union of convex parts, in their own frames, metres.

    Attributes:
        kinds: (P,) int64 of each part: 0 = half-spaces only, 1 = also an elliptic cylinder along z, 2 = an ellipsoid.
        planes: (Q, 4) float64, outward normal and offset: inside where normal . p <= offset.
        plane_start: (P + 1,) int64, first plane of each part.
        sizes: (P, 3) float64, half axes of cylinders and ellipsoids.
        part_start: (N + 1,) int64, first part of each object.
        radii: (N,) float64, radius of a sphere around the object's frame that contains it.
        boxes: (N, 3) float64, half sizes of the bounding box.
    """

    kinds: Ints
    planes: Doubles
    plane_start: Ints
    sizes: Doubles
    part_start: Ints
    radii: Doubles
    boxes: Doubles

    def __len__(self) -> int:
        """Number of objects."""
        return len(self.radii)

    @property
    def arrays(self) -> tuple[Ints, Doubles, Ints, Doubles, Ints, Doubles]:
        """The arguments of `cast_shapes`, in its order."""
        return self.kinds, self.planes, self.plane_start, self.sizes, self.part_start, self.radii

    def points(self, index: int, spacing_m: float) -> Doubles:
        """Sample an object's volume: points (M, 3) float64, object frame, about `spacing_m` apart."""
        half = self.boxes[index]
        spacing = max(spacing_m, float(np.prod(2 * half) / _MOST_POINTS) ** (1 / 3))
        # An odd number, so that round shapes have points where they are widest.
        lines = [np.linspace(-h, h, 2 * max(1, int(np.ceil(h / spacing))) + 1) for h in half]
        p = np.stack(np.meshgrid(*lines, indexing="ij"), -1).reshape(-1, 3)
        inside = np.zeros(len(p), np.bool_)
        for part in range(self.part_start[index], self.part_start[index + 1]):
            planes = self.planes[self.plane_start[part] : self.plane_start[part + 1]]
            within = np.all(p @ planes[:, :3].T <= planes[:, 3] + 1e-9, axis=1)
            if self.kinds[part] != _PLANES:
                axes = 2 if self.kinds[part] == _CYLINDER else 3
                within &= np.sum((p[:, :axes] / self.sizes[part, :axes]) ** 2, axis=1) <= 1 + 1e-9
            inside |= within
        return p[inside]


def make_solids(estimates: Sequence[Estimate]) -> Solids:
    """Build the solids of one estimate for each object."""
    kinds: list[int] = []
    planes: list[Doubles] = []
    sizes: list[Doubles] = []
    counts: list[int] = []
    radii, boxes = np.zeros(len(estimates)), np.zeros((len(estimates), 3))
    for i, estimate in enumerate(estimates):
        half = np.asarray(estimate.size, np.float64) / 2
        parts = _parts(estimate, half)
        for kind, part in parts:
            kinds.append(kind)
            planes.append(part)
            sizes.append(half)
        counts.append(len(parts))
        corners = estimate.vertices
        boxes[i] = half if corners is None else np.abs(corners).max(axis=0)
        radii[i] = float(np.linalg.norm(boxes[i] if corners is None else corners, axis=-1).max())
    return Solids(
        np.array(kinds, np.int64),
        np.concatenate([*planes, np.zeros((0, 4))]),
        _starts([len(p) for p in planes]),
        np.array(sizes, np.float64).reshape(-1, 3),
        _starts(counts),
        radii,
        boxes,
    )


def _starts(counts: Sequence[int]) -> Ints:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def _parts(estimate: Estimate, half: Doubles) -> list[tuple[int, Doubles]]:
    shape: str = estimate.shape
    if shape == "cylinder":
        return [(_CYLINDER, np.array([[0, 0, 1, half[2]], [0, 0, -1, half[2]]], np.float64))]
    if shape == "sphere":
        return [(_ELLIPSOID, np.zeros((0, 4)))]
    if shape == "hull" and (estimate.vertices is None or len(estimate.vertices) < 4):
        raise GeneratorError(
            "an object is a 'hull' without vertices",
            expected="a hull with four vertices or more",
            code=ErrorCode.GENERATOR_BAD_REQUEST,
        )
    parts = shape_parts(estimate.shape, estimate.size, estimate.vertices)
    return [(_PLANES, _half_spaces(part.corners())) for part in parts]


def _half_spaces(corners: Doubles) -> Doubles:
    """Return the half-spaces (Q, 4) of the hull of points (P, 3)."""
    # Coplanar triangles of the hull share their equation.
    equations = np.unique(np.round(ConvexHull(corners).equations, 7), axis=0)
    return np.column_stack([equations[:, :3], -equations[:, 3]])
