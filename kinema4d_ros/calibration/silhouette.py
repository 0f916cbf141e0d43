"""Silhouettes of a robot in several joint configurations: seen ones as distance fields, drawn ones as edge points."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import ArrayLike, NDArray

from kinema4d_ros.calibration.boards import skew
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import CalibrationError
from kinema4d_ros.core.pointmap import PointmapSequence
from kinema4d_ros.kinematics.forward import forward_all
from kinema4d_ros.render import Scene, render_poses
from kinema4d_ros.render.clusters import merge_vertices
from kinema4d_ros.robot.model import Robot

__all__ = [
    "Edges",
    "Level",
    "SeenSilhouettes",
    "Silhouettes",
    "image_motion",
    "mask_iou",
    "outline_rows",
    "rectify_masks",
    "signed_distance",
    "slopes",
    "weights",
]

Array = NDArray[np.float64]
Masks = NDArray[np.bool_]

_RIM_PX = 2
"""Edges this near to the border of the image are cuts, not outlines."""

_COARSE_PX, _COARSE_M = 200, 0.004
"""Images up to that size are drawn from meshes with that grid: it is less than their pixels."""


class Edges(NamedTuple):
    """Outline pixels of drawn silhouettes.

    Attributes:
        frame: (N,) int64, configuration.
        row, column: (N,) int64, pixel: inside the silhouette, beside its outline.
        p_camera: (N, 3) float64, metres: the surface seen there.
        link: (N,) int64, position in `robot.links` of the link it belongs to.
    """

    frame: NDArray[np.int64]
    row: NDArray[np.int64]
    column: NDArray[np.int64]
    p_camera: Array
    link: NDArray[np.int64]


class SeenSilhouettes(NamedTuple):
    """What the camera saw, at one size.

    Attributes:
        camera: rectified, of that size.
        mask: (C, H, W) bool.
        distance: (C, H, W) float32 pixels to the outline, negative inside.
        slope: (C, 2, H, W) float32 unit gradient of it, along columns and rows.
        valid: (H, W) bool: the lens saw this pixel, and it is not at the border.
        inside: (H, W) bool: the lens saw this pixel.
    """

    camera: PinholeCamera
    mask: Masks
    distance: NDArray[np.float32]
    slope: NDArray[np.float32]
    valid: Masks
    inside: Masks


def signed_distance(mask: Masks) -> NDArray[np.float32]:
    """(H, W) float32 pixels from each pixel's centre to the mask's outline, negative inside."""
    inside = np.ascontiguousarray(mask, np.uint8)
    far = float(sum(mask.shape))
    out = cv2.distanceTransform(1 - inside, cv2.DIST_L2, cv2.DIST_MASK_PRECISE) if inside.any() else far
    into = cv2.distanceTransform(inside, cv2.DIST_L2, cv2.DIST_MASK_PRECISE) if not inside.all() else far
    # The outline runs half-way between the last pixel inside and the first outside.
    return np.asarray(np.where(mask, 0.5 - into, np.asarray(out) - 0.5), np.float32)


def mask_iou(a: Masks, b: Masks) -> float:
    """Intersection over union of masks, all frames together; 1 if both are empty."""
    union = int(np.count_nonzero(a | b))
    return float(np.count_nonzero(a & b)) / union if union else 1.0


def rectify_masks(masks: Sequence[Masks] | Masks, camera: PinholeCamera) -> tuple[Masks, Masks]:
    """(C, H, W) masks as `camera.rectified()` would see them, and (H, W) where its lens sees anything."""
    everything = np.full((camera.height, camera.width), 255, np.uint8)
    seen = []
    for i, mask in enumerate(masks):
        if mask.dtype != np.bool_ or mask.shape != everything.shape:
            raise CalibrationError(
                f"mask {i} is {mask.dtype} of shape {mask.shape}",
                expected=f"bool of shape {everything.shape}, the camera's height and width",
            )
        seen.append(camera.rectify(mask.astype(np.uint8) * 255) > 127)
    return np.stack(seen), camera.rectify(everything) > 250


@lru_cache(maxsize=4)
def _coarse_scene(robot: Robot) -> Scene:
    parts = [
        (i, replace(shape, mesh=merge_vertices(shape.mesh, _COARSE_M)))
        for i, link in enumerate(robot.links)
        for shape in link.visuals
    ]
    return Scene(parts, len(robot.links))


class Silhouettes:
    """Draws a robot's silhouettes in C joint configurations, and keeps the seen ones beside them.

    Args:
        robot: with its shapes.
        q: (C, J) joint positions in `robot.joint_names` order.
        masks: (C, H, W) bool, as the camera saw the robot, with its lens; True = robot.
        camera: intrinsics and distortion; the pose is given when drawing.
    """

    def __init__(self, robot: Robot, q: ArrayLike, masks: Sequence[Masks] | Masks, camera: PinholeCamera) -> None:
        positions = np.atleast_2d(np.asarray(q, dtype=np.float64))
        if len(positions) != len(masks) or len(masks) == 0:
            raise CalibrationError(
                f"{len(positions)} joint configurations and {len(masks)} masks", expected="one of each, at least one"
            )
        self._scene, self._coarse = Scene.from_robot(robot), _coarse_scene(robot)
        self.base_T_link = forward_all(robot, positions)
        self.link_names = [link.name for link in robot.links]
        self.tool = self.link_names.index(robot.tool_link)
        self.mask, self._valid = rectify_masks(masks, camera)
        self.camera = camera.rectified()
        for i, mask in enumerate(self.mask):
            if not mask.any():
                raise CalibrationError(
                    f"mask {i} is empty (poor_overlap)",
                    expected="the robot's pixels",
                    hint="check the segmentation, or leave out images that do not show the robot",
                )
            if mask.mean() > 0.95:
                raise CalibrationError(f"mask {i} covers the whole image (poor_overlap)", expected="only the robot")
        self._levels: dict[float, SeenSilhouettes] = {}

    def __len__(self) -> int:
        return len(self.mask)

    def part(self, frames: Sequence[int]) -> Silhouettes:
        """Some of the configurations only."""
        some = copy(self)
        some.base_T_link, some.mask = self.base_T_link[frames], self.mask[frames]
        some._levels = {
            scale: level._replace(mask=level.mask[frames], distance=level.distance[frames], slope=level.slope[frames])
            for scale, level in self._levels.items()
        }
        return some

    def seen(self, scale: float) -> SeenSilhouettes:
        """The seen silhouettes at a share of the image's size."""
        if scale not in self._levels:
            self._levels[scale] = self._make_level(scale)
        return self._levels[scale]

    def draw(self, base_T_camera: ArrayLike, scale: float = 1.0) -> PointmapSequence:
        """The robot as a camera at that pose would see it, at a share of the image's size."""
        camera = self.seen(scale).camera.posed(base_T_camera)
        scene = self._coarse if max(camera.width, camera.height) <= _COARSE_PX else self._scene
        return render_poses(scene, self.base_T_link, camera, threads=1)

    def edges(self, base_T_camera: ArrayLike, scale: float) -> tuple[Edges, Masks]:
        """The outline of the drawn silhouettes where the lens sees it, and the drawn masks."""
        drawn = self.draw(base_T_camera, scale)
        mask = drawn.mask
        inner = mask.copy()
        inner[:, 1:-1, 1:-1] &= mask[:, :-2, 1:-1] & mask[:, 2:, 1:-1] & mask[:, 1:-1, :-2] & mask[:, 1:-1, 2:]
        frame, row, column = np.nonzero(mask & ~inner & self.seen(scale).valid)
        p_camera = drawn.xyz[frame, row, column].astype(np.float64)
        # Drawn ids count from 1; 0 is no robot.
        link = drawn.link_ids[frame, row, column].astype(np.int64) - 1
        return Edges(frame, row, column, p_camera, link), mask

    def overlap(self, base_T_camera: ArrayLike, scale: float = 1.0) -> float:
        """IoU of drawn and seen silhouettes where the lens sees, all configurations together."""
        seen = self.seen(scale)
        return mask_iou(self.draw(base_T_camera, scale).mask & seen.inside, seen.mask & seen.inside)

    def covered(self, base_T_camera: ArrayLike) -> tuple[Array, Array]:
        """Of each link (L,): its share of the drawn robot, and how much of it the masks hold; NaN = not drawn."""
        inside, drawn = self.seen(1.0).inside, self.draw(base_T_camera)
        ids = np.where(inside, drawn.link_ids, 0).ravel()
        pixels = np.bincount(ids, minlength=len(self.link_names) + 1)[1:]
        held = np.bincount(ids, self.mask.ravel(), minlength=len(self.link_names) + 1)[1:]
        return pixels / max(int(pixels.sum()), 1), np.where(pixels > 0, held / np.maximum(pixels, 1), np.nan)

    def _make_level(self, scale: float) -> SeenSilhouettes:
        width, height = (max(8, round(scale * side)) for side in (self.camera.width, self.camera.height))
        camera = self.camera.scaled(width, height)
        size = (width, height)
        same = (self.camera.width, self.camera.height) == size
        shrunk = [
            mask if same else cv2.resize(mask.astype(np.float32), size, interpolation=cv2.INTER_AREA) > 0.5
            for mask in self.mask
        ]
        mask = np.stack(shrunk)
        distance = np.stack([signed_distance(m) for m in mask])
        slope = np.empty((len(mask), 2, height, width), np.float32)
        for i, field in enumerate(distance):
            smooth = cv2.GaussianBlur(field, (0, 0), 1.0)
            down, right = np.gradient(smooth)
            length = np.maximum(np.hypot(right, down), 1e-6)
            slope[i] = right / length, down / length
        inside = cv2.resize(self._valid.astype(np.uint8), size, interpolation=cv2.INTER_NEAREST)
        valid = np.pad(inside[_RIM_PX:-_RIM_PX, _RIM_PX:-_RIM_PX], _RIM_PX)
        valid = cv2.erode(valid, np.ones((2 * _RIM_PX + 1, 2 * _RIM_PX + 1), np.uint8))
        return SeenSilhouettes(camera, mask, distance, slope, valid.astype(np.bool_), inside.astype(np.bool_))


# Rows of the silhouette fit: how far outlines are apart, how they follow the camera, how much a point counts.


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
