"""Markerless calibration: camera pose from masks and a guess within 5 cm and 5 degrees; errors for bad input."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from support.panda_like import HOME, panda_like
from support.seen_robot import Seen, draw_masks, see_robot, wobble

from kinema4d_ros.calibration.markerless import Markerless, calibrate_markerless, refine_pose
from kinema4d_ros.calibration.pose_estimate import changed, difference
from kinema4d_ros.calibration.silhouette import Silhouettes, mask_iou, signed_distance
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import CalibrationError
from kinema4d_ros.robot import Robot

PANDA_EYE = PinholeCamera.look_at((1.1, -0.9, 0.7), (0.25, 0.0, 0.4), width=240, height=180, focal_px=220)


def solve(robot: Robot, seen: Seen) -> Markerless:
    return calibrate_markerless(robot, seen.q, seen.masks, seen.camera, guess=seen.guess)


def errors(found: Markerless, seen: Seen) -> tuple[float, float]:
    d = difference(found.base_T_camera, seen.camera.base_T_camera)
    return 1e3 * float(np.linalg.norm(d[:3])), float(np.degrees(np.linalg.norm(d[3:])))


@pytest.mark.parametrize("seed", range(2))
def test_a_guess_five_centimetres_and_five_degrees_away(yam: Robot, seed: int) -> None:
    seen = see_robot(yam, seed, poses=5, wobble_px=0.4, offset_px=0.2)
    found = solve(yam, seen)
    millimetres, degrees = errors(found, seen)
    assert millimetres < 3.0
    assert degrees < 0.3
    truth = draw_masks(yam, seen.q, seen.camera)
    assert Silhouettes(yam, seen.q, truth, seen.camera).overlap(found.base_T_camera) > 0.97
    assert found.quality.mask_iou is not None
    assert found.quality.mask_iou > 0.95
    assert found.contains(seen.camera.base_T_camera, 0.9999)
    assert found.quality.poses == 5


def test_exact_masks_give_submillimetre_accuracy(yam: Robot) -> None:
    seen = see_robot(yam, 4, poses=5, wobble_px=0, offset_px=0)
    found = solve(yam, seen)
    assert errors(found, seen)[0] < 0.7
    assert found.quality.verdict == "good"


def test_uniform_mask_offset_is_measured(yam: Robot) -> None:
    seen = see_robot(yam, 5, poses=5, wobble_px=0.3, offset_px=1.5)
    found = solve(yam, seen)
    assert found.mask_offset_px == pytest.approx(1.5, abs=0.4)
    assert errors(found, seen)[0] < 3.0


def test_occlusion_does_not_bias_the_pose(yam: Robot) -> None:
    seen = see_robot(yam, 6, poses=6, wobble_px=0.4, offset_px=0.0)
    for mask in seen.masks[::2]:
        row, column = np.argwhere(mask).mean(axis=0).astype(int)
        mask[row : row + 30, column - 20 : column + 20] = False
    found = solve(yam, seen)
    assert errors(found, seen)[0] < 3.0


def test_other_robot(primitive_arm: Robot) -> None:
    seen = see_robot(primitive_arm, 2, poses=5, wobble_px=0.4)
    found = solve(primitive_arm, seen)
    assert errors(found, seen)[0] < 4.0
    assert found.quality.mask_iou is not None
    assert found.quality.mask_iou > 0.95


def test_a_robot_whose_last_link_is_visible(tmp_path: Path) -> None:
    robot = panda_like(tmp_path)
    q = np.array(HOME) + np.random.default_rng(0).normal(0, 0.4, (3, 7))
    rough = changed(PANDA_EYE.base_T_camera, [0.01, -0.01, 0.01, 0.01, 0.0, -0.01])
    found = calibrate_markerless(robot, q, draw_masks(robot, q, PANDA_EYE), PANDA_EYE, guess=rough)
    assert 1e3 * np.linalg.norm(found.base_T_camera[:3, 3] - PANDA_EYE.base_T_camera[:3, 3]) < 4.0


@pytest.mark.parametrize("tool", [False, True], ids=["last link visible", "empty last link"])
def test_links_that_did_not_move_count_once(tmp_path: Path, tool: bool) -> None:
    robot = panda_like(tmp_path, tool=tool)
    q = np.tile(HOME, (3, 1))
    q[:, 6] += [0.0, 0.5, 1.0]
    silhouettes = Silhouettes(robot, q, draw_masks(robot, q, PANDA_EYE), PANDA_EYE)
    links = np.unique(silhouettes.edges(PANDA_EYE.base_T_camera, 1.0)[0].link)
    assert links.tolist() == list(range(9))
    # Seven links do not move; the last two have three poses each. Seven parameters are fitted.
    assert refine_pose(silhouettes, PANDA_EYE.base_T_camera).degrees_of_freedom == 7 + 2 * 3 - 7


def test_masks_that_lost_a_link_are_not_usable(tmp_path: Path) -> None:
    robot = panda_like(tmp_path)
    q = np.array(HOME) + np.random.default_rng(0).normal(0, 0.4, (3, 7))
    drawn = Silhouettes(robot, q, draw_masks(robot, q, PANDA_EYE), PANDA_EYE).draw(PANDA_EYE.base_T_camera)
    without_hand = np.asarray(drawn.mask & (drawn.link_ids != 9))
    found = refine_pose(Silhouettes(robot, q, without_hand, PANDA_EYE), PANDA_EYE.base_T_camera).quality
    assert found.verdict == "bad"
    (text,) = [f.text for f in found.findings if f.name == "lost_link"]
    assert re.fullmatch(r"the masks cover only \d% of link8", text)
    whole = refine_pose(Silhouettes(robot, q, drawn.mask, PANDA_EYE), PANDA_EYE.base_T_camera).quality
    assert "lost_link" not in whole.names


def test_rendered_masks_are_left_out_and_doubtful_ones_reported(tmp_path: Path) -> None:
    robot = panda_like(tmp_path)
    q = np.array(HOME) + np.random.default_rng(0).normal(0, 0.4, (3, 7))
    masks = draw_masks(robot, q, PANDA_EYE)
    with pytest.raises(CalibrationError, match="all 3 masks are rendered"):
        calibrate_markerless(robot, q, masks, PANDA_EYE, drawn=[0, 1, 2])
    names = ["a.png", "b.png", "c.png"]
    found = calibrate_markerless(robot, q, masks, PANDA_EYE, names=names, drawn=[0], doubtful=[0, 2]).quality
    assert [name for name, _ in found.views] == ["b.png", "c.png"]
    assert {"drawn_masks", "doubtful_masks"} <= set(found.names)
    assert "1 of 2 masks are doubtful: c.png" in "\n".join(found.lines())
    assert found.verdict == "usable"
    worse = calibrate_markerless(robot, q, masks, PANDA_EYE, doubtful=[0, 2]).quality
    assert worse.verdict == "bad"


def test_masks_of_another_robot_are_reported(yam: Robot, primitive_arm: Robot) -> None:
    seen = see_robot(yam, 0, poses=3)
    q = np.zeros((3, len(primitive_arm.joint_names)))
    found = calibrate_markerless(primitive_arm, q, seen.masks, seen.camera, guess=seen.guess)
    assert "poor_overlap" in found.quality.names
    assert found.quality.verdict == "bad"


def test_mirrored_masks_are_reported(yam: Robot) -> None:
    seen = see_robot(yam, 1, poses=3)
    found = calibrate_markerless(yam, seen.q, seen.masks[:, :, ::-1], seen.camera, guess=seen.guess)
    assert "poor_overlap" in found.quality.names


def test_one_configuration_is_a_warning(yam: Robot) -> None:
    seen = see_robot(yam, 3, poses=1, wobble_px=0.3)
    assert "too_few_poses" in solve(yam, seen).quality.names


def test_the_same_image_many_times_counts_once(yam: Robot) -> None:
    seen = see_robot(yam, 3, poses=1, wobble_px=0.5)
    once = solve(yam, seen)
    rng = np.random.default_rng(0)
    q = np.repeat(seen.q, 6, axis=0) + rng.normal(0, 1e-4, (6, seen.q.shape[1]))
    many = calibrate_markerless(yam, q, np.repeat(seen.masks, 6, axis=0), seen.camera, guess=seen.guess)
    assert many.quality.verdict == "bad"
    assert {"too_similar", "too_few_poses"} <= set(many.quality.names)
    assert many.quality.poses == 1
    assert many.degrees_of_freedom == once.degrees_of_freedom
    # Repeated images do not reduce the uncertainty.
    assert many.sigma_mm > 0.7 * once.sigma_mm
    assert many.contains(seen.camera.base_T_camera)


def test_similar_poses_are_reported(yam: Robot) -> None:
    rng = np.random.default_rng(1)
    seen = see_robot(yam, 2, poses=1)
    q = seen.q + np.linspace(-0.06, 0.06, 5)[:, None] * np.sign(rng.normal(size=seen.q.shape[1]))
    masks = draw_masks(yam, q, seen.camera)
    found = calibrate_markerless(yam, q, masks, seen.camera, guess=seen.guess)
    assert "too_similar" in found.quality.names
    assert found.quality.spread is not None


def test_camera_moved_between_two_images_is_reported(yam: Robot) -> None:
    seen = see_robot(yam, 8, poses=6, wobble_px=0.4, offset_px=0.2)
    still = solve(yam, seen)
    assert "moved_camera" not in still.quality.names
    bumped = seen.camera.posed(changed(seen.camera.base_T_camera, [0.006, 0.007, -0.004, 0, 0, 0]))
    masks = seen.masks.copy()
    rng = np.random.default_rng(3)
    masks[3:] = [wobble(mask, rng, 0.4, 0.2) for mask in draw_masks(yam, seen.q[3:], bumped)]
    names = [f"{i}.png" for i in range(6)]
    found = calibrate_markerless(yam, seen.q, masks, seen.camera, guess=seen.guess, names=names)
    assert "moved_camera" in found.quality.names
    assert found.quality.verdict == "bad"
    (text,) = [f.text for f in found.quality.findings if f.name == "moved_camera"]
    assert any(name in text for name in ("2.png", "3.png", "4.png"))


def test_worst_image_is_reported(yam: Robot) -> None:
    seen = see_robot(yam, 0, poses=5, wobble_px=0.2)
    seen.masks[3] = np.roll(seen.masks[3], 12, axis=1)
    found = solve(yam, seen)
    assert max(found.quality.views, key=lambda view: view[1])[0] == "image 3"
    assert "image 3" in "\n".join(found.quality.lines())


def test_bad_input_is_refused(yam: Robot) -> None:
    seen = see_robot(yam, 0, poses=2)
    with pytest.raises(CalibrationError, match=r"mask 1 is empty \(poor_overlap\)"):
        calibrate_markerless(yam, seen.q, np.stack([seen.masks[0], seen.masks[1] & False]), seen.camera)
    with pytest.raises(CalibrationError, match="whole image"):
        calibrate_markerless(yam, seen.q, seen.masks | True, seen.camera)
    with pytest.raises(CalibrationError, match="2 joint configurations and 1 masks"):
        calibrate_markerless(yam, seen.q, seen.masks[:1], seen.camera)
    with pytest.raises(CalibrationError, match="mask 0 is uint8"):
        calibrate_markerless(yam, seen.q, seen.masks.astype(np.uint8), seen.camera)  # type: ignore[arg-type]
    away = changed(seen.camera.base_T_camera, [0, 0, 0, 0, np.pi, 0])
    with pytest.raises(CalibrationError, match="did_not_converge"):
        calibrate_markerless(yam, seen.q, seen.masks, seen.camera, guess=away)


def test_distances_to_an_outline() -> None:
    mask = np.zeros((20, 30), np.bool_)
    mask[5:15, 10:20] = True
    distance = signed_distance(mask)
    assert distance[10, 10] == -0.5
    assert distance[10, 9] == 0.5
    assert distance[10, 25] == 5.5
    assert distance[2, 7] == pytest.approx(np.hypot(3, 3) - 0.5, abs=1e-3)
    assert (signed_distance(np.zeros((5, 5), np.bool_)) > 5).all()
    assert mask_iou(mask, mask) == 1.0
    assert mask_iou(mask, np.roll(mask, 5, axis=1)) == pytest.approx(1 / 3)
    assert mask_iou(mask & False, mask & False) == 1.0


def test_pixels_outside_the_lens_are_ignored(yam: Robot) -> None:
    """Ignore the black borders that a strong pincushion lens leaves in the rectified image."""
    seen = see_robot(yam, 7, poses=2, wobble_px=0, offset_px=0)
    lens = PinholeCamera(
        seen.camera.width, seen.camera.height, seen.camera.K, seen.camera.base_T_camera, (0.35, 0.0, 0.0, 0.0, 0.0)
    )
    silhouettes = Silhouettes(yam, seen.q, draw_masks(yam, seen.q, lens), lens)
    assert not silhouettes.seen(1.0).inside.all()
    assert silhouettes.overlap(lens.base_T_camera) > 0.97
