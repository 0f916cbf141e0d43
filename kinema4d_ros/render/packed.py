"""Arrays used by the rasterisers: a robot's triangles in clusters, and the working memory of a thread."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["BUCKETS", "PART_NUMBERS", "Packed", "Scratch", "make_scratch"]

BUCKETS = 1024
"""Depth steps of the front-to-back order."""

PART_NUMBERS = 36
"""float64 numbers per part and frame: projection 12, eye 3, culling 1, clip planes 5 x 4."""


class Packed(NamedTuple):
    """All shapes of a robot in link frames, metres; C clusters, V vertices, F faces, N normals, P parts.

    A part is one geometry of one link. Clusters are described in `kinema4d_ros.render.clusters`.

    Attributes:
        x, y, z: (V,) float64 vertices, cluster by cluster.
        vertex_start, face_start, normal_start: (C + 1,) int64, start of each cluster.
        faces: (F, 3) uint16, corners as indices within the cluster's vertices.
        cluster_part: (C,) int64, part of each cluster.
        sphere: (C, 4) float64, centre and radius.
        cone: (C, 4) float64, axis and sine of the half angle of the normals.
        part_link: (P,) int64, index in `robot.links`.
        part_closed: (P,) bool, True = back faces are never visible from outside.
        part_box: (P, 6) float64, minimum and maximum corner.
        normals: (N, 3) float32, smoothed normals, cluster by cluster.
        tones: (F, 3) uint16, corners as indices within the cluster's normals.
        face_rgb: (F, 3) float32, 0 to 255.
    """

    x: NDArray[np.float64]
    y: NDArray[np.float64]
    z: NDArray[np.float64]
    vertex_start: NDArray[np.int64]
    face_start: NDArray[np.int64]
    normal_start: NDArray[np.int64]
    faces: NDArray[np.uint16]
    cluster_part: NDArray[np.int64]
    sphere: NDArray[np.float64]
    cone: NDArray[np.float64]
    part_link: NDArray[np.int64]
    part_closed: NDArray[np.bool_]
    part_box: NDArray[np.float64]
    normals: NDArray[np.float32]
    tones: NDArray[np.uint16]
    face_rgb: NDArray[np.float32]


class Scratch(NamedTuple):
    """Working memory of one thread, reused for every frame; `inverse_z` is all zero between frames.

    Attributes:
        inverse_z: (H, W) float32, 1 / m, 0 = no surface.
        shade, face: (H, W) float32 and int32, brightness and face of each pixel; (0, 0) without RGB.
        left, right: (H,) int64, range of columns in each row that may contain the robot.
        rows, ray: 0, 1, 2, ... as float64, and the x of each column's ray before the shift of its row.
        u, v, w, cell: projected vertices of the current cluster: pixels, pixels, 1 / m, and nearest pixel.
        keep, span_left, span_right: candidate faces of the cluster, and the columns that one of them covers.
        light: brightness at the current cluster's normals.
        corners, sources, tone: faces, their source and their brightness in a cluster cut by the near plane.
        visible, depth, order, bucket: front-to-back sort of the clusters.
        parts: (P, PART_NUMBERS) float64, projection, eye, culling flag and clip planes of each part.
    """

    inverse_z: NDArray[np.float32]
    shade: NDArray[np.float32]
    face: NDArray[np.int32]
    left: NDArray[np.int64]
    right: NDArray[np.int64]
    u: NDArray[np.float64]
    v: NDArray[np.float64]
    w: NDArray[np.float64]
    cell: NDArray[np.int32]
    keep: NDArray[np.uint32]
    span_left: NDArray[np.int32]
    span_right: NDArray[np.int32]
    rows: NDArray[np.float64]
    ray: NDArray[np.float64]
    light: NDArray[np.float64]
    corners: NDArray[np.uint16]
    sources: NDArray[np.int64]
    tone: NDArray[np.float64]
    visible: NDArray[np.int64]
    depth: NDArray[np.float64]
    order: NDArray[np.int64]
    bucket: NDArray[np.int64]
    parts: NDArray[np.float64]


def make_scratch(packed: Packed, height: int, width: int, rgb: bool) -> Scratch:
    """Allocate working memory for images of that size."""
    shaded = (height, width) if rgb else (0, 0)
    # The near plane splits a face into at most two, with four new corners.
    faces = int(np.diff(packed.face_start).max(initial=1))
    vertices = max(4 * faces, int(np.diff(packed.vertex_start).max(initial=1)))
    clusters = len(packed.cluster_part)
    return Scratch(
        inverse_z=np.zeros((height, width), np.float32),
        shade=np.zeros(shaded, np.float32),
        face=np.zeros(shaded, np.int32),
        left=np.zeros(height, np.int64),
        right=np.zeros(height, np.int64),
        u=np.zeros(vertices),
        v=np.zeros(vertices),
        w=np.zeros(vertices),
        cell=np.zeros(vertices, np.int32),
        keep=np.zeros(2 * faces + 1, np.uint32),
        span_left=np.zeros(height, np.int32),
        span_right=np.zeros(height, np.int32),
        rows=np.arange(max(height, width), dtype=np.float64),
        ray=np.zeros(width),
        light=np.zeros(3 * faces),
        corners=np.zeros((2 * faces, 3), np.uint16),
        sources=np.zeros(2 * faces, np.int64),
        tone=np.zeros(vertices),
        visible=np.zeros(clusters, np.int64),
        depth=np.zeros(clusters),
        order=np.zeros(clusters, np.int64),
        bucket=np.zeros(BUCKETS + 1, np.int64),
        parts=np.zeros((len(packed.part_link), PART_NUMBERS)),
    )
