"""Masks of the robot in every view: from a folder, or from a segmenter that is shown where the robot should be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.assets.align import place_camera
from kinema4d_ros.assets.drawing import draw_mesh, mesh_scene
from kinema4d_ros.assets.errors import AssetError
from kinema4d_ros.assets.hull import Outlines, find_volume, visual_hull
from kinema4d_ros.assets.views import View
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import ErrorCode, FileFormatError
from kinema4d_ros.io.images import read_image
from kinema4d_ros.kinematics.forward import forward_all
from kinema4d_ros.render import Scene, render_poses
from kinema4d_ros.robot.model import Robot

__all__ = ["agreed_prompts", "drawn_prompts", "masks_from_folder", "require_masks"]

Mask = NDArray[np.bool_]
_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp")
LEAST = 5e-4
MOST = 0.9
"""Shares of the picture between which a mask can be one."""


def masks_from_folder(folder: Path, views: Sequence[View], lenses: Sequence[PinholeCamera]) -> list[Mask]:
    """Masks (robot bright) named as the frames are, as the camera saw them; rectified here as the pictures were."""
    masks = []
    for view, lens in zip(views, lenses, strict=True):
        files = [folder / f"{view.name}{suffix}" for suffix in _SUFFIXES]
        file = next((f for f in files if f.is_file()), None)
        if file is None:
            raise FileFormatError(
                f"{folder} has no mask for frame {view.name}",
                expected=f"{files[0].name}, the robot in white",
                hint="the chosen frames are in 1_frames",
                code=ErrorCode.FILE_MISSING,
            )
        picture = read_image(file)
        if picture.shape[:2] != (lens.height, lens.width):
            raise AssetError(
                f"mask {file.name} is {picture.shape[1]} x {picture.shape[0]}",
                expected=f"{lens.width} x {lens.height}, as the frames are",
                code=ErrorCode.CAMERA_BAD_SIZE,
            )
        masks.append(np.asarray(lens.rectify(picture.max(axis=2), "linear") > 127))
    return masks


def drawn_prompts(
    robot: Robot, q: NDArray[np.float64], views: Sequence[View], base_T_world: NDArray[np.float64], scale: float = 1.0
) -> list[Mask]:
    """(H, W) bool a view: where the description puts the robot, (K, J) joint positions by orbit.

    `scale` is the size of the world's unit in metres.
    """
    scene, poses = Scene.from_robot(robot), forward_all(robot, q)
    return [
        render_poses(scene, poses[v.orbit][None], place_camera(v.camera, base_T_world, scale)).mask[0] for v in views
    ]


def agreed_prompts(masks: Sequence[Mask], views: Sequence[View], floor: NDArray[np.float64] | None) -> list[Mask]:
    """(H, W) bool a view: the silhouette of what all but a seventh of the masks agree on.

    A part that a few masks miss is in it, and background that a few masks hold is not: a better place to look than any
    of the masks alone.
    """
    misses = min(4, max(1, len(views) // 7))
    seen = [replace(v, mask=m) for v, m in zip(views, masks, strict=True)]
    low, high = find_volume(seen, Outlines.of(seen), misses=misses)
    hull = visual_hull(seen, float((high - low).max()) / 150, misses=misses, floor=floor)
    scene = mesh_scene(hull)
    return [draw_mesh(scene, v.camera).mask[0] for v in views]


def require_masks(masks: Sequence[Mask], views: Sequence[View]) -> None:
    """Refuse masks that hold nothing, or everything, naming the frame."""
    for mask, view in zip(masks, views, strict=True):
        share = float(mask.mean())
        if share < LEAST:
            raise AssetError(
                f"the mask of frame {view.name} is empty: {int(mask.sum())} of {mask.size} pixels",
                expected="the robot in every frame",
                hint="look at 1_frames, or give masks by --masks",
            )
        if share > MOST:
            raise AssetError(
                f"the mask of frame {view.name} holds {share:.0%} of the picture",
                expected="the robot alone",
                hint="bright pixels mean robot; the mask may be inverted",
            )
