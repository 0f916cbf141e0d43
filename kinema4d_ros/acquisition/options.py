"""What an acquisition is told: checked once, here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.acquisition.backends import ExternalCommand
from kinema4d_ros.acquisition.frames import MAX_BLUR_PX, MIN_VIEWS
from kinema4d_ros.calibration.boards import Board
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import AssetError, ErrorCode
from kinema4d_ros.core.transforms import require_rigid
from kinema4d_ros.robot.model import Robot

if TYPE_CHECKING:
    from kinema4d_ros.segmentation.protocol import RobotSegmenter

__all__ = ["FLOOR_WORLD", "Acquisition", "Bars", "no_bars"]

Array = NDArray[np.float64]

FLOOR_WORLD = np.array([0.0, 0.0, -1.0, 0.0])
"""Plane n, d of a board on the table: its z leads into the table, so what is above has z < 0."""

Progress = Callable[[int, int], None]
Bars = Callable[[str], AbstractContextManager[Progress]]
"""From a stage's name to a progress bar: called with (done, total) inside a `with` block."""


@contextmanager
def no_bars(name: str) -> Iterator[Progress]:
    """Shows nothing."""
    yield lambda done, total: None


@dataclass(frozen=True, eq=False)
class Acquisition:
    """One robot to acquire.

    Attributes:
        sources: videos or folders of pictures, one for each joint configuration.
        robot: its description; rough shapes will do.
        q: (K, J) joint positions, one row for each source.
        out: folder for stages and result.
        camera: intrinsics for `board`; its pose is ignored.
        board: on the table, in view; the world frame is then the board's. Or
        poses: a COLMAP folder or a transforms JSON.
        masks: folder of masks named as the frames; or
        segmenter: that finds the robot.
        text: what it looks for, "a robot arm", instead of where the description draws the robot.
        segmenter_options: what it was made with, so that masks are made anew when that changes.
        again: a segmenter that is asked after the first, with what most masks agree on as its prompt.
        rounds: how often.
        depth: folder of 16-bit depth pictures (0.1 mm) named as the frames, if there is a depth camera.
        base_T_world: (4, 4) metres: where the board (or the pose file's world) is in the robot's base frame. Or
        pairs: (N, 3) points of the mesh and the same points on the robot, metres. Without them an external mesh is
            searched for all around.
        similarity: the mesh's unit is unknown (COLMAP's world, an external mesh).
        external: a program to make the mesh; the built-in hull if None.
        views: how many frames of each source to use.
        max_blur_px: frames more blurred than this are left out.
        voxel_m: side of a voxel.
        misses: how many views may disagree about a point.
        floor: the board lies on what the robot stands on: nothing is below it.
        refine: let closest points correct the measured place.
    """

    sources: tuple[Path, ...]
    robot: Robot
    q: Array
    out: Path
    camera: PinholeCamera | None = None
    board: Board | None = None
    poses: Path | None = None
    masks: Path | None = None
    segmenter: RobotSegmenter | None = None
    text: str = ""
    segmenter_options: str = ""
    again: RobotSegmenter | None = None
    rounds: int = 2
    depth: Path | None = None
    base_T_world: Array | None = None
    pairs: tuple[Array, Array] | None = None
    similarity: bool = False
    external: ExternalCommand | None = None
    views: int = 20
    max_blur_px: float = MAX_BLUR_PX
    voxel_m: float = 0.002
    misses: int = 0
    floor: bool = True
    refine: bool = True
    bars: Bars = no_bars
    say: Callable[[str], None] = field(default=lambda line: None)

    def __post_init__(self) -> None:
        """Refuse what cannot work before anything is done."""
        if not self.sources:
            raise _bad("no video is given", "a video or a folder of pictures")
        if self.q.shape != (len(self.sources), len(self.robot.joint_names)) or not np.isfinite(self.q).all():
            raise _bad(
                f"joint positions have shape {self.q.shape} for {len(self.sources)} videos",
                f"one row of {len(self.robot.joint_names)} finite numbers for each",
            )
        if (self.board is None) == (self.poses is None):
            raise _bad("poses come from a board or from a file", "exactly one of --board and --poses")
        if self.board is not None and self.camera is None:
            raise _bad("a board needs the camera's intrinsics", "--camera FILE", "kinema4d calibrate intrinsics")
        if (self.masks is None) == (self.segmenter is None):
            raise _bad("masks come from a folder or from a segmenter", "exactly one of --masks and --segmenter")
        if self.text and self.segmenter is None:
            raise _bad("words are for a segmenter", "--text with --segmenter sam2, or none with --masks")
        if self.own_frame and (len(self.sources) > 1 or self.base_T_world is None):
            raise _bad(
                "an external mesh has a frame of its own",
                "one video, and --board-pose for the cameras that check it (--pairs for the mesh are optional)",
            )
        if not self.own_frame and (self.base_T_world is None) == (self.pairs is None):
            raise _bad(
                "nothing, or two things, say where the robot's base is", "exactly one of --board-pose and --pairs"
            )
        if self.base_T_world is not None:
            require_rigid(self.base_T_world, "base_T_world")
        if not MIN_VIEWS <= self.views <= 500:
            raise _bad(f"{self.views} views", f"{MIN_VIEWS} to 500")
        if not 2e-4 <= self.voxel_m <= 0.05:
            raise _bad(f"a voxel of {self.voxel_m} m", "0.0002 to 0.05 m")
        if not self.max_blur_px > 0:
            raise _bad(f"a blur of {self.max_blur_px} px", "more than 0")
        if self.similarity and self.pairs is None and not self.own_frame:
            raise _bad("a world without a unit cannot be measured", "--pairs with --similarity")

    @property
    def own_frame(self) -> bool:
        """The mesh comes from another program, which knows nothing of the cameras' world."""
        return self.external is not None and not self.external.metric


def _bad(what: str, expected: str, hint: str = "") -> AssetError:
    return AssetError(what, expected=expected, hint=hint, code=ErrorCode.ARGUMENT_INVALID)
