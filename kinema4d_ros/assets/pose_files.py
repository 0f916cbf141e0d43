"""Camera poses that another program found: COLMAP's text files, or a transforms JSON as NeRF tools write it.

Both use this package's pixel convention (the first pixel's centre is at 0.5, 0.5). The world frame and its unit are
the file's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import CalibrationError
from kinema4d_ros.core.transforms import from_quaternion, invert
from kinema4d_ros.io.files import read_bytes, read_json, reading

__all__ = ["read_colmap", "read_pose_file", "read_transforms"]

WORLD = "world"

_MAX_BYTES = 500_000_000

# Where in the parameters fx, fy, cx, cy are, and the distortion in OpenCV's order (-1 = a zero).
_MODELS: dict[str, tuple[tuple[int, int, int, int], tuple[int, ...]]] = {
    "SIMPLE_PINHOLE": ((0, 0, 1, 2), ()),
    "PINHOLE": ((0, 1, 2, 3), ()),
    "SIMPLE_RADIAL": ((0, 0, 1, 2), (3, -1, -1, -1)),
    "RADIAL": ((0, 0, 1, 2), (3, 4, -1, -1)),
    "OPENCV": ((0, 1, 2, 3), (4, 5, 6, 7)),
    "FULL_OPENCV": ((0, 1, 2, 3), (4, 5, 6, 7, 8, 9, 10, 11)),
}

# NeRF's cameras look along -z with y up; ours along z with y down.
_OPENGL = np.diag([1.0, -1.0, -1.0, 1.0])


def read_pose_file(path: str | Path) -> dict[str, PinholeCamera]:
    """Cameras by picture name (without folder and suffix): a COLMAP folder, or a transforms .json."""
    source = Path(path)
    with reading(source, "COLMAP's text files or a transforms JSON", error=CalibrationError):
        cameras = read_colmap(source) if source.is_dir() else read_transforms(source)
    if not cameras:
        raise CalibrationError(f"{source} has no camera poses", expected="at least one picture with a pose")
    return cameras


def read_colmap(folder: Path) -> dict[str, PinholeCamera]:
    """Cameras of `cameras.txt` and `images.txt`; `base_T_camera` leads to COLMAP's world, in COLMAP's unit."""
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
    # Every picture has two lines: its pose, and its points, which may be an empty line.
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
    """Cameras of a transforms JSON: `fl_x, fl_y, cx, cy, w, h, k1, k2, p1, p2` and `frames` with their matrices."""
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
