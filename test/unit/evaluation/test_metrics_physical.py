"""Robot adherence and plausibility in scenes with exactly one error."""

from __future__ import annotations

import numpy as np
import pytest
from support.judge_scenes import CAMERA, GREEN, RADIUS, RED, Ball, film, fingers, pick

from kinema4d_ros.core.rollout import Provenance, Rollout
from kinema4d_ros.evaluation import EvaluationError, plausibility, robot_adherence

STILL = np.array([0.3, 0.0, RADIUS])


def with_points(rollout: Rollout, xyz: np.ndarray) -> Rollout:
    return Rollout(rollout.rgb, xyz, rollout.robot_mask, rollout.camera, rollout.times, Provenance("changed"))


def test_adherence_of_the_exact_robot_and_of_one_that_is_shifted() -> None:
    rollout, _, _ = pick(6)
    exact, mask = rollout.xyz, rollout.robot_mask
    perfect = robot_adherence(exact, exact, mask)
    np.testing.assert_array_equal(perfect.iou, 1)
    np.testing.assert_array_equal(perfect.depth_error_m, 0)
    off = exact.copy()
    off[..., 2] += np.float32(0.005)
    np.testing.assert_allclose(robot_adherence(off, exact, mask).depth_error_m, 0.005, atol=1e-6)
    np.testing.assert_array_equal(robot_adherence(off, exact, mask).iou, 1)
    off[..., 2] += np.float32(0.05)
    np.testing.assert_array_equal(robot_adherence(off, exact, mask).iou, 0)


def test_adherence_with_a_mask_is_the_iou_of_the_masks() -> None:
    rollout, _, _ = pick(6)
    other = np.roll(rollout.robot_mask, 4, axis=2)
    found = robot_adherence(rollout.xyz, rollout.xyz, rollout.robot_mask, other)
    for t in range(6):
        both, either = rollout.robot_mask[t] & other[t], rollout.robot_mask[t] | other[t]
        assert found.iou[t] == pytest.approx(both.sum() / either.sum())
        assert 0 < found.iou[t] < 1


def test_adherence_counts_missing_points_and_empty_frames() -> None:
    rollout, _, _ = pick(6)
    xyz, mask = rollout.xyz.copy(), rollout.robot_mask.copy()
    rows = np.flatnonzero(mask[0].any(axis=1))
    xyz[0, : rows[len(rows) // 2]] = np.nan
    mask[1] = False
    found = robot_adherence(xyz, rollout.xyz, mask)
    gone = mask[0] & np.isnan(xyz[0, ..., 2])
    assert found.missing[0] == pytest.approx(gone.sum() / mask[0].sum())
    assert found.depth_error_m[0] == 0
    assert np.isnan([found.iou[1], found.depth_error_m[1], found.missing[1]]).all()
    with pytest.raises(EvaluationError, match="without a point"):
        robot_adherence(rollout.xyz, xyz, rollout.robot_mask)
    with pytest.raises(EvaluationError, match="both"):
        robot_adherence(xyz[:2], xyz, mask)


def test_a_consistent_scene_has_no_violations() -> None:
    rollout, _, _ = pick()
    found = plausibility(rollout)
    for faults in (found.below_table, found.table_depth_m, found.vanished, found.appeared):
        np.testing.assert_array_equal(faults, 0)
    assert found.objects[0] == 2
    assert np.isnan(found.robot_depth_m).all()


def test_matter_is_constant_at_rest_and_falls_for_shrinking_objects() -> None:
    still = plausibility(film([Ball(STILL, RED)], 3)).matter
    np.testing.assert_allclose(still, 1.0)
    small = film([Ball(STILL, RED)], 2)
    half = film([Ball(STILL, RED, 0.7 * RADIUS)], 2)
    xyz = np.stack([small.xyz[0], half.xyz[1]])
    assert plausibility(with_points(small, xyz)).matter[1] == pytest.approx(0.5, abs=0.12)


def test_vanishing_and_appearing_objects_are_counted_in_their_frame() -> None:
    comes = np.tile([0.3, 0.12, RADIUS], (6, 1))
    comes[:4, 2] = -1
    goes = np.tile(STILL, (6, 1))
    goes[2:, 2] = -1
    found = plausibility(film([Ball(comes, GREEN), Ball(goes, RED)], 6))
    assert found.vanished.tolist() == [0, 0, 1, 0, 0, 0]
    assert found.appeared.tolist() == [0, 0, 0, 0, 1, 0]
    assert found.objects.tolist() == [1, 1, 0, 0, 1, 1]


def test_hidden_objects_have_not_vanished() -> None:
    curtain = np.tile([0.55, 0.0, -1.0], (5, 1))
    curtain[2:4, 2] = 0.22
    found = plausibility(film([Ball(STILL, RED), Ball(curtain, (30, 30, 30), 0.1, robot=True)], 5))
    assert found.objects.tolist() == [1, 1, 0, 0, 1]
    assert not found.vanished.any()
    assert not found.appeared.any()


def test_points_under_the_table() -> None:
    rollout = film([Ball(STILL, RED)], 3)
    xyz = rollout.xyz.copy()
    # The table's points of a block go 5 cm deeper, straight down.
    down = -CAMERA.base_T_camera[2, :3]
    xyz[1, 70:80, 20:60] += (0.05 * down).astype(np.float32)
    found = plausibility(with_points(rollout, xyz))
    assert found.below_table[[0, 2]].tolist() == [0, 0]
    assert found.below_table[1] == pytest.approx(400 / (96 * 144), rel=0.1)
    assert found.table_depth_m[1] == pytest.approx(0.05, abs=0.002)


def test_points_inside_the_robot(primitive_arm) -> None:
    from kinema4d_ros.kinematics.forward import forward_all

    rollout = film([Ball(STILL, RED)], 2)
    arm = primitive_arm
    q = np.zeros((2, len(arm.joint_names)))
    free = plausibility(rollout, arm, q).robot_depth_m
    # The middle of a primitive shape is inside of it.
    number, link = next((i, link) for i, link in enumerate(arm.links) if link.visuals and i > 1)
    inner = (forward_all(arm, q)[0, number] @ link.visuals[0].link_T_geometry)[:3, 3]
    xyz = rollout.xyz.copy()
    camera_T_base = CAMERA.camera_T_base
    xyz[1, 90, 5] = (camera_T_base[:3, :3] @ inner + camera_T_base[:3, 3]).astype(np.float32)
    stuck = plausibility(with_points(rollout, xyz), arm, q).robot_depth_m
    assert free.tolist() == [0, 0]
    assert stuck[0] == 0
    assert stuck[1] > 0.003
    with pytest.raises(EvaluationError, match="only one of"):
        plausibility(rollout, arm)


def test_a_scene_without_a_table_is_refused() -> None:
    rollout = film([Ball(STILL, RED), *fingers(np.tile(STILL, (2, 1)))], 2)
    with pytest.raises(EvaluationError, match="contain no plane"):
        plausibility(with_points(rollout, np.full_like(rollout.xyz, np.nan)))
