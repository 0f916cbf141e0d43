"""Picks with known distances: a grasp is not a contact, and a held object is part of the robot."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from support.scenes import Box, cast_world, grabber, overhead_camera, rollout_with

from kinema4d_ros.core.rollout import Rollout
from kinema4d_ros.previews.report import make_report
from kinema4d_ros.previews.report.clearance import HELD, clearance_over_time, hidden_pixels
from kinema4d_ros.previews.report.grasped import find_grasped
from kinema4d_ros.robot import Robot

CAMERA = overhead_camera(270, 180)
SIZE = (0.04, 0.04, 0.05)
GRASP_M, AWAY_M = 0.025, 0.12
START, CLOSED, DOWN, RELEASE = 4, 6, 13, 14
"""Frames: open over the box; closed on it; set down; open again."""
HEIGHT = np.array(
    [0.25, 0.25, 0.12, 0.04, *[GRASP_M] * 3, 0.06, 0.12, 0.12, 0.12, 0.12, 0.06, 0.026, 0.026, 0.12, 0.25]
)
SHIFT = np.array([0, 0, 0, 0, 0, 0, 0, 0, 0, .04, .08, .12, .12, .12, .12, .12, .12])  # fmt: skip
FINGER = np.array([.02, .035, .035, .035, .035, .026, .018, *[.018] * 7, .035, .035, .035])  # fmt: skip
Q = np.stack([HEIGHT, SHIFT, FINGER], axis=1)


def box_at(t: int, carried: bool) -> Box:
    """The box: held from the closing to the release, then on the table."""
    if not carried or t < CLOSED:
        return (0.0, 0.0, SIZE[2] / 2), SIZE
    if t < RELEASE:
        return (0.0, SHIFT[t], SIZE[2] / 2 + HEIGHT[t] - GRASP_M), SIZE
    return (0.0, AWAY_M, SIZE[2] / 2), SIZE


def pick(robot: Robot, *, carried: bool = True, others: tuple[Box, ...] = (), q: NDArray[np.float64] = Q) -> Rollout:
    worlds = [cast_world(CAMERA, [box_at(t, carried), *others]) for t in range(len(q))]
    return rollout_with(robot, q, CAMERA, worlds)


@pytest.fixture
def robot(tmp_path: Path) -> Robot:
    return grabber(tmp_path)


def test_only_the_held_object_touches_the_scene_in_a_pick_and_place(robot: Robot) -> None:
    report = make_report(pick(robot), robot, Q)
    assert report.grasp_s == pytest.approx(0.1 * CLOSED)
    assert report.release_s == pytest.approx(0.1 * RELEASE)
    # The box comes down to a millimetre above the table before it is released.
    assert report.contact
    assert report.first_contact_link == HELD
    assert report.first_contact_s == pytest.approx(0.1 * DOWN)
    assert [w for w in report.warnings if "touches" in w] == ["The held object touches the scene at 1.30 s."]
    assert report.min_clearance_m > 0
    fingers = [m for m, link in zip(report.clearance_m, report.clearance_links, strict=True) if link != HELD]
    assert min(fingers) > 0.01
    # The lifted box's height over the table, while it is carried.
    for t in (9, 10, 11, 12):
        assert report.clearance_links[t] == HELD
        assert report.clearance_m[t] == pytest.approx(HEIGHT[t] - GRASP_M, abs=0.006)


def distances(rollout: Rollout, robot: Robot) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Clearance (T,) in metres without and with the grasped objects."""
    hidden = hidden_pixels(rollout)
    grasped = find_grasped(rollout, robot, Q, hidden)
    assert [one.carried for one in grasped] == [True]
    plain, found = (clearance_over_time(rollout, robot, Q, hidden=hidden, grasped=g).distance_m for g in ((), grasped))
    return plain, found


def test_a_carried_object_leaves_no_trail(robot: Robot) -> None:
    """Pixels hidden by the robot keep their last point, unless it was of an object that has moved."""
    plain, found = distances(pick(robot), robot)
    assert plain[DOWN] < -0.01, "the hand is in the box's trail"
    assert found[DOWN] == pytest.approx(0.001, abs=0.001), "the held box is a millimetre above the table"
    # Open fingers around the box at rest are 15 mm off it, before and after.
    assert found[3] == pytest.approx(0.015, abs=0.001)
    assert found[-1] == pytest.approx(plain[-1])


def test_a_carried_object_does_not_appear_early(robot: Robot) -> None:
    """Pixels that the robot hides until the box passes: the first point seen there is of the box, in the air."""
    rollout, by = pick(robot), 10
    low, high = np.array([-0.05, SHIFT[by] - 0.05, 0.08]), np.array([0.05, SHIFT[by] + 0.05, 0.2])
    p = rollout.points_base(by)
    there = np.all((p > low) & (p < high), axis=-1)
    assert there.sum() > 200
    mask = rollout.robot_mask.copy()
    mask[np.arange(len(Q)) != by] |= there
    plain, found = distances(dataclasses.replace(rollout, robot_mask=mask), robot)
    assert plain[2] < 0.06, "high above the table, the hand comes near to the box's future"
    assert found[2] == pytest.approx(HEIGHT[2] - SIZE[2], abs=0.003), "the nearest object is the box on the table"


def test_a_box_that_stays_is_grasped_too(robot: Robot) -> None:
    """A generator with a static scene: the fingers close on the box, which is not a contact."""
    report = make_report(pick(robot, carried=False), robot, Q)
    assert report.grasp_s == pytest.approx(0.1 * CLOSED)
    assert not report.contact
    assert HELD not in report.clearance_links


def test_fingers_that_come_down_on_the_box_touch_it(robot: Robot) -> None:
    q = Q.copy()
    q[:, 2] = np.minimum(q[:, 2], 0.015)
    report = make_report(pick(robot, carried=False, q=q), robot, q)
    assert report.contact
    assert report.first_contact_link in ("left_finger", "right_finger")
    assert report.first_contact_s < 0.1 * CLOSED
    assert np.isnan(report.grasp_s)


def test_fingers_that_close_beside_a_box_and_hit_it_touch_it(robot: Robot) -> None:
    """One finger closes on a second box from outside: it is not between them."""
    wall: Box = ((0.0, 0.045, 0.03), (0.2, 0.04, 0.06))
    q = Q.copy()
    q[CLOSED:, 0] = GRASP_M
    report = make_report(pick(robot, carried=False, others=(wall,), q=q), robot, q)
    assert report.contact
    assert report.first_contact_link in ("left_finger", "right_finger", "hand")
    assert report.first_contact_s > 0.1 * CLOSED


def test_a_held_box_that_touches_another_one_is_reported(robot: Robot) -> None:
    # Lower than the fingers, as high as the held box's underside: only the box can touch it.
    wall: Box = ((0.0, 0.08, 0.05), (0.1, 0.02, 0.1))
    report = make_report(pick(robot, others=(wall,)), robot, Q)
    assert report.contact
    assert report.first_contact_link == HELD
    assert 0.1 * 9 <= report.first_contact_s <= 0.1 * 10


def test_closing_without_an_object_is_not_a_grasp(robot: Robot) -> None:
    rollout = rollout_with(robot, Q, CAMERA, [cast_world(CAMERA)] * len(Q))
    report = make_report(rollout, robot, Q)
    assert np.isnan(report.grasp_s)
    assert np.isnan(report.release_s)
    assert find_grasped(rollout, robot, Q, hidden_pixels(rollout)) == ()
