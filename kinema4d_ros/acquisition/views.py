"""Views: rectified images with cameras in one world frame, located by a board or read from COLMAP or NeRF files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.calibration.boards import Board, find_board_pose
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import AssetError, CalibrationError, ErrorCode
from kinema4d_ros.core.transforms import from_quaternion, invert
from kinema4d_ros.io.files import read_bytes, read_json, reading
from kinema4d_ros.io.images import decode_image, read_image

__all__ = [
    "BoardLocator",
    "FileLocator",
    "View",
    "cameras_document",
    "load_views",
    "read_colmap",
    "read_pose_file",
    "read_transforms",
]

Array = NDArray[np.float64]

WORST_BOARD_PX = 2.0
"""Above this residual the detection is wrong, or the intrinsics belong to another camera."""


@dataclass(frozen=True, eq=False)
class View:
    """Image and its camera.

    Attributes:
        name: of the image.
        orbit: index of its orbit and joint configuration.
        image: (H, W, 3) uint8, rectified.
        camera: without distortion; its base frame is the world frame of all views.
        mask: (H, W) bool, True = robot; None until it is known.
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
        """Mask (H, W) bool; raises an AssetError that names the view if there is none."""
        if self.mask is None:
            raise AssetError(f"{self.name} has no mask", expected="a mask for every view")
        return self.mask


