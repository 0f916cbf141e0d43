from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from kinema4d_ros.calibration import read_easy_handeye
from kinema4d_ros.core.errors import CalibrationError, ErrorCode
from kinema4d_ros.core.transforms import from_quaternion, from_rpy, to_quaternion

BASE_T_CAMERA = from_rpy([-2.0, 0.1, 0.6], [0.8, -0.5, 0.6])


def document() -> dict[str, Any]:
    """Build a document in the layout of the current releases (rosidl's message_to_yaml of HandeyeCalibration)."""
    x, y, z, w = to_quaternion(BASE_T_CAMERA).tolist()
    return {
        "parameters": {
            "name": "lab",
            "calibration_type": "eye_on_base",
            "robot_base_frame": "base_link",
            "robot_effector_frame": "gripper",
            "tracking_base_frame": "camera_color_optical_frame",
            "tracking_marker_frame": "marker",
            "freehand_robot_movement": True,
            "move_group_namespace": "/",
            "move_group": "manipulator",
        },
        "transform": {
            "translation": dict(zip("xyz", BASE_T_CAMERA[:3, 3].tolist(), strict=True)),
            "rotation": {"x": x, "y": y, "z": z, "w": w},
        },
    }


def read(tmp_path: Path, content: dict[str, Any]) -> Any:
    path = tmp_path / "lab.calib"
    path.write_text(yaml.safe_dump(content))
    return read_easy_handeye(path)


def test_eye_on_base_is_the_pose_of_the_camera(tmp_path: Path) -> None:
    pose = read(tmp_path, document())
    assert (pose.parent_frame, pose.child_frame) == ("base_link", "camera_color_optical_frame")
    np.testing.assert_allclose(pose.parent_T_child, BASE_T_CAMERA, atol=1e-14)
    assert "lab" in pose.notes


def test_the_layout_of_the_first_releases_is_read(tmp_path: Path) -> None:
    content = document()
    del content["parameters"]["calibration_type"], content["transform"]
    content["parameters"]["eye_on_hand"] = False
    x, y, z = 0.1, 0.2, 0.3
    content["transformation"] = {"x": x, "y": y, "z": z, "qx": 0.0, "qy": 0.0, "qz": 1.0, "qw": 0.0}
    pose = read(tmp_path, content)
    np.testing.assert_allclose(pose.parent_T_child, from_quaternion([0, 0, 1, 0], [x, y, z]))
    content["parameters"]["eye_on_hand"] = True
    with pytest.raises(CalibrationError, match="eye_in_hand"):
        read(tmp_path, content)


def test_eye_in_hand_is_refused_with_the_reason(tmp_path: Path) -> None:
    content = document()
    content["parameters"]["calibration_type"] = "eye_in_hand"
    with pytest.raises(CalibrationError, match=r"mounted on 'gripper'.*eye_on_base") as caught:
        read(tmp_path, content)
    assert caught.value.code == ErrorCode.CALIBRATION_FRAME_MISMATCH


@pytest.mark.parametrize(
    ("path", "value", "code"),
    [
        ("parameters", None, ErrorCode.CALIBRATION_INVALID),
        ("parameters.calibration_type", None, ErrorCode.CALIBRATION_INVALID),
        ("parameters.calibration_type", "eye_on_moon", ErrorCode.CALIBRATION_INVALID),
        ("parameters.robot_base_frame", None, ErrorCode.CALIBRATION_INVALID),
        ("parameters.tracking_base_frame", "", ErrorCode.CALIBRATION_FRAME_MISMATCH),
        ("transform", None, ErrorCode.CALIBRATION_INVALID),
        ("transform.translation.x", None, ErrorCode.CALIBRATION_INVALID),
        ("transform.translation.x", float("nan"), ErrorCode.CALIBRATION_INVALID),
        ("transform.rotation.w", 3.0, ErrorCode.NOT_A_ROTATION),
        ("transform.rotation", [0, 0, 0, 1], ErrorCode.CALIBRATION_INVALID),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, path: str, value: Any, code: ErrorCode) -> None:
    content = document()
    *parents, key = path.split(".")
    place = content
    for parent in parents:
        place = place[parent]
    if value is None:
        del place[key]
    else:
        place[key] = value
    with pytest.raises(CalibrationError) as caught:
        read(tmp_path, content)
    assert caught.value.code == code
