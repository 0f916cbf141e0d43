from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import mujoco
import numpy as np
import pytest

from kinema4d_ros.core.errors import Cancelled, KinemaError, TrajectoryError
from kinema4d_ros.core.trajectory import JointTrajectory
from kinema4d_ros.core.transforms import make
from kinema4d_ros.kinematics import Kinematics, choose_kinematics
from kinema4d_ros.kinematics.gripping import grip_track
from kinema4d_ros.lab.scenario import Scenario
from kinema4d_ros.lab.scripted import pick_plan, push_plan
from kinema4d_ros.lab.simulation import MATERIALS, LabSimulation, LabState
from kinema4d_ros.physics.controller import TrajectoryController
from kinema4d_ros.physics.ensemble import Member, run_members
from kinema4d_ros.physics.model import build_model
from kinema4d_ros.physics.objects import LabObject, PlacedObject
from kinema4d_ros.physics.settling import settle
from kinema4d_ros.robot import Robot

RECORDINGS = Path(os.environ.get("KINEMA4D_RECORDINGS", Path(__file__).parents[4] / "shared" / "data" / "droid"))
DROID = RECORDINGS / "robot" / "droid_panda.urdf"


@pytest.fixture(scope="module")
def kinematics(yam: Robot) -> Kinematics:
    return choose_kinematics(yam)


@pytest.fixture(scope="module")
def table(yam: Robot) -> LabSimulation:
    block = LabObject("block", "box", (0.04, 0.04, 0.05), (1, 0, 0), 0.05)
    can = LabObject("can", "cylinder", (0.045, 0.045, 0.06), (0, 1, 0), 0.06)
    objects = (PlacedObject.standing(block, 0.32, 0.05, 0.4), PlacedObject.standing(can, 0.30, -0.12, 0.0))
    return LabSimulation(Scenario("two", 0, objects, "block", np.array([0.3, 0.2]), 0), 0, yam)


def members_of(state: LabState, **changed: float) -> Member:
    return Member(tuple(state.objects.values()), replace(MATERIALS, **changed))


def short_pick(state: LabState, kinematics: Kinematics, shift: tuple[float, float] = (0.0, 0.0)) -> JointTrajectory:
    target = state.objects["block"]
    believed = PlacedObject(target.object, make(None, [*shift, 0.0]) @ target.base_T_object)
    return pick_plan(replace(state, objects={**state.objects, "block": believed}), "block", kinematics)


def test_targets_at_many_times_equal_the_controller_step_by_step(yam: Robot) -> None:
    home = yam.home_position()
    q = np.linspace(home, home + 0.05 * (yam.upper - home), 5)
    controller = TrajectoryController(yam, home + 1e-3)
    clock = np.linspace(-0.2, 2.6, 57)
    for plan in (
        JointTrajectory(yam.joint_names, np.arange(5) * 0.5, q),
        JointTrajectory(yam.joint_names, np.arange(5) * 0.5, q, np.zeros_like(q)),
        JointTrajectory(yam.joint_names, np.zeros(1), q[:1]),
    ):
        controller.follow(plan, 0.0, home)
        positions, speeds = controller.targets(clock)
        one = [controller.target(float(t)) for t in clock]
        np.testing.assert_allclose(positions, [p for p, _ in one], atol=1e-14)
        np.testing.assert_allclose(speeds, [v for _, v in one], atol=1e-13)


@pytest.mark.parametrize("what", ["pick", "push", "miss"])
def test_member_with_the_lab_constants_follows_the_lab(
    what: str, table: LabSimulation, yam: Robot, kinematics: Kinematics
) -> None:
    state = table.reset(table.scenario)
    plan = (
        push_plan(state, "block", kinematics)
        if what == "push"
        else short_pick(state, kinematics, (0.0, 0.1) if what == "miss" else (0.0, 0.0))
    )
    table.follow(plan)
    states = [table.state()]
    while table.moving:
        table.step(0.1)
        states.append(table.state())
    times = np.array([s.time_s for s in states])
    (run,) = run_members(yam, [members_of(state)], plan, times, start=state.positions)
    true = np.array([[s.objects[name].base_T_object for name in state.objects] for s in states])
    assert run.stable
    assert np.linalg.norm(run.base_T_object[..., :3, 3] - true[..., :3, 3], axis=-1).max() < 0.004
    assert np.abs(run.joints - [s.positions for s in states]).max() < 0.004
    touched = {contact.other for contact in run.contacts if contact.object == "block"}
    assert ("left_finger" in touched) == (what != "miss")
    assert "table" in touched


