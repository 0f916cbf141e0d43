"""One call for every kind of calibration file: from a path to a camera that knows where it stands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kinema4d_ros.calibration._fields import Fields
from kinema4d_ros.calibration.camera_info import CameraInfo, read_camera_info
from kinema4d_ros.calibration.easy_handeye import from_easy_handeye_document
from kinema4d_ros.calibration.extrinsics import Extrinsics
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import CalibrationError, ErrorCode
from kinema4d_ros.io.files import read_yaml, reading, write_yaml

__all__ = ["camera_document", "camera_from_document", "load_camera", "read_camera", "read_pose", "save_camera"]

_KINDS = {
    "a camera file": {"intrinsics", "extrinsics"},
    "a CameraInfo file": {"image_width", "camera_matrix"},
    "an extrinsics file": {"parent_frame", "child_frame"},
    "an easy_handeye2 file": {"parameters"},
}


def read_camera(path: str | Path, *, base_frame: str | None = None) -> PinholeCamera:
    """The camera of a camera file: intrinsics and extrinsics in one.

    Args:
        path: YAML as described in calibration/README.md.
        base_frame: the robot's base frame; extrinsics that lead to another one are refused.
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
        hint="join the two with load_camera(intrinsics, extrinsics) and save_camera(path, camera, extrinsics)",
    )


def load_camera(intrinsics: str | Path, extrinsics: str | Path, *, base_frame: str | None = None) -> PinholeCamera:
    """The camera of a CameraInfo YAML and an extrinsics YAML (ours or easy_handeye2's)."""
    with reading(extrinsics, "the pose of that camera", error=CalibrationError):
        return _join(read_camera_info(intrinsics), read_pose(extrinsics), base_frame)


def read_pose(path: str | Path) -> Extrinsics:
    """The extrinsics of our YAML, of a camera file, or of easy_handeye2's file."""
    document = read_yaml(path)
    kind = _kind(document, path)
    with reading(path, "the pose of a camera", error=CalibrationError):
        if kind == "an easy_handeye2 file":
            return from_easy_handeye_document(document, str(path))
        if kind == "a camera file":
            return Extrinsics.from_document(_section(document, "extrinsics", path), f"'extrinsics' of {path}")
        return Extrinsics.from_document(document, str(path))


def camera_from_document(document: dict[str, Any], source: str, *, base_frame: str | None = None) -> PinholeCamera:
    """The camera of a camera file's mapping; `source` names it in errors."""
    Fields(document, source).only(("intrinsics", "extrinsics"))
    info = CameraInfo.from_document(_section(document, "intrinsics", source), f"'intrinsics' of {source}")
    pose = Extrinsics.from_document(_section(document, "extrinsics", source), f"'extrinsics' of {source}")
    return _join(info, pose, base_frame)


def camera_document(
    camera: PinholeCamera, extrinsics: Extrinsics | None = None, *, name: str = "camera"
) -> dict[str, Any]:
    """The mapping of a camera file."""
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
            f"the camera's pose is given in '{pose.parent_frame}'",
            expected=f"'{base_frame}', the robot's base frame",
            hint="calibrate against that frame, or add the fixed transform between the two and rename parent_frame",
            code=ErrorCode.CALIBRATION_FRAME_MISMATCH,
        )
    return info.camera(pose.parent_T_child, frame_id=pose.child_frame, base_frame=pose.parent_frame)


def _kind(document: dict[str, Any], path: str | Path) -> str:
    for kind, keys in _KINDS.items():
        if keys & document.keys():
            return kind
    raise CalibrationError(
        f"{path} is no calibration: it has {', '.join(list(document)[:10]) or 'nothing'}",
        expected="intrinsics and extrinsics, a ROS CameraInfo, extrinsics, or an easy_handeye2 calibration",
        hint="calibration/README.md describes them",
    )


def _section(document: dict[str, Any], key: str, path: str | Path) -> dict[str, Any]:
    value = document.get(key)
    if not isinstance(value, dict):
        raise Fields(document, str(path)).refuse(key, "a group of named values")
    return value
