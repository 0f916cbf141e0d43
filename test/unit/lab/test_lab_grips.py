from __future__ import annotations

import numpy as np
import pytest

from kinema4d_ros.core.transforms import apply, from_rpy, invert, make
from kinema4d_ros.lab.grips import FINGER_GAP_M, Grip, grips_of
from kinema4d_ros.physics.objects import ODD_SHAPES, LabObject, PlacedObject, parts_of
from kinema4d_ros.physics.parts import BOTTLE_NECK, ELL_LEG, TAPER_TOP, Shape, odd_size
from kinema4d_ros.robot.gripper import Fingers

FINGERS = Fingers(pad_width_m=0.022, width_m=0.044, thickness_m=0.022, length_m=0.045, tip_m=0.0024)
OPEN_M = 0.094
LOWEST_M = 0.004


def standing(shape: Shape, width: float = 0.05, height: float = 0.05, yaw: float = 0.6) -> PlacedObject:
    return PlacedObject.standing(LabObject("a", shape, odd_size(shape, width, height), (1, 0, 0), 0.05), 0.3, 0.1, yaw)


def grips(placed: PlacedObject, open_m: float = OPEN_M) -> list[Grip]:
    return grips_of(placed, FINGERS, open_m, LOWEST_M)


def in_object(placed: PlacedObject, grip: Grip) -> np.ndarray:
    return apply(invert(placed.base_T_object), [grip.x, grip.y, grip.z])


def extent(placed: PlacedObject, grip: Grip, depth_m: float) -> tuple[float, float]:
    """Smallest and largest coordinate along the closing direction of the object's material around the grip's line.

    Points within 1 mm of the grip's height and `depth_m` of its line, from a grid tested against the parts.
    """
    turn = np.array([np.cos(grip.yaw), np.sin(grip.yaw), 0.0])
    side = np.array([-turn[1], turn[0], 0.0])
    along, across = np.linspace(-0.05, 0.05, 401), np.linspace(-depth_m, depth_m, 5)
    a, b = (g.ravel() for g in np.meshgrid(along, across))
    points = np.array([grip.x, grip.y, grip.z]) + a[:, None] * turn + b[:, None] * side
    inside = np.zeros(len(points), dtype=bool)
    for part in parts_of(placed.object):
        q = apply(invert(placed.base_T_object @ part.object_T_part), points)
        half = np.array(part.size) / 2
        if part.kind == "cylinder":
            inside |= (np.hypot(q[:, 0], q[:, 1]) < half[0]) & (np.abs(q[:, 2]) < half[2])
        elif part.vertices is not None:
            shrink = 1 - (1 - TAPER_TOP) * (q[:, 2:] / part.size[2] + 0.5)
            inside |= np.all(np.abs(q) < half * np.concatenate([shrink, shrink, np.ones_like(shrink)], 1), axis=1)
        else:
            inside |= np.all(np.abs(q) < half, axis=1)
    return float(a[inside].min()), float(a[inside].max())


@pytest.mark.parametrize("shape", ["mug", "bottle", "hollow_box", "taper"])
def test_grips_are_as_wide_as_the_object_and_centred_on_it(shape: Shape) -> None:
    placed = standing(shape)
    found = grips(placed)
    assert len(found) >= 4
    for grip in found:
        low, high = extent(placed, grip, 0.002)
        assert high - low == pytest.approx(grip.width_m, abs=1.5e-3)
        assert low + high == pytest.approx(0.0, abs=1.5e-3)


def test_fingers_close_across_the_handle_of_a_mug_and_do_not_touch_it() -> None:
    placed = standing("mug")
    for grip in grips(placed):
        low, high = extent(placed, grip, FINGERS.pad_width_m / 2)
        assert high - low < placed.object.size[1] + 1e-3
        assert in_object(placed, grip)[0] < -0.005


def test_a_wide_bottle_is_held_by_its_neck() -> None:
    slim, wide = standing("bottle", 0.05, 0.1), standing("bottle", 0.075, 0.1)
    assert {g.width_m for g in grips(slim)} == {0.05}
    assert {g.width_m for g in grips(wide)} == {0.075 * BOTTLE_NECK}
    assert min(in_object(wide, g)[2] for g in grips(wide)) > 0.02
    assert max(in_object(slim, g)[2] for g in grips(slim)) < 0.01


@pytest.mark.parametrize(("side", "width"), [(0.05, 0.05), (0.075, 0.075 * ELL_LEG)])
def test_an_ell_is_held_along_a_leg_and_a_large_one_across_it(side: float, width: float) -> None:
    placed = standing("ell", side, 0.04)
    found = grips(placed)
    assert len(found) == 4
    for grip in found:
        low, high = extent(placed, grip, 0.002)
        assert grip.width_m == pytest.approx(width)
        assert high - low == pytest.approx(width, abs=1e-3)
        assert low + high == pytest.approx(0.0, abs=1e-3)
        # Nothing else of the object is where the wide part of a finger comes down.
        if width < side:
            low, high = extent(placed, grip, FINGERS.width_m / 2)
            assert high - low == pytest.approx(width, abs=1e-3)


def test_grips_turn_with_the_object() -> None:
    for shape in ODD_SHAPES:
        first, second = (grips(standing(shape, yaw=yaw)) for yaw in (0.0, 0.5))
        for a, b in zip(first, second, strict=True):
            assert b.yaw - a.yaw == pytest.approx(0.5)
            assert b.width_m == pytest.approx(a.width_m)


def test_nothing_to_hold_without_room_between_the_fingers() -> None:
    assert grips(standing("taper"), open_m=0.03) == []
    assert all(g.width_m + 2 * FINGER_GAP_M <= 0.06 for g in grips(standing("ell"), open_m=0.06))
    assert grips(standing("ell"), open_m=0.03) == []


def test_a_hull_is_held_across_its_narrow_sides() -> None:
    rng = np.random.default_rng(1)
    points = rng.normal(size=(60, 3))
    thing, _ = LabObject.hull(
        "a", points / np.linalg.norm(points, axis=1)[:, None] * [0.04, 0.015, 0.02], (1, 0, 0), 0.05
    )
    placed = PlacedObject.standing(thing, 0.3, 0.1, 0.0)
    found = grips(placed)
    assert found
    best = min(found, key=lambda g: g.width_m)
    assert best.width_m == pytest.approx(0.03, abs=0.006)
    assert abs(np.sin(best.yaw)) > 0.9
    assert abs(best.x - 0.3) < 0.005


def test_a_bottle_on_its_side_is_held_across() -> None:
    bottle = standing("bottle", 0.04, 0.1).object
    lying = PlacedObject(bottle, make(from_rpy([0.0, np.pi / 2, 0.0])[:3, :3], [0.3, 0.0, 0.02]))
    best = min(grips(lying), key=lambda g: g.width_m)
    assert abs(np.sin(best.yaw)) > 0.9
    assert best.width_m == pytest.approx(0.04, abs=0.002)
    assert 0.0 < best.z < 0.03
