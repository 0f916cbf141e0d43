"""Profiles of the lab: the constant one is today's physics; what the hidden one draws is in range and stays hidden."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest

from kinema4d_ros.core.errors import ErrorCode, KinemaError
from kinema4d_ros.kinematics import Kinematics
from kinema4d_ros.lab import (
    SMALL,
    LabCamera,
    LabObject,
    LabProfile,
    LabSimulation,
    Scenario,
    load_profile,
    make_scenario,
    pick_plan,
    profile_names,
    scenario_names,
)
from kinema4d_ros.lab.profile import _LIMITS, SceneConstants
from kinema4d_ros.lab.simulation import LabState
from kinema4d_ros.physics.controller import TrajectoryController
from kinema4d_ros.physics.model import Materials, build_model
from kinema4d_ros.physics.objects import ODD_SHAPES, PlacedObject
from kinema4d_ros.robot import Robot
from kinema4d_ros.worlds import LabWorld

OLD = Materials((0.5, 0.01, 0.001), 1.2, 0.15, 0.02, 7e-4, 2e-3)
"""The constants of all figures published before there were profiles."""
HIDDEN = load_profile("hidden")
THING = LabObject("red_box", "box", (0.04, 0.05, 0.06), (1.0, 0.0, 0.0), 0.05)
BALL = LabObject("ball", "sphere", (0.04, 0.04, 0.04), (0.0, 1.0, 0.0), 0.02)


def placed(*things: LabObject) -> tuple[PlacedObject, ...]:
    return tuple(PlacedObject.standing(thing, 0.3, 0.1 * i, 0.2) for i, thing in enumerate(things))


@pytest.fixture(scope="module")
def hidden_lab(yam: Robot) -> LabSimulation:
    return LabSimulation("canonical", 0, yam, profile="hidden")


def test_profiles_are_not_scenarios() -> None:
    assert profile_names() == ("constant", "hidden")
    assert not set(profile_names()) & set(scenario_names())
    assert load_profile(HIDDEN) is HIDDEN
    with pytest.raises(KinemaError, match="'secret' does not exist") as caught:
        load_profile("secret")
    assert caught.value.code is ErrorCode.ARGUMENT_INVALID
    assert "constant, hidden" in caught.value.expected


@pytest.mark.parametrize(
    ("ranges", "words"),
    [
        ({"gravity": (9.0, 10.0)}, "unknown gravity"),
        ({"friction": (1.2, 0.3)}, r"friction is \[1.2, 0.3\]"),
        ({"delay_s": (-0.1, 0.1)}, "delay_s"),
        ({"jpeg_quality": (10.0, float("nan"))}, "jpeg_quality"),
    ],
)
def test_bad_ranges_are_named(ranges: dict[str, tuple[float, float]], words: str) -> None:
    with pytest.raises(KinemaError, match=words):
        LabProfile("mine", ranges)
    with pytest.raises(KinemaError, match="odd_share is 2"):
        LabProfile("mine", odd_share=2.0)


def test_constant_builds_the_model_of_the_old_constants_bit_by_bit(shared_lab: LabSimulation, yam: Robot) -> None:
    shared_lab.reset("dynamic", 4)
    scenario = shared_lab.scenario
    constants = shared_lab.constants
    assert (constants.materials, constants.delay_s, constants.sensor.noise) == (OLD, 0.0, 0.0)
    assert [one.object for one in constants.objects] == [one.object for one in scenario.objects]
    ours, old = (build_model(yam, o, m) for o, m in ((constants.objects, constants.materials), (scenario.objects, OLD)))
    size = mujoco.mj_sizeModel(old)
    bytes_of = [np.empty(size, np.uint8) for _ in range(2)]
    for model, buffer in zip((ours, old), bytes_of, strict=True):
        mujoco.mj_saveModel(model, None, buffer)
    assert np.array_equal(*bytes_of)


def test_constant_moves_as_a_plain_loop_with_the_old_constants(
    shared_lab: LabSimulation, yam: Robot, yam_kinematics: Kinematics
) -> None:
    start = shared_lab.reset("canonical", 1)
    plan = pick_plan(start, start.target, yam_kinematics)
    model = build_model(yam, shared_lab.scenario.objects, OLD)
    data = mujoco.MjData(model)
    home = yam.home_position()
    joints = [int(model.joint(name).qposadr[0]) for name in yam.joint_names]
    data.qpos[joints] = data.ctrl[:] = home
    for joint in yam.joints:
        if joint.mimic:
            leader = home[yam.joint_names.index(joint.mimic.joint)]
            data.qpos[model.joint(joint.name).qposadr[0]] = joint.mimic.multiplier * leader + joint.mimic.offset
    mujoco.mj_step(model, data, 250)
    data.time = 0.0
    mujoco.mj_forward(model, data)
    controller = TrajectoryController(yam, home)
    lead_s = -model.actuator_biasprm[:, 2] / model.actuator_gainprm[:, 0]
    controller.follow(plan, 0.0, data.qpos[joints].copy())
    for _ in range(500):
        q, v = controller.target(data.time)
        data.ctrl[:] = q + lead_s * v
        mujoco.mj_step(model, data)
    shared_lab.follow(plan)
    shared_lab.step(1.0)
    state = shared_lab.state()
    np.testing.assert_array_equal(state.positions, data.qpos[joints])
    np.testing.assert_array_equal(state.objects[start.target].position, data.body(start.target).xpos)


def test_every_constant_is_in_its_range_and_varies() -> None:
    drawn = [HIDDEN.draw("canonical", seed, placed(THING, BALL)) for seed in range(60)]

    def check(key: str, values: list[float]) -> None:
        low, high = HIDDEN.ranges[key]
        found = np.array(values)
        assert np.all((found >= low - 1e-12) & (found <= high + 1e-12)), key
        spread = (lambda x: np.log(x)) if _LIMITS[key].log else (lambda x: x)
        assert np.ptp(spread(found)) > 0.6 * (spread(high) - spread(low)), key

    assert set(HIDDEN.ranges) == set(_LIMITS)
    boxes = [one.objects[0].object for one in drawn]
    check("density", [box.mass / THING.mass for box in boxes])
    check("friction", [box.friction for box in boxes])
    for axis in range(3):
        check("center_of_mass", [box.center_of_mass[axis] / THING.size[axis] * 2 for box in boxes])
    check("table_friction", [one.materials.friction[0] for one in drawn])
    check("finger_friction", [one.materials.finger_friction / OLD.finger_friction for one in drawn])
    check("servo_gain", [OLD.servo_span_rad / one.materials.servo_span_rad for one in drawn])
    check("servo_gain", [OLD.servo_span_m / one.materials.servo_span_m for one in drawn])
    check("delay_s", [one.delay_s for one in drawn])
    check("noise", [one.sensor.noise for one in drawn])
    check("exposure_ev", [one.sensor.exposure_ev for one in drawn])
    for channel in range(2):
        check("white_balance", [one.sensor.white_balance[channel] for one in drawn])
    check("jpeg_quality", [float(one.sensor.jpeg_quality or 0) for one in drawn])
    # The others keep their value, and a ball lies on its heavy side, or it would roll.
    assert {(one.materials.friction[1:], one.materials.rotor_inertia) for one in drawn} == {((0.01, 0.001), 7e-4)}
    assert all(x == y == 0.0 and z <= 0.0 for x, y, z in (one.objects[1].object.center_of_mass for one in drawn))


def test_a_draw_depends_on_scenario_and_seed_alone() -> None:
    def draw(*case: Any) -> SceneConstants:
        return HIDDEN.draw(*case)

    def values(drawn: SceneConstants) -> tuple[Any, ...]:
        return drawn.materials, drawn.delay_s, drawn.sensor, tuple(one.object for one in drawn.objects)

    things = placed(THING, BALL)
    assert values(draw("canonical", 3, things)) == values(draw("canonical", 3, things))
    assert values(draw("canonical", 3))[:3] == values(draw("canonical", 3, things))[:3]
    assert values(draw("canonical", 3, things[:1]))[3] == values(draw("canonical", 3, things))[3][:1]
    assert values(draw("canonical", 3))[:3] != values(draw("canonical", 4))[:3]
    assert values(draw("canonical", 3))[:3] != values(draw("dynamic", 3))[:3]
    # A profile with fewer ranges draws the same values for those it has.
    delayed = LabProfile("delayed", {"delay_s": HIDDEN.ranges["delay_s"]}).draw("canonical", 3, things)
    assert delayed.delay_s == draw("canonical", 3).delay_s
    assert delayed.materials == OLD
    assert [one.object for one in delayed.objects] == [one.object for one in things]


def test_the_physics_does_not_change_the_layout(shared_lab: LabSimulation, yam: Robot) -> None:
    hidden = LabSimulation("canonical", 2, yam, profile=replace(HIDDEN, odd_share=0.0, twins=0.0))
    for name in scenario_names():
        one, other = shared_lab.reset(name, 2), hidden.reset(name, 2)
        expected = make_scenario(name, 2)
        for scenario in (shared_lab.scenario, hidden.scenario):
            assert [p.object for p in scenario.objects] == [p.object for p in expected.objects]
        for thing in one.objects.values():
            assert np.abs(thing.position - other.objects[thing.name].position).max() < 2e-3


def test_the_hidden_profile_has_odd_shapes_and_objects_of_one_colour(hidden_lab: LabSimulation) -> None:
    assert (HIDDEN.odd_share, HIDDEN.twins) == (0.4, 0.3)
    assert (load_profile("constant").odd_share, load_profile("constant").twins) == (0.0, 0.0)
    drawn = [make_scenario("cluttered", seed, odd_share=0.4, twins=0.3) for seed in range(12)]
    odd = [one.objects[0].object.shape in ODD_SHAPES for one in drawn]
    assert 0 < sum(odd) < len(odd)
    first = odd.index(True)
    hidden_lab.reset("cluttered", first)
    assert [p.object for p in hidden_lab.scenario.objects] == [p.object for p in drawn[first].objects]


def numbers_in(node: Any, seen: set[int]) -> list[float]:
    """All numbers that can be reached from an object."""
    if id(node) in seen:
        return []
    seen.add(id(node))
    if isinstance(node, bool | str | bytes) or node is None:
        return []
    if isinstance(node, int | float | np.number):
        return [float(node)]
    if isinstance(node, np.ndarray):
        return node.astype(float).ravel().tolist() if node.size < 1000 and node.dtype != bool else []
    if is_dataclass(node):
        return [n for field in fields(node) for n in numbers_in(getattr(node, field.name), seen)]
    if hasattr(node, "items"):
        return [n for value in node.values() for n in numbers_in(value, seen)]
    if isinstance(node, tuple | list):
        return [n for value in node for n in numbers_in(value, seen)]
    return []


def test_drawn_values_are_not_in_what_policies_and_generators_are_given(
    lab_camera: LabCamera, yam_kinematics: Kinematics
) -> None:
    camera = lab_camera.camera.scaled(96, 64)
    world = LabWorld.of("canonical", 7, camera, yam_kinematics, profile="hidden")
    constants = world.lab.constants
    true = constants.objects[0].object
    secret = [
        true.mass,
        true.friction,
        *true.center_of_mass,
        constants.delay_s,
        constants.materials.finger_friction,
        constants.materials.friction[0],
        constants.sensor.noise,
        constants.sensor.exposure_ev,
    ]
    start = world.episode_start(world.task("pick"))
    given: list[Scenario | LabState | Any] = [world.scene, world.lab.scenario, world.lab.state(), start.scene]
    for one in given:
        reachable = np.array(numbers_in(one, set()))
        assert THING.friction in reachable
        assert not any(np.any(np.abs(reachable - value) < 1e-9) for value in secret)
    nominal = make_scenario("canonical", 7, odd_share=HIDDEN.odd_share, twins=HIDDEN.twins).objects[0].object
    assert world.scene.truth is not None
    assert world.scene.truth.objects[nominal.name].object == nominal


def test_a_delay_shifts_the_motion(yam: Robot, yam_kinematics: Kinematics) -> None:
    delay_s = 0.08
    prompt = LabSimulation("canonical", 0, yam)
    late = LabSimulation("canonical", 0, yam, profile=LabProfile("late", {"delay_s": (delay_s, delay_s)}))
    plan = pick_plan(prompt.state(), prompt.scenario.target, yam_kinematics)
    paths: list[list[np.ndarray]] = []
    for lab in (prompt, late):
        lab.follow(plan)
        if lab is late:
            lab.step(delay_s)
            assert np.abs(lab.state().velocities).max() < 1e-3
        path = []
        for _ in range(7):
            lab.step(0.1)
            path.append(lab.state().positions)
        if lab is late:
            # A stop is delayed as well: in the meantime the arm performs the commands from before it.
            lab.stop()
        lab.step(delay_s)
        paths.append([*path, lab.state().positions])
    np.testing.assert_allclose(paths[1], paths[0], atol=1e-6)
    assert np.abs(paths[0][-1] - paths[0][-2]).max() > 0.05


def test_images_of_a_hidden_scene_are_degraded_the_same_way_each_time(
    hidden_lab: LabSimulation, lab_camera: LabCamera
) -> None:
    state = hidden_lab.reset("canonical", 5)
    camera = lab_camera.camera.scaled(144, 96)
    images = [LabCamera.of(hidden_lab, camera, quality=SMALL).capture(state, truth=True) for _ in range(2)]
    exact = LabCamera(hidden_lab.robot, camera, room=hidden_lab.room, quality=SMALL).capture(state, truth=True)
    assert np.array_equal(images[0].rgb, images[1].rgb)
    assert not np.array_equal(images[0].rgb, exact.rgb)
    np.testing.assert_array_equal(images[0].depth_m, exact.depth_m)
    np.testing.assert_array_equal(images[0].segmentation, exact.segmentation)
    assert hidden_lab.sensor != HIDDEN.draw("canonical", 6).sensor


def test_a_file_that_is_not_a_profile_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "config" / "lab" / "profiles"
    folder.mkdir(parents=True)
    (folder / "odd.yaml").write_text("friction: 0.4\n")
    for name in ("share_directory", "share_path"):
        monkeypatch.setattr(
            f"kinema4d_ros.lab.profile.{name}", lambda relative="": tmp_path / relative if relative else tmp_path
        )
    with pytest.raises(KinemaError, match=r"odd.yaml: friction is 0.4"):
        load_profile("odd")
