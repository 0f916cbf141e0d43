"""Resizing between camera and network: images are filtered, points are never mixed across an edge."""

from __future__ import annotations

from typing import Any, TypeVar

import cv2
import numpy as np
from numpy.typing import NDArray

from kinema4d_model.pipeline._kernels import grow_frames, move_onto_rays, paste_frames
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.pointmap import PointmapSequence
from kinema4d_ros.core.rollout import Frames

__all__ = [
    "fill_under_robot",
    "grow_images",
    "grow_points",
    "paste_robot",
    "pick_pixels",
    "points_on_rays",
    "shrink_images",
]

EDGE = 0.05
"""Neighbours whose depth differs by more than this share belong to different surfaces."""

S = TypeVar("S", bound=np.generic)


def shrink_images(images: NDArray[np.uint8], width: int, height: int) -> NDArray[np.uint8]:
    """Resize images (T, H, W, 3) to (T, height, width, 3) uint8, area filtered when shrinking, cubic otherwise."""
    if images.shape[1:3] == (height, width):
        return images
    shrinks = images.shape[1] >= height and images.shape[2] >= width
    how = cv2.INTER_AREA if shrinks else cv2.INTER_CUBIC
    return np.stack([cv2.resize(image, (width, height), interpolation=how) for image in images])


def pick_pixels(frames: NDArray[S], width: int, height: int) -> NDArray[S]:
    """Resize frames (T, H, W, ...) to (T, height, width, ...): each new pixel copies the old one at its centre.

    For points, masks and link ids: no new values are made.
    """
    old_height, old_width = frames.shape[1:3]
    if (old_height, old_width) == (height, width):
        return frames
    rows = ((np.arange(height) + 0.5) * old_height / height).astype(np.intp)
    columns = ((np.arange(width) + 0.5) * old_width / width).astype(np.intp)
    return np.ascontiguousarray(frames[:, rows[:, None], columns[None, :]])


def grow_images(images: NDArray[np.uint8], width: int, height: int) -> NDArray[np.uint8]:
    """Enlarge images (T, h, w, 3) to (T, height, width, 3) uint8, cubic."""
    return shrink_images(images, width, height)


def grow_points(xyz: NDArray[np.float32], width: int, height: int, *, edge: float = EDGE) -> NDArray[np.float32]:
    """Resize points (T, h, w, 3) to (T, height, width, 3) float32, bilinear within a surface.

    Of the four points around a new pixel only those are used whose z agrees with the nearest one's within the share
    `edge`; NaN where the nearest one is NaN.
    """
    old_height, old_width = xyz.shape[1:3]
    if (old_height, old_width) == (height, width):
        return xyz
    rows, row_shares = _between(old_height, height)
    columns, column_shares = _between(old_width, width)
    out = np.empty((len(xyz), height, width, 3), np.float32)
    grow_frames(np.ascontiguousarray(xyz), rows, row_shares, columns, column_shares, edge, out)
    return out


def fill_under_robot(frames: NDArray[Any], mask: NDArray[np.bool_]) -> NDArray[Any]:
    """Replace every pixel of (T, h, w, C) under the mask (T, h, w) by the nearest one outside it.

    Done before upsampling, so that the predicted robot's colours and points do not bleed around the exact robot.
    """
    out = frames.copy()
    for picture, robot in zip(out, mask, strict=True):
        if not robot.any() or robot.all():
            continue
        _, labels = cv2.distanceTransformWithLabels(
            robot.astype(np.uint8), cv2.DIST_L2, 3, labelType=cv2.DIST_LABEL_PIXEL
        )
        world = np.flatnonzero(~robot)
        source = np.zeros(int(labels.max()) + 1, np.intp)
        source[labels.reshape(-1)[world]] = world
        flat = picture.reshape(-1, picture.shape[-1])
        under = np.flatnonzero(robot)
        flat[under] = flat[source[labels.reshape(-1)[under]]]
    return out


def _between(old: int, new: int) -> tuple[NDArray[np.intp], NDArray[np.float32]]:
    """Return for each new pixel centre the old pixel before it, and the fraction towards the next."""
    position = np.clip((np.arange(new) + 0.5) * old / new - 0.5, 0.0, old - 1.0)
    before = np.minimum(position.astype(np.intp), old - 1)
    return before, (position - before).astype(np.float32)


# The exact robot replaces the prediction under its mask.


def paste_robot(frames: Frames, robot: PointmapSequence) -> None:
    """Write the robot's points, and its colours where the sequence has them, into frames of the same size."""
    colours = np.empty((0, 1, 1, 3), np.uint8) if robot.rgb is None else robot.rgb
    paste_frames(robot.link_ids, robot.xyz, colours, frames.xyz, frames.rgb)


def points_on_rays(
    xyz: NDArray[np.float32], camera: PinholeCamera, *, nearest_m: float = 0.01
) -> tuple[NDArray[np.float32], float]:
    """Move points onto their pixels' rays; also return how far off they were.

    A pixel can only show points on its ray, and the camera is known: each predicted point (T, H, W, 3) moves to the
    closest point on the ray, which uses all three coordinates. NaN where that point is closer than `nearest_m` in z or
    behind the camera.

    Returns:
        (T, H, W, 3) float32, metres, camera optical frame; and the RMS distance moved, metres.
    """
    out = np.empty_like(xyz)
    squares, counts = np.zeros(len(xyz)), np.zeros(len(xyz), np.intp)
    move_onto_rays(np.ascontiguousarray(xyz), camera.rays().astype(np.float32), nearest_m, out, squares, counts)
    count = int(counts.sum())
    return out, float(np.sqrt(squares.sum() / count)) if count else 0.0
