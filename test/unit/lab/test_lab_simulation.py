from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pytest

from kinema4d_ros.core.errors import ErrorCode, KinemaError
from kinema4d_ros.core.trajectory import JointTrajectory
from kinema4d_ros.kinematics import Kinematics, forward_all
from kinema4d_ros.lab import LabSimulation, LabState, ScenarioError, home_plan, pick_plan, scenario_names
from kinema4d_ros.robot import Robot


def swing(robot: Robot, by: float = 0.5, duration_s: float = 1.5) -> JointTrajectory:
    home = robot.home_position()
    clock = np.linspace(0.0, 1.0, 60)
    s = clock**3 * (10 - 15 * clock + 6 * clock**2)
    q = np.tile(home, (60, 1))
    q[:, :3] += by * s[:, None] * np.array([1.0, -0.6, 0.4])
    return JointTrajectory.from_positions(robot.joint_names, q, times=duration_s * clock)


def numbers(state: LabState) -> np.ndarray:
    poses = [o.base_T_object.ravel() for o in state.objects.values()]
    return np.concatenate([[state.time_s], state.positions, state.velocities, state.efforts, *poses])


@pytest.mark.parametrize("name", [name for name in scenario_names() if name != "held"])
def test_objects_rest_at_their_positions_after_a_reset(shared_lab: LabSimulation, name: str) -> None:
    for seed in range(5):
        state = shared_lab.reset(name, seed)
        assert state.time_s == 0.0
        assert state.target in state.objects
        for placed in shared_lab.scenario.objects:
            now = state.objects[placed.name]
            assert np.linalg.norm(now.position - placed.position) < 2e-3
        np.testing.assert_allclose(state.positions, shared_lab.robot.home_position(), atol=1e-3)
        shared_lab.step(1.0)
        later = shared_lab.state()
        for object_name, placed in state.objects.items():
            assert np.linalg.norm(later.objects[object_name].position - placed.position) < 1e-4


def test_a_held_target_stays_in_the_gripper_after_a_reset(shared_lab: LabSimulation) -> None:
    for seed in range(3):
        state = shared_lab.reset("held", seed)
        assert state.time_s == 0.0
        for placed in shared_lab.scenario.objects:
            height = state.objects[placed.name].position[2] - placed.position[2]
            assert height > 0.02 if placed.name == state.target else abs(height) < 2e-3
        shared_lab.step(1.0)
        later = shared_lab.state()
        for name, placed in state.objects.items():
            assert np.linalg.norm(later.objects[name].position - placed.position) < 2e-3


def test_equal_seeds_and_calls_give_equal_numbers(shared_lab: LabSimulation, yam_kinematics: Kinematics) -> None:
    runs = []
    for _ in range(2):
        shared_lab.reset("cluttered", 11)
        shared_lab.follow(pick_plan(shared_lab, shared_lab.scenario.target, yam_kinematics))
        shared_lab.step(2.5)
        runs.append(numbers(shared_lab.state()))
    assert np.array_equal(runs[0], runs[1])
    shared_lab.reset("cluttered", 12)
    assert not np.array_equal(runs[0][: 1 + 21], numbers(shared_lab.state())[: 1 + 21])


def test_unknown_scenario_leaves_the_lab_unchanged(shared_lab: LabSimulation) -> None:
    before = shared_lab.reset("canonical", 2)
    with pytest.raises(ScenarioError) as caught:
        shared_lab.reset("messy", 1)
    assert caught.value.code == ErrorCode.SCENARIO_UNKNOWN
    assert np.array_equal(numbers(before), numbers(shared_lab.state()))


def test_the_tool_follows_a_trajectory_and_settles_at_its_end(shared_lab: LabSimulation, yam: Robot) -> None:
    shared_lab.reset("canonical", 0)
    plan = swing(yam)
    shared_lab.follow(plan)
    tool = [link.name for link in yam.links].index(yam.tool_link)
    worst = 0.0
    while shared_lab.moving:
        shared_lab.step(0.01)
        state = shared_lab.state()
        wanted = forward_all(yam, state.commanded[None])[0, tool, :3, 3]
        worst = max(worst, float(np.linalg.norm(state.base_T_link[tool, :3, 3] - wanted)))
    shared_lab.step(0.5)
    state = shared_lab.state()
    wanted = forward_all(yam, plan.positions[-1:])[0, tool, :3, 3]
    settled = float(np.linalg.norm(state.base_T_link[tool, :3, 3] - wanted))
    print(f"tool error: {1000 * worst:.2f} mm during the motion, {1000 * settled:.3f} mm after half a second")
    assert settled < 5e-4
    assert worst < 0.012
    np.testing.assert_allclose(state.commanded, plan.positions[-1])


