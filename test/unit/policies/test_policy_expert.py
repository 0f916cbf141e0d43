"""The scripted expert: plans for three tasks, effects of its errors, refusals."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import ErrorCode
from kinema4d_ros.core.task import make_task
from kinema4d_ros.core.trajectory import JointTrajectory
from kinema4d_ros.kinematics import choose_kinematics
from kinema4d_ros.lab import LabSimulation, LabState, PlacedObject
from kinema4d_ros.policies import EpisodeStart, Observation, Policy, PolicyError
from kinema4d_ros.policies.errors_by_design import ExpertErrors
from kinema4d_ros.policies.registry import make_policy
from kinema4d_ros.policies.scripted import ScriptedExpert
from kinema4d_ros.robot import Robot
from kinema4d_ros.worlds import LabWorld

CAMERA = PinholeCamera(4, 3, [[4, 0, 2], [0, 4, 1.5], [0, 0, 1]])
YAM = Robot.load("yam")
KINEMATICS = choose_kinematics(YAM)
FINGER = YAM.joint_names.index(YAM.gripper.joint) if YAM.gripper else -1


@lru_cache(maxsize=2)
def scene(seed: int = 3) -> LabState:
    return LabSimulation("canonical", seed, YAM).state()


def seen(time_s: float) -> Observation:
    return Observation(np.zeros((3, 4, 3), np.uint8), CAMERA, YAM.home_position(), 0.05, time_s)


def whole(policy: Policy, task: str = "pick", seed: int = 0) -> JointTrajectory:
    """Concatenate all chunks of an episode."""
    policy.reset(EpisodeStart(YAM, task=task, seed=seed, scene=scene()))
    times, rows, now = [0.0], [scene().commanded], 0.0
    for _ in range(100):
        chunk = policy.act(seen(now))
        assert chunk.joints is not None
        times.extend(now + chunk.times)
        rows.extend(chunk.joints)
        now = times[-1]
        if chunk.done:
            return JointTrajectory(YAM.joint_names, np.array(times), np.array(rows))
    raise AssertionError("never done")


def lifted(policy: Policy, seed: int = 3) -> bool:
    lab = LabSimulation("canonical", seed, YAM)
    before = lab.state()
    policy.reset(EpisodeStart(YAM, seed=seed, scene=before))
    after = lab.run(policy.act(seen(0.0)).trajectory(KINEMATICS, before.commanded))
    ends = [state.objects[before.target].position for state in (before, after)]
    return make_task("pick", before.target).outcome(ends).success is True


def test_chunks_add_up_to_the_plan() -> None:
    at_once, pieces = whole(ScriptedExpert(chunk_s=0)), whole(ScriptedExpert(chunk_s=0.7))
    np.testing.assert_allclose(pieces.times, at_once.times, atol=1e-9)
    np.testing.assert_array_equal(pieces.positions, at_once.positions)
    policy = ScriptedExpert(chunk_s=0.7)
    policy.reset(EpisodeStart(YAM, scene=scene()))
    assert policy.act(seen(0.0)).times[-1] <= 0.7 + 1e-6


def test_a_partly_executed_chunk_is_repeated_and_waiting_skips_nothing() -> None:
    policy = ScriptedExpert(chunk_s=1.0)
    policy.reset(EpisodeStart(YAM, scene=scene()))
    first = policy.act(seen(5.0))
    half = policy.act(seen(5.0 + float(first.times[20])))
    np.testing.assert_allclose(half.joints[: len(first.times) - 21], first.joints[21:])
    np.testing.assert_allclose(half.times[0], first.times[21] - first.times[20])
    policy.reset(EpisodeStart(YAM, scene=scene()))
    policy.act(seen(0.0))
    waited = policy.act(seen(40.0))
    np.testing.assert_allclose(waited.times[0], half.times[0], atol=0.01)
    assert np.max(np.abs(waited.joints[0] - first.joints[-1])) < 0.05


def test_a_perfect_expert_picks_and_large_errors_do_not() -> None:
    assert lifted(make_policy("expert:chunk_s=0"))
    assert not lifted(make_policy("expert:chunk_s=0,offset_m=0.06"))
    assert not lifted(make_policy("expert:chunk_s=0,early_release=0.3"))
    assert not lifted(make_policy("expert:chunk_s=0,height_m=0.06"))


def test_equal_seeds_give_equal_actions_and_others_do_not() -> None:
    spec = "expert:offset_m=0.01,spread_m=0.005,noise_rad=0.01,yaw_deg=10"
    first, again, other = whole(make_policy(spec)), whole(make_policy(spec)), whole(make_policy(spec), seed=1)
    np.testing.assert_array_equal(first.positions, again.positions)
    assert first.positions.shape != other.positions.shape or np.any(first.positions != other.positions)
    further = whole(make_policy(spec + ",seed=9"))
    assert first.positions.shape != further.positions.shape or np.any(first.positions != further.positions)


@pytest.mark.parametrize("task", ["pick", "place", "push"])
@pytest.mark.parametrize("options", ["", "delay_s=0.4,early_release=0.5,noise_rad=0.03", "delay_s=-0.4"])
def test_every_task_and_error_stays_within_the_limits_of_the_arm(task: str, options: str) -> None:
    plan = whole(make_policy("expert" + (":" + options if options else "")), task)
    plan.validate(YAM, check_velocity=True)
    np.testing.assert_array_equal(plan.positions[0], scene().commanded)


def test_each_error_has_its_effect() -> None:
    rng = np.random.default_rng
    truth = scene().objects[scene().target]
    moved = ExpertErrors(offset_m=0.02, height_m=0.01).believed(scene(), rng(0)).objects[scene().target]
    assert np.linalg.norm((moved.position - truth.position)[:2]) == pytest.approx(0.02)
    assert moved.position[2] - truth.position[2] == pytest.approx(0.01)
    turned = ExpertErrors(yaw_deg=30.0).believed(scene(), rng(0)).objects[scene().target].base_T_object
    trace = np.trace(truth.base_T_object[:3, :3].T @ turned[:3, :3])
    assert np.degrees(np.arccos((trace - 1) / 2)) == pytest.approx(30.0)
    assert np.array_equal(truth.base_T_object, scene().objects[scene().target].base_T_object)


def test_delay_moves_the_fingers_and_not_the_arm() -> None:
    plan, late = whole(ScriptedExpert()), whole(ScriptedExpert(delay_s=0.5))
    when = np.linspace(0.6, plan.duration_s, 50)
    np.testing.assert_allclose(late.at(when)[:, :FINGER], plan.at(when)[:, :FINGER], atol=1e-9)
    np.testing.assert_allclose(late.at(when)[:, FINGER], plan.at(when - 0.5)[:, FINGER], atol=1e-4)
    early = whole(ScriptedExpert(delay_s=-0.5))
    np.testing.assert_allclose(early.at(when)[:, FINGER], plan.at(when)[:, FINGER], atol=1e-9)
    np.testing.assert_allclose(early.at(when)[:, :FINGER], plan.at(when - 0.5)[:, :FINGER], atol=2e-3)


def test_chance_gives_some_episodes_without_errors() -> None:
    errors = ExpertErrors(offset_m=0.05, chance=0.3)
    wrong = [errors.for_episode(np.random.default_rng(seed)).offset_m > 0 for seed in range(400)]
    assert 0.22 < np.mean(wrong) < 0.38


@pytest.mark.parametrize(
    "options",
    ["offset_m=-1", "offset_m=far", "early_release=2", "chance=1.5", "noise_rad=true", "chunk_s=-1", "seed=-1",
     "delay_s=nan", "chunk_s=soon"],
)  # fmt: skip
def test_options_that_make_no_sense(options: str) -> None:
    with pytest.raises(PolicyError, match=options.split("=")[0]) as caught:
        make_policy(f"expert:{options}")
    assert caught.value.code == ErrorCode.ARGUMENT_INVALID


def test_an_option_that_does_not_exist() -> None:
    with pytest.raises(PolicyError, match="courage") as caught:
        make_policy("expert:courage=1")
    assert caught.value.code == ErrorCode.POLICY_UNAVAILABLE


@pytest.mark.parametrize(
    ("fields", "words", "code"),
    [
        ({"scene": None}, "needs the scene's true state", ErrorCode.POLICY_UNAVAILABLE),
        ({"task": "juggle"}, "juggle", ErrorCode.POLICY_UNAVAILABLE),
    ],
)
def test_invalid_episode_starts(fields: dict[str, Any], words: str, code: ErrorCode) -> None:
    with pytest.raises(PolicyError, match=words) as caught:
        ScriptedExpert().reset(EpisodeStart(YAM, **{"scene": scene(), **fields}))
    assert caught.value.code == code


def test_a_target_out_of_reach_is_named_with_the_reason() -> None:
    target = scene().objects[scene().target]
    pose = target.base_T_object.copy()
    pose[0, 3] = 2.0
    far = replace(scene(), objects={target.name: PlacedObject(target.object, pose)})
    policy = ScriptedExpert()
    with pytest.raises(PolicyError, match=f"pick '{target.name}'") as caught:
        policy.reset(EpisodeStart(YAM, scene=far))
    assert caught.value.code == ErrorCode.POLICY_FAILED
    with pytest.raises(PolicyError, match="no episode"):
        policy.act(seen(0.0))


def test_names_list_the_errors() -> None:
    assert make_policy("expert").name == "expert"
    assert make_policy("expert:offset_m=0.012,chunk_s=2").name == "expert:offset_m=0.012"
    assert isinstance(make_policy("expert"), Policy)


def test_a_motion_that_breaks_the_physics_raises_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # MuJoCo writes a log into the working directory
    lab = LabSimulation("canonical", 3, YAM)
    world = LabWorld(lab, KINEMATICS)

    def explode(observation: Observation) -> None:
        if observation.time_s > 0.1:
            lab._data.qvel[:] = 1e15  # what a deep contact can do

    with pytest.raises(PolicyError, match=r"the physics became unstable after 0\.2"):
        world.run(ScriptedExpert(chunk_s=0.2), world.task("pick"), watch=explode)
