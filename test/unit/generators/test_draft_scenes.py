"""Drafts of stacks, of objects held at the start, of table edges; and that outcomes depend on where the target is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kinema4d_ros.calibration import read_camera
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.trajectory import JointTrajectory
from kinema4d_ros.generators import CommandedMotion, GenerateRequest
from kinema4d_ros.generators.draft.generator import DraftGenerator
from kinema4d_ros.io.resources import share_path
from kinema4d_ros.kinematics import Kinematics, choose_kinematics
from kinema4d_ros.lab import LabCamera, LabSimulation
from kinema4d_ros.lab.scenario import make_scenario
from kinema4d_ros.lab.scripted import pick_plan, place_plan, push_plan
from kinema4d_ros.physics.model import Room
from kinema4d_ros.render import render_pointmaps
from kinema4d_ros.robot import Robot
from kinema4d_ros.worlds import LabWorld, ModelWorld

pytestmark = pytest.mark.full

FRAMES = 9


@pytest.fixture(scope="module")
def kinematics(yam: Robot) -> Kinematics:
    return choose_kinematics(yam)


@pytest.fixture(scope="module")
def camera() -> PinholeCamera:
    return read_camera(share_path("calibration/demo_lab.yaml")).rectified().scaled(300, 200)


def labels_of(world: LabWorld, plan: JointTrajectory) -> list[str]:
    robot, scene = world.kinematics.robot, world.scene
    drawn = render_pointmaps(robot, plan.resample(FRAMES), scene.camera)
    request = GenerateRequest(scene.image, drawn, scene.depth_m, motion=CommandedMotion.of(robot, plan))
    return [outcome.label for outcome in DraftGenerator(members=3).simulate(request).outcomes]


@pytest.mark.parametrize("seed", [3, 5])
def test_a_target_that_was_moved_or_removed_is_not_lifted_by_the_same_commands(
    kinematics: Kinematics, camera: PinholeCamera, seed: int
) -> None:
    world = LabWorld.of("canonical", seed, camera, kinematics)
    plan, task = pick_plan(world.start, world.start.target, kinematics), world.task("pick")
    verdicts = []
    for shift in (0.0, 0.05):
        world.lab.reset("canonical", seed)
        pose = world.lab.state().objects[task.target].base_T_object.copy()
        pose[:2, 3] += shift * np.array([-pose[1, 3], pose[0, 3]]) / np.hypot(*pose[:2, 3])
        world.lab.move_object(task.target, pose)
        moved = LabWorld(world.lab, kinematics, LabCamera.of(world.lab, camera))
        truth = moved.run(plan, task).verdict.success
        draft = ModelWorld(moved.scene, DraftGenerator(members=3), kinematics, depth=True, frames=FRAMES)
        assert draft.run(plan, task).verdict.success is truth
        verdicts.append(truth)
    assert verdicts == [True, False]
    bare = LabSimulation(replace(make_scenario("cluttered", seed), objects=()), seed, kinematics.robot, camera)
    empty = LabCamera.of(bare, camera).capture(bare.state(), truth=True)
    drawn = render_pointmaps(kinematics.robot, plan.resample(FRAMES), camera)
    request = GenerateRequest(empty.rgb, drawn, empty.depth_m, motion=CommandedMotion.of(kinematics.robot, plan))
    # The commands and the camera alone tell nothing.
    assert [one.label for one in DraftGenerator(members=2).simulate(request).outcomes] == ["nothing moves"]


def test_an_object_in_the_gripper_stays_there_until_it_is_put_down(
    kinematics: Kinematics, camera: PinholeCamera
) -> None:
    world = LabWorld.of("held", 1, camera, kinematics)
    task, target = world.task("place"), world.start.target
    model = ModelWorld(world.scene, DraftGenerator(members=3), kinematics, depth=True, frames=FRAMES)
    for plan in (place_plan(world.start, target, kinematics), pick_plan(world.start, target, kinematics)):
        assert model.run(plan, task).verdict.success is world.run(plan, task).verdict.success
    assert "put down" in labels_of(world, place_plan(world.start, target, kinematics))[0]
    assert "lifted" in labels_of(world, pick_plan(world.start, target, kinematics))[0]


@pytest.mark.parametrize("seed", [1, 6])
def test_of_a_stack_the_upper_or_the_lower_object_is_lifted(
    kinematics: Kinematics, camera: PinholeCamera, seed: int
) -> None:
    world = LabWorld.of("stacked", seed, camera, kinematics)
    plan, task = pick_plan(world.start, world.start.target, kinematics), world.task("pick")
    run = ModelWorld(world.scene, DraftGenerator(members=3), kinematics, depth=True, frames=FRAMES).run(plan, task)
    assert run.verdict.success is world.run(plan, task).verdict.success is True


def test_an_object_pushed_over_the_edge_of_the_table_falls(kinematics: Kinematics, camera: PinholeCamera) -> None:
    start = LabSimulation("canonical", 3, kinematics.robot, camera)
    placed = start.state().objects[start.scenario.target]
    x1 = float(placed.position[0]) + 0.05
    lab = LabSimulation("canonical", 3, kinematics.robot, camera, room=Room(table=(-0.42, x1, -0.62, 0.58)))
    world = LabWorld(lab, kinematics, LabCamera.of(lab, camera))
    plan = push_plan(world.start, world.start.target, kinematics, [1.0, 0.0], 0.09)
    end = world.run(plan, world.task("push")).states[-1].objects[world.start.target]
    assert end.position[2] < -0.1
    assert "falls off the table" in labels_of(world, plan)[0]