def test_members_differ_with_friction_and_do_not_depend_on_threads(
    table: LabSimulation, yam: Robot, kinematics: Kinematics
) -> None:
    state = table.reset(table.scenario)
    plan = short_pick(state, kinematics)
    members = [members_of(state, finger_friction=f) for f in np.linspace(0.02, 1.2, 8)]
    runs = run_members(yam, members, plan, plan.times[[0, -1]], start=state.positions, threads=1)
    again = run_members(yam, members[::-1], plan, plan.times[[0, -1]], start=state.positions, threads=3)
    heights = [run.base_T_object[-1, 0, 2, 3] - run.base_T_object[0, 0, 2, 3] for run in runs]
    assert heights[0] < 0.01
    assert heights[-1] > 0.08
    for run, other in zip(runs, reversed(again), strict=True):
        np.testing.assert_array_equal(run.base_T_object, other.base_T_object)
        assert run.contacts == other.contacts


def test_delay_shifts_the_motion_in_time(table: LabSimulation, yam: Robot, kinematics: Kinematics) -> None:
    state = table.reset(table.scenario)
    plan = short_pick(state, kinematics)
    times = np.arange(0.5, 1.0, 0.04)
    late = replace(members_of(state), delay_s=0.08)
    now, later = run_members(yam, [members_of(state), late], plan, times, start=state.positions)
    np.testing.assert_allclose(later.joints[2:], now.joints[:-2], atol=1e-3)


def test_cancel_ends_the_simulation(table: LabSimulation, yam: Robot, kinematics: Kinematics) -> None:
    state = table.reset(table.scenario)
    plan = short_pick(state, kinematics)
    asked = iter([False, True])
    with pytest.raises(Cancelled, match="members"):
        run_members(
            yam, [members_of(state)] * 50, plan, plan.times, start=state.positions, cancel=lambda: next(asked, True)
        )


def test_overlapping_and_floating_objects_do_not_fly_off(yam: Robot) -> None:
    sizes = (
        LabObject("a", "box", (0.05, 0.05, 0.05), (1, 0, 0), 0.08),
        LabObject("b", "box", (0.05,) * 3, (0, 1, 0), 0.08),
    )
    low = PlacedObject.standing(sizes[0], 0.3, 0.0, 0.0)
    high = PlacedObject(sizes[1], make(None, [0.342, 0.01, 0.032]))  # 8 mm inside the other, 7 mm above the table
    home = yam.home_position()
    hold = JointTrajectory(yam.joint_names, [0.0, 0.5], [home, home])
    (run,) = run_members(yam, [Member((low, high), MATERIALS)], hold, [0.0, 0.5], start=home)
    moved = run.base_T_object[-1, :, :3, 3] - [low.position, high.position]
    assert np.abs(moved[:, :2]).max() < 0.012
    assert run.base_T_object[-1, 1, 2, 3] == pytest.approx(0.025, abs=0.002)


def test_held_object_goes_along_although_the_fingers_start_inside_it(yam: Robot) -> None:
    thing = LabObject("held", "box", (0.04, 0.04, 0.05), (1, 0, 0), 0.05)
    assert yam.gripper is not None
    start = yam.home_position()
    start[-1] = yam.gripper.position_from_width(0.034)
    grip = grip_track(yam, start[None])
    assert grip is not None
    placed = PlacedObject(thing, grip.base_T_grip[0])
    end = start.copy()
    end[0] += 0.3
    plan = JointTrajectory(yam.joint_names, [0.0, 1.0], [start, end])
    (kept,) = run_members(yam, [Member((placed,), MATERIALS, held=("held",))], plan, [0.0, 1.0], start=start)
    grips = grip_track(yam, plan.positions)
    assert grips is not None
    away = kept.base_T_object[:, 0, :3, 3] - grips.base_T_grip[:, :3, 3]
    assert np.linalg.norm(away, axis=1).max() < 0.01
    assert kept.joints[0, -1] > start[-1] + 0.001  # the object keeps the fingers open


