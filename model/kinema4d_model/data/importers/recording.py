"""`Recording`: what any source has of one motion; `build` makes the episode of it."""

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


class Unusable(DataError):  # noqa: N818 - an ordinary event: it is counted with its reason
    """A recording that a quality filter refuses; the text says why."""


class Missing(Unusable):
    """A recording that the source lists and does not have; the text begins with `Missing.MARK`."""

    MARK = "missing: "

    def __init__(self, what: str, **more: Any) -> None:
        super().__init__(f"{self.MARK}{what}", **more)


@dataclass(frozen=True, eq=False)
class ToolTrack:
    """Where the end effector was, for sources that do not say where the joints were.

    Attributes:
        times: (N,) seconds, the clock of the pictures.
        base_T_tool: (N, 4, 4) metres, in the source's own base and tool frames.
        opening: (N,) of the gripper, 0 = closed, 1 = open; None if unknown.
    """

    times: NDArray[np.float64]
    base_T_tool: NDArray[np.float64]
    opening: NDArray[np.float64] | None = None


@dataclass(frozen=True, eq=False)
class Recording:
    """What a source has of one motion; whatever it lacks is None.

    Attributes:
        key: unique in the source.
        images: N pictures (h, w, 3) uint8, RGB, with lens distortion if the camera has it.
        image_times: (N,) seconds, increasing.
        joints, actions: measured and commanded, same clock.
        depth: N pictures (h, w) float32 metres, NaN = nothing, aligned with the images.
        camera: of the images, with its pose.
        robot: name or URDF, and the loaded model.
        task, instruction, source: words.
        success: if known.
        tool: where the end effector was.
        commands: by name, N rows of whatever was commanded, in the source's own terms.
        details: anything else.
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
    """A camera for pictures whose own is unknown: 53 degrees wide, at the origin; listed as missing with them."""
    return PinholeCamera(
        width, height, np.array([[width, 0, width / 2], [0, width, height / 2], [0, 0, 1]], np.float64)
    )
