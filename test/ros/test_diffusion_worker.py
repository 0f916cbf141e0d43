"""The learned generator in the generator node's own worker process: rollouts, feedback, cancellation, bad folders."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("diffusers", reason="needs the packages of requirements/model.in")

from rclpy.serialization import deserialize_message, serialize_message
from support.official_files import write_wan
from support.pick_goal import pick_goal
from support.requests import robot_of_a_square

from kinema4d_model.checkpoints.bundle import ModelBundle
from kinema4d_model.preset import load_preset
from kinema4d_model.shipped import shipped_weights
from kinema4d_msgs.action import GenerateRollout
from kinema4d_ros.core.errors import Cancelled, ErrorCode, KinemaError
from kinema4d_ros.evaluation import GeometricJudge, Lifted, Task
from kinema4d_ros.ros.messages.images import image_from_array
from kinema4d_ros.ros.messages.request import frames_to_msg
from kinema4d_ros.ros.messages.rollout import rollout_from_msg
from kinema4d_ros.ros.messages.stamps import header
from kinema4d_ros.ros.nodes.generator import Settings, said_by, worker_command
from kinema4d_ros.ros.params import check
from kinema4d_ros.runtime import Worker, WorkerTimes

pytestmark = pytest.mark.timeout(300)


def worker_for(**settings: Any) -> Worker:
    """The process that the node would start with these parameters."""
    return Worker(worker_command(check(Settings, settings)), WorkerTimes(load_s=240.0, run_s=120.0))


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    folder = tmp_path_factory.mktemp("weights") / "tiny"
    ModelBundle.from_preset("tiny", seed=1).save_pretrained(folder)
    made = worker_for(preset="tiny", checkpoint=str(folder), device="cpu")
    yield made
    made.stop()


@pytest.fixture(scope="module")
def goal() -> bytes:
    robot = robot_of_a_square(frames=12, rgb=False)
    made = GenerateRollout.Goal(
        robot_frames=frames_to_msg(robot, header(1).stamp, ["base", "arm", "hand"]), seed=7, plan_hash="d" * 64
    )
    image = np.random.default_rng(0).integers(60, 200, (48, 72, 3), dtype=np.uint8)
    made.image = image_from_array(image, "rgb8", header(1, robot.camera.frame_id))
    return bytes(serialize_message(made))


@pytest.mark.full
def test_rollouts_come_out_of_the_worker_with_feedback_by_step(worker: Worker, goal: bytes) -> None:
    told: list[tuple[str, int, int]] = []
    result = deserialize_message(worker.run(goal, lambda *step: told.append(step)), GenerateRollout.Result)
    rollout = rollout_from_msg(result.rollout)
    assert len(rollout) == 12
    assert rollout.provenance.generator == "diffusion"
    assert rollout.provenance.preset == "tiny"
    assert len(rollout.provenance.checkpoint_sha256) == 64
    assert rollout.plan_hash == "d" * 64
    # Two chunks of two steps each, counted through.
    assert [step for phase, step, _ in told if phase == "sample"] == [0, 1, 2, 2, 3, 4]
    again = deserialize_message(worker.run(goal), GenerateRollout.Result)
    assert np.array_equal(rollout_from_msg(again.rollout).rgb, rollout.rgb)
    assert worker.starts == 1


@pytest.mark.full
def test_a_cancelled_rollout_leaves_the_worker_alive(worker: Worker, goal: bytes) -> None:
    worker.start()
    before = worker.starts
    told: list[str] = []
    with pytest.raises(Cancelled):
        worker.run(goal, lambda phase, *_: told.append(phase), lambda: "sample" in told)
    assert worker.run(goal)
    assert worker.starts == before


def test_a_missing_checkpoint_is_told_when_loading(tmp_path: Path) -> None:
    worker = worker_for(preset="wan14b", checkpoint=str(tmp_path / "nothing"), device="cpu")
    with pytest.raises(KinemaError) as caught:
        worker.start()
    worker.stop()
    assert caught.value.code == ErrorCode.FILE_MISSING
    assert str(tmp_path / "nothing") in caught.value.what
    assert "kinema4d fetch-weights" in caught.value.hint


def test_the_result_says_when_the_base_ran_without_its_adapter(goal: bytes, tmp_path: Path) -> None:
    write_wan(load_preset("tiny"), tmp_path / "base")
    worker = worker_for(preset="tiny", checkpoint=str(tmp_path), device="cpu", allow_base=True)
    try:
        result = deserialize_message(worker.run(goal), GenerateRollout.Result)
    finally:
        worker.stop()
    assert said_by(result)["warning"] == "The base model without the 'act' adapter was used."


@pytest.mark.skipif(shipped_weights("nano") is None, reason="needs the nano model's weights in the package")
def test_the_default_generator_is_the_shipped_nano_and_it_hears_of_the_hand() -> None:
    """A pick in the lab, through the messages: the hand's way arrives, and the box goes along with it."""
    asked = pick_goal(360, 240, frames=31)
    worker = worker_for(device="cpu")
    try:
        result = deserialize_message(worker.run(bytes(serialize_message(asked.goal))), GenerateRollout.Result)
    finally:
        worker.stop()
    rollout = rollout_from_msg(result.rollout)
    assert rollout.provenance.preset == "nano"
    assert "depth lifted from the picture; carried to" in rollout.provenance.versions["frames"]
    verdict = GeometricJudge().judge(rollout, Task(Lifted()), asked.target_mask)
    assert verdict.success, verdict.reason
