"""Rendering of meshes into views (depth, silhouettes, IoU), vertex colours from images, and contact sheets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from kinema4d_ros.acquisition.hull import ColouredMesh, vertex_normals
from kinema4d_ros.acquisition.views import View
from kinema4d_ros.calibration.pictures import frame_axes, outline_picture
from kinema4d_ros.calibration.silhouette import mask_iou
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.pointmap import PointmapSequence
from kinema4d_ros.core.transforms import apply
from kinema4d_ros.io.images import overlay, strip
from kinema4d_ros.render import Scene, render_poses
from kinema4d_ros.robot.model import Geometry, TriangleMesh

__all__ = [
    "LINK_COLOURS",
    "coloured",
    "cover_sheet",
    "coverage",
    "draw_mesh",
    "frame_sheet",
    "gather_colours",
    "label_sheet",
    "mask_sheet",
    "mesh_scene",
    "pose_sheet",
    "settle_colours",
]

Array = NDArray[np.float64]

_GREY = 150
_RIM_PX = 2
"""Pixels this close to the outline mix robot and background and are not used for colours."""

Progress = Callable[[int, int], None]


def mesh_scene(mesh: ColouredMesh) -> Scene:
    """Build a scene with the mesh as its only link; open meshes are rendered from both sides."""
    rgb = None if mesh.rgb is None else mesh.rgb[mesh.faces].mean(axis=1).round().astype(np.uint8)
    triangles = TriangleMesh(mesh.vertices, mesh.faces.astype(np.int32), rgb)
    return Scene([(0, Geometry("mesh", np.eye(4), triangles))], 1)


def draw_mesh(scene: Scene, camera: PinholeCamera, *, rgb: bool = False) -> PointmapSequence:
    """Render one frame of a mesh's scene; the mesh is in the base frame of the camera."""
    return render_poses(scene, np.eye(4)[None, None], camera, rgb=rgb)


def coverage(drawn: Sequence[NDArray[np.bool_]], views: Sequence[View]) -> Array:
    """Compute the IoU (N,) of rendered silhouettes with the masks of the views."""
    return np.array([mask_iou(d, v.robot) for d, v in zip(drawn, views, strict=True)])


def coloured(
    mesh: ColouredMesh, views: Sequence[View], *, slack: float, progress: Progress = lambda done, total: None
) -> ColouredMesh:
    """Colour each vertex from the images that see it, weighted by the viewing angle.

    Args:
        mesh: world frame.
        views: with masks, of this mesh at this pose.
        slack: largest distance of a visible vertex behind the rendered surface, world units.
        progress: called with (views done, total views).
    """
    return settle_colours(mesh, *gather_colours(mesh, views, slack=slack, progress=progress))


def gather_colours(
    mesh: ColouredMesh, views: Sequence[View], *, slack: float, progress: Progress = lambda done, total: None
) -> tuple[Array, Array]:
    """Compute weighted sums of colours (V, 3) and the weights (V,); those of several configurations can be added."""
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
    """Apply the mean colours; vertices not visible in any view take the colour of the nearest visible one."""
    known = weight > 0
    rgb = np.full((len(mesh.vertices), 3), _GREY, np.uint8)
    rgb[known] = np.rint(total[known] / weight[known, None]).astype(np.uint8)
    if known.any() and not known.all():
        rgb[~known] = rgb[known][cKDTree(mesh.vertices[known]).query(mesh.vertices[~known])[1]]
    return ColouredMesh(mesh.vertices, mesh.faces, rgb)


