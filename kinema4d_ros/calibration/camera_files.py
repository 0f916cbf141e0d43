"""Readers and writers of camera files: ROS CameraInfo, extrinsics, both in one file, and easy_handeye2."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kinema4d_ros.calibration.extrinsics import Extrinsics, Fields, unit_quaternion
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.distortion import MODELS
from kinema4d_ros.core.errors import CalibrationError, ErrorCode
from kinema4d_ros.core.transforms import make
from kinema4d_ros.io.files import read_yaml, reading, write_yaml

__all__ = [
    "CameraInfo",
    "camera_document",
    "camera_from_document",
    "from_easy_handeye_document",
    "load_camera",
    "read_camera",
    "read_camera_info",
    "read_easy_handeye",
    "read_pose",
    "save_camera",
    "write_camera_info",
]


# Intrinsics: the YAML written by ROS camera_calibration and read by camera_info_manager.


@dataclass(frozen=True, eq=False)
class CameraInfo:
    """Contents of a CameraInfo YAML, in its own pixel convention (integers at pixel centres).

    Attributes:
        name: camera_name.
        width, height: image size in pixels.
        camera_matrix: (3, 3) float64 of the raw image.
        distortion_model: "plumb_bob" or "rational_polynomial".
        distortion: coefficients in OpenCV's order.

    The file's rectification and projection matrices describe a rectified image, usually of a stereo pair. They are
    ignored: raw images and `PinholeCamera.rectify` need neither.
    """

    name: str
    width: int
    height: int
    camera_matrix: NDArray[np.float64]
    distortion_model: str = "plumb_bob"
    distortion: tuple[float, ...] = ()

    @staticmethod
    def of(camera: PinholeCamera, name: str = "camera") -> CameraInfo:
        """Convert a camera to the file's convention."""
        return CameraInfo(
            name, camera.width, camera.height, camera.K_opencv, camera.distortion_model, camera.distortion
        )

    @staticmethod
    def from_document(document: Mapping[str, Any], source: str) -> CameraInfo:
        """Read the mapping of a YAML file; `source` names it in errors."""
        fields = Fields(document, source)
        info = CameraInfo(
            name=fields.text("camera_name", "camera"),
            width=fields.integer("image_width"),
            height=fields.integer("image_height"),
            camera_matrix=_matrix(fields, "camera_matrix", 3, 3),
            distortion_model=fields.text("distortion_model", "plumb_bob"),
            distortion=tuple(fields.section("distortion_coefficients").numbers("data").tolist())
            if "distortion_coefficients" in fields
            else (),
        )
        info.camera(np.eye(4))
        return info

    def document(self) -> dict[str, Any]:
        """Return the mapping to write: for a monocular camera, rectification is I and projection is [K | 0]."""
        projection = np.hstack([self.camera_matrix, np.zeros((3, 1))])
        coefficients = self.distortion or (0.0,) * max(MODELS[self.distortion_model])
        return {
            "image_width": self.width,
            "image_height": self.height,
            "camera_name": self.name,
            "camera_matrix": _entry(self.camera_matrix),
            "distortion_model": self.distortion_model,
            "distortion_coefficients": _entry(np.array([coefficients])),
            "rectification_matrix": _entry(np.eye(3)),
            "projection_matrix": _entry(projection),
        }

    def camera(
        self,
        base_T_camera: ArrayLike,
        *,
        frame_id: str = "camera_optical_frame",
        base_frame: str = "base_link",
    ) -> PinholeCamera:
        """Return a camera with these intrinsics at the given pose (4, 4)."""
        return PinholeCamera.from_opencv(
            self.width,
            self.height,
            self.camera_matrix,
            base_T_camera=np.asarray(base_T_camera, dtype=np.float64),
            distortion=self.distortion,
            distortion_model=self.distortion_model,
            frame_id=frame_id,
            base_frame=base_frame,
        )