def test_object_named_held_but_out_of_reach_of_the_fingers_falls(yam: Robot) -> None:
    thing = LabObject("held", "box", (0.03, 0.03, 0.03), (1, 0, 0), 0.05)
    home = yam.home_position()
    hold = JointTrajectory(yam.joint_names, [0.0, 0.6], [home, home])
    member = Member((PlacedObject(thing, make(None, [0.3, 0.3, 0.2])),), MATERIALS, held=("held",))
    (run,) = run_members(yam, [member], hold, [0.0, 0.6], start=home)
    assert run.base_T_object[0, 0, 2, 3] == pytest.approx(0.2, abs=1e-3)
    assert run.base_T_object[-1, 0, 2, 3] == pytest.approx(0.015, abs=2e-3)


def test_settling_leaves_the_model_as_it_was(yam: Robot) -> None:
    thing = PlacedObject.standing(LabObject("a", "box", (0.05, 0.05, 0.05), (1, 0, 0), 0.08), 0.3, 0.2, 0.0)
    model = build_model(yam, [thing], MATERIALS)
    before = np.zeros(mujoco.mj_sizeModel(model), np.uint8)
    mujoco.mj_saveModel(model, None, before)
    settle(model, yam, ["a"], yam.home_position(), yam.home_position(), ["a"])
    after = np.zeros_like(before)
    mujoco.mj_saveModel(model, None, after)
    np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize("name", ["primitive_arm", "droid"])
def test_other_robots_run_too(name: str, primitive_arm: Robot) -> None:
    if name == "droid" and not DROID.exists():
        pytest.skip("the DROID robot is not on this machine")
    robot = primitive_arm if name == "primitive_arm" else Robot.load(DROID)
    home = robot.home_position()
    end = home.copy()
    end[0] += 0.2
    plan = JointTrajectory(robot.joint_names, [0.0, 1.0], [home, end])
    thing = PlacedObject.standing(LabObject("a", "box", (0.05, 0.05, 0.05), (1, 0, 0), 0.08), 0.5, 0.4, 0.0)
    (run,) = run_members(robot, [Member((thing,), MATERIALS)], plan, [0.0, 0.5, 1.3], start=home)
    assert run.stable
    assert run.joints[-1, 0] == pytest.approx(end[0], abs=0.01)
    np.testing.assert_allclose(run.base_T_object[-1, 0], thing.base_T_object, atol=2e-3)


def test_robot_without_gripper_and_scene_without_objects(yam: Robot) -> None:
    plan = JointTrajectory(yam.joint_names, [0.0, 0.2], [yam.home_position()] * 2)
    (run,) = run_members(yam, [Member((), MATERIALS)], plan, [0.0, 0.1], start=yam.home_position())
    assert run.base_T_object.shape == (2, 0, 4, 4)
    assert not run.contacts


def test_unstable_member_is_marked_and_keeps_its_last_good_poses(
    yam: Robot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # MuJoCo writes its warnings to a file here
    home = yam.home_position()
    plan = JointTrajectory(yam.joint_names, [0.0, 0.4], [home, home])
    mad = replace(MATERIALS, servo_span_rad=-0.05)  # servos that push away from their command, with damping NaN
    with pytest.warns(RuntimeWarning):
        fine, bad = run_members(yam, [Member((), MATERIALS), Member((), mad)], plan, [0.0, 0.4], start=home)
    assert fine.stable
    assert not bad.stable
    np.testing.assert_array_equal(bad.joints, [home, home])


def test_bad_input_is_refused_with_what_was_expected(yam: Robot) -> None:
    home = yam.home_position()
    plan = JointTrajectory(yam.joint_names, [1.0, 1.2], [home, home])
    thing = PlacedObject.standing(LabObject("a", "box", (0.05, 0.05, 0.05), (1, 0, 0), 0.08), 0.3, 0.2, 0.0)
    one, other = Member((thing,), MATERIALS), Member((), MATERIALS)
    with pytest.raises(KinemaError, match="objects none"):
        run_members(yam, [one, other], plan, [1.0, 1.2], start=home)
    with pytest.raises(KinemaError, match="holds b"):
        run_members(yam, [replace(one, held=("b",))], plan, [1.0, 1.2], start=home)
    with pytest.raises(TrajectoryError, match="before the commands"):
        run_members(yam, [one], plan, [0.0, 1.2], start=home)
    with pytest.raises(TrajectoryError, match="the arm is at"):
        run_members(yam, [one], plan, [1.0, 1.2], start=home + 0.5)
