"""Intrinsics in the YAML that ROS's camera_calibration writes and camera_info_manager reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kinema4d_ros.calibration._fields import Fields
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.distortion import MODELS
from kinema4d_ros.core.errors import CalibrationError
from kinema4d_ros.io.files import read_yaml, reading, write_yaml

__all__ = ["CameraInfo", "read_camera_info", "write_camera_info"]


@dataclass(frozen=True, eq=False)
class CameraInfo:
    """What the file says, in the file's own pixel convention (integers at pixel centres).

    Attributes:
        name: camera_name.
        width, height: image size in pixels.
        camera_matrix: (3, 3) float64 of the raw image.
        distortion_model: "plumb_bob" or "rational_polynomial".
        distortion: coefficients in OpenCV's order.

    The file's rectification and projection matrices describe another, rectified image (of a stereo pair,
    usually); raw images and `PinholeCamera.rectify` need neither.
    """

    name: str
    width: int
    height: int
    camera_matrix: NDArray[np.float64]
    distortion_model: str = "plumb_bob"
    distortion: tuple[float, ...] = ()

    @staticmethod
    def of(camera: PinholeCamera, name: str = "camera") -> CameraInfo:
        """The file's view of a camera."""
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
        """The mapping to write: a monocular camera's rectification is I and its projection [K | 0]."""
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
        """The camera with these intrinsics at that pose."""
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