def read_camera_info(path: str | Path) -> CameraInfo:
    """Read a CameraInfo YAML."""
    with reading(path, "a ROS CameraInfo file", error=CalibrationError):
        return CameraInfo.from_document(read_yaml(path), str(path))


def write_camera_info(path: str | Path, info: CameraInfo) -> None:
    """Write a CameraInfo YAML that ROS's camera_info_manager loads."""
    write_yaml(path, info.document())


def _matrix(fields: Fields, key: str, rows: int, cols: int) -> NDArray[np.float64]:
    section = fields.section(key)
    if (section.integer("rows"), section.integer("cols")) != (rows, cols):
        raise fields.refuse(key, f"rows: {rows}, cols: {cols}")
    return section.numbers("data", rows * cols).reshape(rows, cols)


def _entry(matrix: NDArray[np.float64]) -> dict[str, Any]:
    return {"rows": matrix.shape[0], "cols": matrix.shape[1], "data": matrix.ravel().tolist()}


# Extrinsics: hand-eye calibrations of easy_handeye2 (`~/.ros2/easy_handeye2/calibrations/*.calib`).


def read_easy_handeye(path: str | Path) -> Extrinsics:
    """Read the pose of a camera that is fixed relative to the robot base (`eye_on_base`).

    `tracking_base_frame`, the frame in which the marker was tracked, must be the camera's optical frame.
    """
    with reading(path, "an easy_handeye2 calibration", error=CalibrationError):
        return from_easy_handeye_document(read_yaml(path), str(path))


def from_easy_handeye_document(document: Mapping[str, Any], source: str) -> Extrinsics:
    """Read the mapping of an easy_handeye2 file, in the current layout or that of the first releases."""
    fields = Fields(document, source)
    parameters = fields.section("parameters")
    if "calibration_type" in parameters:
        kind = parameters.text("calibration_type")
    else:
        on_hand = document["parameters"].get("eye_on_hand")
        if not isinstance(on_hand, bool):
            raise parameters.refuse("calibration_type", "eye_on_base")
        kind = "eye_in_hand" if on_hand else "eye_on_base"
    if kind == "eye_in_hand":
        raise CalibrationError(
            f"{source} is an eye_in_hand calibration: its camera is mounted on "
            f"'{parameters.text('robot_effector_frame', 'the hand')}' and has no fixed pose in the base frame",
            expected="an eye_on_base calibration of a fixed camera",
            hint="run easy_handeye2 with calibration_type:=eye_on_base",
            code=ErrorCode.CALIBRATION_FRAME_MISMATCH,
        )
    if kind != "eye_on_base":
        raise parameters.refuse("calibration_type", "eye_on_base")
    if "transform" in fields:
        translation = [fields.section("transform").section("translation").number(key) for key in "xyz"]
        rotation = [fields.section("transform").section("rotation").number(key) for key in "xyzw"]
    else:
        translation = [fields.section("transformation").number(key) for key in "xyz"]
        rotation = [fields.section("transformation").number(f"q{key}") for key in "xyzw"]
    name = parameters.text("name", "")
    return Extrinsics(
        parent_frame=parameters.text("robot_base_frame"),
        child_frame=parameters.text("tracking_base_frame"),
        parent_T_child=make(unit_quaternion(np.array(rotation), source), translation),
        method="easy_handeye2 eye_on_base",
        notes=f"read from calibration '{name}'" if name else "",
    )


_KINDS = {
    "a camera file": {"intrinsics", "extrinsics"},
    "a CameraInfo file": {"image_width", "camera_matrix"},
    "an extrinsics file": {"parent_frame", "child_frame"},
    "an easy_handeye2 file": {"parameters"},
}


