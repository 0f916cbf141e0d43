"""Rollouts reduced for the browser."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.outcomes import PointBasis
from kinema4d_ros.core.rollout import Provenance, Rollout
from kinema4d_ros.web.prediction import PICTURE_WIDTH, Prediction, small_picture


def rollout(width: int = 96, height: int = 64, frames: int = 3) -> Rollout:
    camera = PinholeCamera.look_at((1.0, 0.2, 0.8), (0.0, 0.0, 0.0), width=width, height=height, focal_px=float(width))
    z = np.linspace(0.8, 1.2, height * width).reshape(height, width)
    xyz = (camera.rays() * z[..., None]).astype(np.float32)
    stack = np.repeat(xyz[None], frames, axis=0)
    stack[:, : height // 4] = np.nan
    rgb = np.random.default_rng(0).integers(0, 255, (frames, height, width, 3), dtype=np.uint8)
    mask = np.zeros((frames, height, width), bool)
    mask[:, height // 2 :, : width // 2] = True
    return Rollout(
        rgb, stack, mask, camera, np.linspace(5.0, 7.0, frames), Provenance("composite", "depth"), plan_hash="c" * 64
    )


@pytest.mark.parametrize("max_points", [1, 7, 100, 1000, 10**6])
def test_at_most_max_points_and_no_holes(max_points: int) -> None:
    prediction = Prediction.of(rollout(), max_points)
    for cloud in prediction.clouds:
        assert len(cloud.points) <= max_points
        assert np.isfinite(cloud.points).all()
        assert len(cloud.points) == len(cloud.rgb) == len(cloud.robot)


def test_all_points_and_colours_are_kept_below_the_limit() -> None:
    source = rollout()
    cloud = Prediction.of(source, 10**6).clouds[1]
    seen = np.isfinite(source.xyz[1, ..., 2])
    assert np.array_equal(cloud.points, source.xyz[1][seen])
    assert np.array_equal(cloud.rgb, source.rgb[1][seen])
    assert np.array_equal(cloud.robot, source.robot_mask[1][seen])


def test_thinned_points_have_the_stated_spacing() -> None:
    prediction = Prediction.of(rollout(360, 240), 6000)
    points = prediction.clouds[0].points
    gaps = np.linalg.norm(np.diff(points, axis=0), axis=1)
    assert np.median(gaps) == pytest.approx(prediction.spacing_m, rel=0.35)


def test_times_start_at_zero_and_map_to_frames() -> None:
    prediction = Prediction.of(rollout(), 100)
    assert prediction.times.tolist() == [0.0, 1.0, 2.0]
    assert prediction.duration_s == 2.0
    assert [prediction.frame_at(t) for t in (-1.0, 0.0, 0.99, 1.0, 1.5, 2.0, 9.0)] == [0, 0, 0, 1, 1, 2, 2]
    assert prediction.maker == "composite (depth)"
    assert prediction.plan_hash == "c" * 64


def test_a_rollout_without_points_is_allowed() -> None:
    empty = rollout()
    empty.xyz[:] = np.nan
    prediction = Prediction.of(empty, 100)
    assert all(len(cloud.points) == 0 for cloud in prediction.clouds)
    assert prediction.spacing_m > 0


def test_decoding_stops_when_cancelled() -> None:
    source = rollout()
    taken = []

    def frames():  # type: ignore[no-untyped-def]
        for t in range(len(source)):
            taken.append(1)
            yield source[t : t + 1], None

    with pytest.raises(InterruptedError):
        Prediction.from_frames(
            frames(), source.camera, source.times, 100, rollout_id="", plan_hash="", maker="",
            cancelled=lambda: len(taken) > 1,
        )  # fmt: skip
    assert len(taken) == 2


def test_images_are_downscaled_but_never_enlarged() -> None:
    assert small_picture(np.zeros((480, 720, 3), np.uint8)).shape == (320, PICTURE_WIDTH, 3)
    picture = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    assert np.array_equal(small_picture(picture), picture)


def test_guessed_points_are_tinted_and_measured_ones_are_not() -> None:
    source = rollout()
    basis = np.full(source.robot_mask.shape, PointBasis.MEASURED, np.uint8)
    basis[:, :, 48:] = PointBasis.PLANE
    cloud = Prediction.of(replace(source, basis=basis), 10**6).clouds[0]
    changed = (cloud.tinted() != cloud.rgb).any(axis=1)
    assert not changed[cloud.basis == PointBasis.MEASURED].any()
    assert changed[cloud.basis == PointBasis.PLANE].mean() > 0.99


def test_without_a_basis_the_depth_says_what_is_guessed() -> None:
    source = replace(rollout(), provenance=Provenance("composite", "plane", depth="plane"))
    cloud = Prediction.of(source, 10**6).clouds[0]
    assert set(cloud.basis[cloud.robot]) == {PointBasis.ROBOT}
    assert set(cloud.basis[~cloud.robot]) == {PointBasis.PLANE}