def test_measured_link_poses_match_the_measured_joints(shared_lab: LabSimulation, yam: Robot) -> None:
    shared_lab.reset("canonical", 0)
    shared_lab.follow(swing(yam))
    shared_lab.step(0.7)
    state = shared_lab.state()
    difference = state.base_T_link - forward_all(yam, state.positions[None])[0]
    assert np.abs(difference[:, :3, 3]).max() < 1e-3


def test_start_mismatch_is_rejected(shared_lab: LabSimulation, yam: Robot) -> None:
    shared_lab.reset("canonical", 0)
    shared_lab.run(swing(yam))
    with pytest.raises(KinemaError) as caught:
        shared_lab.follow(swing(yam))
    assert caught.value.code == ErrorCode.PLAN_START_MISMATCH


def test_stop_holds_the_position(shared_lab: LabSimulation, yam: Robot, yam_kinematics: Kinematics) -> None:
    shared_lab.reset("canonical", 0)
    shared_lab.follow(swing(yam))
    shared_lab.step(0.75)
    there = shared_lab.state().positions
    shared_lab.stop()
    assert not shared_lab.moving
    shared_lab.step(1.0)
    state = shared_lab.state()
    assert np.abs(state.velocities).max() < 1e-3
    assert np.abs(state.positions - there).max() < 0.08
    back = shared_lab.run(home_plan(shared_lab, yam_kinematics))
    np.testing.assert_allclose(back.positions, yam.home_position(), atol=2e-3)


def test_efforts_include_gravity(shared_lab: LabSimulation, yam: Robot) -> None:
    efforts = dict(zip(yam.joint_names, shared_lab.reset("canonical", 0).efforts, strict=True))
    assert abs(efforts["joint2"]) > 1.0
    assert abs(efforts["joint1"]) < 0.1


@pytest.mark.parametrize("dt", [0.0, -0.01, float("nan"), 1e9])
def test_invalid_step_duration_is_rejected(shared_lab: LabSimulation, dt: float) -> None:
    with pytest.raises(KinemaError, match="dt is"):
        shared_lab.step(dt)


def test_move_object_sets_the_pose_and_rejects_unknown_objects(shared_lab: LabSimulation) -> None:
    state = shared_lab.reset("canonical", 0)
    pose = state.objects[state.target].base_T_object.copy()
    pose[1, 3] += 0.05
    shared_lab.move_object(state.target, pose)
    shared_lab.step(0.2)
    np.testing.assert_allclose(shared_lab.state().objects[state.target].base_T_object, pose, atol=1e-3)
    with pytest.raises(ScenarioError, match="teapot"):
        shared_lab.move_object("teapot", pose)


def test_states_may_be_read_while_another_thread_steps(shared_lab: LabSimulation, yam: Robot) -> None:
    shared_lab.reset("canonical", 0)
    shared_lab.follow(swing(yam))
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(100):
                shared_lab.step(0.01)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    seen = [shared_lab.state().time_s]
    while thread.is_alive():
        seen.append(shared_lab.state().time_s)
    thread.join()
    assert not failures
    assert seen == sorted(seen)
    assert shared_lab.time_s == pytest.approx(1.0)


def test_lab_works_with_another_robot(primitive_arm: Robot) -> None:
    lab = LabSimulation("canonical", 0, primitive_arm)
    home = primitive_arm.home_position()
    plan = JointTrajectory.from_positions(
        primitive_arm.joint_names, np.stack([home, home + 0.1 * (np.arange(len(home)) == 0)]), times=[0.0, 1.0]
    )
    np.testing.assert_allclose(lab.run(plan).positions[0], home[0] + 0.1, atol=5e-3)


def test_speed_of_the_simulation(shared_lab: LabSimulation, yam: Robot, yam_kinematics: Kinematics) -> None:
    for name in scenario_names():
        state = shared_lab.reset(name, 0)
        plan = pick_plan(state, state.target, yam_kinematics)
        started = time.process_time()
        shared_lab.run(plan)
        spent = time.process_time() - started
        print(f"{name}: {(plan.duration_s + 0.3) / spent:.1f} x real time on one core, during a pick")
        assert shared_lab.time_s >= plan.duration_s


def test_unstable_physics_aborts_the_motion_and_resets_the_scene(
    yam: Robot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # MuJoCo writes its warning log into the working directory
    lab = LabSimulation("canonical", 3, yam)
    before = numbers(lab.state())
    lab.follow(swing(yam))
    lab.step(0.2)
    lab._data.qvel[:] = 1e15  # as after a deep penetration
    with pytest.raises(KinemaError, match=r"unstable after 0\.2") as caught:
        lab.run(swing(yam))
    assert caught.value.code == ErrorCode.ARM_ABORTED
    assert not lab.moving
    np.testing.assert_allclose(numbers(lab.state()), before, atol=1e-9)
    lab.step(0.1)
    assert lab.time_s == pytest.approx(0.1)
