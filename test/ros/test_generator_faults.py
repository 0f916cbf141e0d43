"""The generation server when its back-end fails: an error code each time, and the next goal works."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from support.faulty_generator import BUG, EXIT, HANG, MEMORY, SEGFAULT, SLOW, SPEC, WORK
from support.ros_graph import ROOT, Asker, Graph, wait_for

from kinema4d_msgs.action import GenerateRollout
from kinema4d_ros.calibration import read_camera
from kinema4d_ros.core.errors import ErrorCode
from kinema4d_ros.io.images import studio
from kinema4d_ros.io.resources import share_path
from kinema4d_ros.render import render_pointmaps
from kinema4d_ros.robot import Robot
from kinema4d_ros.ros import names
from kinema4d_ros.ros.messages.images import image_from_array
from kinema4d_ros.ros.messages.request import frames_to_msg
from kinema4d_ros.ros.messages.stamps import header

WAIT_S = 120.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def server() -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "kinema4d_ros.ros.nodes.generator", "--ros-args", "-p", f"preset:={SPEC}"]
    command += ["-p", "queue:=1", "-p", "cancel_grace_s:=0.5", "-p", "timeout_s:=60.0"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "test")])}
    process = subprocess.Popen(command, env=environment)
    yield process
    process.terminate()
    assert process.wait(timeout=30) == 0


@pytest.fixture(scope="module")
def client(server: subprocess.Popen[bytes]) -> Iterator[Any]:
    graph = Graph(threads=1)
    yield Asker(graph.node("asker"), GenerateRollout, names.GENERATE.name)
    graph.close()


@pytest.fixture(scope="module")
def goal() -> Any:
    """A small request: 5 frames of 120 x 180."""
    robot = Robot.load("primitive_arm")
    camera = read_camera(share_path("calibration/demo_lab.yaml")).scaled(180, 120)
    q = np.tile(robot.home_position(), (5, 1))
    drawn = render_pointmaps(robot, q, camera)
    drawn = type(drawn)(drawn.xyz, drawn.link_ids, camera, np.arange(5) * 0.1, None)
    made = GenerateRollout.Goal(robot_frames=frames_to_msg(drawn, header(1).stamp, [link.name for link in robot.links]))
    made.image = image_from_array(studio(camera), "rgb8", header(1, camera.frame_id))
    return made


def send(client: Any, goal: Any, seed: int, timeout_s: float = 0.0, feedback: Any = None) -> Any:
    request = GenerateRollout.Goal(
        image=goal.image, robot_frames=goal.robot_frames, seed=seed, timeout_s=timeout_s, plan_hash="ab" * 32
    )
    return client.send(request, feedback)


def test_a_good_goal_gives_a_rollout_with_timings(client: Any, goal: Any) -> None:
    result = client.result(send(client, goal, WORK))
    assert result.error.code == ErrorCode.NONE
    assert len(result.rollout.rgb) == len(result.rollout.points) == 5
    assert result.rollout.plan_hash == "ab" * 32
    assert result.generate_s > 0
    assert result.peak_memory_bytes > 10_000_000


@pytest.mark.parametrize(
    ("seed", "code"),
    [
        (MEMORY, ErrorCode.GENERATOR_OUT_OF_MEMORY),
        (BUG, ErrorCode.GENERATOR_FAILED),
        (EXIT, ErrorCode.GENERATOR_FAILED),
        (SEGFAULT, ErrorCode.GENERATOR_FAILED),
    ],
)
def test_failures_have_codes_and_the_next_goal_works(client: Any, goal: Any, seed: int, code: ErrorCode) -> None:
    failed = client.result(send(client, goal, seed))
    assert failed.error.code == code
    assert failed.error.message
    assert not failed.rollout.rgb
    assert client.result(send(client, goal, WORK)).error.code == ErrorCode.NONE


def test_a_hang_ends_at_the_goal_s_own_timeout(client: Any, goal: Any) -> None:
    assert client.result(send(client, goal, HANG, timeout_s=1.0)).error.code == ErrorCode.GENERATOR_TIMEOUT
    assert client.result(send(client, goal, WORK)).error.code == ErrorCode.NONE


def test_broken_requests_are_refused(client: Any, goal: Any) -> None:
    broken = GenerateRollout.Goal(image=goal.image, robot_frames=goal.robot_frames, timeout_s=float("nan"))
    handle = client.send(broken)
    assert client.result(handle).error.code == ErrorCode.GENERATOR_BAD_REQUEST
    empty = client.send(GenerateRollout.Goal())
    assert client.result(empty).error.code not in (ErrorCode.NONE, ErrorCode.UNKNOWN)
    assert client.result(send(client, goal, WORK)).error.code == ErrorCode.NONE


def test_feedback_then_cancellation_within_a_step(client: Any, goal: Any) -> None:
    seen: list[tuple[str, int]] = []
    handle = send(client, goal, SLOW, feedback=lambda m: seen.append((m.feedback.phase, m.feedback.step)))
    wait_for(lambda: any(phase == "denoise" and step >= 3 for phase, step in seen), WAIT_S, "progress")
    asked = time.monotonic()
    client.cancel(handle)
    result = client.result(handle)
    print(f"cancelled after {time.monotonic() - asked:.3f} s")
    assert result.error.code == ErrorCode.CANCELLED
    assert max(step for _, step in seen) < 900
    assert client.result(send(client, goal, WORK)).error.code == ErrorCode.NONE


def test_a_full_queue_rejects_at_once(client: Any, goal: Any) -> None:
    running = send(client, goal, SLOW)
    waiting = send(client, goal, SLOW)
    assert running.accepted
    assert waiting.accepted
    assert not send(client, goal, WORK).accepted
    for handle in (waiting, running):
        client.cancel(handle)
    assert client.result(waiting).error.code == ErrorCode.CANCELLED
    assert client.result(running).error.code == ErrorCode.CANCELLED
    assert client.result(send(client, goal, WORK)).error.code == ErrorCode.NONE
