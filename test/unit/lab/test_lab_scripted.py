from __future__ import annotations

import dataclasses
from itertools import islice

import numpy as np
import pytest

from kinema4d_ros.core.errors import ErrorCode, KinemaError
from kinema4d_ros.kinematics import Kinematics, NoSolution
from kinema4d_ros.kinematics.gripping import finger_shape
from kinema4d_ros.lab import (
    LabSimulation,
    PlacedObject,
    ScenarioError,
    make_scenario,
    pick_and_place_plan,
    pick_plan,
    place_plan,
    push_plan,
    scenario_names,
    scripted,
)
from kinema4d_ros.physics.objects import ODD_SHAPES, Shape


@pytest.mark.parametrize(("name", "seeds"), [("canonical", range(6)), ("cluttered", range(3)), ("dynamic", range(3))])
def test_picks_lift_the_target_and_do_not_move_other_objects(
    shared_lab: LabSimulation, yam_kinematics: Kinematics, name: str, seeds: range
) -> None:
    for seed in seeds:
        before = shared_lab.reset(name, seed)
        target = before.target
        after = shared_lab.run(pick_plan(before, target, yam_kinematics))
        rise = after.objects[target].position[2] - before.objects[target].position[2]
        assert rise == pytest.approx(0.10, abs=0.01), f"{name} {seed}"
        assert {"left_finger", "right_finger"} <= set(shared_lab.touching(target))
        for other in before.objects:
            if other != target:
                moved = after.objects[other].position - before.objects[other].position
                assert np.linalg.norm(moved) < 0.01, f"{name} {seed}: {other}"


def test_pick_then_place_moves_the_target_to_its_goal(shared_lab: LabSimulation, yam_kinematics: Kinematics) -> None:
    before = shared_lab.reset("canonical", 1)
    shared_lab.run(pick_plan(before, before.target, yam_kinematics))
    after = shared_lab.run(place_plan(shared_lab, before.target, yam_kinematics))
    placed = after.objects[before.target]
    assert np.linalg.norm(placed.position[:2] - before.goal) < 0.01
    assert placed.position[2] == pytest.approx(placed.object.height / 2, abs=2e-3)
    assert not set(shared_lab.touching(before.target)) & {"left_finger", "right_finger"}


@pytest.mark.parametrize("name", scenario_names())
def test_pick_and_place_in_one_trajectory(shared_lab: LabSimulation, yam_kinematics: Kinematics, name: str) -> None:
    before = shared_lab.reset(name, 4)
    plan = pick_and_place_plan(before, before.target, yam_kinematics)
    assert plan.validate(shared_lab.robot, check_velocity=True) == ()
    after = shared_lab.run(plan)
    assert np.linalg.norm(after.objects[before.target].position[:2] - before.goal) < 0.012


def test_push_moves_the_target_along_its_direction(shared_lab: LabSimulation, yam_kinematics: Kinematics) -> None:
    before = shared_lab.reset("canonical", 0)
    start = before.objects[before.target].position
    direction = np.array([-start[1], start[0]]) / np.hypot(*start[:2]) * -np.sign(start[1] or 1.0)
    after = shared_lab.run(push_plan(before, before.target, yam_kinematics, direction, 0.06))
    moved = after.objects[before.target].position - start
    assert moved[:2] @ direction == pytest.approx(0.06, abs=0.02)
    assert abs(moved[2]) < 5e-3


def test_plans_start_at_the_arm_and_are_smooth(shared_lab: LabSimulation, yam_kinematics: Kinematics) -> None:
    state = shared_lab.reset("canonical", 3)
    for plan in (
        pick_plan(state, state.target, yam_kinematics),
        push_plan(state, state.target, yam_kinematics),
    ):
        np.testing.assert_array_equal(plan.positions[0], state.commanded)
        assert plan.validate(shared_lab.robot, check_velocity=True) == ()
        speed = plan.mean_velocities()
        assert np.abs(speed[0]).max() < 0.05
        assert np.abs(speed[-1]).max() < 0.05
        # Samples are 20 ms apart: 0.3 rad/s is an acceleration of 15 rad/s^2.
        assert np.abs(np.diff(speed, axis=0)).max() < 0.3


def test_place_without_a_grasp_is_rejected(shared_lab: LabSimulation, yam_kinematics: Kinematics) -> None:
    state = shared_lab.reset("canonical", 0)
    with pytest.raises(KinemaError) as caught:
        place_plan(state, state.target, yam_kinematics)
    assert caught.value.code == ErrorCode.PLAN_START_MISMATCH
    assert "does not hold" in str(caught.value)


def test_unknown_object_error_lists_the_known_names(shared_lab: LabSimulation, yam_kinematics: Kinematics) -> None:
    state = shared_lab.reset("cluttered", 0)
    with pytest.raises(ScenarioError) as caught:
        pick_plan(state, "teapot", yam_kinematics)
    assert all(name in str(caught.value) for name in state.objects)


def test_object_out_of_reach_raises_no_solution(shared_lab: LabSimulation, yam_kinematics: Kinematics) -> None:
    state = shared_lab.reset("canonical", 0)
    pose = state.objects[state.target].base_T_object.copy()
    pose[0, 3] = 0.7
    shared_lab.move_object(state.target, pose)
    with pytest.raises(NoSolution):
        pick_plan(shared_lab, state.target, yam_kinematics)


def test_grasp_clearance_uses_the_robots_finger_width(shared_lab: LabSimulation) -> None:
    """An object 5 cm beside the grasp has less clearance to fingers twice as wide."""
    state = shared_lab.reset("canonical", 0)
    target = state.objects[state.target]
    pose = target.base_T_object.copy()
    pose[:2, 3] += [0.0, 0.05 + target.object.radius]
    other = PlacedObject(target.object, pose)
    grasp = scripted.tool_down(*target.position, yaw=0.0)
    fingers = finger_shape(shared_lab.robot)
    wide = dataclasses.replace(fingers, width_m=2 * fingers.width_m)
    rooms = [scripted._finger_room(grasp, 0.04, shape, [other]) for shape in (fingers, wide)]
    assert rooms[0] - rooms[1] == pytest.approx(fingers.width_m / 2, abs=0.01)


@pytest.mark.parametrize("shape", ODD_SHAPES)
def test_picks_lift_odd_shapes(shape: Shape, shared_lab: LabSimulation, yam_kinematics: Kinematics) -> None:
    """The first two odd targets of this shape."""
    drawn = (make_scenario("canonical", seed, odd_share=1.0) for seed in range(100))
    for scenario in islice((s for s in drawn if s.objects[0].object.shape == shape), 2):
        before = shared_lab.reset(scenario)
        after = shared_lab.run(pick_plan(before, before.target, yam_kinematics))
        rise = after.objects[before.target].position[2] - before.objects[before.target].position[2]
        assert rise == pytest.approx(0.10, abs=0.015), scenario.seed
        assert {"left_finger", "right_finger"} <= set(shared_lab.touching(before.target))


def test_an_ell_held_beside_its_centre_is_placed_at_its_goal(
    shared_lab: LabSimulation, yam_kinematics: Kinematics
) -> None:
    drawn = (make_scenario("canonical", seed, odd_share=1.0) for seed in range(100))
    before = shared_lab.reset(next(s for s in drawn if s.objects[0].object.shape == "ell"))
    after = shared_lab.run(pick_and_place_plan(before, before.target, yam_kinematics))
    assert np.linalg.norm(after.objects[before.target].position[:2] - before.goal) < 0.015
    assert after.objects[before.target].base_T_object[2, 2] > 0.99
