from __future__ import annotations

import numpy as np
import pytest

from kinema4d_ros.core.errors import ErrorCode
from kinema4d_ros.core.transforms import make
from kinema4d_ros.kinematics import Kinematics, choose_kinematics
from kinema4d_ros.lab.occlusion import hidden_fraction
from kinema4d_ros.lab.scenario import TABLE_SCENARIOS, Scenario, ScenarioError, demo_eye, make_scenario, scenario_names
from kinema4d_ros.lab.scripted import is_held
from kinema4d_ros.lab.simulation import LabSimulation
from kinema4d_ros.physics.objects import ODD_SHAPES
from kinema4d_ros.robot import Robot

SEEDS = range(40)


def gaps(scenario: Scenario) -> list[float]:
    """Compute the gaps between outlines of the target and the other objects, seen from above."""
    target, *others = scenario.objects
    return [
        float(np.hypot(*(o.position - target.position)[:2])) - o.object.radius - target.object.radius for o in others
    ]


def test_unknown_scenario_error_lists_the_known_names() -> None:
    with pytest.raises(ScenarioError) as caught:
        make_scenario("tidy")
    assert caught.value.code == ErrorCode.SCENARIO_UNKNOWN
    assert all(name in str(caught.value) for name in ("canonical", "cluttered", "dynamic"))


def test_negative_seed_is_rejected() -> None:
    with pytest.raises(ScenarioError, match="seed is -1"):
        make_scenario("canonical", -1)


@pytest.mark.parametrize("name", scenario_names())
def test_only_equal_seeds_give_equal_scenes(name: str) -> None:
    a, b, c = make_scenario(name, 5), make_scenario(name, 5), make_scenario(name, 6)
    assert [o.object for o in a.objects] == [o.object for o in b.objects]
    for first, second in zip(a.objects, b.objects, strict=True):
        assert np.array_equal(first.base_T_object, second.base_T_object)
    assert np.array_equal(a.goal, b.goal)
    assert not np.array_equal(a.objects[0].base_T_object, c.objects[0].base_T_object)


@pytest.mark.parametrize("name", TABLE_SCENARIOS)
def test_objects_never_touch_and_have_unique_names(name: str) -> None:
    for seed in SEEDS:
        objects = make_scenario(name, seed).objects
        assert len({o.name for o in objects}) == len(objects)
        for i, first in enumerate(objects):
            assert first.position[2] == pytest.approx(first.object.height / 2)
            for second in objects[:i]:
                apart = np.hypot(*(first.position - second.position)[:2])
                assert apart > first.object.radius + second.object.radius


def test_stacked_has_the_target_on_another_object_or_under_one() -> None:
    roles = []
    for seed in SEEDS:
        target, other, *rest = make_scenario("stacked", seed).objects
        lower, upper = sorted((target, other), key=lambda o: float(o.position[2]))
        roles.append(target is upper)
        assert lower.position[2] == pytest.approx(lower.object.height / 2)
        assert upper.position[2] == pytest.approx(lower.object.height + upper.object.height / 2)
        assert np.hypot(*(upper.position - lower.position)[:2]) < lower.object.size[0] / 2
        assert all(o.position[2] == pytest.approx(o.object.height / 2) for o in rest)
    assert 0.25 < np.mean(roles) < 0.75


def test_held_has_the_target_in_the_gripper(yam: Robot) -> None:
    lab = LabSimulation("held", 6, yam)
    state, drawn = lab.state(), lab.scenario
    target = state.objects[state.target]
    assert drawn.held_m is not None
    assert state.time_s == 0.0
    assert target.position[2] == pytest.approx(target.object.height / 2 + drawn.held_m, abs=0.01)
    assert {"left_finger", "right_finger"} <= set(lab.touching(state.target))
    assert is_held(state, state.target, choose_kinematics(yam))
    lab.step(0.5)
    assert lab.state().objects[state.target].position == pytest.approx(target.position, abs=2e-3)
    again = lab.reset("held", 6)
    assert np.array_equal(again.commanded, state.commanded)
    assert not is_held(lab.reset("canonical", 6), lab.scenario.target, choose_kinematics(yam))


def test_canonical_has_one_object() -> None:
    assert all(len(make_scenario("canonical", seed).objects) == 1 for seed in SEEDS)


