"""Views: rectified pictures with their cameras in one world frame, found from a board or taken from a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.assets.errors import AssetError
from kinema4d_ros.calibration.board_pose import find_board_pose
from kinema4d_ros.calibration.boards import Board
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import CalibrationError, ErrorCode
from kinema4d_ros.core.transforms import invert
from kinema4d_ros.io.files import read_bytes, read_json, reading
from kinema4d_ros.io.images import decode_image, read_image

__all__ = ["BoardLocator", "FileLocator", "View", "cameras_document", "load_views"]

Array = NDArray[np.float64]

WORST_BOARD_PX = 2.0
"""A board that fits worse was mistaken for something else, or the intrinsics are another camera's."""


@dataclass(frozen=True, eq=False)
class View:
    """A picture and its camera.

    Attributes:
        name: of the picture.
        orbit: which of the orbits (and so which joint configuration) it belongs to.
        image: (H, W, 3) uint8, rectified.
        camera: without distortion; its `base_T_camera` leads to the world frame of all views.
        mask: (H, W) bool, where the robot is; empty until there is one.
        depth_m: (H, W) float32, along the optical axis, NaN = unknown; None without a depth camera.
    """

    name: str
    orbit: int
    image: NDArray[np.uint8]
    camera: PinholeCamera
    mask: NDArray[np.bool_] | None = None
    depth_m: NDArray[np.float32] | None = None

    @property
    def robot(self) -> NDArray[np.bool_]:
        """The mask, or an error that names the view."""
        if self.mask is None:
            raise AssetError(f"{self.name} has no mask", expected="one for every view")
        return self.mask


class BoardLocator:
    """Cameras from the board that they see: the world frame is the board's."""

    def __init__(self, board: Board, camera: PinholeCamera) -> None:
        """A board that has one pose only, and intrinsics."""
        if board.symmetric:
            raise CalibrationError(
                f"{board.text} looks the same after half a turn (ambiguous_view)", expected="a ChArUco board"
            )
        self.board, self.camera = board, camera
        self.notes: dict[str, str] = {}

    def __call__(self, name: str, image: NDArray[np.uint8]) -> Array | None:
        """`board_T_camera`, or None and a note why not."""
        if image.shape[1::-1] != (self.camera.width, self.camera.height):
            raise CalibrationError(
                f"{name} is {image.shape[1]} x {image.shape[0]}",
                expected=f"{self.camera.width} x {self.camera.height}, as in the camera's file",
                code=ErrorCode.CAMERA_BAD_SIZE,
            )
        try:
            found = find_board_pose(self.board.find(image, name), self.board, self.camera)
        except CalibrationError as error:
            if "mirrored_board" in error.what:
                raise
            self.notes[name] = error.what
            return None
        if found.rms_px > WORST_BOARD_PX or found.ambiguous:
            why = "two poses explain it" if found.ambiguous else f"it fits to {found.rms_px:.1f} px"
            self.notes[name] = f"the board in {name} was not trusted: {why}"
            return None
        return invert(found.camera_T_board)

    def camera_of(self, name: str) -> PinholeCamera:
        """The intrinsics, the same for all."""
        return self.camera

    def refuse(self) -> CalibrationError:
        """For a series without any pose."""
        first = next(iter(self.notes.values()), "no frame was looked at")
        return CalibrationError(
            f"no frame shows the board: {first}",
            expected=f"{self.board.text} on the table, in view all the way around",
            hint="give the board that is there by --board, or poses by --poses",
        )


class FileLocator:
    """Cameras from a file, by the pictures' names: the world frame is the file's."""

    def __init__(self, cameras: Mapping[str, PinholeCamera]) -> None:
        """Cameras by name."""
        self.cameras = cameras
        self.notes: dict[str, str] = {}

    def __call__(self, name: str, image: NDArray[np.uint8]) -> Array | None:
        """`world_T_camera`, or None if the file does not know the picture."""
        camera = self.cameras.get(name)
        if camera is None:
            self.notes[name] = f"the pose file does not name {name}"
            return None
        if image.shape[1::-1] != (camera.width, camera.height):
            raise CalibrationError(
                f"{name} is {image.shape[1]} x {image.shape[0]}",
                expected=f"{camera.width} x {camera.height}, as in the pose file",
                code=ErrorCode.CAMERA_BAD_SIZE,
            )
        return camera.base_T_camera

    def camera_of(self, name: str) -> PinholeCamera:
        """The camera that took that picture."""
        return self.cameras[name]

    def refuse(self) -> CalibrationError:
        """For a series without any pose."""
        some = ", ".join(list(self.cameras)[:3])
        return CalibrationError(
            f"the pose file knows none of the frames: {', '.join(list(self.notes)[:3])}",
            expected=f"frames named as in the file: {some}, ...",
            hint="frames of a video are called 000000, 000001, ...",
        )


def cameras_document(views: Sequence[tuple[str, int, PinholeCamera]]) -> list[dict[str, Any]]:
    """Cameras as plain data; their distortion is that of the frames, the views have none."""
    return [
        {
            "name": name,
            "orbit": orbit,
            "width": camera.width,
            "height": camera.height,
            "K": camera.K.tolist(),
            "world_T_camera": camera.base_T_camera.tolist(),
            "distortion": list(camera.distortion),
            "distortion_model": camera.distortion_model,
        }
        for name, orbit, camera in views
    ]


def load_lenses(poses: Path) -> list[PinholeCamera]:
    """The cameras that took the frames of a poses stage, with distortion."""
    with reading(poses / "cameras.json", "the cameras of a poses stage"):
        return [
            PinholeCamera(
                entry["width"],
                entry["height"],
                np.array(entry["K"]),
                base_T_camera=np.array(entry["world_T_camera"]),
                distortion=tuple(entry["distortion"]),
                distortion_model=entry["distortion_model"],
                base_frame="world",
            )
            for entry in read_json(poses / "cameras.json")
        ]


def load_views(poses: Path, masks: Path | None = None, depth: Path | None = None) -> list[View]:
    """The views of a poses stage, with the masks and the depth of later ones.

    Depth pictures are 16-bit PNGs in units of 0.1 mm, 0 = unknown, rectified as the images are.
    """
    views = []
    with reading(poses / "cameras.json", "the cameras of a poses stage"):
        for entry, lens in zip(read_json(poses / "cameras.json"), load_lenses(poses), strict=True):
            camera = lens.rectified()
            file = f"{_plain_name(entry['name'])}.png"
            mask = None if masks is None else read_image(masks / file).max(axis=2) > 127
            metres = read_depth(depth / file) if depth is not None and (depth / file).is_file() else None
            views.append(View(entry["name"], entry["orbit"], read_image(poses / "images" / file), camera, mask, metres))
    return views


def _plain_name(name: Any) -> str:
    """A view's name, which becomes a file's: it must not lead to another folder."""
    if not isinstance(name, str) or Path(name).name != name:
        raise AssetError(f"a view is called {name!r}", expected="a name without a folder")
    return name


def read_depth(path: Path) -> NDArray[np.float32]:
    """(H, W) float32 metres, NaN = unknown, of a 16-bit PNG in units of 0.1 mm."""
    picture = decode_image(read_bytes(path, 200_000_000), path, cv2.IMREAD_UNCHANGED)
    if picture.dtype != np.uint16 or picture.ndim != 2:
        raise AssetError(f"{path} is no depth picture", expected="a 16-bit grey PNG in units of 0.1 mm, 0 = unknown")
    return np.where(picture > 0, picture.astype(np.float32) * np.float32(1e-4), np.float32(np.nan))