def _core(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    side = 2 * _RIM_PX + 1
    return np.asarray(cv2.erode(mask.astype(np.uint8), np.ones((side, side), np.uint8)) > 0)


# Contact sheets: one image per stage that shows its result, view by view.

Image = NDArray[np.uint8]

_WIDTH, _COLUMNS = 320, 4
"""Tile width in pixels, so that labels are readable at half size, and tiles per row."""

BLUR_FLOOR_PX = 1.0
"""Blur below this cannot be distinguished from soft edges."""

LINK_COLOURS = np.array(
    [
        (230, 25, 75), (60, 180, 75), (255, 225, 25), (0, 130, 200), (245, 130, 48), (145, 30, 180), (70, 240, 240),
        (240, 50, 230), (210, 245, 60), (250, 190, 212), (0, 128, 128), (170, 110, 40),
    ],
    np.uint8,
)  # fmt: skip
"""Colours of the links, used cyclically."""


def _small(image: NDArray[Any]) -> Image:
    height = round(_WIDTH * image.shape[0] / image.shape[1])
    return np.asarray(cv2.resize(image, (_WIDTH, height), interpolation=cv2.INTER_AREA), np.uint8)


def _small_mask(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    return np.asarray(_small(mask.astype(np.uint8) * 255) > 127)


def _sheet(tiles: Sequence[Image], labels: Sequence[str]) -> Image:
    """Arrange tiles in rows, each with its label on a dark strip."""
    small = [_small(tile) for tile in tiles]
    for tile, label in zip(small, labels, strict=True):
        if label:
            _label(tile, label)
    return strip(small, _COLUMNS)


def _label(tile: Image, text: str) -> None:
    (width, height), below = cv2.getTextSize(text, cv2.FONT_HERSHEY_SIMPLEX, 0.75, 2)
    tile[: height + below + 8, : width + 14] //= 4
    cv2.putText(tile, text, (7, height + 5), cv2.FONT_HERSHEY_SIMPLEX, 0.75, (255, 255, 255), 2, cv2.LINE_AA)


def frame_sheet(images: Sequence[Image], names: Sequence[str], blur_px: Sequence[float]) -> Image:
    """Draw the chosen frames with their blur; values below a pixel are shown as "< 1 px"."""
    blur = [f"{b:.1f} px" if b >= BLUR_FLOOR_PX else f"< {BLUR_FLOOR_PX:g} px" for b in blur_px]
    return _sheet(images, [f"{name}: {text}" for name, text in zip(names, blur, strict=True)])


def pose_sheet(views: Sequence[View], length: float) -> Image:
    """Draw the rectified images with the axes of the world frame: x red, y green, z blue."""
    tiles = []
    for view in views:
        image = _small(view.image)
        camera = view.camera.scaled(image.shape[1], image.shape[0])
        tiles.append(frame_axes(image, camera, np.eye(4), length, thickness=4))
    return _sheet(tiles, [v.name for v in views])


def mask_sheet(views: Sequence[View]) -> Image:
    """Draw the masks over the images."""
    tiles = [overlay(v.image, np.full(v.image.shape, (66, 220, 90), np.uint8), v.robot, 0.55) for v in views]
    return _sheet(tiles, [f"{v.name}: {v.robot.mean():.1%}" for v in views])


def cover_sheet(views: Sequence[View], drawn: Sequence[NDArray[np.bool_]], iou: Sequence[float]) -> Image:
    """Draw the outlines of the observed robot (blue) and of the rendered one (red), green where they agree."""
    tiles = [
        outline_picture(_small(v.image), _small_mask(v.robot), _small_mask(d))
        for v, d in zip(views, drawn, strict=True)
    ]
    return _sheet(tiles, [f"{v.name}: {i:.3f}" for v, i in zip(views, iou, strict=True)])


def label_sheet(views: Sequence[View], ids: Sequence[NDArray[np.uint8]]) -> Image:
    """Draw the links over the images, one colour each; ids (H, W) uint8: 0 = none, i + 1 = link i."""
    tiles = []
    for view, number in zip(views, ids, strict=True):
        colours = LINK_COLOURS[(number.astype(int) - 1) % len(LINK_COLOURS)]
        tiles.append(overlay(view.image, np.ascontiguousarray(colours), number > 0, 0.7))
    return _sheet(tiles, [v.name for v in views])


def picture_sheet(tiles: Sequence[Image], labels: Sequence[str]) -> Image:
    """Draw a sheet of images of one size."""
    return _sheet(tiles, labels)