class BoardLocator:
    """Locator of cameras by a board in view; the world frame is the board's."""

    def __init__(self, board: Board, camera: PinholeCamera) -> None:
        """Store board and intrinsics; reject a symmetric board, whose pose is ambiguous."""
        if board.symmetric:
            raise CalibrationError(
                f"{board.text} looks the same after a rotation by 180 degrees (ambiguous_view)",
                expected="a ChArUco board",
            )
        self.board, self.camera = board, camera
        self.notes: dict[str, str] = {}

    def __call__(self, name: str, image: NDArray[np.uint8]) -> Array | None:
        """Estimate `board_T_camera` (4, 4); None, with the reason in `notes`, if that fails."""
        if image.shape[1::-1] != (self.camera.width, self.camera.height):
            raise CalibrationError(
                f"{name} is {image.shape[1]} x {image.shape[0]}",
                expected=f"{self.camera.width} x {self.camera.height}, as in the camera file",
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
            why = "its pose is ambiguous" if found.ambiguous else f"its residual is {found.rms_px:.1f} px"
            self.notes[name] = f"the board in {name} was rejected: {why}"
            return None
        return invert(found.camera_T_board)

    def camera_of(self, name: str) -> PinholeCamera:
        """Return the intrinsics, the same for all images."""
        return self.camera

    def refuse(self) -> CalibrationError:
        """Build the error for a video without any pose."""
        first = next(iter(self.notes.values()), "no frame was checked")
        return CalibrationError(
            f"no frame shows the board: {first}",
            expected=f"{self.board.text} on the table, in view during the whole orbit",
            hint="check --board, or provide poses with --poses",
        )


class FileLocator:
    """Locator of cameras by a pose file and the image names; the world frame is the file's."""

    def __init__(self, cameras: Mapping[str, PinholeCamera]) -> None:
        """Store cameras by image name."""
        self.cameras = cameras
        self.notes: dict[str, str] = {}

    def __call__(self, name: str, image: NDArray[np.uint8]) -> Array | None:
        """Look up `world_T_camera` (4, 4); None, with the reason in `notes`, if the image is not in the file."""
        camera = self.cameras.get(name)
        if camera is None:
            self.notes[name] = f"{name} is not in the pose file"
            return None
        if image.shape[1::-1] != (camera.width, camera.height):
            raise CalibrationError(
                f"{name} is {image.shape[1]} x {image.shape[0]}",
                expected=f"{camera.width} x {camera.height}, as in the pose file",
                code=ErrorCode.CAMERA_BAD_SIZE,
            )
        return camera.base_T_camera

    def camera_of(self, name: str) -> PinholeCamera:
        """Return the camera of an image."""
        return self.cameras[name]

    def refuse(self) -> CalibrationError:
        """Build the error for a video without any pose."""
        some = ", ".join(list(self.cameras)[:3])
        return CalibrationError(
            f"none of the frames is in the pose file: {', '.join(list(self.notes)[:3])}",
            expected=f"frames named as in the file: {some}, ...",
            hint="frames of a video are named 000000, 000001, ...",
        )


def cameras_document(views: Sequence[tuple[str, int, PinholeCamera]]) -> list[dict[str, Any]]:
    """Convert cameras to plain data; the distortion is that of the frames, the rectified views have none."""
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
    """Load the cameras of the frames of a poses stage, with distortion."""
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
    """Load the views of a poses stage, with masks and depth if given.

    Depth images are 16-bit PNGs in units of 0.1 mm, 0 = unknown, rectified like the images.
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
    """Check a view's name, which is used as a file name: it must not lead to another folder."""
    if not isinstance(name, str) or Path(name).name != name:
        raise AssetError(f"a view is named {name!r}", expected="a name without a folder")
    return name


def read_depth(path: Path) -> NDArray[np.float32]:
    """Read a 16-bit PNG in units of 0.1 mm; return (H, W) float32 metres, NaN = unknown."""
    picture = decode_image(read_bytes(path, 200_000_000), path, cv2.IMREAD_UNCHANGED)
    if picture.dtype != np.uint16 or picture.ndim != 2:
        raise AssetError(f"{path} is not a depth image", expected="a 16-bit grey PNG in units of 0.1 mm, 0 = unknown")
    return np.where(picture > 0, picture.astype(np.float32) * np.float32(1e-4), np.float32(np.nan))


# Pose files of other programs: COLMAP text files, or a transforms JSON of NeRF tools.
#
# Both use this package's pixel convention (the centre of the first pixel is at 0.5, 0.5). World frame and unit are
# those of the file.

WORLD = "world"

_MAX_BYTES = 500_000_000

# Indices of fx, fy, cx, cy in the parameters, and of the distortion in OpenCV's order (-1 = zero).
_MODELS: dict[str, tuple[tuple[int, int, int, int], tuple[int, ...]]] = {
    "SIMPLE_PINHOLE": ((0, 0, 1, 2), ()),
    "PINHOLE": ((0, 1, 2, 3), ()),
    "SIMPLE_RADIAL": ((0, 0, 1, 2), (3, -1, -1, -1)),
    "RADIAL": ((0, 0, 1, 2), (3, 4, -1, -1)),
    "OPENCV": ((0, 1, 2, 3), (4, 5, 6, 7)),
    "FULL_OPENCV": ((0, 1, 2, 3), (4, 5, 6, 7, 8, 9, 10, 11)),
}

# NeRF cameras look along -z with y up; optical frames along z with y down.
_OPENGL = np.diag([1.0, -1.0, -1.0, 1.0])


def read_pose_file(path: str | Path) -> dict[str, PinholeCamera]:
    """Read cameras by image name (without folder and suffix) from a COLMAP folder or a transforms .json."""
    source = Path(path)
    with reading(source, "COLMAP's text files or a transforms JSON", error=CalibrationError):
        cameras = read_colmap(source) if source.is_dir() else read_transforms(source)
    if not cameras:
        raise CalibrationError(f"{source} has no camera poses", expected="at least one image with a pose")
    return cameras


def read_colmap(folder: Path) -> dict[str, PinholeCamera]:
    """Read `cameras.txt` and `images.txt`; `base_T_camera` is relative to COLMAP's world, in COLMAP's unit."""
    lenses = {}
    for number, line in _lines(folder / "cameras.txt"):
        where = f"{folder / 'cameras.txt'}, line {number}"
        words = line.split()
        try:
            model, width, height = words[1], int(words[2]), int(words[3])
            values = [float(word) for word in words[4:]]
            if model not in _MODELS:
                raise _refuse(f"{where}: camera model {model}", f"one of {', '.join(_MODELS)}")
            focal, bend = _MODELS[model]
            fx, fy, cx, cy = (values[i] for i in focal)
            distortion = tuple(0.0 if i < 0 else values[i] for i in bend)
        except (ValueError, IndexError):
            raise _refuse(f"{where}: '{line[:60]}'", "CAMERA_ID MODEL WIDTH HEIGHT PARAMS...") from None
        lenses[words[0]] = _camera(width, height, (fx, fy, cx, cy), distortion, np.eye(4))
    cameras = {}
    # Every image has two lines: its pose, and its points, which may be an empty line.
    lines = list(_lines(folder / "images.txt", keep_empty=True))
    for number, line in lines[::2]:
        words = line.split(maxsplit=9)
        try:
            w, x, y, z, *shift = (float(word) for word in words[1:8])
            lens, name = lenses[words[8]], words[9].strip()
        except (ValueError, IndexError, KeyError):
            raise _refuse(
                f"{folder / 'images.txt'}, line {number}: '{line[:60]}'",
                "IMAGE_ID QW QX QY QZ TX TY TZ CAMERA_ID NAME with a camera of cameras.txt, and a line of points",
            ) from None
        cameras[_stem(name)] = lens.posed(invert(from_quaternion([x, y, z, w], shift)))
    return cameras


def read_transforms(path: Path) -> dict[str, PinholeCamera]:
    """Read a transforms JSON with `fl_x, fl_y, cx, cy, w, h, k1, k2, p1, p2` and `frames` with their matrices."""
    document = read_json(path)
    if not isinstance(document, dict) or not isinstance(document.get("frames"), list):
        raise _refuse(f"{path} has no frames", "a transforms JSON with a list `frames`")
    cameras = {}
    for i, frame in enumerate(document["frames"]):
        where = f"frame {i} of {path}"
        if not isinstance(frame, dict):
            raise _refuse(f"{where} is {type(frame).__name__}", "file_path and transform_matrix")
        both: Mapping[str, Any] = {**document, **frame}
        try:
            fx = float(both["fl_x"])
            numbers = (fx, float(both.get("fl_y", fx)), float(both["cx"]), float(both["cy"]))
            distortion = tuple(float(both.get(key, 0.0)) for key in ("k1", "k2", "p1", "p2"))
            pose = np.array(frame["transform_matrix"], dtype=np.float64)
            size = int(both["w"]), int(both["h"])
            name = str(frame["file_path"])
        except (KeyError, TypeError, ValueError) as error:
            raise _refuse(
                f"{where}: {type(error).__name__} {error}", "fl_x, cx, cy, w, h, file_path and a 4 x 4 transform_matrix"
            ) from None
        if pose.shape != (4, 4):
            raise _refuse(f"{where} has a matrix of shape {pose.shape}", "4 x 4")
        cameras[_stem(name)] = _camera(*size, numbers, distortion if any(distortion) else (), pose @ _OPENGL)
    return cameras


def _camera(
    width: int, height: int, numbers: tuple[float, ...], distortion: tuple[float, ...], pose: NDArray[np.float64]
) -> PinholeCamera:
    fx, fy, cx, cy = numbers
    model = "rational_polynomial" if len(distortion) == 8 else "plumb_bob"
    K = np.array([[fx, 0.0, cx], [0.0, fy, cy], [0.0, 0.0, 1.0]])
    return PinholeCamera(
        width, height, K, base_T_camera=pose, distortion=distortion, distortion_model=model, base_frame=WORLD
    )


def _stem(name: str) -> str:
    return PurePosixPath(name.replace("\\", "/")).stem


def _lines(path: Path, keep_empty: bool = False) -> list[tuple[int, str]]:
    text = read_bytes(path, _MAX_BYTES).decode("utf-8", errors="replace")
    lines = [(i, line) for i, line in enumerate(text.splitlines(), start=1) if not line.startswith("#")]
    return lines if keep_empty else [(i, line) for i, line in lines if line.strip()]


def _refuse(what: str, expected: str) -> CalibrationError:
    return CalibrationError(what, expected=expected)
