"""Segmentation by rendering: the robot at its joint positions, seen through the calibrated camera.

Occlusions are not considered: the mask includes objects in front of the robot.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import ErrorCode
from kinema4d_ros.kinematics.forward import forward_all
from kinema4d_ros.lab.lens import Lens
from kinema4d_ros.render import Scene, render_poses
from kinema4d_ros.robot.model import Robot
from kinema4d_ros.segmentation.prompt import Prompt
from kinema4d_ros.segmentation.protocol import ReportFrame, Segmentation, SegmentationError, as_stack, result_of

__all__ = ["RenderedSegmenter", "rendered_masks"]

_BATCH = 16
"""Frames rendered at once, to limit memory: a pointmap has twelve bytes per pixel, its mask one."""


def rendered_masks(robot: Robot, q: ArrayLike, camera: PinholeCamera) -> NDArray[np.bool_]:
    """Render masks (T, H, W) bool at joint positions (T, J), `robot.joint_names` order, with lens distortion."""
    positions = np.atleast_2d(np.asarray(q, dtype=np.float64))
    lens, scene = Lens(camera), Scene.from_robot(robot)
    masks = []
    for start in range(0, len(positions), _BATCH):
        drawn = render_poses(scene, forward_all(robot, positions[start : start + _BATCH]), lens.pinhole).mask
        masks += [lens.bend(mask.astype(np.uint8), "nearest") != 0 for mask in drawn]
    return np.stack(masks)


class RenderedSegmenter:
    """Segmenter that returns the rendered robot and ignores the image contents.

    Args:
        robot: with visual shapes.
        camera: calibrated, with pose and distortion.
        q: (T, J) joint positions, one row for each image; a single row for images of a robot at rest.
    """

    name = "rendered"

    def __init__(self, robot: Robot, camera: PinholeCamera, q: ArrayLike) -> None:
        self._camera = camera
        self._masks = rendered_masks(robot, q, camera)

    @property
    def prompt(self) -> Prompt:
        """Prompt for another segmenter, made of these masks."""
        return Prompt(mask=self._masks if len(self._masks) > 1 else self._masks[0])

    def segment(
        self, images: NDArray[np.uint8], prompt: Prompt | None = None, *, progress: ReportFrame | None = None
    ) -> Segmentation:
        """Return the rendered masks; only the size and number of the images are used, the prompt is ignored."""
        stack = as_stack(images, prompt)
        if stack.shape[1:3] != (self._camera.height, self._camera.width):
            raise SegmentationError(
                f"the images are {stack.shape[2]} x {stack.shape[1]}",
                expected=f"{self._camera.width} x {self._camera.height}, the size of the calibrated camera",
                code=ErrorCode.CAMERA_BAD_SIZE,
            )
        if len(self._masks) not in (1, len(stack)):
            raise SegmentationError(
                f"{len(self._masks)} joint configurations and {len(stack)} images",
                expected="one configuration per image, or one for all",
            )
        masks = np.broadcast_to(self._masks, stack.shape[:3]).copy()
        if progress is not None:
            progress(len(stack), len(stack))
        return result_of(images, masks, np.ones(len(stack)), self.name, drawn=range(len(stack)))
