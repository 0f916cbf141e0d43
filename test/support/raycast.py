"""Reference for the renderer: a float64 ray cast without shared code, culling or clipping."""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.robot import Robot


class Cast(NamedTuple):
    """z (H, W) float64 in metres, inf = nothing hit; ids (H, W) int64, 0 = nothing."""

    z: NDArray[np.float64]
    ids: NDArray[np.int64]


def robot_triangles(
    robot: Robot, camera_T_link: NDArray[np.float64], collision: bool = False
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return all triangles (N, 3, 3) of a robot in the camera frame, metres, and the link id (N,) of each."""
    triangles, ids = [], []
    for i, link in enumerate(robot.links):
        for geometry in link.collisions if collision else link.visuals:
            camera_T_geometry = camera_T_link[i] @ geometry.link_T_geometry
            points = geometry.mesh.vertices @ camera_T_geometry[:3, :3].T + camera_T_geometry[:3, 3]
            triangles.append(points[geometry.mesh.faces])
            ids.append(np.full(len(geometry.mesh.faces), i + 1))
    return np.concatenate(triangles), np.concatenate(ids)


def cast(
    triangles: NDArray[np.float64],
    ids: NDArray[np.int64],
    camera: PinholeCamera,
    near: float = 0.01,
    brute_force: bool = False,
) -> Cast:
    """Return the first hit of every pixel's ray with z >= near (Möller-Trumbore).

    A triangle is tested on the pixels of its projected bounding box plus a margin of two, and on all
    pixels if it crosses the camera plane; with `brute_force` always on all pixels.
    """
    rays = camera.rays()
    z = np.full(rays.shape[:2], np.inf)
    hit = np.zeros(rays.shape[:2], np.int64)
    boxes = np.zeros((len(triangles), 4), np.int64)
    boxes[:, 2:] = camera.width, camera.height
    if not brute_force and len(triangles):
        front = triangles[..., 2].min(axis=1) > 1e-3
        image = triangles[front] @ camera.K.T
        uv = np.clip(image[..., :2] / image[..., 2:], -1e6, 1e6)
        low, high = np.floor(uv.min(axis=1)) - 2, np.ceil(uv.max(axis=1)) + 2
        size = (camera.width, camera.height)
        boxes[front] = np.hstack([np.clip(low, 0, size), np.clip(high, 0, size)]).astype(np.int64)
        boxes[triangles[..., 2].max(axis=1) < near / 2] = 0
    _cast(np.ascontiguousarray(triangles), np.asarray(ids, np.int64), rays, boxes, near, z, hit)
    return Cast(z, hit)


@numba.njit(cache=False, error_model="numpy")
def _cast(triangles, ids, rays, boxes, near, z, hit):  # type: ignore[no-untyped-def]
    for n in range(len(triangles)):
        a, b, c = triangles[n]
        e1x, e1y, e1z = b[0] - a[0], b[1] - a[1], b[2] - a[2]
        e2x, e2y, e2z = c[0] - a[0], c[1] - a[1], c[2] - a[2]
        # The rays start at the origin, so the vector from corner a to the start is -a.
        qx, qy, qz = e1y * a[2] - e1z * a[1], e1z * a[0] - e1x * a[2], e1x * a[1] - e1y * a[0]
        t_top = e2x * qx + e2y * qy + e2z * qz
        for y in range(boxes[n, 1], boxes[n, 3]):
            for x in range(boxes[n, 0], boxes[n, 2]):
                dx, dy, dz = rays[y, x]
                px, py, pz = dy * e2z - dz * e2y, dz * e2x - dx * e2z, dx * e2y - dy * e2x
                det = e1x * px + e1y * py + e1z * pz
                if det == 0.0:
                    continue
                s = -(a[0] * px + a[1] * py + a[2] * pz) / det
                t = (dx * qx + dy * qy + dz * qz) / det
                if s < 0.0 or t < 0.0 or s + t > 1.0:
                    continue
                depth = t_top / det
                if near <= depth < z[y, x]:
                    z[y, x] = depth
                    hit[y, x] = ids[n]
