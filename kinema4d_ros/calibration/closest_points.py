"""Iterative closest points, from points to planes, robust, with the size free where it is unknown."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from kinema4d_ros.calibration.board_pose import skew
from kinema4d_ros.calibration.pose_estimate import changed
from kinema4d_ros.calibration.surfaces import Surface
from kinema4d_ros.core.transforms import apply

__all__ = ["Laid", "closest_points"]

Array = NDArray[np.float64]

_STEPS = 60


class Laid(NamedTuple):
    """A surface laid onto another.

    Attributes:
        pose: (4, 4) of `p_target = pose (scale * p)`.
        scale: of the surface.
        distance: (N,) of its points from the target, metres.
        fits: (N,) bool, which of them are near enough to be of the same thing.
    """

    pose: Array
    scale: float
    distance: Array
    fits: NDArray[np.bool_]


def closest_points(
    surface: Surface,
    target: Surface,
    pose: Array,
    scale: float = 1.0,
    *,
    similarity: bool = False,
    tree: cKDTree | None = None,
) -> Laid:
    """Lay a surface onto a target in metres, from a start some centimetres and degrees away.

    Args:
        surface: in its own units.
        target: metres.
        pose, scale: the start.
        similarity: the scale is free.
        tree: of the target's points, if there is one already.
    """
    tree = cKDTree(target.points) if tree is None else tree
    reach = 0.05  # and shrinks
    for step in range(_STEPS):
        # While the surfaces are far apart a few points say as much as all.
        few = surface.points[::6] if step < 12 and len(surface.points) > 3000 else surface.points
        p = apply(pose, scale * few)
        distance, nearest = tree.query(p, distance_upper_bound=reach)
        hit = np.isfinite(distance)
        if hit.sum() < 50:
            break
        n = target.normals[nearest[hit]]
        r = ((p[hit] - target.points[nearest[hit]]) * n).sum(axis=1)
        # Shift in base axes, turn about the reconstruction's, size: the last two move a point by its lever arm.
        lever = p[hit] - pose[:3, 3]
        local = lever @ pose[:3, :3]
        turn = -np.einsum("nk,nkj->nj", n @ pose[:3, :3], skew(local))
        columns = [n, turn] + ([(n * lever).sum(axis=1, keepdims=True)] if similarity else [])
        J = np.concatenate(columns, axis=1)
        sigma = max(1.48 * float(np.median(np.abs(r))), 2e-4)
        w = 1 / (1 + (r / (2 * sigma)) ** 2)
        change = -np.linalg.solve(J.T @ (w[:, None] * J) + 1e-9 * np.eye(J.shape[1]), J.T @ (w * r))
        pose = changed(pose, change[:6])
        if similarity:
            scale *= 1 + float(np.clip(change[6], -0.1, 0.1))
        reach = max(0.7 * reach, 0.01)
        if np.abs(change).max() < 1e-6 and step > 14:
            break
    p = apply(pose, scale * surface.points)
    distance, nearest = tree.query(p)
    across = np.abs(((p - target.points[nearest]) * target.normals[nearest]).sum(axis=1))
    # Beyond a centimetre the nearest sample is not the same place any more, and its plane means nothing.
    result = np.where(distance < 0.01, across, distance)
    return Laid(pose, scale, result, result < 0.01)
