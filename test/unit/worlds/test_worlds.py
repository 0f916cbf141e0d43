"""One loop runs policies and commands in the lab and in world models."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.odd_policies import Watches

from kinema4d_ros.calibration import read_camera
from kinema4d_ros.core.errors import FileFormatError, KinemaError
from kinema4d_ros.core.outcomes import Outcome, patches_between
from kinema4d_ros.core.rollout import Rollout
from kinema4d_ros.core.trajectory import JointTrajectory
from kinema4d_ros.generators import GenerateRequest
from kinema4d_ros.generators.composite import CompositeGenerator
from kinema4d_ros.io.resources import share_path
from kinema4d_ros.kinematics import choose_kinematics
from kinema4d_ros.lab import LabSimulation
from kinema4d_ros.lab.scripted import pick_plan
from kinema4d_ros.policies.registry import make_policy
from kinema4d_ros.robot import Robot
from kinema4d_ros.worlds import LabWorld, ModelWorld


@pytest.fixture(scope="module")
def lab(yam: Robot) -> LabWorld:
    camera = read_camera(share_path("calibration/demo_lab.yaml")).scaled(96, 64)
    return LabWorld.of("canonical", 3, camera, choose_kinematics(yam))


def test_runs_are_saved_and_loaded(lab: LabWorld, tmp_path: Path) -> None:
    task = lab.task("pick")
    run = lab.run(make_policy("expert"), task, seed=3)
    lab.save(run, tmp_path / "run.npz")
    back = lab.load(tmp_path / "run.npz", task)
    np.testing.assert_array_equal(back.commands.positions, run.commands.positions)
    np.testing.assert_array_equal(back.target, run.target)
    assert back.verdict.success is run.verdict.success is True
    np.testing.assert_array_equal(lab.picture(back.states[-1]).rgb, lab.picture(run.states[-1]).rgb)
    (tmp_path / "run.npz").write_bytes((tmp_path / "run.npz").read_bytes()[:300])
    with pytest.raises(FileFormatError, match=r"run.npz is not a run of this scene"):
        lab.load(tmp_path / "run.npz", task)


def test_runs_are_repeatable(lab: LabWorld) -> None:
    first, second = (lab.run(make_policy("expert:offset_m=0.02"), lab.task("pick"), seed=5) for _ in range(2))
    np.testing.assert_array_equal(first.commands.positions, second.commands.positions)
    np.testing.assert_array_equal(first.target, second.target)


def test_commands_run_as_a_policy_that_gives_them(yam: Robot) -> None:
    kinematics = choose_kinematics(yam)
    world = LabWorld(LabSimulation("canonical", 3, yam), kinematics, sample_s=0.1, frames=8)
    plan = pick_plan(world.start, world.start.target, kinematics)
    run = world.run(plan, world.task("pick"), until_s=plan.duration_s + 0.4)
    assert run.verdict.success is True
    assert run.chunks == 0
    assert len(run.states) == 8
    assert run.commands.duration_s == pytest.approx(plan.duration_s + 0.4, abs=0.06)
    np.testing.assert_allclose(np.diff(run.commands.times), 0.1, atol=1e-9)
    fast = JointTrajectory(yam.joint_names, plan.times / 20, plan.positions)
    with pytest.raises(KinemaError, match=r"too fast|velocity|faster"):
        world.run(fast, world.task("pick"))


def test_in_closed_loop_the_policy_gets_predicted_images(lab: LabWorld) -> None:
    world = ModelWorld(lab.scene, CompositeGenerator(), lab.kinematics, frames=5)
    run = world.run(Watches(), lab.task("pick"), seed=0)
    assert run.chunks == 3
    first, second, third = Watches.seen
    np.testing.assert_array_equal(first, lab.scene.image)
    assert np.abs(second.astype(int) - first).max() > 40
    assert np.abs(third.astype(int) - second).max() > 40
    # 0.15 rad three times: the last frame shows the robot where the commands ended, held for a moment.
    assert run.rollout is not None
    assert run.rollout.times[-1] == pytest.approx(1.5 + 0.4)
    assert run.made_by == "composite plane"


class Remembers(CompositeGenerator):
    """The static scene; keeps the last request and says that the outcome is uncertain."""

    request: GenerateRequest | None = None

    def generate(self, request: GenerateRequest, *options: Any) -> Rollout:
        self.request = request
        made = super().generate(request, *options)
        alternatives = (patches_between(made, made),)
        return replace(made, outcomes=(Outcome(0.7, "stays"), Outcome(0.3, "tips over")), alternatives=alternatives)


def test_a_generator_is_given_the_commands_and_its_outcomes_are_judged(lab: LabWorld) -> None:
    plan, generator = pick_plan(lab.start, lab.start.target, lab.kinematics), Remembers()
    run = ModelWorld(lab.scene, generator, lab.kinematics, frames=5).run(plan, lab.task("pick"))
    assert generator.request is not None
    assert generator.request.motion is not None
    commands = generator.request.motion.commands
    assert commands.names == lab.kinematics.robot.joint_names
    np.testing.assert_array_equal(commands.times, plan.times)
    np.testing.assert_array_equal(commands.positions[:, :6], plan.positions[:, :6])
    assert run.verdict.success is False
    assert run.verdict.probability == 0.0


def test_an_observation_clips_the_finger_to_its_range(lab: LabWorld, yam: Robot) -> None:
    joints = lab.start.positions.copy()
    assert yam.gripper is not None
    joints[yam.joint_names.index(yam.gripper.joint)] = max(yam.gripper.closed, yam.gripper.open) + 0.001
    seen = lab.observation(lab.scene.image, joints, 0.0)
    assert seen.gripper_m == pytest.approx(float(yam.gripper.width_m(1.0)), abs=1e-9)
