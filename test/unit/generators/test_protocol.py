"""Requests, progress and cancellation: the contract of every generator."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.requests import robot_of_a_square

from kinema4d_ros.core.errors import ErrorCode, GeneratorError, KinemaError
from kinema4d_ros.generators import Cancelled, GenerateRequest, Progress, raise_if_cancelled


def good() -> dict[str, Any]:
    return {"image": np.zeros((24, 36, 3), np.uint8), "robot": robot_of_a_square(36, 24)}


def test_a_request_knows_its_camera_and_times() -> None:
    request = GenerateRequest(**good(), seed=np.int64(4))
    assert request.camera is request.robot.camera
    assert np.array_equal(request.times, request.robot.times)
    assert len(request) == 3
    assert type(request.seed) is int


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"image": np.zeros((36, 24, 3), np.uint8)}, "image is uint8 of shape (36, 24, 3)"),
        ({"image": np.zeros((24, 36, 3), np.float32)}, "image is float32"),
        ({"image": None}, "image is NoneType"),
        ({"robot": np.zeros(3)}, "robot is ndarray"),
        ({"robot": replace(robot_of_a_square(36, 24), times=None)}, "no times"),
        ({"robot": replace(robot_of_a_square(36, 24), times=np.array([0.0, 1.0, 1.0]))}, "do not increase"),
        ({"depth": np.zeros((24, 36))}, "depth is float64"),
        ({"depth": np.zeros((24, 36), np.float32)}, "depth holds"),
        ({"depth": np.full((24, 36), np.inf, np.float32)}, "depth holds infinity"),
        ({"plan_hash": "short"}, "plan_hash is 'short'"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": None}, "seed is None"),
    ],
)
def test_bad_requests(change: dict[str, Any], message: str) -> None:
    with pytest.raises(GeneratorError) as caught:
        GenerateRequest(**{**good(), **change})
    assert message in str(caught.value)
    assert caught.value.code == ErrorCode.GENERATOR_BAD_REQUEST
    assert caught.value.expected


def test_cancellation_names_the_step() -> None:
    raise_if_cancelled(None, Progress("x"))
    raise_if_cancelled(lambda: False, Progress("x"))
    with pytest.raises(Cancelled, match="step 2 of 5 of 'denoise'") as caught:
        raise_if_cancelled(lambda: True, Progress("denoise", 2, 5))
    assert isinstance(caught.value, KinemaError)
    assert caught.value.code == ErrorCode.CANCELLED
