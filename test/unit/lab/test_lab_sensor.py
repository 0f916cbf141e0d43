"""The camera's electronics: each fault does what its name says, and the same each time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kinema4d_ros.core.errors import RenderError
from kinema4d_ros.lab import Sensor

GREY = np.full((32, 48, 3), 100, np.uint8)
RAMP = np.ascontiguousarray(np.broadcast_to(np.arange(0, 240, 5, dtype=np.uint8)[None, :, None], (32, 48, 3)))


def test_a_sensor_without_faults_changes_nothing() -> None:
    assert Sensor().develop(RAMP, 0.0) is RAMP


def test_exposure_scales_the_light_and_clips() -> None:
    brighter, darker = (Sensor(exposure_ev=ev).develop(RAMP, 0.0).astype(int) for ev in (1.0, -1.0))
    assert np.all(np.diff(brighter[0, :, 0]) >= 0)
    assert brighter.max() == 255
    assert np.all(brighter[:, 1:] > RAMP[:, 1:])
    # A stop down and up again is the same light, within rounding.
    again = Sensor(exposure_ev=1.0).develop(darker.astype(np.uint8), 0.0)
    assert np.abs(again.astype(int) - RAMP)[RAMP > 20].max() <= 3


def test_white_balance_changes_red_and_blue() -> None:
    red, green, blue = Sensor(white_balance=(1.1, 0.9)).develop(GREY, 0.0)[0, 0].tolist()
    assert red > green > blue
    assert green == 100


def test_noise_has_its_strength_and_follows_time_and_seed() -> None:
    sensor = Sensor(noise=3.0, seed=(4,))
    image = sensor.develop(GREY, 1.0)
    assert np.std(image.astype(float)) == pytest.approx(3.0, rel=0.1)
    assert np.array_equal(image, sensor.develop(GREY, 1.0))
    assert not np.array_equal(image, sensor.develop(GREY, 1.1))
    assert not np.array_equal(image, Sensor(noise=3.0, seed=(5,)).develop(GREY, 1.0))


def test_compression_keeps_colours_and_loses_detail() -> None:
    image = np.zeros((32, 48, 3), np.uint8)
    image[:, ::2] = (200, 30, 60)
    fine, coarse = (Sensor(jpeg_quality=q).develop(image, 0.0).astype(int) for q in (95, 20))
    assert np.abs(fine - image).mean() < np.abs(coarse - image).mean()
    flat = np.full((32, 48, 3), (200, 30, 60), np.uint8)
    assert np.abs(Sensor(jpeg_quality=90).develop(flat, 0.0).astype(int) - flat).max() <= 4


@pytest.mark.parametrize(
    "faults",
    [
        {"noise": -1.0},
        {"noise": float("nan")},
        {"exposure_ev": 9.0},
        {"white_balance": (0.0, 1.0)},
        {"jpeg_quality": 0},
    ],
)
def test_impossible_faults_are_refused(faults: dict[str, Any]) -> None:
    with pytest.raises(RenderError):
        Sensor(**faults)
