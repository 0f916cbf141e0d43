"""`Recording`: the data of one motion from any source; `build` converts it to an episode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import DataError
from kinema4d_ros.core.trajectory import JointTrajectory
from kinema4d_ros.robot import Robot

__all__ = ["Missing", "Recording", "ToolTrack", "Unusable", "stand_in_camera"]


class Unusable(DataError):  # noqa: N818 - expected: it is counted with its reason
    """A recording rejected by a quality filter, with the reason."""


class Missing(Unusable):
    """A recording that the source lists but does not contain; the message begins with `Missing.MARK`."""

    MARK = "missing: "

    def __init__(self, what: str, **more: Any) -> None:
        super().__init__(f"{self.MARK}{what}", **more)


@dataclass(frozen=True, eq=False)
class ToolTrack:
    """End-effector poses, for sources without joint positions.

    Attributes:
        times: (N,) seconds, the clock of the images.
        base_T_tool: (N, 4, 4) metres, in the source's own base and tool frames.
        opening: (N,) of the gripper, 0 = closed, 1 = open; None if unknown.
    """

    times: NDArray[np.float64]
    base_T_tool: NDArray[np.float64]
    opening: NDArray[np.float64] | None = None


@dataclass(frozen=True, eq=False)
class Recording:
    """Data of one motion; fields that the source lacks are None.

    Attributes:
        key: unique in the source.
        images: N images (h, w, 3) uint8, RGB, with lens distortion if the camera has it.
        image_times: (N,) seconds, increasing.
        joints, actions: measured and commanded, same clock.
        depth: N images (h, w) float32 metres, NaN = nothing, aligned with the images.
        camera: of the images, with its pose.
        robot: name or URDF, and the loaded model.
        task, instruction, source: text.
        success: if known.
        tool: end-effector poses.
        commands: by name, N rows of commands in the source's own units.
        details: other metadata.
    """

    key: str
    images: Sequence[NDArray[np.uint8]]
    image_times: NDArray[np.float64]
    source: str
    joints: JointTrajectory | None = None
    actions: JointTrajectory | None = None
    depth: Sequence[NDArray[np.float32]] | None = None
    camera: PinholeCamera | None = None
    robot: tuple[str, Robot] | None = None
    task: str = "unknown"
    instruction: str = ""
    success: bool | None = None
    tool: ToolTrack | None = None
    commands: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)


def stand_in_camera(width: int, height: int) -> PinholeCamera:
    """Return a placeholder for an unknown camera: 53 degrees wide, at the origin; "camera" is then in `missing`."""
    return PinholeCamera(
        width, height, np.array([[width, 0, width / 2], [0, width, height / 2], [0, 0, 1]], np.float64)
    )
