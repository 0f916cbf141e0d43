"""`kinema4d policy` on the command line: list, try, serve, demos, train."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

from kinema4d_ros.cli import main
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.trajectory import JointTrajectory
from kinema4d_ros.io.tables import write_trajectory
from kinema4d_ros.policies import EpisodeStart, Observation
from kinema4d_ros.policies.demos import read_demo
from kinema4d_ros.policies.registry import make_policy, policy_kinds
from kinema4d_ros.robot import Robot


def test_list_names_every_kind(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "list"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert [re.split(r"[\[:]", line)[0] for line in shown] == list(policy_kinds())


def test_try_prints_the_outcome_and_writes_a_strip(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    strip = tmp_path / "strip.png"
    assert main(["policy", "try", "expert", "--seed", "3", "--strip", str(strip)]) == 0
    shown = capsys.readouterr().out
    found = re.search(r"canonical seed 3: (\w+) lifted, \+(\d+) mm up", shown)
    assert found
    assert int(found[2]) > 80
    picture = cv2.imread(str(strip))
    assert picture.shape[0] == 160
    assert picture.shape[1] % 240 == 0
    assert picture.std() > 10


def test_try_judges_the_given_task(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "try", "expert", "--task", "push", "--seed", "3"]) == 0
    found = re.search(r"canonical seed 3: \w+ pushed, \+?-?\d+ mm up, (\d+) mm along", capsys.readouterr().out)
    assert found
    assert int(found[1]) > 30


def test_try_with_errors_and_several_scenes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "try", "expert:offset_m=0.08", "--episodes", "2"]) == 0
    assert "expert:offset_m=0.08: 0 of 2 lifted" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["try", "telepathy"], "telepathy"),
        (["try", "expert", "--scenario", "moon"], "moon"),
        (["try", "expert", "--episodes", "0"], "0 episodes"),
        (["try", "replay:nowhere.npz"], "does not exist"),
        (["try", "diffusion:nowhere"], "does not exist"),
        (["try", "remote:127.0.0.1:1"], "cannot be reached"),
        (["serve", "expert", "--host", "0.0.0.0"], "no token"),  # noqa: S104 - it is refused
        (["serve", "expert", "--port", "99999"], "99999"),
        (["demos", "--out", "x", "--episodes", "0"], "0 episodes"),
        (["demos", "--out", "x", "--workers", "0"], "0 workers"),
        (["demos", "--out", "x", "--engine", "slurm"], "slurm"),
        (["demos", "--out", "x", "--scenario", "moon"], "moon"),
        (["train", "--data", "nowhere", "--out", "x"], "no demonstrations"),
        (["train", "--data", "nowhere", "--out", "x", "--steps", "0"], "steps 0"),
    ],
)
def test_bad_input_prints_a_reason(
    arguments: list[str],
    words: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KINEMA4D_POLICY_TOKEN", raising=False)
    assert main(["policy", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_demos_records_episodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "demos"
    assert main(["policy", "demos", "--out", str(out), "--episodes", "1"]) == 0
    assert "1 demonstrations, 1 lifted" in capsys.readouterr().out
    assert [p.name for p in out.glob("*.npz")] == ["episode_000000.npz"]
    assert read_demo(out / "episode_000000.npz").lifted


def test_serve_answers_and_stops_on_request(tmp_path: Path, yam: Robot) -> None:
    q = yam.home_position() + np.linspace(0, 0.05, 11)[:, None] * [1, 1, 1, 1, 1, 1, 0]
    write_trajectory(JointTrajectory(yam.joint_names, np.arange(11) / 10, q), tmp_path / "run.npz")
    command = [
        sys.executable,
        "-m",
        "kinema4d_ros.cli",
        "policy",
        "serve",
        f"replay:{tmp_path / 'run.npz'}",
        "--port",
        "0",
    ]
    environment = {k: v for k, v in os.environ.items() if k != "KINEMA4D_POLICY_TOKEN"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            address = re.match(r"(remote:127\.0\.0\.1:\d+) serves", process.stdout.readline())
            assert address
            policy = make_policy(address[1])
            policy.reset(EpisodeStart(yam))
            camera = PinholeCamera(4, 3, np.array([[4, 0, 2], [0, 4, 1.5], [0, 0, 1.0]]))
            chunk = policy.act(Observation(np.zeros((3, 4, 3), np.uint8), camera, yam.home_position(), 0.05, 0.0))
            np.testing.assert_array_equal(chunk.joints, q[1:])
            policy.close()
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 130
        finally:
            process.kill()
