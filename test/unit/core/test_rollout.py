"""Rollouts: accepted and rejected fields."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.scenes import cast_world, overhead_camera

from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import CameraError, ErrorCode, KinemaError, RolloutError
from kinema4d_ros.core.rollout import Frames, Provenance, Rollout, new_rollout_id


def fields(frames: int = 3) -> dict[str, Any]:
    camera = overhead_camera(18, 12)
    return {
        "rgb": np.zeros((frames, 12, 18, 3), np.uint8),
        "xyz": np.stack([cast_world(camera)] * frames),
        "robot_mask": np.zeros((frames, 12, 18), np.bool_),
        "camera": camera,
        "times": np.arange(frames) * 0.1,
        "provenance": Provenance("composite"),
    }


def test_length_and_duration() -> None:
    rollout = Rollout(**fields(), plan_hash="0123456789abcdef" * 4)
    assert len(rollout) == 3
    assert rollout.duration_s == pytest.approx(0.2)
    rollout.check_points()


def test_ids_are_sixteen_hex_digits_and_differ() -> None:
    ids = {new_rollout_id() for _ in range(200)}
    assert len(ids) == 200
    assert all(len(i) == 16 and set(i) <= set("0123456789abcdef") for i in ids)


def test_points_of_the_table_lie_at_height_zero_in_the_base_frame() -> None:
    points = Rollout(**fields()).points_base(1)
    assert points.dtype == np.float32
    assert np.abs(points[..., 2]).max() < 1e-6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rgb": np.zeros((3, 12, 18, 3), np.float32)}, "rgb is float32"),
        ({"rgb": np.zeros((2, 12, 18, 3), np.uint8)}, "rgb is uint8 of shape (2, 12, 18, 3)"),
        ({"xyz": np.zeros((3, 12, 18, 3))}, "xyz is float64"),
        ({"xyz": [[1.0]]}, "xyz is list"),
        ({"robot_mask": np.zeros((3, 18, 12), np.bool_)}, "robot_mask is bool of shape (3, 18, 12)"),
        ({"times": [0.0, 0.1, 0.1]}, "do not increase"),
        ({"times": [0.0, 0.1, np.nan]}, "not finite"),
        ({"times": []}, "times have shape (0,)"),
        ({"times": ["soon"]}, "times are not numbers"),
        ({"camera": "demo"}, "camera is str"),
        ({"provenance": {"generator": "composite"}}, "provenance is dict"),
        ({"rollout_id": "xyz"}, "rollout_id is 'xyz'"),
        ({"plan_hash": "ABC"}, "plan_hash is 'ABC'"),
    ],
)
def test_bad_fields_are_refused_by_name(change: dict[str, Any], message: str) -> None:
    with pytest.raises(RolloutError) as caught:
        Rollout(**{**fields(), **change})
    assert message in str(caught.value)
    assert caught.value.expected
    assert caught.value.code == ErrorCode.ROLLOUT_INVALID


def test_a_part_is_a_view_and_can_be_replaced_in_place() -> None:
    data = fields()
    rollout, newer = Rollout(**data), Frames.empty(2, 12, 18)
    for array, value in zip(newer.arrays, (7, 0.5, True), strict=True):
        array[:] = value
    kept = rollout.copy()
    rollout[1:] = newer
    part = rollout[:2]
    assert type(part) is type(kept) is Frames
    assert (len(part), len(kept), len(rollout)) == (2, 3, 3)
    for name, value in zip(("rgb", "xyz", "robot_mask"), newer.arrays, strict=True):
        assert getattr(part, name).base is data[name]
        assert np.array_equal(data[name][1:], value)
        assert np.array_equal(data[name][:1], getattr(kept, name)[:1])
        assert not np.array_equal(data[name][1:], getattr(kept, name)[1:])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"xyz": np.zeros((2, 12, 18, 3), np.float32)}, "xyz is float32 of shape (2, 12, 18, 3)"),
        ({"rgb": np.zeros((3, 12, 18, 3), np.int16)}, "rgb is int16"),
        ({"robot_mask": np.zeros((12, 18), np.bool_)}, "uint8 of shape (T, H, W, 3)"),
        ({"robot_mask": None}, "uint8 of shape (T, H, W, 3)"),
    ],
)
def test_frames_of_different_shapes_are_refused(change: dict[str, Any], message: str) -> None:
    arrays = {name: fields()[name] for name in ("rgb", "xyz", "robot_mask")}
    with pytest.raises(RolloutError) as caught:
        Frames(**{**arrays, **change})
    assert message in str(caught.value)


def test_a_lens_with_distortion_is_refused() -> None:
    camera = overhead_camera(18, 12)
    bent = PinholeCamera(18, 12, camera.K, camera.base_T_camera, distortion=(0.1, 0, 0, 0))
    with pytest.raises(CameraError, match="distortion"):
        Rollout(**{**fields(), "camera": bent})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"generator": ""}, "name is ''"),
        ({"checkpoint_sha256": "12"}, "checkpoint_sha256"),
        ({"input_sha256": "g" * 64}, "input_sha256"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": 2**64}, "seed is 18446744073709551616"),
        ({"seed": 1.5}, "seed is 1.5"),
        ({"metric_residual_m": float("nan")}, "metric_residual_m is nan"),
        ({"metric_residual_m": -0.1}, "metric_residual_m is -0.1"),
        ({"versions": {"numpy": 2}}, "versions"),
        ({"preset": None}, "preset is None"),
    ],
)
def test_bad_provenance_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(RolloutError) as caught:
        Provenance(**{"generator": "composite", **change})
    assert message in str(caught.value)


def test_versions_are_a_private_copy() -> None:
    versions = {"numpy": "2"}
    provenance = Provenance("composite", versions=versions)
    versions["numpy"] = "3"
    assert provenance.versions["numpy"] == "2"


@pytest.mark.parametrize(
    ("value", "masked", "message"),
    [
        ((np.nan, 0.1, 1.0), False, "partly NaN"),
        ((0.1, 0.1, np.inf), False, "partly NaN or infinite"),
        ((0.1, 0.1, -1.0), False, "in front of the camera"),
        ((np.nan, np.nan, np.nan), True, "is missing under the robot mask"),
    ],
)
def test_check_points_names_the_pixel(value: tuple[float, ...], masked: bool, message: str) -> None:
    data = fields()
    data["xyz"][2, 5, 7] = value
    data["robot_mask"][2, 5, 7] = masked
    with pytest.raises(KinemaError, match=r"row 5, column 7 in frame 2") as caught:
        Rollout(**data).check_points()
    assert message in str(caught.value)
