"""Options of an acquisition, validated on construction."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.acquisition.backends import MESHERS, ExternalCommand
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
"""Plane n, d of a board on the table: its z axis points into the table, so points above it have z < 0."""

Progress = Callable[[int, int], None]
Bars = Callable[[str], AbstractContextManager[Progress]]
"""Factory of progress bars by stage name; a bar is called with (done, total) inside a `with` block."""


@contextmanager
def no_bars(name: str) -> Iterator[Progress]:
    """Provide a progress callback that does nothing."""
    yield lambda done, total: None


@dataclass(frozen=True, eq=False)
class Acquisition:
    """Options of one acquisition.

    Attributes:
        sources: videos or folders of images, one for each joint configuration.
        robot: description of the robot; approximate shapes are enough.
        q: (K, J) joint positions, one row for each source.
        out: folder for stages and result.
        camera: intrinsics for `board`; its pose is ignored.
        board: on the table, in view; the world frame is then the board's. Or
        poses: a COLMAP folder or a transforms JSON.
        masks: folder of masks named like the frames; or
        segmenter: segmenter of the robot.
        text: text prompt for the segmenter, such as "a robot arm", instead of the rendered description.
        segmenter_options: options of the segmenter; a change of them invalidates the masks.
        again: segmenter for further rounds, prompted by the shape that most masks agree on; None = no further rounds.
        rounds: number of further rounds.
        depth: folder of 16-bit depth images (0.1 mm) named like the frames; None = no depth camera.
        base_T_world: (4, 4) metres: pose of the board (or of the pose file's world) in the robot's base frame. Or
        pairs: (N, 3) points of the mesh and the same points on the robot, metres. Without them the pose of an external
            mesh is searched for.
        similarity: the unit of the mesh is unknown (COLMAP's world, an external mesh).
        external: external program for the mesh; None = the built-in `mesher`.
        mesher: `hull`, the visual hull refined by depth, or `open3d`, the surfaces in the depth images alone.
        triangles: reduce every link to about this number of triangles; None = all. Needs Open3D.
        engine: ICP that refines the alignment: auto, own or open3d.
        views: number of frames to use from each source.
        max_blur_px: frames with more blur than this are left out.
        voxel_m: side of a voxel, metres.
        misses: number of views that may disagree about a point.
        floor: the board lies on the surface that the robot stands on; volume below it is removed.
        refine: refine the measured pose by ICP.
        bars: factory of progress bars.
        say: called with one line of text per stage.
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
    mesher: str = "hull"
    triangles: int | None = None
    engine: str = "auto"
    views: int = 20
    max_blur_px: float = MAX_BLUR_PX
    voxel_m: float = 0.002
    misses: int = 0
    floor: bool = True
    refine: bool = True
    bars: Bars = no_bars
    say: Callable[[str], None] = field(default=lambda line: None)

    def __post_init__(self) -> None:
        """Reject invalid combinations of options."""
        if not self.sources:
            raise _bad("no video was given", "a video or a folder of images")
        if self.q.shape != (len(self.sources), len(self.robot.joint_names)) or not np.isfinite(self.q).all():
            raise _bad(
                f"joint positions have shape {self.q.shape} for {len(self.sources)} videos",
                f"one row of {len(self.robot.joint_names)} finite numbers for each video",
            )
        if (self.board is None) == (self.poses is None):
            raise _bad("camera poses must come from a board or from a file", "exactly one of --board and --poses")
        if self.board is not None and self.camera is None:
            raise _bad(
                "a board needs the camera intrinsics", "--camera FILE", "create it with kinema4d calibrate intrinsics"
            )
        if (self.masks is None) == (self.segmenter is None):
            raise _bad("masks must come from a folder or from a segmenter", "exactly one of --masks and --segmenter")
        if self.text and self.segmenter is None:
            raise _bad("--text needs a segmenter", "--text with --segmenter sam2, or no --text with --masks")
        if self.own_frame and (len(self.sources) > 1 or self.base_T_world is None):
            raise _bad(
                "an external mesh has its own frame",
                "one video, and --board-pose for the cameras that check it (--pairs for the mesh are optional)",
            )
        if not self.own_frame and (self.base_T_world is None) == (self.pairs is None):
            raise _bad(
                "the pose of the robot's base is missing or given twice", "exactly one of --board-pose and --pairs"
            )
        if self.base_T_world is not None:
            require_rigid(self.base_T_world, "base_T_world")
        if self.mesher not in MESHERS:
            raise _bad(f"the mesher is '{self.mesher}'", f"one of {', '.join(MESHERS)}")
        if self.mesher == "open3d" and (self.depth is None or self.similarity or self.external is not None):
            raise _bad(
                "--mesher open3d fuses depth images in metres", "--depth, and neither --similarity nor --command"
            )
        if self.triangles is not None and self.triangles < 20:
            raise _bad(f"--triangles is {self.triangles}", "at least 20 for each link")
        if not MIN_VIEWS <= self.views <= 500:
            raise _bad(f"views is {self.views}", f"{MIN_VIEWS} to 500")
        if not 2e-4 <= self.voxel_m <= 0.05:
            raise _bad(f"the voxel size is {self.voxel_m} m", "0.0002 to 0.05 m")
        if not self.max_blur_px > 0:
            raise _bad(f"the blur limit is {self.max_blur_px} px", "more than 0")
        if self.similarity and self.pairs is None and not self.own_frame:
            raise _bad("--similarity needs picked pairs to determine the scale", "--pairs with --similarity")

    @property
    def own_frame(self) -> bool:
        """True if the mesh comes from an external program with its own frame, not the world frame of the cameras."""
        return self.external is not None and not self.external.metric


def _bad(what: str, expected: str, hint: str = "") -> AssetError:
    return AssetError(what, expected=expected, hint=hint, code=ErrorCode.ARGUMENT_INVALID)
