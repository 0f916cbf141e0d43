"""Tracking of objects that are carried, hidden, blurred, faded, duplicated or lost."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from support.judge_scenes import CAMERA, GREEN, RADIUS, RED, Ball, ball_mask, film, fingers, pick

from kinema4d_ros.core.rollout import Provenance, Rollout
from kinema4d_ros.evaluation import EvaluationError
from kinema4d_ros.evaluation.target import centre_behind, find_target, tip_path
from kinema4d_ros.evaluation.tracking import track_object


def moved(track) -> np.ndarray:
    return track.position - track.position[0]


def test_a_carried_ball_is_tracked_to_a_few_millimetres() -> None:
    rollout, target, path = pick()
    track = track_object(rollout, target)
    np.testing.assert_allclose(moved(track), path - path[0], atol=0.006)
    np.testing.assert_allclose(track.position[0, :2], path[0, :2], atol=0.005)
    assert track.confidence.min() > 0.6
    assert track.visible.min() < 0.95, "the fingers must hide some of it for this test to say anything"
    assert track.points == target.sum()


def test_a_pushed_ball_among_others() -> None:
    path = np.stack([np.full(12, 0.3), np.linspace(-0.05, 0.06, 12), np.full(12, RADIUS)], axis=1)
    gripper = path + np.array([0.0, -0.05, 0.0])
    balls = [Ball(path, RED), Ball([0.22, 0.03, 0.03], GREEN, 0.03), *fingers(gripper)]
    rollout = film(balls, 12, noise=3.0)
    track = track_object(rollout, ball_mask(path[0], rollout))
    np.testing.assert_allclose(moved(track)[:, :2], (path - path[0])[:, :2], atol=0.008)


def test_a_hidden_object_is_not_lost() -> None:
    still = np.array([0.3, 0.0, RADIUS])
    # A large dark ball between camera and target in the middle frames.
    curtain = np.tile([0.55, 0.0, -1.0], (9, 1))
    curtain[3:6, 2] = 0.22
    rollout = film([Ball(still, RED), Ball(curtain, (30, 30, 30), 0.1, robot=True)], 9)
    track = track_object(rollout, ball_mask(still, rollout))
    np.testing.assert_array_equal(track.visible[3:6], 0)
    np.testing.assert_allclose(moved(track), 0, atol=0.004)
    assert 0.5 < track.confidence[5] < track.confidence[3] < track.confidence[0]
    assert track.confidence[8] > track.confidence[5]


def test_a_vanished_object_is_lost_and_found_again() -> None:
    centre = np.tile([0.3, 0.0, RADIUS], (8, 1))
    centre[3:6, 2] = -1.0
    rollout = film([Ball(centre, RED)], 8)
    track = track_object(rollout, ball_mask(centre[0], rollout))
    assert np.isnan(track.position[3:6]).all()
    np.testing.assert_array_equal(track.confidence[3:6], 0)
    np.testing.assert_allclose(moved(track)[[2, 6, 7]], 0, atol=0.004)


@pytest.mark.parametrize("carried", [True, False])
def test_a_half_faded_object_is_found_with_less_confidence(carried: bool) -> None:
    clear = track_object(*pick(carried=carried)[:2])
    rollout, target, path = pick(carried=carried, opacity=0.5, noise=3.0)
    faded = track_object(rollout, target)
    np.testing.assert_allclose(moved(faded)[-1], (path - path[0])[-1], atol=0.025)
    assert 0.25 < faded.confidence[-1] < 0.75 * clear.confidence[-1]


def test_blurred_images_and_depth() -> None:
    rollout, target, path = pick(noise=4.0)
    xyz, rgb = rollout.xyz.copy(), rollout.rgb.copy()
    for t in range(1, len(rollout)):
        rgb[t] = cv2.GaussianBlur(rgb[t], (0, 0), 1.5)
        soft = cv2.GaussianBlur(xyz[t], (0, 0), 1.5)
        xyz[t] = np.where(rollout.robot_mask[t][..., None], xyz[t], soft)
    blurred = Rollout(rgb, xyz, rollout.robot_mask, rollout.camera, rollout.times, Provenance("blur"))
    track = track_object(blurred, target)
    np.testing.assert_allclose(moved(track)[-1], (path - path[0])[-1], atol=0.015)


def test_missing_depth_reduces_confidence_but_not_accuracy() -> None:
    rollout, target, path = pick()
    xyz = rollout.xyz.copy()
    holes = np.random.default_rng(0).random(rollout.robot_mask.shape) < 0.5
    xyz[holes & ~rollout.robot_mask] = np.nan
    track = track_object(
        Rollout(rollout.rgb, xyz, rollout.robot_mask, CAMERA, rollout.times, Provenance("holes")), target
    )
    np.testing.assert_allclose(moved(track)[-1], (path - path[0])[-1], atol=0.01)


def test_a_copy_left_behind_reduces_confidence() -> None:
    rollout, target, path = pick()
    alone = track_object(rollout, target)
    balls = [Ball(path, RED), Ball(path[0], RED), *fingers(path)]
    double = film(balls, len(path))
    track = track_object(double, ball_mask(path[0], double))
    assert track.confidence[-1] < 0.7 * alone.confidence[-1]


def test_a_large_image_is_subsampled_and_gives_the_same() -> None:
    camera = CAMERA.scaled(720, 480)
    path = np.stack([np.full(4, 0.3), np.linspace(0, 0.06, 4), np.full(4, RADIUS)], axis=1)
    rollout = film([Ball(path, RED)], 4, camera)
    target = ball_mask(path[0], rollout)
    assert target.sum() > 4 * 600
    np.testing.assert_allclose(moved(track_object(rollout, target)), path - path[0], atol=0.003)


def test_the_target_is_the_object_at_the_gripper() -> None:
    rollout, target, path = pick()
    found = find_target(rollout)
    assert (found & target).sum() / (found | target).sum() > 0.85
    tip = tip_path(rollout)
    assert tip[0, 2] > tip[7, 2]
    np.testing.assert_allclose(tip[7, :2], path[7, :2], atol=0.02)


def test_the_centre_is_behind_the_surface() -> None:
    rollout, target, path = pick()
    surface = rollout.points_base(0)[target].astype(np.float64)
    guess = centre_behind(surface, CAMERA.base_T_camera[:3, 3])
    np.testing.assert_allclose(guess[:2], path[0, :2], atol=0.004)
    assert np.linalg.norm(surface.mean(axis=0)[:2] - path[0, :2]) > 0.009
    above = centre_behind(surface, np.array([*surface.mean(axis=0)[:2], 2.0]))
    np.testing.assert_array_equal(above, surface.mean(axis=0))


def test_invalid_targets_are_refused() -> None:
    rollout, target, _ = pick(6)
    with pytest.raises(EvaluationError, match="target is uint8"):
        track_object(rollout, target.astype(np.uint8))
    with pytest.raises(EvaluationError, match=r"shape \(10, 10\)"):
        track_object(rollout, np.ones((10, 10), bool))
    with pytest.raises(EvaluationError, match="has 0 points"):
        track_object(rollout, np.zeros_like(target))
    blind = Rollout(
        rollout.rgb, np.full_like(rollout.xyz, np.nan), rollout.robot_mask, CAMERA, rollout.times, rollout.provenance
    )
    with pytest.raises(EvaluationError, match="has 0 points"):
        track_object(blind, target)


def test_no_target_without_robot_table_or_object() -> None:
    with pytest.raises(EvaluationError, match="no robot"):
        find_target(film([Ball([0.3, 0, RADIUS], RED)], 3))
    path = np.stack([np.full(4, 0.3), np.zeros(4), np.linspace(0.1, 0.03, 4)], axis=1)
    bare = film(fingers(path), 4)
    with pytest.raises(EvaluationError, match="no object is on the table"):
        find_target(bare)
    wild = np.random.default_rng(0).normal(0, 0.3, bare.xyz.shape).astype(np.float32) + np.float32([0, 0, 1])
    xyz = np.where(bare.robot_mask[..., None], bare.xyz, wild)
    with pytest.raises(EvaluationError, match="contain no plane"):
        find_target(Rollout(bare.rgb, xyz, bare.robot_mask, CAMERA, bare.times, bare.provenance))
