from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from kinema4d_ros.calibration import Extrinsics, Residuals, read_extrinsics, write_extrinsics
from kinema4d_ros.core.errors import CameraError, ErrorCode
from kinema4d_ros.core.transforms import from_quaternion, from_rpy, to_quaternion

GOOD: dict[str, Any] = {
    "parent_frame": "base_link",
    "child_frame": "camera_optical_frame",
    "translation_m": [0.5, -0.6, 0.7],
    "rotation_xyzw": [0.0, 0.0, 0.0, 1.0],
    "method": "marker",
    "date": "2026-01-31",
    "residuals": {"px": 0.21, "mm": 1.4, "mask_iou": 0.97, "poses": 17},
    "notes": "second try",
}


def read(tmp_path: Path, document: dict[str, Any]) -> Extrinsics:
    path = tmp_path / "extrinsics.yaml"
    path.write_text(yaml.safe_dump(document))
    return read_extrinsics(path)


def test_everything_in_the_file_is_read(tmp_path: Path) -> None:
    pose = read(tmp_path, GOOD)
    assert (pose.parent_frame, pose.child_frame) == ("base_link", "camera_optical_frame")
    np.testing.assert_allclose(pose.parent_T_child, from_rpy([0, 0, 0], [0.5, -0.6, 0.7]))
    assert (pose.method, pose.date, pose.notes) == ("marker", "2026-01-31", "second try")
    assert pose.residuals == Residuals(px=0.21, mm=1.4, mask_iou=0.97, poses=17)


@given(
    q=arrays(np.float64, 4, elements=st.floats(-1, 1)).filter(lambda q: np.linalg.norm(q) > 1e-2),
    xyz=arrays(np.float64, 3, elements=st.floats(-5, 5)),
    residuals=st.builds(Residuals, px=st.none() | st.floats(0, 100), poses=st.none() | st.integers(1, 500)),
)
def test_round_trip(tmp_path_factory: Any, q: Any, xyz: Any, residuals: Residuals) -> None:
    path = tmp_path_factory.mktemp("extrinsics") / "e.yaml"
    pose = Extrinsics("base", "eye", from_quaternion(q, xyz), "m", "2026-01-31T10:00:00Z", residuals, "n")
    write_extrinsics(path, pose)
    again = read_extrinsics(path)
    np.testing.assert_allclose(again.parent_T_child, pose.parent_T_child, atol=1e-14)
    np.testing.assert_array_equal(again.parent_T_child[:3, 3], xyz)
    assert (again.parent_frame, again.child_frame) == ("base", "eye")
    assert (again.method, again.date, again.notes, again.residuals) == ("m", pose.date, "n", residuals)


