"""The commands of the README, run as a user would."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import av
import cv2
import numpy as np
import pytest

from kinema4d_ros.core.trajectory import JointTrajectory
from kinema4d_ros.io.images import write_image
from kinema4d_ros.io.store import load_pointmaps
from kinema4d_ros.io.tables import write_trajectory
from kinema4d_ros.robot import Robot

ROOT = Path(__file__).resolve().parents[2]


def kinema4d(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kinema4d_ros.cli", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=ROOT,
        env=dict(os.environ),
    )


def test_render_writes_all_outputs_and_replaces_them(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    done = kinema4d("render", "--out", out, "--size", "180x120", "--frames", "7")
    assert done.returncode == 0, done.stderr
    sequence = load_pointmaps(out / "pointmaps")
    assert sequence.xyz.shape == (7, 120, 180, 3)
    assert sequence.mask.any(axis=(1, 2)).all()
    with av.open(str(out / "overlay.mp4")) as video:
        assert sum(1 for _ in video.decode(video=0)) == 7
    strip = cv2.imread(str(out / "strip.png"))
    assert strip is not None
    assert strip.std() > 10
    assert (out / "frame_006.ply").read_bytes().startswith(b"ply\nformat binary_little_endian")
    summary = json.loads((out / "render.json").read_text())
    assert summary["frames"] == 7
    again = kinema4d("render", "--out", out, "--size", "90x60", "--frames", "2")
    assert again.returncode == 0, again.stderr
    assert load_pointmaps(out / "pointmaps").xyz.shape == (2, 60, 90, 3)


def test_render_of_another_robot_over_an_image(tmp_path: Path) -> None:
    image = np.full((480, 720, 3), (200, 30, 30), np.uint8)
    write_image(tmp_path / "background.png", image)
    table = tmp_path / "plan.csv"
    robot = "primitive_arm"
    loaded = Robot.load(robot)
    positions = np.stack([loaded.home_position()] * 2)
    positions[1, 0] += 0.5
    write_trajectory(JointTrajectory.from_positions(loaded.joint_names, positions, times=[0.0, 1.0]), table)
    done = kinema4d(
        "render", "--robot", robot, "--trajectory", table, "--image", tmp_path / "background.png",
        "--frames", "2", "--out", tmp_path / "out",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--robot", "no_such_robot"], ["no_such_robot", "yam"]),
        (["--trajectory", "missing.csv"], ["missing.csv"]),
        (["--camera", "missing.yaml"], ["missing.yaml"]),
        (["--image", "README.md"], ["README.md"]),
        (["--size", "big"], ["big", "1440x960"]),
        (["--ply-frame", "99"], ["99"]),
    ],
)
def test_render_reports_bad_input_without_a_traceback(tmp_path: Path, arguments: list[str], words: list[str]) -> None:
    done = kinema4d("render", "--out", tmp_path / "out", "--frames", "2", "--size", "90x60", *arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr
    assert not (tmp_path / "out").exists()


def test_image_of_another_size_is_rejected(tmp_path: Path) -> None:
    write_image(tmp_path / "small.png", np.zeros((10, 20, 3), np.uint8))
    done = kinema4d("render", "--out", tmp_path / "out", "--image", tmp_path / "small.png")
    assert done.returncode == 2
    assert "20 x 10" in done.stderr
    assert "720 x 480" in done.stderr


def test_folder_with_other_files_is_not_replaced(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.txt").write_text("do not lose")
    done = kinema4d("render", "--out", precious, "--frames", "2", "--size", "90x60")
    assert done.returncode == 2
    assert [path.name for path in precious.iterdir()] == ["thesis.txt"]


def test_doctor_lists_all_checks() -> None:
    done = kinema4d("doctor", "--json")
    checks = {check["name"]: check for check in json.loads(done.stdout)}
    assert {"Python", "ROS 2", "MoveIt", "YAM meshes", "calibration", "GL", "free disk"} <= set(checks)
    assert checks["YAM meshes"]["status"] == "ok"
    missing = [check for check in checks.values() if check["status"] == "missing"]
    assert all(check["fix"] for check in missing)
    assert done.returncode == (1 if missing else 0)


def test_doctor_checks_a_calibration(tmp_path: Path) -> None:
    broken = tmp_path / "camera.yaml"
    broken.write_text("intrinsics: {}\nextrinsics: {}\n")
    done = kinema4d("doctor", "--camera", broken)
    assert done.returncode == 1
    assert "calibration" in done.stdout


def test_unknown_verbs_and_help() -> None:
    assert kinema4d("--help").returncode == 0
    assert kinema4d("fly").returncode == 2
    assert "kinema4d" in kinema4d("--version").stdout
