"""Rows of the silhouette fit: how far outlines are apart, how they follow the camera, how much a point counts."""

from __future__ import annotations

from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.calibration.board_pose import skew
from kinema4d_ros.calibration.silhouette import Edges, Masks, SeenSilhouettes, Silhouettes
from kinema4d_ros.core.camera import PinholeCamera

__all__ = ["Level", "image_motion", "outline_rows", "slopes", "weights"]

Array = NDArray[np.float64]


class Level(NamedTuple):
    """One step from coarse to fine.

    Attributes:
        scale: share of the image's size.
        steps: at most.
        reach_px: residuals beyond this, in pixels of that size, count less and less.
        both: the seen outline pulls the drawn one too; needed while they are far apart.
    """

    scale: float
    steps: int
    reach_px: float
    both: bool


def outline_rows(
    silhouettes: Silhouettes, seen: SeenSilhouettes, pose: Array, level: Level
) -> tuple[Array, Array, NDArray[np.int64], Array] | None:
    """Jacobian (N, 7), residual (N,) in pixels, cluster (N,) and depth (N,) of all outline points."""
    edges, drawn = silhouettes.edges(pose, level.scale)
    if len(edges.frame) < 20:
        return None
    P = image_motion(seen.camera, pose, edges.p_camera)
    at = (edges.frame, edges.row, edges.column)
    # A drawn outline pixel is half a pixel inside; beside an equal outline its distance is -0.5 too.
    r = seen.distance[at].astype(np.float64) + 0.5
    n = seen.slope[edges.frame, :, edges.row, edges.column].astype(np.float64)
    J = np.einsum("nk,nkj->nj", n, P)
    cluster = 256 * edges.frame + edges.link
    depth = edges.p_camera[:, 2]
    if level.both:
        pulled = _pulled(seen, edges, drawn, P)
        if pulled is not None:
            J, r = np.concatenate([J, pulled[0]]), np.concatenate([r, pulled[1]])
    J = np.column_stack([J, -np.ones(len(J))])
    return J, r, cluster, depth


def image_motion(camera: PinholeCamera, pose: Array, p: Array) -> Array:
    """(N, 2, 6) pixels: how image points follow a small change of the camera's pose."""
    z = p[:, 2]
    D = np.zeros((len(p), 2, 3))
    D[:, 0, 0], D[:, 1, 1] = camera.K[0, 0] / z, camera.K[1, 1] / z
    D[:, 0, 2], D[:, 1, 2] = -D[:, 0, 0] * p[:, 0] / z, -D[:, 1, 1] * p[:, 1] / z
    return np.concatenate([-D @ pose[:3, :3].T, D @ skew(p)], axis=2)


def _pulled(seen: SeenSilhouettes, edges: Edges, drawn: Masks, P: Array) -> tuple[Array, Array] | None:
    """Rows for the seen outline: each of its pixels pulls the nearest drawn one."""
    Js, rs = [], []
    for frame in range(len(drawn)):
        mine = np.flatnonzero(edges.frame == frame)
        rim = (seen.distance[frame] <= 0) & (seen.distance[frame] > -1) & seen.valid
        row, column = np.nonzero(rim)
        if len(mine) == 0 or len(row) == 0:
            continue
        source = np.ones(drawn.shape[1:], np.uint8)
        source[edges.row[mine], edges.column[mine]] = 0
        _, label = cv2.distanceTransformWithLabels(source, cv2.DIST_L2, cv2.DIST_MASK_5, labelType=cv2.DIST_LABEL_PIXEL)
        owner = np.zeros(int(label.max()) + 1, np.int64)
        owner[label[edges.row[mine], edges.column[mine]]] = mine
        nearest = owner[label[row, column]]
        gap = np.stack([edges.column[nearest] - column, edges.row[nearest] - row], axis=1).astype(np.float64)
        length = np.linalg.norm(gap, axis=1)
        far = length > 1.0
        if not far.any():
            continue
        n = gap[far] / length[far, None]
        Js.append(np.einsum("nk,nkj->nj", n, P[nearest[far]]))
        rs.append(length[far])
    return (np.concatenate(Js), np.concatenate(rs)) if Js else None


def slopes(r: Array, level: Level) -> Array:
    """How the influence of a residual grows with it, at the fine levels."""
    cut = max(4.0 * max(1.48 * float(np.median(np.abs(r))), 0.3), level.reach_px)
    u = (r / cut) ** 2
    return np.where(u < 1, (1 - u) * (1 - 5 * u), 0.0)


def weights(r: Array, level: Level) -> tuple[Array, float]:
    """Tukey's weights at the fine levels, softer ones while outlines are far apart; and the scale in pixels."""
    sigma = max(1.48 * float(np.median(np.abs(r))), 0.3)
    if level.both:
        return 1 / (1 + (r / level.reach_px) ** 2), sigma
    cut = max(4.0 * sigma, level.reach_px)
    return np.where(np.abs(r) < cut, (1 - (r / cut) ** 2) ** 2, 0.0), sigma
