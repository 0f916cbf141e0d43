from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from kinema4d_ros.calibration import (
    CameraInfo,
    Extrinsics,
    Residuals,
    load_camera,
    read_camera,
    read_pose,
    save_camera,
    write_camera_info,
    write_extrinsics,
)
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import CalibrationError, ErrorCode, FileFormatError, KinemaError
from kinema4d_ros.core.transforms import apply, from_rpy
from kinema4d_ros.io.resources import share_path

CAMERA = PinholeCamera(
    720,
    480,
    [[601.5, 0, 361.2], [0, 600.1, 239.4], [0, 0, 1]],
    base_T_camera=from_rpy([-2.0, 0.1, 0.6], [0.8, -0.5, 0.6]),
    distortion=(-0.1, 0.02, 1e-3, -1e-3, 0.0),
    frame_id="eye",
    base_frame="base",
)


def assert_same(a: PinholeCamera, b: PinholeCamera) -> None:
    np.testing.assert_allclose(a.K, b.K, atol=1e-12)
    np.testing.assert_allclose(a.base_T_camera, b.base_T_camera, atol=1e-14)
    assert (a.width, a.height, a.distortion, a.distortion_model) == (
        b.width,
        b.height,
        b.distortion,
        b.distortion_model,
    )
    assert (a.frame_id, a.base_frame) == (b.frame_id, b.base_frame)


def test_camera_file_keeps_the_camera(tmp_path: Path) -> None:
    save_camera(tmp_path / "lab.yaml", CAMERA)
    assert_same(read_camera(tmp_path / "lab.yaml"), CAMERA)
    assert_same(read_camera(tmp_path / "lab.yaml", base_frame="base"), CAMERA)


def test_camera_file_keeps_method_and_residuals(tmp_path: Path) -> None:
    story = Extrinsics("base", "eye", CAMERA.base_T_camera, "marker", "2026-01-31", Residuals(px=0.3), "n")
    save_camera(tmp_path / "lab.yaml", CAMERA, story, name="lab")
    assert read_pose(tmp_path / "lab.yaml").residuals == Residuals(px=0.3)
    assert yaml.safe_load((tmp_path / "lab.yaml").read_text())["intrinsics"]["camera_name"] == "lab"


def test_camera_from_two_files(tmp_path: Path) -> None:
    write_camera_info(tmp_path / "i.yaml", CameraInfo.of(CAMERA))
    write_extrinsics(tmp_path / "e.yaml", Extrinsics("base", "eye", CAMERA.base_T_camera))
    assert_same(load_camera(tmp_path / "i.yaml", tmp_path / "e.yaml"), CAMERA)


def test_easy_handeye_files_serve_as_extrinsics(tmp_path: Path) -> None:
    write_camera_info(tmp_path / "i.yaml", CameraInfo.of(CAMERA))
    parameters = {"calibration_type": "eye_on_base", "robot_base_frame": "base", "tracking_base_frame": "eye"}
    transform = {"translation": {"x": 0, "y": 0, "z": 2}, "rotation": {"x": 1, "y": 0, "z": 0, "w": 0}}
    (tmp_path / "e.calib").write_text(yaml.safe_dump({"parameters": parameters, "transform": transform}))
    camera = load_camera(tmp_path / "i.yaml", tmp_path / "e.calib", base_frame="base")
    np.testing.assert_allclose(camera.base_T_camera, from_rpy([np.pi, 0, 0], [0, 0, 2]), atol=1e-15)


def test_another_base_frame_is_refused(tmp_path: Path) -> None:
    save_camera(tmp_path / "lab.yaml", CAMERA)
    with pytest.raises(CalibrationError, match=r"'base'.*'base_link'") as caught:
        read_camera(tmp_path / "lab.yaml", base_frame="base_link")
    assert caught.value.code == ErrorCode.CALIBRATION_FRAME_MISMATCH


def test_incomplete_camera_file_is_refused(tmp_path: Path) -> None:
    write_camera_info(tmp_path / "i.yaml", CameraInfo.of(CAMERA))
    write_extrinsics(tmp_path / "e.yaml", Extrinsics("base", "eye", CAMERA.base_T_camera))
    with pytest.raises(CalibrationError, match="CameraInfo file: it lacks extrinsics"):
        read_camera(tmp_path / "i.yaml")
    with pytest.raises(CalibrationError, match="extrinsics file: it lacks intrinsics"):
        read_camera(tmp_path / "e.yaml")
    with pytest.raises(CalibrationError, match="image_width"):
        load_camera(tmp_path / "e.yaml", tmp_path / "i.yaml")


@pytest.mark.parametrize(
    "content",
    [
        {"hello": "world"},
        {"intrinsics": {}, "extrinsics": {}},
        {"intrinsics": 3, "extrinsics": 4},
        {"intrinsics": CameraInfo.of(CAMERA).document()},
        {"intrinsics": CameraInfo.of(CAMERA).document(), "extrinsics": None},
        {"intrinsics": {}, "extrinsics": {}, "extrinsic": {}},
    ],
)
def test_other_documents_are_refused(tmp_path: Path, content: dict[str, Any]) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(yaml.safe_dump(content))
    with pytest.raises(CalibrationError, match=r"x\.yaml") as caught:
        read_camera(path)
    assert caught.value.code == ErrorCode.CALIBRATION_INVALID


def test_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=r"none\.yaml") as caught:
        read_camera(tmp_path / "none.yaml")
    assert caught.value.code == ErrorCode.FILE_MISSING


def test_damaged_files_raise_only_kinema_errors(tmp_path: Path) -> None:
    save_camera(tmp_path / "lab.yaml", CAMERA)
    good = (tmp_path / "lab.yaml").read_bytes()
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(150):
        data = bytearray(good)
        for at in rng.integers(0, len(data), 3):
            data[at] = rng.integers(0, 256)
        (tmp_path / "bad.yaml").write_bytes(bytes(data[: rng.integers(1, len(data) + 1)]))
        try:
            read_camera(tmp_path / "bad.yaml")
        except KinemaError:
            refused += 1
    assert refused > 100


def test_the_demonstration_camera_is_the_same_in_one_file_and_in_two() -> None:
    lab = read_camera(share_path("calibration/demo_lab.yaml"), base_frame="base_link")
    two = load_camera(share_path("calibration/demo_camera.yaml"), share_path("calibration/demo_extrinsics.yaml"))
    assert_same(lab, two)
    assert (lab.width, lab.height) == (720, 480)
    assert lab.frame_id == "camera_optical_frame"
    assert not lab.has_distortion


def test_the_demonstration_camera_sees_the_workspace() -> None:
    lab = read_camera(share_path("calibration/demo_lab.yaml"))
    corners = np.stack(np.meshgrid([-0.05, 0.5], [-0.25, 0.25], [0.0, 0.4], indexing="ij"), -1).reshape(-1, 3)
    p_camera = apply(lab.camera_T_base, corners)
    uv = lab.project(p_camera)
    assert np.all((uv >= 0) & (uv <= [720, 480]))
    assert p_camera[:, 2].min() > 0.5
    assert p_camera[:, 2].max() < 1.7
