"""Moved objects: boxes with known paths, fully visible and half hidden."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.scenes import cast_world, overhead_camera, rollout_of

from kinema4d_ros.previews.report.motion import find_motion

CAMERA = overhead_camera(360, 240)
SIZE = (0.06, 0.05, 0.07)
TOLERANCE_M = 0.006


def slide(start: np.ndarray, end: np.ndarray, frames: int = 6, others: tuple = ()) -> list[np.ndarray]:
    return [cast_world(CAMERA, [(start + (end - start) * s, SIZE), *others]) for s in np.linspace(0, 1, frames)]


@settings(max_examples=12)
@given(angle=st.floats(0, 2 * np.pi), distance=st.floats(0.03, 0.12))
def test_a_box_that_slides(angle: float, distance: float) -> None:
    start = np.array([0.0, 0.0, SIZE[2] / 2])
    way = distance * np.array([np.cos(angle), np.sin(angle), 0.0])
    motion = find_motion(rollout_of(CAMERA, slide(start, start + way)))
    assert len(motion.moved) == 1
    region = motion.moved[0]
    assert region.displacement_m == pytest.approx(distance, abs=TOLERANCE_M)
    assert np.allclose(region.end - region.start, way, atol=TOLERANCE_M)
    assert np.abs(region.start[:2]).max() < 0.04
    assert motion.unexplained < 0.01


def test_a_box_half_hidden_by_the_robot_all_the_time() -> None:
    start, end = np.array([-0.05, 0.0, 0.035]), np.array([0.06, 0.03, 0.035])
    frames = slide(start, end, 12)
    masks = []
    for i, frame in enumerate(frames):
        mask = np.zeros(frame.shape[:2], np.bool_)
        # A vertical bar that moves with the box and covers a third of it.
        column = round(
            float(
                CAMERA.project(
                    CAMERA.camera_T_base[:3, :3] @ (start + (end - start) * i / 11) + CAMERA.camera_T_base[:3, 3]
                )[0]
            )
        )
        mask[:, column - 4 : column + 4] = True
        frame[mask] = 0.3 * CAMERA.rays()[mask]
        masks.append(mask)
    motion = find_motion(rollout_of(CAMERA, frames, masks))
    assert motion.moved
    assert motion.moved[0].displacement_m == pytest.approx(np.linalg.norm(end - start), abs=2 * TOLERANCE_M)


def test_robot_motion_is_not_object_motion() -> None:
    world = cast_world(CAMERA, [((0, 0, 0.035), SIZE)])
    frames, masks = [], []
    for column in range(40, 300, 40):
        mask = np.zeros(world.shape[:2], np.bool_)
        mask[20:220, column : column + 50] = True
        frames.append(np.where(mask[..., None], 0.3 * CAMERA.rays(), world).astype(np.float32))
        masks.append(mask)
    motion = find_motion(rollout_of(CAMERA, frames, masks))
    assert motion.moved == ()
    assert motion.unexplained == 0.0


def test_two_boxes_largest_first_and_one_that_stays() -> None:
    a, b = np.array([-0.1, -0.05, 0.035]), np.array([0.1, 0.08, 0.035])
    ways = (np.array([0.0, 0.09, 0.0]), np.array([0.05, 0.0, 0.0]))
    still = ((0.0, -0.2, 0.03), (0.05, 0.05, 0.06))
    frames = [
        cast_world(CAMERA, [(a + s * ways[0], SIZE), (b + s * ways[1], SIZE), still]) for s in np.linspace(0, 1, 8)
    ]
    moved = find_motion(rollout_of(CAMERA, frames)).moved
    assert [round(region.displacement_m, 2) for region in moved] == [0.09, 0.05]
    assert np.allclose(moved[0].end - moved[0].start, ways[0], atol=TOLERANCE_M)
    assert np.allclose(moved[1].end - moved[1].start, ways[1], atol=TOLERANCE_M)


def test_a_box_that_is_lifted_and_put_back() -> None:
    start = np.array([0.0, 0.0, 0.035])
    heights = [0.0, 0.0, 0.04, 0.08, 0.04, 0.0]
    frames = [cast_world(CAMERA, [(start + np.array([0, 0, h]), SIZE)]) for h in heights]
    region = find_motion(rollout_of(CAMERA, frames, step_s=0.5)).moved[0]
    assert region.displacement_m == pytest.approx(0.08, abs=TOLERANCE_M)
    assert np.linalg.norm(region.end - region.start) < TOLERANCE_M
    assert region.first_motion_s == pytest.approx(1.0)
    assert region.track.shape == (6, 3)


def test_a_box_that_jumps_farther_than_it_is_large() -> None:
    start, end = np.array([-0.12, 0.0, 0.035]), np.array([0.12, 0.05, 0.035])
    region = find_motion(rollout_of(CAMERA, slide(start, end, 2))).moved[0]
    assert np.allclose(region.end - region.start, end - start, atol=TOLERANCE_M)


def test_noise_is_not_motion() -> None:
    rng = np.random.default_rng(0)
    world = cast_world(CAMERA, [((0, 0, 0.035), SIZE)])
    frames = [world + rng.normal(0, 0.002, world.shape).astype(np.float32) for _ in range(5)]
    assert find_motion(rollout_of(CAMERA, frames)).moved == ()


def test_the_same_rollout_gives_the_same_answer() -> None:
    rollout = rollout_of(CAMERA, slide(np.array([0.0, 0.0, 0.035]), np.array([0.07, 0.0, 0.035])))
    first, second = find_motion(rollout).moved[0], find_motion(rollout).moved[0]
    assert np.array_equal(first.track, second.track)
