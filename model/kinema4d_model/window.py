"""The part of a picture that a small network looks at: where the hand works, at the scale it was trained on."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.pointmap import GripTrack, PointmapSequence
from kinema4d_ros.generators.carry import find_grasps
from kinema4d_ros.generators.protocol import GenerateRequest

__all__ = ["VIEW_M", "Window", "choose_window", "cut_request"]

VIEW_M = 0.44
"""Width of the scene, at the hand's distance, that the window shows where the camera shows more."""
WIDE = 1.2
"""A camera that shows less than this many times `VIEW_M` is used whole."""


@dataclass(frozen=True)
class Window:
    """A rectangle of pixels: first column and row, columns and rows."""

    left: int
    top: int
    width: int
    height: int

    @property
    def slices(self) -> tuple[slice, slice]:
        """Rows and columns."""
        return slice(self.top, self.top + self.height), slice(self.left, self.left + self.width)


def choose_window(camera: PinholeCamera, grip: GripTrack | None, aspect: float, view_m: float = VIEW_M) -> Window:
    """The window for a motion: around where the fingers close lowest, or the hand is lowest; never beyond the picture.

    Args:
        camera: of the whole picture.
        grip: the hand's way; None takes the middle of the picture.
        aspect: width / height that the network wants.
        view_m: width of the scene that it wants to see.
    """
    spot, distance = _where(camera, grip)
    largest = min(float(camera.width), camera.height * aspect)
    wanted = camera.K[0, 0] * view_m / distance if distance > 0 else largest
    width = largest if wanted * WIDE > largest else wanted
    columns, rows = max(2, round(width)), max(2, round(width / aspect))
    left = int(np.clip(round(spot[0] - columns / 2), 0, camera.width - columns))
    # A hand comes from above: what it lifts needs room there.
    top = int(np.clip(round(spot[1] - 0.55 * rows), 0, camera.height - rows))
    return Window(left, top, columns, rows)


def _where(camera: PinholeCamera, grip: GripTrack | None) -> tuple[NDArray[np.float64], float]:
    """Pixel (2,) that the window should be around, and how far away that is, metres; 0 = unknown."""
    middle = np.array([camera.width / 2, camera.height / 2])
    if grip is None:
        return middle, 0.0
    grasps = find_grasps(grip)
    height = grip.base_T_grip[:, 2, 3]
    frame = min((g.closed for g in grasps), key=lambda t: height[t]) if grasps else int(np.argmin(height))
    p_camera = camera.camera_T_base @ grip.base_T_grip[frame, :, 3]
    if p_camera[2] <= 0.05:
        return middle, 0.0
    spot = camera.project(p_camera[None, :3])[0]
    return np.clip(spot, [0, 0], [camera.width, camera.height]), float(p_camera[2])


def cut_request(request: GenerateRequest, window: Window) -> GenerateRequest:
    """The request as a camera would have made it that sees the window alone."""
    robot = request.robot
    if (window.width, window.height) == (robot.camera.width, robot.camera.height):
        return request
    rows, columns = window.slices
    return replace(
        request,
        image=np.ascontiguousarray(request.image[rows, columns]),
        robot=PointmapSequence(
            np.ascontiguousarray(robot.xyz[:, rows, columns]),
            np.ascontiguousarray(robot.link_ids[:, rows, columns]),
            robot.camera.cropped(window.left, window.top, window.width, window.height),
            robot.times,
            None if robot.rgb is None else np.ascontiguousarray(robot.rgb[:, rows, columns]),
            robot.grip,
        ),
        depth=None if request.depth is None else np.ascontiguousarray(request.depth[rows, columns]),
    )
