"""Robot silhouettes in several joint configurations: observed masks as distance fields, rendered outlines as points."""

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
"""Edges this close to the image border are cut off there, not outlines."""

_COARSE_PX, _COARSE_M = 200, 0.004
"""Images up to this size are rendered from meshes simplified to this grid, which is smaller than their pixels."""


class Edges(NamedTuple):
    """Outline pixels of rendered silhouettes.

    Attributes:
        frame: (N,) int64, index of the configuration.
        row, column: (N,) int64, pixel inside the silhouette, next to its outline.
        p_camera: (N, 3) float64, surface point at the pixel, camera frame, metres.
        link: (N,) int64, index of its link in `robot.links`.
    """

    frame: NDArray[np.int64]
    row: NDArray[np.int64]
    column: NDArray[np.int64]
    p_camera: Array
    link: NDArray[np.int64]


class SeenSilhouettes(NamedTuple):
    """Observed silhouettes at one image scale.

    Attributes:
        camera: rectified, at that scale.
        mask: (C, H, W) bool, True = robot.
        distance: (C, H, W) float32, distance to the outline, pixels, negative inside.
        slope: (C, 2, H, W) float32, unit gradient of the distance, along columns and rows.
        valid: (H, W) bool, pixel is in the lens's field of view and not at the border.
        inside: (H, W) bool, pixel is in the lens's field of view.
    """

    camera: PinholeCamera
    mask: Masks
    distance: NDArray[np.float32]
    slope: NDArray[np.float32]
    valid: Masks
    inside: Masks


def signed_distance(mask: Masks) -> NDArray[np.float32]:
    """Compute (H, W) float32 distances from pixel centres to the mask's outline, pixels, negative inside."""
    inside = np.ascontiguousarray(mask, np.uint8)
    far = float(sum(mask.shape))
    out = cv2.distanceTransform(1 - inside, cv2.DIST_L2, cv2.DIST_MASK_PRECISE) if inside.any() else far
    into = cv2.distanceTransform(inside, cv2.DIST_L2, cv2.DIST_MASK_PRECISE) if not inside.all() else far
    # The outline is half-way between the last pixel inside and the first outside.
    return np.asarray(np.where(mask, 0.5 - into, np.asarray(out) - 0.5), np.float32)


def mask_iou(a: Masks, b: Masks) -> float:
    """Compute the intersection over union of masks, all frames together; 1 if both are empty."""
    union = int(np.count_nonzero(a | b))
    return float(np.count_nonzero(a & b)) / union if union else 1.0


def rectify_masks(masks: Sequence[Masks] | Masks, camera: PinholeCamera) -> tuple[Masks, Masks]:
    """Rectify masks to `camera.rectified()`: masks (C, H, W) bool, and the lens's field of view (H, W) bool."""
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
    """Observed silhouettes of a robot in C joint configurations, and a renderer for the same configurations.

    Args:
        robot: with visual shapes.
        q: (C, J) joint positions in `robot.joint_names` order.
        masks: (C, H, W) bool, as seen by the camera, lens distortion included; True = robot.
        camera: intrinsics and distortion; its pose is not used.
    """

    def __init__(self, robot: Robot, q: ArrayLike, masks: Sequence[Masks] | Masks, camera: PinholeCamera) -> None:
        positions = np.atleast_2d(np.asarray(q, dtype=np.float64))
        if len(positions) != len(masks) or len(masks) == 0:
            raise CalibrationError(
                f"{len(positions)} joint configurations and {len(masks)} masks",
                expected="one joint configuration for each mask, at least one",
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
                    expected="at least one robot pixel",
                    hint="check the segmentation, or leave out images that do not show the robot",
                )
            if mask.mean() > 0.95:
                raise CalibrationError(f"mask {i} covers the whole image (poor_overlap)", expected="only the robot")
        self._levels: dict[float, SeenSilhouettes] = {}

    def __len__(self) -> int:
        return len(self.mask)

    def part(self, frames: Sequence[int]) -> Silhouettes:
        """Return a copy with some of the configurations."""
        some = copy(self)
        some.base_T_link, some.mask = self.base_T_link[frames], self.mask[frames]
        some._levels = {
            scale: level._replace(mask=level.mask[frames], distance=level.distance[frames], slope=level.slope[frames])
            for scale, level in self._levels.items()
        }
        return some

    def seen(self, scale: float) -> SeenSilhouettes:
        """Return the observed silhouettes at an image scale."""
        if scale not in self._levels:
            self._levels[scale] = self._make_level(scale)
        return self._levels[scale]

    def draw(self, base_T_camera: ArrayLike, scale: float = 1.0) -> PointmapSequence:
        """Render the robot from a camera pose (4, 4), at an image scale."""
        camera = self.seen(scale).camera.posed(base_T_camera)
        scene = self._coarse if max(camera.width, camera.height) <= _COARSE_PX else self._scene
        return render_poses(scene, self.base_T_link, camera, threads=1)

    def edges(self, base_T_camera: ArrayLike, scale: float) -> tuple[Edges, Masks]:
        """Render the robot; return outline pixels in the lens's field of view, and masks (C, H, W) bool."""
        drawn = self.draw(base_T_camera, scale)
        mask = drawn.mask
        inner = mask.copy()
        inner[:, 1:-1, 1:-1] &= mask[:, :-2, 1:-1] & mask[:, 2:, 1:-1] & mask[:, 1:-1, :-2] & mask[:, 1:-1, 2:]
        frame, row, column = np.nonzero(mask & ~inner & self.seen(scale).valid)
        p_camera = drawn.xyz[frame, row, column].astype(np.float64)
        # Rendered link ids start at 1; 0 is background.
        link = drawn.link_ids[frame, row, column].astype(np.int64) - 1
        return Edges(frame, row, column, p_camera, link), mask

    def overlap(self, base_T_camera: ArrayLike, scale: float = 1.0) -> float:
        """Compute the IoU of rendered and observed silhouettes in the field of view, over all configurations."""
        seen = self.seen(scale)
        return mask_iou(self.draw(base_T_camera, scale).mask & seen.inside, seen.mask & seen.inside)

    def covered(self, base_T_camera: ArrayLike) -> tuple[Array, Array]:
        """Compute for each link (L,) its fraction of the rendered robot and its coverage by the masks; NaN = hidden."""
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


