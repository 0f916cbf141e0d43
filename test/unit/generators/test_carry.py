"""The carry hypothesis: closings are found, the right object is the candidate, and it moves with the gripper."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from numpy.typing import NDArray
from support.scenes import cast_world

from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import PointmapError
from kinema4d_ros.core.pointmap import GripTrack, PointmapSequence
from kinema4d_ros.core.rollout import WARNING, Frames
from kinema4d_ros.generators.carry import (
    DESCRIPTION,
    Grasp,
    carried_frames,
    describe,
    find_candidate,
    find_grasps,
)
from kinema4d_ros.generators.composite import CompositeGenerator
from kinema4d_ros.generators.protocol import GenerateRequest
from kinema4d_ros.generators.spec import load_generator
from kinema4d_ros.robot import Fingers

FRAMES, CLOSED = 8, 4
SPOT = np.array([0.30, 0.02])
HALF_M, TALL_M = 0.02, 0.05
FINGERS = Fingers(pad_width_m=0.022, width_m=0.044, thickness_m=0.022, length_m=0.045, tip_m=0.0024)


def camera() -> PinholeCamera:
    return PinholeCamera.look_at(
        np.array([0.9, -0.4, 0.7]), np.array([0.3, 0.0, 0.03]), width=120, height=80, focal_px=200.0
    )


def world_with(*boxes: NDArray[np.float64]) -> Frames:
    """A grey table with red boxes, with exact depth."""
    view = camera()
    plane = cast_world(view)
    xyz = cast_world(view, [([*spot, TALL_M / 2], (2 * HALF_M, 2 * HALF_M, TALL_M)) for spot in boxes])
    rgb = np.full((80, 120, 3), 120, np.uint8)
    rgb[xyz[..., 2] < plane[..., 2] - 1e-6] = (200, 30, 30)
    return Frames(rgb[None], xyz[None], np.zeros((1, 80, 120), bool))


def hand(lift_m: float = 0.08, opens_at: int | None = None, spot: NDArray[np.float64] = SPOT) -> PointmapSequence:
    """No robot in view; a gripper that closes at `SPOT` and then moves up and sideways."""
    poses = np.tile(np.diag([1.0, -1.0, -1.0, 1.0]), (FRAMES, 1, 1))
    poses[:, :2, 3], poses[:, 2, 3] = spot, 0.03
    rising = np.linspace(0, 1, FRAMES - CLOSED)
    poses[CLOSED:, 2, 3] += lift_m * rising
    poses[CLOSED:, 1, 3] += 0.03 * rising
    width = np.array([0.09, 0.09, 0.07, 0.05, *[0.03] * (FRAMES - CLOSED)])
    if opens_at is not None:
        width[opens_at:] = 0.09
    shape = (FRAMES, 80, 120)
    return PointmapSequence(
        np.full((*shape, 3), np.nan, np.float32), np.zeros(shape, np.uint8), camera(), np.arange(FRAMES) * 0.2,
        np.zeros((*shape, 3), np.uint8), GripTrack(poses, width, FINGERS),
    )  # fmt: skip


def frames_of(world: Frames, robot: PointmapSequence) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    rgb, xyz = np.repeat(world.rgb, FRAMES, 0), np.repeat(world.xyz, FRAMES, 0)
    candidate = find_candidate(world, robot)
    assert candidate is not None
    assert robot.rgb is not None
    carried_frames(world, candidate, robot, robot.rgb, rgb, xyz, np.zeros((FRAMES, 80, 120), bool))
    return rgb, xyz


def red_points(rgb: NDArray[np.uint8], xyz: NDArray[np.float32]) -> NDArray[np.float64]:
    """Visible points (N, 3) of the box, base frame."""
    red = (rgb[..., 0] > 170) & (rgb[..., 1] < 60)
    pose = camera().base_T_camera
    return np.asarray(xyz[red].astype(np.float64) @ pose[:3, :3].T + pose[:3, 3])


def test_closings_are_found_with_their_release() -> None:
    poses = np.tile(np.eye(4), (12, 1, 1))
    width = np.array([0.05, 0.08, 0.08, 0.06, 0.03, 0.03, 0.03, 0.08, 0.08, 0.079, 0.05, 0.02])
    assert find_grasps(GripTrack(poses, width)) == (Grasp(2, 4, 7), Grasp(8, 11, 12))


def test_small_closings_are_ignored() -> None:
    poses = np.tile(np.eye(4), (5, 1, 1))
    for width in ([0.05] * 5, [0.02, 0.03, 0.04, 0.05, 0.06], [0.05, 0.0490, 0.0482, 0.0482, 0.05]):
        assert find_grasps(GripTrack(poses, np.array(width))) == ()


def test_the_object_at_the_fingers_is_the_candidate() -> None:
    other = SPOT + np.array((0.0, 0.11))
    world, robot = world_with(SPOT, other), hand()
    candidate = find_candidate(world, robot)
    assert candidate is not None
    assert candidate.grasp == Grasp(1, CLOSED, FRAMES)
    assert candidate.distance_m == 0.0
    pose = camera().base_T_camera
    points = world.xyz[0][candidate.mask] @ pose[:3, :3].T + pose[:3, 3]
    assert np.abs(points[:, :2] - SPOT).max() < HALF_M + 1e-3
    # All of its points that are clear of the table.
    everything = world.rgb[0, ..., 0] == 200
    assert candidate.mask.sum() > 0.75 * everything.sum() / 2


@pytest.mark.parametrize("change", ["no gripper", "never closes", "nothing stands", "out of reach"])
def test_no_candidate_without_grasp_object_or_reach(change: str) -> None:
    world, robot = world_with(SPOT), hand()
    assert robot.grip is not None
    if change == "no gripper":
        robot = dataclasses.replace(robot, grip=None)
    elif change == "never closes":
        robot = dataclasses.replace(robot, grip=GripTrack(robot.grip.base_T_grip, np.full(FRAMES, 0.09)))
    elif change == "nothing stands":
        world = world_with()
    else:
        world = world_with(SPOT + np.array((0.0, 0.10)))
    assert find_candidate(world, robot) is None
    assert not describe(None, robot).any()


def test_the_space_between_the_fingers_is_as_large_as_the_fingers() -> None:
    """3 cm across from the box: within reach of a wide pad, out of reach of a narrow one."""
    world, robot = world_with(SPOT + np.array((0.0, HALF_M + 0.045))), hand()
    assert robot.grip is not None
    distance = []
    for pad in (0.03, 0.06):
        fingers = dataclasses.replace(FINGERS, pad_width_m=pad, width_m=pad)
        found = find_candidate(world, dataclasses.replace(robot, grip=dataclasses.replace(robot.grip, fingers=fingers)))
        distance.append(None if found is None else found.distance_m)
    assert distance[0] is not None
    assert distance[1] is not None
    assert distance[0] - distance[1] == pytest.approx(0.015, abs=1e-6)


def test_the_carried_object_moves_with_the_gripper() -> None:
    world, robot = world_with(SPOT), hand()
    rgb, xyz = frames_of(world, robot)
    for t in range(CLOSED):
        assert np.array_equal(rgb[t], world.rgb[0])
    before, after = red_points(rgb[0], xyz[0]), red_points(rgb[-1], xyz[-1])
    way = after.mean(0) - before[before[:, 2] > 0.007].mean(0)
    assert np.allclose(way, [0.0, 0.03, 0.08], atol=0.004)
    # The table is visible where it stood.
    pose = camera().base_T_camera
    points = xyz[-1] @ pose[:3, :3].T + pose[:3, 3]
    stood = world.rgb[0, ..., 0] == 200
    gone = stood & ~((rgb[-1][..., 0] > 170) & (rgb[-1][..., 1] < 60))
    assert gone.sum() > 40
    assert np.abs(points[gone][:, 2]).max() < 0.012
    # Its size in the image is about the same: neither torn nor doubled.
    assert 0.75 < len(after) / len(before) < 1.35


def test_a_released_object_drops_onto_the_table() -> None:
    world, robot = world_with(SPOT), hand(opens_at=FRAMES - 1)
    rgb, xyz = frames_of(world, robot)
    held, dropped = red_points(rgb[-2], xyz[-2]), red_points(rgb[-1], xyz[-1])
    assert held[:, 2].min() > 0.03
    assert dropped[:, 2].min() < 0.02
    assert dropped[:, 2].max() < TALL_M + 0.01


def test_a_released_object_drops_onto_another_one() -> None:
    below = SPOT + np.array((0.0, 0.08))
    robot = hand(opens_at=FRAMES - 1)
    assert robot.grip is not None
    poses = robot.grip.base_T_grip.copy()
    poses[CLOSED:, 1, 3] = SPOT[1] + np.linspace(0, 1.5 * 0.08, FRAMES - CLOSED)  # over it in the last held frame
    robot = dataclasses.replace(robot, grip=GripTrack(poses, robot.grip.width_m, FINGERS))
    rgb, xyz = frames_of(world_with(SPOT, below), robot)
    dropped = red_points(rgb[-1], xyz[-1])
    # Two boxes on top of each other where there was one.
    assert 1.6 * TALL_M < dropped[:, 2].max() < 2.2 * TALL_M


def test_the_description_has_the_geometry_of_object_and_fingers() -> None:
    world = world_with(SPOT)
    numbers = {}
    for name, off in (("middle", 0.0), ("aside", 0.035)):
        robot = hand(spot=SPOT + np.array((0.0, off)))
        told = describe(find_candidate(world, robot), robot)
        assert told.shape == (len(DESCRIPTION),)
        assert told.dtype == np.float32
        numbers[name] = dict(zip(DESCRIPTION, told.tolist(), strict=True))
    middle, aside = numbers["middle"], numbers["aside"]
    assert middle["offered"] == aside["offered"] == 1
    assert middle["distance"] == 0 < aside["distance"]
    assert middle["between"] > 0.2 > aside["between"]
    # The gripper's y axis is the table's -y: a gripper further along y has the object at a larger y of its own.
    assert aside["y_mean"] - middle["y_mean"] == pytest.approx(0.035 / 0.05, abs=0.01)
    assert middle["width_open"] == pytest.approx(0.09 / 0.05, abs=1e-4)
    assert middle["width_closed"] == pytest.approx(0.03 / 0.05, abs=1e-4)
    assert middle["rises"] == pytest.approx(0.08 / 0.05, abs=1e-4)
    assert middle["kept"] == 1


@pytest.mark.parametrize(
    ("poses", "width", "text"),
    [
        (np.zeros((3, 3, 3)), np.zeros(3), "poses"),
        (np.tile(np.eye(4), (3, 1, 1)), np.zeros(2), "widths"),
        (np.tile(np.eye(4), (3, 1, 1)), np.array([0.0, -0.1, 0.0]), "negative"),
        (np.tile(np.eye(4), (3, 1, 1)), np.array([0.0, np.nan, 0.0]), "NaN"),
        (np.tile(2 * np.eye(4), (3, 1, 1)), np.zeros(3), "rotations"),
    ],
)
def test_invalid_grips_are_refused(poses: NDArray[np.float64], width: NDArray[np.float64], text: str) -> None:
    with pytest.raises(PointmapError, match=text):
        GripTrack(poses, width)


def test_the_generator_carries_and_says_that_it_decides_nothing() -> None:
    world, robot = world_with(SPOT), hand()
    request = GenerateRequest(world.rgb[0], robot, world.xyz[0, ..., 2])
    rollout = load_generator("carry").generate(request)
    rollout.check_points()
    before, after = (red_points(rollout.rgb[t], rollout.xyz[t]).mean(0) for t in (0, -1))
    assert after - before == pytest.approx([0.0, 0.03, 0.08], abs=0.004), "as the gripper moved"
    assert (rollout.provenance.generator, rollout.provenance.depth) == ("carry", "measured")
    assert "not predicted" in rollout.provenance.versions["hypothesis"]


def test_the_generator_without_depth_or_object_is_the_composite_and_says_so() -> None:
    world, robot = world_with(SPOT), hand()
    flat = load_generator("carry", lift=False).generate(GenerateRequest(world.rgb[0], robot))
    assert np.array_equal(flat.rgb, CompositeGenerator().generate(GenerateRequest(world.rgb[0], robot)).rgb)
    assert flat.provenance.depth == "plane"
    assert "nothing is carried" in flat.provenance.versions[WARNING]
    away = world_with(SPOT + np.array((0.0, 0.10)))
    missed = load_generator("carry").generate(GenerateRequest(away.rgb[0], robot, away.xyz[0, ..., 2]))
    assert "nothing is within reach" in missed.provenance.versions["hypothesis"]
    assert WARNING not in missed.provenance.versions
