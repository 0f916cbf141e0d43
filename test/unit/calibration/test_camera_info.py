from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kinema4d_ros.calibration import CameraInfo, read_camera_info, write_camera_info
from kinema4d_ros.core.errors import CalibrationError, CameraError, ErrorCode

# The format of camera_calibration's `ost.yaml`.
OST = """\
image_width: 640
image_height: 480
camera_name: narrow_stereo
camera_matrix:
  rows: 3
  cols: 3
  data: [606.08, 0.     , 320.43,
           0.     , 606.79, 241.02,
           0.     , 0.     ,   1.  ]
distortion_model: plumb_bob
distortion_coefficients:
  rows: 1
  cols: 5
  data: [0.152463, -0.316011, 5e-05, -0.000842, 0.000000]
rectification_matrix:
  rows: 3
  cols: 3
  data: [1., 0., 0.,
         0., 1., 0.,
         0., 0., 1.]
projection_matrix:
  rows: 3
  cols: 4
  data: [611.87, 0.     , 319.57,   0.     ,
           0.     , 615.04, 240.71,   0.     ,
           0.     , 0.     ,   1.     ,   0.     ]
"""


def test_reads_the_file_of_camera_calibration(tmp_path: Path) -> None:
    path = tmp_path / "ost.yaml"
    path.write_text(OST)
    info = read_camera_info(path)
    assert (info.name, info.width, info.height) == ("narrow_stereo", 640, 480)
    # 5e-05 without a dot is a string in YAML 1.1.
    assert info.distortion == (0.152463, -0.316011, 5e-05, -0.000842, 0.0)
    camera = info.camera(np.eye(4))
    assert camera.K[0, 2] == pytest.approx(320.43 + 0.5)
    assert camera.K[1, 2] == pytest.approx(241.02 + 0.5)
    assert camera.K[0, 0] == 606.08
    np.testing.assert_allclose(CameraInfo.of(camera).camera_matrix, info.camera_matrix, atol=1e-12)


@given(
    focal=st.floats(300, 3000),
    cx=st.floats(100, 600),
    cy=st.floats(100, 400),
    lens=st.sampled_from([((), "plumb_bob"), ((-0.05, 0.01, 1e-3, -1e-4), "plumb_bob"), ((), "rational_polynomial")]),
)
def test_round_trip(tmp_path_factory: Any, focal: float, cx: float, cy: float, lens: Any) -> None:
    path = tmp_path_factory.mktemp("info") / "camera.yaml"
    K = np.array([[focal, 0, cx], [0, focal * 1.01, cy], [0, 0, 1]])
    info = CameraInfo("top", 720, 480, K, lens[1], lens[0])
    write_camera_info(path, info)
    again = read_camera_info(path)
    np.testing.assert_array_equal(again.camera_matrix, K)
    assert (again.name, again.width, again.height, again.distortion_model) == ("top", 720, 480, lens[1])
    assert again.distortion[: len(lens[0])] == lens[0]
    assert not any(again.distortion[len(lens[0]) :])


def test_the_written_file_has_every_field_of_camera_info_manager(tmp_path: Path) -> None:
    path = tmp_path / "camera.yaml"
    write_camera_info(path, CameraInfo("top", 720, 480, np.diag([500.0, 500.0, 1.0])))
    document = yaml.safe_load(path.read_text())
    assert list(document) == list(yaml.safe_load(OST))
    assert document["projection_matrix"]["data"][:3] == [500.0, 0.0, 0.0]
    assert len(document["projection_matrix"]["data"]) == 12
    assert document["rectification_matrix"]["data"] == np.eye(3).ravel().tolist()


@pytest.mark.parametrize(
    ("path", "value", "code", "why"),
    [
        ("image_width", None, ErrorCode.CALIBRATION_INVALID, "has no 'image_width'"),
        ("image_width", 640.5, ErrorCode.CALIBRATION_INVALID, "image_width"),
        ("image_height", 0, ErrorCode.CAMERA_BAD_SIZE, "height"),
        ("camera_matrix", None, ErrorCode.CALIBRATION_INVALID, "has no 'camera_matrix'"),
        ("camera_matrix", [1, 2, 3], ErrorCode.CALIBRATION_INVALID, "camera_matrix"),
        ("camera_matrix.data", [1.0] * 8, ErrorCode.CALIBRATION_INVALID, "9 finite numbers"),
        ("camera_matrix.data", ["a"] * 9, ErrorCode.CALIBRATION_INVALID, "9 finite numbers"),
        ("camera_matrix.data", [float("nan")] * 9, ErrorCode.CALIBRATION_INVALID, "9 finite numbers"),
        ("camera_matrix.data", [True] * 9, ErrorCode.CALIBRATION_INVALID, "9 finite numbers"),
        ("camera_matrix.data", [0.0] * 8 + [1.0], ErrorCode.CAMERA_BAD_INTRINSICS, "singular"),
        ("camera_matrix.rows", 4, ErrorCode.CALIBRATION_INVALID, "rows: 3"),
        ("distortion_model", "equidistant", ErrorCode.CAMERA_BAD_DISTORTION, "equidistant"),
        ("distortion_coefficients.data", [0.1] * 6, ErrorCode.CAMERA_BAD_DISTORTION, "6 coefficients"),
        ("distortion_coefficients.data", [-5.0, 0, 0, 0], ErrorCode.CAMERA_BAD_DISTORTION, "folds over"),
        ("distortion_coefficients", 3, ErrorCode.CALIBRATION_INVALID, "distortion_coefficients"),
    ],
)
def test_bad_files_are_refused_by_key(tmp_path: Path, path: str, value: Any, code: ErrorCode, why: str) -> None:
    document = yaml.safe_load(OST)
    *parents, key = path.split(".")
    place = document
    for parent in parents:
        place = place[parent]
    if value is None:
        del place[key]
    else:
        place[key] = value
    file = tmp_path / "bad.yaml"
    file.write_text(yaml.safe_dump(document))
    with pytest.raises(CameraError, match=why) as caught:
        read_camera_info(file)
    assert caught.value.code == code
    if code == ErrorCode.CALIBRATION_INVALID:
        assert isinstance(caught.value, CalibrationError)
        assert "bad.yaml" in str(caught.value)
