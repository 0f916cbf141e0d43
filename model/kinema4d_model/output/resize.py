"""From the camera's size to the network's and back: images are filtered, points never mixed across an edge."""

from __future__ import annotations

from typing import Any, TypeVar

import cv2
import numpy as np
from numpy.typing import NDArray

__all__ = ["fill_under_robot", "grow_images", "grow_points", "pick_pixels", "shrink_images"]

EDGE = 0.05
"""Neighbours whose depth differs by more than this share are on two surfaces."""

S = TypeVar("S", bound=np.generic)


def shrink_images(images: NDArray[np.uint8], width: int, height: int) -> NDArray[np.uint8]:
    """(T, height, width, 3) uint8 of images (T, H, W, 3), area filtered."""
    if images.shape[1:3] == (height, width):
        return images
    shrinks = images.shape[1] >= height and images.shape[2] >= width
    how = cv2.INTER_AREA if shrinks else cv2.INTER_CUBIC
    return np.stack([cv2.resize(image, (width, height), interpolation=how) for image in images])


def pick_pixels(frames: NDArray[S], width: int, height: int) -> NDArray[S]:
    """(T, height, width, ...) of frames (T, H, W, ...): of each new pixel the old one its centre falls into.

    What points, masks and link ids need: every value was there before.
    """
    old_height, old_width = frames.shape[1:3]
    if (old_height, old_width) == (height, width):
        return frames
    rows = ((np.arange(height) + 0.5) * old_height / height).astype(np.intp)
    columns = ((np.arange(width) + 0.5) * old_width / width).astype(np.intp)
    return np.ascontiguousarray(frames[:, rows[:, None], columns[None, :]])


def grow_images(images: NDArray[np.uint8], width: int, height: int) -> NDArray[np.uint8]:
    """(T, height, width, 3) uint8 of smaller images (T, h, w, 3), cubic."""
    return shrink_images(images, width, height)


def grow_points(xyz: NDArray[np.float32], width: int, height: int, *, edge: float = EDGE) -> NDArray[np.float32]:
    """(T, height, width, 3) float32 of points (T, h, w, 3), bilinear within a surface.

    Of the four points around a new pixel only those count whose z agrees with the nearest one's to the share
    `edge`; NaN in, NaN out where the nearest one is NaN.
    """
    old_height, old_width = xyz.shape[1:3]
    if (old_height, old_width) == (height, width):
        return xyz
    row, row_share = _between(old_height, height)
    column, column_share = _between(old_width, width)
    rows, columns = (row, np.minimum(row + 1, old_height - 1)), (column, np.minimum(column + 1, old_width - 1))
    shares_v, shares_u = (1.0 - row_share, row_share), (1.0 - column_share, column_share)
    nearest_v = np.where(row_share < 0.5, rows[0], rows[1])
    nearest_u = np.where(column_share < 0.5, columns[0], columns[1])
    out = np.empty((len(xyz), height, width, 3), np.float32)
    for points, grown in zip(xyz, out, strict=True):
        reference = points[nearest_v[:, None], nearest_u[None, :]]
        total = np.zeros((height, width), np.float32)
        grown[...] = 0.0
        for v in range(2):
            for u in range(2):
                corner = points[rows[v][:, None], columns[u][None, :]]
                weight = (shares_v[v][:, None] * shares_u[u][None, :]).astype(np.float32)
                # Written so that a NaN on either side does not count.
                same = np.abs(corner[..., 2] - reference[..., 2]) <= edge * np.abs(reference[..., 2])
                weight = np.where(same, weight, np.float32(0))
                grown += np.where(same[..., None], corner, np.float32(0)) * weight[..., None]
                total += weight
        known = total > 0
        grown[known] /= total[known][:, None]
        grown[~known] = np.nan
    return out


def fill_under_robot(frames: NDArray[Any], mask: NDArray[np.bool_]) -> NDArray[Any]:
    """(T, h, w, C) with every pixel under the mask (T, h, w) replaced by the nearest one outside of it.

    Before growing, so that neither the robot's colours nor its points bleed around the exact one.
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


def _between(old: int, new: int) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """Of every new pixel's centre: the old pixel before it, and how far it is on the way to the next."""
    position = np.clip((np.arange(new) + 0.5) * old / new - 0.5, 0.0, old - 1.0)
    before = np.minimum(position.astype(np.intp), old - 1)
    return before, position - before
