"""Drift: a bump of 5 mm is seen, an unmoved camera is left in peace, masks of nothing are not judged."""

from __future__ import annotations

import numpy as np
import pytest
from support.seen_robot import draw_masks, random_camera, random_joints, wobble

from kinema4d_ros.calibration.drift import check_drift
from kinema4d_ros.calibration.pose_estimate import changed
from kinema4d_ros.camera import PinholeCamera
from kinema4d_ros.errors import CalibrationError
from kinema4d_ros.robot import Robot


def scene(robot: Robot, seed: int) -> tuple[PinholeCamera, np.ndarray]:
    rng = np.random.default_rng(seed)
    return random_camera(rng), random_joints(robot, rng, 3)


def look(robot: Robot, q: np.ndarray, camera: PinholeCamera, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.stack([wobble(mask, rng, 0.4, 0.2) for mask in draw_masks(robot, q, camera)])


@pytest.mark.parametrize("axis", range(3))
def test_a_bump_of_five_millimetres_is_seen(yam: Robot, axis: int) -> None:
    camera, q = scene(yam, axis)
    bumped = camera.posed(changed(camera.base_T_camera, 0.005 * np.eye(6)[axis]))
    found = check_drift(yam, q, look(yam, q, bumped), camera)
    assert found.verdict == "moved"
    assert found.shift_mm == pytest.approx(5.0, abs=2.5)
    assert "moved by" in found.text


def test_a_turn_of_half_a_degree_is_seen(yam: Robot) -> None:
    camera, q = scene(yam, 5)
    bumped = camera.posed(changed(camera.base_T_camera, [0, 0, 0, 0, np.radians(0.5), 0]))
    assert check_drift(yam, q, look(yam, q, bumped), camera).verdict == "moved"


def test_a_large_bump_is_followed(yam: Robot) -> None:
    camera, q = scene(yam, 6)
    bumped = camera.posed(changed(camera.base_T_camera, [0.03, -0.02, 0.01, 0.03, 0.04, 0.02]))
    found = check_drift(yam, q, look(yam, q, bumped), camera)
    assert found.verdict == "moved"
    assert found.iou < 0.75
    assert 1e3 * np.linalg.norm(found.base_T_camera[:3, 3] - bumped.base_T_camera[:3, 3]) < 6.0


@pytest.mark.parametrize("seed", [7, 8])
def test_an_unmoved_camera_is_left_in_peace(yam: Robot, seed: int) -> None:
    camera, q = scene(yam, seed)
    found = check_drift(yam, q, look(yam, q, camera, seed), camera)
    assert found.verdict == "still"
    assert found.distance < found.threshold or found.shift_mm < 2.0


def test_what_the_calibration_did_not_know_is_not_held_against_the_camera(yam: Robot) -> None:
    camera, q = scene(yam, 1)
    bumped = camera.posed(changed(camera.base_T_camera, [0.005, 0, 0, 0, 0, 0]))
    loose = np.diag([0.01**2] * 3 + [0.01**2] * 3)
    assert check_drift(yam, q, look(yam, q, bumped), camera, covariance=loose).verdict == "still"


def test_masks_that_show_nothing_are_not_judged(yam: Robot, primitive_arm: Robot) -> None:
    camera, q = scene(yam, 9)
    masks = look(yam, q, camera)
    assert check_drift(yam, q, masks & False, camera).verdict == "unknown"
    one_empty = np.stack([masks[0] & False, *masks[1:]])
    assert check_drift(yam, q, one_empty, camera).verdict == "still"
    with pytest.raises(CalibrationError, match="3 joint configurations and 2 masks"):
        check_drift(yam, q, masks[:2], camera)
    other = check_drift(primitive_arm, np.zeros((3, len(primitive_arm.joint_names))), masks, camera)
    assert other.verdict == "unknown"
    assert "cannot tell" in other.text
    with pytest.raises(CalibrationError, match="tolerances"):
        check_drift(yam, q, masks, camera, tolerance_mm=-1)
