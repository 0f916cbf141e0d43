"""A mesh drawn into views: its depth, its silhouette, its colours from the pictures, and how well it covers masks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import cv2
import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from kinema4d_ros.acquisition.grid import ColouredMesh, vertex_normals
from kinema4d_ros.acquisition.views import View
from kinema4d_ros.calibration.silhouette import mask_iou
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.pointmap import PointmapSequence
from kinema4d_ros.core.transforms import apply
from kinema4d_ros.render import Scene, render_poses
from kinema4d_ros.robot.model import Geometry, TriangleMesh

__all__ = ["coloured", "coverage", "draw_mesh", "gather_colours", "mesh_scene", "settle_colours"]

Array = NDArray[np.float64]

_GREY = 150
_RIM_PX = 2
"""Pixels this near to the outline mix robot and background: they lend no colour."""

Progress = Callable[[int, int], None]


def mesh_scene(mesh: ColouredMesh) -> Scene:
    """A scene of one link that holds the mesh; open meshes are drawn from both sides."""
    rgb = None if mesh.rgb is None else mesh.rgb[mesh.faces].mean(axis=1).round().astype(np.uint8)
    triangles = TriangleMesh(mesh.vertices, mesh.faces.astype(np.int32), rgb)
    return Scene([(0, Geometry("mesh", np.eye(4), triangles))], 1)


def draw_mesh(scene: Scene, camera: PinholeCamera, *, rgb: bool = False) -> PointmapSequence:
    """One frame of a mesh's scene; the mesh is in the frame that the camera's pose leads to."""
    return render_poses(scene, np.eye(4)[None, None], camera, rgb=rgb)


def coverage(drawn: Sequence[NDArray[np.bool_]], views: Sequence[View]) -> Array:
    """(N,) intersection over union of drawn silhouettes with the views' masks."""
    return np.array([mask_iou(d, v.robot) for d, v in zip(drawn, views, strict=True)])


def coloured(
    mesh: ColouredMesh, views: Sequence[View], *, slack: float, progress: Progress = lambda done, total: None
) -> ColouredMesh:
    """The mesh with a colour at each vertex: the pictures' that see it, weighted by how squarely they do.

    Args:
        mesh: world frame.
        views: with masks; their pictures were taken of this mesh as it stands.
        slack: how far behind the drawn surface a vertex may lie and still be the surface, units of the world.
        progress: called with (views done, views in all).
    """
    return settle_colours(mesh, *gather_colours(mesh, views, slack=slack, progress=progress))


def gather_colours(
    mesh: ColouredMesh, views: Sequence[View], *, slack: float, progress: Progress = lambda done, total: None
) -> tuple[Array, Array]:
    """Weighted sum of colours (V, 3) and the weights (V,): sums of several configurations may be added."""
    scene, normals = mesh_scene(mesh), vertex_normals(mesh)
    total, weight = np.zeros((len(mesh.vertices), 3)), np.zeros(len(mesh.vertices))
    for done, view in enumerate(views):
        camera = view.camera
        depth = draw_mesh(scene, camera).xyz[0, ..., 2]
        p = apply(camera.camera_T_base, mesh.vertices)
        towards = -(p / np.linalg.norm(p, axis=1, keepdims=True) * (normals @ camera.base_T_camera[:3, :3])).sum(axis=1)
        uv = np.nan_to_num(camera.project(p), nan=-1.0) - 0.5
        column, row = np.rint(uv).astype(int).T
        inside = (column >= 0) & (row >= 0) & (column < camera.width) & (row < camera.height) & (towards > 0.15)
        at = np.flatnonzero(inside)
        core = _core(view.robot)
        seen = (p[at, 2] < depth[row[at], column[at]] + slack) & core[row[at], column[at]]
        at = at[seen]
        if len(at):
            w = towards[at] ** 3
            total[at] += w[:, None] * view.image[row[at], column[at]]
            weight[at] += w
        progress(done + 1, len(views))
    return total, weight


def settle_colours(mesh: ColouredMesh, total: Array, weight: Array) -> ColouredMesh:
    """The mesh with the mean colours; vertices that no view saw take the colour of the nearest one that was seen."""
    known = weight > 0
    rgb = np.full((len(mesh.vertices), 3), _GREY, np.uint8)
    rgb[known] = np.rint(total[known] / weight[known, None]).astype(np.uint8)
    if known.any() and not known.all():
        rgb[~known] = rgb[known][cKDTree(mesh.vertices[known]).query(mesh.vertices[~known])[1]]
    return ColouredMesh(mesh.vertices, mesh.faces, rgb)


def _core(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    side = 2 * _RIM_PX + 1
    return np.asarray(cv2.erode(mask.astype(np.uint8), np.ones((side, side), np.uint8)) > 0)
