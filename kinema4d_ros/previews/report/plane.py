"""Robust fit of the plane that most of some points lie in."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["fit_plane"]

_TRIES = 200
_SAMPLE = 1500


def fit_plane(
    points: NDArray[np.float64], *, tolerance_m: float = 0.004, least_share: float = 0.4, least_points: int = 50
) -> NDArray[np.float64] | None:
    """Fit a plane: (4,) n, d with n p + d = 0 in the plane and > 0 on the camera's side, |n| = 1; None = no plane.

    Args:
        points: (N, 3) metres, camera optical frame, finite.
        tolerance_m: maximum distance of inliers.
        least_share: minimum share of inliers.
        least_points: minimum number of points.
    """
    if len(points) < least_points:
        return None
    # A fixed seed: the same rollout gives the same report.
    rng = np.random.default_rng(0)
    some = points[rng.permutation(len(points))[:_SAMPLE]]
    corners = some[rng.integers(0, len(some), (_TRIES, 3))]
    normals = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    lengths = np.linalg.norm(normals, axis=1)
    usable = lengths > 1e-9
    if not usable.any():
        return None
    normals, anchors = normals[usable] / lengths[usable, None], corners[usable, 0]
    heights = np.abs(some @ normals.T - np.einsum("ij,ij->i", normals, anchors))
    votes = (heights < tolerance_m).sum(axis=0)
    best = int(votes.argmax())
    if votes[best] < least_share * len(some):
        return None
    inliers = points[np.abs((points - anchors[best]) @ normals[best]) < tolerance_m]
    centre = inliers.mean(axis=0)
    normal = np.linalg.svd(inliers - centre, full_matrices=False)[2][2]
    d = -float(normal @ centre)
    return np.array([*normal, d]) if d >= 0 else -np.array([*normal, d])