def test_cluttered_has_three_to_five_neighbours_within_five_centimetres() -> None:
    counts = set()
    for seed in SEEDS:
        scenario = make_scenario("cluttered", seed)
        counts.add(len(scenario.objects) - 1)
        assert max(gaps(scenario)) <= 0.05
    assert counts == {3, 4, 5}


def test_dynamic_has_more_than_five_others_a_passage_and_partial_occlusion() -> None:
    hidden = []
    for seed in SEEDS:
        scenario = make_scenario("dynamic", seed)
        target, *others = scenario.objects
        assert len(others) > 5
        hidden.append(hidden_fraction(target, others, demo_eye()))
        # The two posts stand on opposite sides, closer than the width of a fully open gripper with its fingers.
        left, right = (o.position[:2] - target.position[:2] for o in others[:2])
        assert np.dot(left, right) < 0
        assert np.linalg.norm(left - right) - others[0].object.radius - others[1].object.radius < 0.13
    assert min(hidden) > 0.05
    assert max(hidden) <= 0.6
    assert np.std(hidden) > 0.05


def test_occlusion_refers_to_the_given_camera() -> None:
    eye = (0.2, 1.0, 0.6)
    target, *others = make_scenario("dynamic", 3, eye).objects
    assert 0.05 < hidden_fraction(target, others, eye) <= 0.6


def colours(scenario: Scenario) -> list[str]:
    return [o.name.split("_")[0] for o in scenario.objects]


def test_odd_targets_are_all_odd_shapes_that_a_gripper_can_hold() -> None:
    seen = set()
    for seed in SEEDS:
        target = make_scenario("canonical", seed, odd_share=1.0).objects[0].object
        seen.add(target.shape)
        assert 0.020 <= target.size[1] <= 0.060
        assert 0.015 <= target.mass <= 0.15
        assert target.name.endswith(target.shape)
    assert seen == set(ODD_SHAPES)


def test_odd_share_is_the_share_of_odd_shapes() -> None:
    odd = [make_scenario("canonical", seed, odd_share=0.3).objects[0].object.shape in ODD_SHAPES for seed in range(60)]
    assert 0.15 < np.mean(odd) < 0.5
    others = [o.object.shape for seed in range(6) for o in make_scenario("cluttered", seed, odd_share=0.5).objects[1:]]
    assert any(shape in ODD_SHAPES for shape in others)
    assert any(shape not in ODD_SHAPES for shape in others)


def test_one_twin_has_the_colour_of_the_target_and_another_name() -> None:
    for odd_share in (0.0, 1.0):
        for seed in range(8):
            scenario = make_scenario("cluttered", seed, odd_share=odd_share, twins=1.0)
            first, *others = colours(scenario)
            assert others.count(first) == 1
            assert len({o.name for o in scenario.objects}) == len(scenario.objects)
            twin = next(o.object for o in scenario.objects[1:] if o.name.startswith(first))
            assert twin.rgb == scenario.objects[0].object.rgb
    without = [colours(make_scenario("cluttered", seed)) for seed in range(8)]
    assert all(others.count(first) == 0 for first, *others in without)


def test_a_scenario_without_distractors_has_no_twin() -> None:
    assert len(make_scenario("canonical", 0, twins=1.0).objects) == 1


def test_dynamic_layouts_with_odd_targets_keep_their_occlusion() -> None:
    scenario = make_scenario("dynamic", 2, odd_share=1.0, twins=1.0)
    target, *others = scenario.objects
    assert 0.05 < hidden_fraction(target, others, demo_eye()) <= 0.6


@pytest.mark.parametrize("options", [{"odd_share": -0.1}, {"odd_share": 1.5}, {"twins": 2.0}])
def test_shares_outside_of_zero_to_one_are_rejected(options: dict[str, float]) -> None:
    with pytest.raises(ScenarioError, match="probabilities from 0 to 1"):
        make_scenario("canonical", 0, **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def kinematics(yam: Robot) -> Kinematics:
    return choose_kinematics(yam)


@pytest.mark.parametrize("name", scenario_names())
def test_target_and_goal_are_within_reach(name: str, kinematics: Kinematics) -> None:
    for seed in range(6):
        scenario = make_scenario(name, seed)
        for x, y in (scenario.objects[0].position[:2], scenario.goal):
            bearing = np.arctan2(y, x) - np.pi / 2
            c, s = np.cos(bearing), np.sin(bearing)
            for z in (0.02, 0.12):
                kinematics.inverse(make([[c, s, 0], [s, -c, 0], [0, 0, -1.0]], [x, y, z]))