# Residuals, Jacobian and robust weights of the silhouette fit.


class Level(NamedTuple):
    """One level of the coarse-to-fine fit.

    Attributes:
        scale: image scale, 0 to 1.
        steps: maximum number of steps.
        reach_px: residuals beyond this are down-weighted, pixels at this scale.
        both: match the observed outline to the rendered one too; needed while they are far apart.
    """

    scale: float
    steps: int
    reach_px: float
    both: bool


def outline_rows(
    silhouettes: Silhouettes, seen: SeenSilhouettes, pose: Array, level: Level
) -> tuple[Array, Array, NDArray[np.int64], Array] | None:
    """Compute Jacobian (N, 7), residual (N,), cluster (N,) and depth (N,) of all outline points.

    Residuals are pixels at the scale of the level, depth is in metres. None with fewer than 20 points.
    """
    edges, drawn = silhouettes.edges(pose, level.scale)
    if len(edges.frame) < 20:
        return None
    P = image_motion(seen.camera, pose, edges.p_camera)
    at = (edges.frame, edges.row, edges.column)
    # The centre of an outline pixel is half a pixel inside, so on an equal outline its distance is -0.5.
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
    """Compute (N, 2, 6) derivatives of image points by a small change of the camera pose, pixels."""
    z = p[:, 2]
    D = np.zeros((len(p), 2, 3))
    D[:, 0, 0], D[:, 1, 1] = camera.K[0, 0] / z, camera.K[1, 1] / z
    D[:, 0, 2], D[:, 1, 2] = -D[:, 0, 0] * p[:, 0] / z, -D[:, 1, 1] * p[:, 1] / z
    return np.concatenate([-D @ pose[:3, :3].T, D @ skew(p)], axis=2)


def _pulled(seen: SeenSilhouettes, edges: Edges, drawn: Masks, P: Array) -> tuple[Array, Array] | None:
    """Compute rows for the observed outline: match each of its pixels to the nearest rendered one."""
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
    """Compute the derivative of the influence function (Tukey) at the fine levels."""
    cut = max(4.0 * max(1.48 * float(np.median(np.abs(r))), 0.3), level.reach_px)
    u = (r / cut) ** 2
    return np.where(u < 1, (1 - u) * (1 - 5 * u), 0.0)


def weights(r: Array, level: Level) -> tuple[Array, float]:
    """Compute weights (Tukey at the fine levels, Cauchy where `level.both`) and the robust sigma in pixels."""
    sigma = max(1.48 * float(np.median(np.abs(r))), 0.3)
    if level.both:
        return 1 / (1 + (r / level.reach_px) ** 2), sigma
    cut = max(4.0 * sigma, level.reach_px)
    return np.where(np.abs(r) < cut, (1 - (r / cut) ** 2) ** 2, 0.0), sigma
