"""Convex hull of an object that no simple shape explains: its visible points, turned by 180 degrees for the far side.

The turn about a vertical axis is exact for boxes, bottles and everything round. Where the axis is along the view is not
seen directly: too near a far side would be too thin for nothing, too far a one would hide the table behind. Several
positions of the axis are kept, weighted by how well their hulls explain the pixels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import ConvexHull, QhullError

from kinema4d_ros.core.transforms import make
from kinema4d_ros.generators.draft import _kernels as kernels
from kinema4d_ros.generators.draft.scene import Estimate
from kinema4d_ros.generators.draft.shapes_fit import CAP, Pixels

__all__ = ["Hull", "fit_hulls"]

Array = NDArray[np.float64]

GRID_M = 0.003
"""Points closer than this are one: fewer faces, and less noise on the outside."""
FREEDOM = 9
"""Free numbers that a hull counts for in the evidence: it follows its points wherever they are."""
SHIFTS_M = (-0.009, -0.006, -0.003, 0.0, 0.003, 0.006, 0.009)
DEPTH_SPREAD = 0.3
"""Prior of compactness: spread of the logarithm of depth / width, as seen from the camera."""


@dataclass(frozen=True, eq=False)
class Hull:
    """One convex hypothesis, in the frame of its pixels.

    Attributes:
        vertices: (P, 3) float64, metres.
        planes: (F, 4) float64: outward normal and distance.
        energy: negative logarithm of the posterior, up to a constant.
    """

    vertices: Array
    planes: Array
    energy: float

    def cost(self, pixels: Pixels) -> float:
        """Return the negative logarithm of the evidence, comparable with `Fit.cost`."""
        return self.energy + 0.5 * FREEDOM * math.log(max(float(pixels.weight[pixels.own].sum()), 2.0))

    def hits(self, pixels: Pixels) -> Array:
        """Return depths (N,) at which the pixels' rays hit the hull, inf = not."""
        return np.asarray(kernels.cast_hull(self.planes, pixels.eye, pixels.rays))

    @cached_property
    def bounds(self) -> Array:
        """(2, 3) least and largest coordinates, metres."""
        return np.stack([self.vertices.min(0), self.vertices.max(0)])

    def estimate(self, base_T_frame: Array, weight: float) -> Estimate:
        """Return the estimate in the base frame."""
        centre = self.bounds.mean(0)
        x, y, z = (float(v) for v in self.bounds[1] - self.bounds[0])
        pose = base_T_frame @ make(np.eye(3), centre)
        return Estimate("hull", (x, y, z), pose, weight, self.vertices - centre)


def fit_hulls(pixels: Pixels, centre: Array, base_m: float, *, stands: bool = True) -> list[tuple[Hull, float]]:
    """Return hulls with shares that sum to 1, the best first; empty if the points are flat.

    `centre` (2,) is a first guess of the vertical axis, metres; `base_m` the height it stands on if `stands`.
    """
    seen = _thinned(pixels.points)
    if stands:
        seen = np.concatenate([seen, _footing(seen, base_m)])
    across = np.array([-pixels.view[1], pixels.view[0]])
    wide = max(float(np.ptp(seen[:, :2] @ across)), 1e-3)
    hulls = []
    for shift in SHIFTS_M:
        axis = centre + shift * pixels.view
        turned = seen * np.array([-1.0, -1.0, 1.0]) + np.array([2 * axis[0], 2 * axis[1], 0.0])
        try:
            hull = ConvexHull(np.concatenate([seen, turned]))
        except QhullError:
            continue
        equations = np.asarray(hull.equations, np.float64) * np.array([1.0, 1.0, 1.0, -1.0])
        planes = np.asarray(np.unique(np.round(equations, 6), axis=0), np.float64)
        hits = kernels.cast_hull(planes, pixels.eye, pixels.rays)
        loss = kernels.depth_loss(hits, pixels.depth, pixels.sigma, pixels.kinds, pixels.weight, CAP)
        vertices = hull.points[hull.vertices]
        deep = max(float(np.ptp(vertices[:, :2] @ pixels.view)), 1e-3)
        hulls.append(Hull(vertices, planes, float(loss + 0.5 * (math.log(deep / wide) / DEPTH_SPREAD) ** 2)))
    if not hulls:
        return []
    hulls.sort(key=lambda h: h.energy)
    share = np.exp(hulls[0].energy - np.array([h.energy for h in hulls]))
    share /= share.sum()
    return [(hull, float(s)) for hull, s in zip(hulls, share, strict=True) if s > 0.02 / len(hulls)]


def _thinned(points: Array) -> Array:
    """Average the points within each cell of a grid."""
    cells = np.round(points / GRID_M).astype(np.int64)
    _, cell, count = np.unique(cells, axis=0, return_inverse=True, return_counts=True)
    total = np.zeros((len(count), 3))
    np.add.at(total, cell.reshape(-1), points)
    return np.asarray(total / count[:, None])


def _footing(points: Array, base_m: float) -> Array:
    """Return the lowest quarter of the points, moved down to the support."""
    low = points[:, 2] <= np.percentile(points[:, 2], 25)
    foot = points[low].copy()
    foot[:, 2] = base_m
    return foot
