"""Contact sheets: one picture a stage that shows what it did, view by view."""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.assets.views import View
from kinema4d_ros.calibration.pictures import frame_axes, outline_picture
from kinema4d_ros.media import overlay, strip

__all__ = ["LINK_COLOURS", "cover_sheet", "frame_sheet", "label_sheet", "mask_sheet", "pose_sheet"]

Image = NDArray[np.uint8]

_WIDTH, _COLUMNS = 320, 5

LINK_COLOURS = np.array(
    [
        (230, 25, 75), (60, 180, 75), (255, 225, 25), (0, 130, 200), (245, 130, 48), (145, 30, 180), (70, 240, 240),
        (240, 50, 230), (210, 245, 60), (250, 190, 212), (0, 128, 128), (170, 110, 40),
    ],
    np.uint8,
)  # fmt: skip
"""By link, repeated."""


def _sheet(tiles: Sequence[Image], labels: Sequence[str]) -> Image:
    height = round(_WIDTH * tiles[0].shape[0] / tiles[0].shape[1])
    small = [np.asarray(cv2.resize(t, (_WIDTH, height), interpolation=cv2.INTER_AREA), np.uint8) for t in tiles]
    return strip(small, _COLUMNS, list(labels))


def frame_sheet(images: Sequence[Image], names: Sequence[str], blur_px: Sequence[float]) -> Image:
    """The chosen frames with their blur."""
    return _sheet(images, [f"{n}: {b:.1f} px" for n, b in zip(names, blur_px, strict=True)])


def pose_sheet(views: Sequence[View], length: float) -> Image:
    """The rectified pictures with the world's axes drawn in: x red, y green, z blue."""
    return _sheet([frame_axes(v.image, v.camera, np.eye(4), length) for v in views], [v.name for v in views])


def mask_sheet(views: Sequence[View]) -> Image:
    """The masks over the pictures."""
    tiles = [overlay(v.image, np.full(v.image.shape, (66, 220, 90), np.uint8), v.robot, 0.55) for v in views]
    return _sheet(tiles, [f"{v.name}: {v.robot.mean():.1%}" for v in views])


def cover_sheet(views: Sequence[View], drawn: Sequence[NDArray[np.bool_]], iou: Sequence[float]) -> Image:
    """Outlines of the seen robot (blue) and of the drawn one (red), green where they agree."""
    tiles = [outline_picture(v.image, v.robot, d) for v, d in zip(views, drawn, strict=True)]
    return _sheet(tiles, [f"{v.name}: {i:.3f}" for v, i in zip(views, iou, strict=True)])


def label_sheet(views: Sequence[View], ids: Sequence[NDArray[np.uint8]]) -> Image:
    """Links in colours, one for each, over the pictures; ids (H, W) are 0 = none, i + 1 = link i."""
    tiles = []
    for view, number in zip(views, ids, strict=True):
        colours = LINK_COLOURS[(number.astype(int) - 1) % len(LINK_COLOURS)]
        tiles.append(overlay(view.image, np.ascontiguousarray(colours), number > 0, 0.7))
    return _sheet(tiles, [v.name for v in views])


def picture_sheet(tiles: Sequence[Image], labels: Sequence[str]) -> Image:
    """Pictures of one size."""
    return _sheet(tiles, labels)