def test_the_uncertainty_is_kept(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    root = rng.normal(size=(6, 6)) * 1e-3
    pose = Extrinsics("base", "eye", np.eye(4), covariance=root @ root.T, degrees_of_freedom=12.0)
    write_extrinsics(tmp_path / "e.yaml", pose)
    again = read_extrinsics(tmp_path / "e.yaml")
    np.testing.assert_allclose(again.covariance, root @ root.T, rtol=1e-12)  # type: ignore[arg-type]
    assert again.degrees_of_freedom == 12.0
    old = read(tmp_path, GOOD)
    assert old.covariance is None
    assert old.degrees_of_freedom == np.inf


@pytest.mark.parametrize(
    "covariance",
    [
        [[1.0] * 6] * 5,
        [[0.0] * 6] * 5 + [[1.0, 0, 0, 0, 0, 0]],
        np.diag([1.0, 1, 1, 1, 1, -1]).tolist(),
        [[".nan"] * 6] * 6,
        "large",
    ],
)
def test_invalid_covariance_is_refused(tmp_path: Path, covariance: Any) -> None:
    with pytest.raises(CameraError, match="covariance"):
        read(tmp_path, {**GOOD, "covariance": covariance})


def test_degrees_of_freedom_are_positive(tmp_path: Path) -> None:
    with pytest.raises(CameraError, match="degrees_of_freedom"):
        read(tmp_path, {**GOOD, "covariance": np.eye(6).tolist(), "degrees_of_freedom": 0})


def test_a_rotation_matrix_is_accepted(tmp_path: Path) -> None:
    T = from_rpy([-1.9, 0.2, 0.4])
    document = {key: value for key, value in GOOD.items() if key != "rotation_xyzw"}
    pose = read(tmp_path, {**document, "rotation_matrix": np.round(T[:3, :3], 6).tolist()})
    np.testing.assert_allclose(pose.parent_T_child[:3, :3], T[:3, :3], atol=1e-6)


def test_yaml_dates_and_only_the_needed_keys(tmp_path: Path) -> None:
    path = tmp_path / "e.yaml"
    path.write_text("parent_frame: a\nchild_frame: b\ntranslation_m: [0, 0, 1]\nrotation_xyzw: [0, 0, 0, 1]\n")
    pose = read_extrinsics(path)
    assert (pose.date, pose.method, pose.residuals) == ("", "", Residuals())
    path.write_text(path.read_text() + "date: 2026-01-31\n")
    assert read_extrinsics(path).date == "2026-01-31"


@pytest.mark.parametrize(
    ("key", "value", "code", "why"),
    [
        ("parent_frame", None, ErrorCode.CALIBRATION_FRAME_MISMATCH, "parent_frame"),
        ("child_frame", None, ErrorCode.CALIBRATION_FRAME_MISMATCH, "child_frame"),
        ("child_frame", "", ErrorCode.CALIBRATION_FRAME_MISMATCH, "child_frame"),
        ("child_frame", "base_link", ErrorCode.CALIBRATION_FRAME_MISMATCH, "both 'base_link'"),
        ("child_frame", 3, ErrorCode.CALIBRATION_INVALID, "child_frame"),
        ("translation_m", [1, 2], ErrorCode.CALIBRATION_INVALID, "3 finite numbers"),
        ("translation_m", None, ErrorCode.CALIBRATION_INVALID, "translation_m"),
        ("translation_m", [850, -200, 700], ErrorCode.CALIBRATION_INVALID, "millimetres"),
        ("rotation_xyzw", None, ErrorCode.CALIBRATION_INVALID, "exactly one of"),
        ("rotation_xyzw", [0, 0, 0, 0], ErrorCode.NOT_A_ROTATION, "length 0"),
        ("rotation_xyzw", [1.57, 0, 0.1, 0], ErrorCode.NOT_A_ROTATION, "Euler"),
        ("rotation_xyzw", [0, 0, 1], ErrorCode.CALIBRATION_INVALID, "4 finite numbers"),
        ("rotation_matrix", np.eye(3).tolist(), ErrorCode.CALIBRATION_INVALID, "exactly one of"),
        ("date", "yesterday", ErrorCode.CALIBRATION_INVALID, "ISO 8601"),
        ("residuals", {"px": -1}, ErrorCode.CALIBRATION_INVALID, "px"),
        ("residuals", {"mask_iou": 1.5}, ErrorCode.CALIBRATION_INVALID, "mask_iou"),
        ("residuals", {"poses": 0}, ErrorCode.CALIBRATION_INVALID, "poses"),
        ("residuals", {"pixels": 1}, ErrorCode.CALIBRATION_INVALID, "spelling"),
        ("residuals", 0.3, ErrorCode.CALIBRATION_INVALID, "residuals"),
        ("translation", [0, 0, 0], ErrorCode.CALIBRATION_INVALID, "spelling"),
    ],
)
def test_bad_files_are_refused_by_key(tmp_path: Path, key: str, value: Any, code: ErrorCode, why: str) -> None:
    document = {**GOOD, key: value} if value is not None else {k: v for k, v in GOOD.items() if k != key}
    with pytest.raises(CameraError, match=why) as caught:
        read(tmp_path, document)
    assert caught.value.code == code


@pytest.mark.parametrize("matrix", [np.diag([1.0, 1.0, -1.0]), np.diag([1.0, 1.0, 1.1]), np.ones((3, 3))])
def test_matrices_that_are_not_rotations_are_refused(tmp_path: Path, matrix: Any) -> None:
    document = {key: value for key, value in GOOD.items() if key != "rotation_xyzw"}
    with pytest.raises(CameraError) as caught:
        read(tmp_path, {**document, "rotation_matrix": matrix.tolist()})
    assert caught.value.code == ErrorCode.NOT_A_ROTATION


def test_document_contains_only_measured_values() -> None:
    pose = Extrinsics("a", "b", from_rpy([0.1, 0.2, 0.3]), residuals=Residuals(mm=2.0))
    document = pose.document()
    assert document["residuals"] == {"mm": 2.0}
    assert set(document) == {"parent_frame", "child_frame", "translation_m", "rotation_xyzw", "residuals"}
    np.testing.assert_allclose(document["rotation_xyzw"], to_quaternion(pose.parent_T_child))