def read_camera(path: str | Path, *, base_frame: str | None = None) -> PinholeCamera:
    """Read a camera file, which holds intrinsics and extrinsics.

    Args:
        path: YAML as described in calibration/README.md.
        base_frame: the robot's base frame; extrinsics with another parent frame are rejected.
    """
    document = read_yaml(path)
    kind = _kind(document, path)
    if kind == "a camera file":
        with reading(path, "a camera file", error=CalibrationError):
            return camera_from_document(document, str(path), base_frame=base_frame)
    other = "extrinsics" if kind == "a CameraInfo file" else "intrinsics"
    raise CalibrationError(
        f"{path} is {kind}: it lacks {other}",
        expected="a camera file with 'intrinsics' and 'extrinsics'",
        hint="combine two files with load_camera(intrinsics, extrinsics) and save_camera(path, camera, extrinsics)",
    )


def load_camera(intrinsics: str | Path, extrinsics: str | Path, *, base_frame: str | None = None) -> PinholeCamera:
    """Read a camera from a CameraInfo YAML and an extrinsics YAML (of this package or of easy_handeye2)."""
    with reading(extrinsics, "the pose of that camera", error=CalibrationError):
        return _join(read_camera_info(intrinsics), read_pose(extrinsics), base_frame)


def read_pose(path: str | Path) -> Extrinsics:
    """Read the extrinsics from an extrinsics YAML, a camera file or an easy_handeye2 file."""
    document = read_yaml(path)
    kind = _kind(document, path)
    with reading(path, "the pose of a camera", error=CalibrationError):
        if kind == "an easy_handeye2 file":
            return from_easy_handeye_document(document, str(path))
        if kind == "a camera file":
            return Extrinsics.from_document(_section(document, "extrinsics", path), f"'extrinsics' of {path}")
        return Extrinsics.from_document(document, str(path))


def camera_from_document(document: dict[str, Any], source: str, *, base_frame: str | None = None) -> PinholeCamera:
    """Build the camera from a camera file's mapping; `source` names it in errors."""
    Fields(document, source).only(("intrinsics", "extrinsics"))
    info = CameraInfo.from_document(_section(document, "intrinsics", source), f"'intrinsics' of {source}")
    pose = Extrinsics.from_document(_section(document, "extrinsics", source), f"'extrinsics' of {source}")
    return _join(info, pose, base_frame)


def camera_document(
    camera: PinholeCamera, extrinsics: Extrinsics | None = None, *, name: str = "camera"
) -> dict[str, Any]:
    """Return the mapping of a camera file."""
    pose = extrinsics or Extrinsics(camera.base_frame, camera.frame_id, camera.base_T_camera)
    return {"intrinsics": CameraInfo.of(camera, name).document(), "extrinsics": pose.document()}


def save_camera(
    path: str | Path, camera: PinholeCamera, extrinsics: Extrinsics | None = None, *, name: str = "camera"
) -> None:
    """Write a camera file; `extrinsics` adds method, date and residuals to the camera's own pose."""
    write_yaml(path, camera_document(camera, extrinsics, name=name))


def _join(info: CameraInfo, pose: Extrinsics, base_frame: str | None) -> PinholeCamera:
    if base_frame is not None and pose.parent_frame != base_frame:
        raise CalibrationError(
            f"the camera pose is given in frame '{pose.parent_frame}'",
            expected=f"'{base_frame}', the robot's base frame",
            hint="calibrate in that frame, or apply the fixed transform between the two and change parent_frame",
            code=ErrorCode.CALIBRATION_FRAME_MISMATCH,
        )
    return info.camera(pose.parent_T_child, frame_id=pose.child_frame, base_frame=pose.parent_frame)


def _kind(document: dict[str, Any], path: str | Path) -> str:
    for kind, keys in _KINDS.items():
        if keys & document.keys():
            return kind
    raise CalibrationError(
        f"{path} is not a calibration file: its keys are {', '.join(list(document)[:10]) or 'none'}",
        expected="intrinsics and extrinsics, a ROS CameraInfo, extrinsics, or an easy_handeye2 calibration",
        hint="see calibration/README.md for the formats",
    )


def _section(document: dict[str, Any], key: str, path: str | Path) -> dict[str, Any]:
    value = document.get(key)
    if not isinstance(value, dict):
        raise Fields(document, str(path)).refuse(key, "a mapping")
    return value
