"""Depth for RGB video: the `VideoLifter` protocol, a lifter per image, and a lifter that runs any command.

    --lifter shipped              the package's own; needs a calibrated camera and a table (docs/lifting.md)
    --lifter runs/lifter/model    the same with other weights
    --lifter "python lift.py"     any command, such as a wrapper of SpatialTrackerV2 or a stereo matcher

A command is called with two folders, IN and OUT:

    IN/00000.png ...    the images, 8-bit RGB
    IN/request.json     {"frames": T, "width": W, "height": H, "K": [[...]] or null}, pixel centres at + 0.5
    IN/masks/00000.png  robot mask, 255 = robot; only if known
    OUT/depth.npy       (T, H, W) float32, metres along the optical axis, NaN = unknown       written by the command
    OUT/camera.json     {"K": [[fx, 0, cx], [0, fy, cy], [0, 0, 1]]}, optional               written by the command
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kinema4d_model.data.importers.command import PictureCommand
from kinema4d_model.pipeline.lifting import Lifter, load_lifter
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import DataError, ErrorCode

__all__ = ["CommandLifter", "Lifted", "PictureLifter", "RobotSeen", "VideoLifter", "make_lifter"]


@dataclass(frozen=True, eq=False)
class Lifted:
    """Result of a lifter: depth (T, H, W) float32 metres, NaN = unknown; intrinsics (3, 3) if estimated."""

    depth_m: NDArray[np.float32]
    K: NDArray[np.float64] | None = None


@dataclass(frozen=True, eq=False)
class RobotSeen:
    """The robot in the images.

    Attributes:
        mask: (T, H, W) bool.
        depth_m: (T, H, W) float32 metres rendered from the measured joints, NaN = no robot; None without a model.
    """

    mask: NDArray[np.bool_]
    depth_m: NDArray[np.float32] | None = None


class VideoLifter(Protocol):
    """Estimates the depth of a video."""

    def lift(self, rgb: NDArray[np.uint8], camera: PinholeCamera | None, robot: RobotSeen | None = None) -> Lifted:
        """Return the depth of images (T, H, W, 3); `camera` if known, `robot` if found."""
        ...


class PictureLifter:
    """Applies a `kinema4d_model.pipeline.lifting.Lifter` to every image; the rendered robot keeps its exact depth.

    Args:
        lifter: for one image of a table.
        table_height_m: height of the table above the robot's base.
    """

    def __init__(self, lifter: Lifter, table_height_m: float = 0.0) -> None:
        self._lifter, self._table_height_m = lifter, table_height_m

    def lift(self, rgb: NDArray[np.uint8], camera: PinholeCamera | None, robot: RobotSeen | None = None) -> Lifted:
        """Lift each image separately, without tracking between images."""
        if camera is None:
            raise DataError(
                "lifting an image of a table needs the camera's calibration and pose",
                expected="--camera FILE",
                hint="or use --lifter COMMAND with a program that estimates the camera",
                code=ErrorCode.ARGUMENT_INVALID,
            )
        depth = np.stack([
            self._lifter.lift(image, camera, None if robot is None else robot.mask[t], self._table_height_m).depth_m
            for t, image in enumerate(rgb)
        ])  # fmt: skip
        if robot is not None and robot.depth_m is not None:
            depth = np.where(robot.mask & np.isfinite(robot.depth_m), robot.depth_m, depth)
        return Lifted(depth.astype(np.float32))


class CommandLifter:
    """Runs a command for every episode; the module docstring lists its files."""

    def __init__(self, command: str, timeout_s: float = 3600.0) -> None:
        """Take a command line."""
        self._command = PictureCommand("lifter", command, timeout_s)

    def lift(self, rgb: NDArray[np.uint8], camera: PinholeCamera | None, robot: RobotSeen | None = None) -> Lifted:
        """Run the command on the images and read its output."""
        K = None if camera is None else camera.K.tolist()
        with self._command.answered(rgb, {"K": K}, None if robot is None else robot.mask) as result:
            return self._read(result, (len(rgb), rgb.shape[1], rgb.shape[2]))

    def _read(self, result: Path, shape: tuple[int, int, int]) -> Lifted:
        try:
            depth = np.load(result / "depth.npy", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise DataError(
                f"the lifter wrote no usable depth.npy: {error}"[:300], expected=f"float32 {shape}"
            ) from None
        if depth.shape != shape or not np.issubdtype(depth.dtype, np.floating):
            raise DataError(f"the lifter's depth is {depth.dtype} of shape {depth.shape}", expected=f"float32 {shape}")
        if not np.any(np.isfinite(depth) & (depth > 0)):
            raise DataError("the lifter found no depth", expected="positive metres")
        K = None
        if (result / "camera.json").is_file():
            try:
                K = np.array(json.loads((result / "camera.json").read_text())["K"], dtype=np.float64).reshape(3, 3)
            except (ValueError, KeyError, TypeError) as error:
                raise DataError(f"the lifter's camera.json: {error}"[:300], expected='{"K": 3 x 3}') from None
        positive = np.where(depth > 0, depth, np.nan).astype(np.float32)
        return Lifted(positive, K)


def make_lifter(text: str, table_height_m: float = 0.0) -> VideoLifter | None:
    """Make the lifter of a --lifter option: "" for none, "shipped", a folder of weights, or a command."""
    if not text:
        return None
    if text == "shipped":
        return PictureLifter(load_lifter(), table_height_m)
    if Path(text).is_dir():
        return PictureLifter(load_lifter(text), table_height_m)
    return CommandLifter(text)
