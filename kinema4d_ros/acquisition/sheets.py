"""Contact sheets: one picture a stage that shows what it did, view by view."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.acquisition.views import View
from kinema4d_ros.calibration.pictures import frame_axes, outline_picture
from kinema4d_ros.io.images import overlay, strip

__all__ = ["LINK_COLOURS", "cover_sheet", "frame_sheet", "label_sheet", "mask_sheet", "pose_sheet"]

Image = NDArray[np.uint8]

_WIDTH, _COLUMNS = 320, 4
"""Wide enough for labels that can be read when a page shows the sheet at half its size."""

BLUR_FLOOR_PX = 1.0
"""Blur below this cannot be told from the softness of the edges themselves."""

LINK_COLOURS = np.array(
    [
        (230, 25, 75), (60, 180, 75), (255, 225, 25), (0, 130, 200), (245, 130, 48), (145, 30, 180), (70, 240, 240),
        (240, 50, 230), (210, 245, 60), (250, 190, 212), (0, 128, 128), (170, 110, 40),
    ],
    np.uint8,
)  # fmt: skip
"""By link, repeated."""


def _small(image: NDArray[Any]) -> Image:
    height = round(_WIDTH * image.shape[0] / image.shape[1])
    return np.asarray(cv2.resize(image, (_WIDTH, height), interpolation=cv2.INTER_AREA), np.uint8)


def _small_mask(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    return np.asarray(_small(mask.astype(np.uint8) * 255) > 127)


def _sheet(tiles: Sequence[Image], labels: Sequence[str]) -> Image:
    """Tiles side by side, each with its label on a dark strip."""
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
    """The chosen frames with their blur; below a pixel it is said to be just that."""
    blur = [f"{b:.1f} px" if b >= BLUR_FLOOR_PX else f"< {BLUR_FLOOR_PX:g} px" for b in blur_px]
    return _sheet(images, [f"{name}: {text}" for name, text in zip(names, blur, strict=True)])


def pose_sheet(views: Sequence[View], length: float) -> Image:
    """The rectified pictures with the world's axes drawn in: x red, y green, z blue."""
    tiles = []
    for view in views:
        image = _small(view.image)
        camera = view.camera.scaled(image.shape[1], image.shape[0])
        tiles.append(frame_axes(image, camera, np.eye(4), length, thickness=4))
    return _sheet(tiles, [v.name for v in views])


def mask_sheet(views: Sequence[View]) -> Image:
    """The masks over the pictures."""
    tiles = [overlay(v.image, np.full(v.image.shape, (66, 220, 90), np.uint8), v.robot, 0.55) for v in views]
    return _sheet(tiles, [f"{v.name}: {v.robot.mean():.1%}" for v in views])


def cover_sheet(views: Sequence[View], drawn: Sequence[NDArray[np.bool_]], iou: Sequence[float]) -> Image:
    """Outlines of the seen robot (blue) and of the drawn one (red), green where they agree."""
    tiles = [
        outline_picture(_small(v.image), _small_mask(v.robot), _small_mask(d))
        for v, d in zip(views, drawn, strict=True)
    ]
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
