"""`kinema4d calibrate intrinsics --topic` over real DDS: somebody moves a board before a camera."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.ros_graph import ROOT, Graph, wait_for

from kinema4d_ros.calibration import read_camera_info
from kinema4d_ros.calibration.boards import parse_board
from kinema4d_ros.calibration.synthetic import BoardPainter, random_board_pose
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.ros import names
from kinema4d_ros.ros.messages.images import image_from_array
from kinema4d_ros.ros.messages.stamps import header
from kinema4d_ros.ros.qos import profile

pytestmark = [pytest.mark.full, pytest.mark.slow, pytest.mark.timeout(300)]

BOARD = parse_board("charuco:9x6:0.03:0.0225")
CAMERA = PinholeCamera(640, 480, [[610.0, 0, 322.5], [0, 606.0, 238.5], [0, 0, 1]], distortion=(-0.1, 0.02, 0, 0, 0))
TOPIC = "side_camera/image_raw"
WAIT_S = 120.0


class MovingBoard:
    """Publishes a board that stays a moment in each pose, and blurs on its way to the next."""

    def __init__(self, graph: Graph) -> None:
        self._node = graph.node("side_camera")
        self._publisher = self._node.create_publisher(
            names.CAMERA_IMAGE.interface(), TOPIC, profile(names.CAMERA_IMAGE)
        )
        painter, rng = BoardPainter(BOARD, CAMERA, seed=4), np.random.default_rng(4)
        sharp = [painter.draw(random_board_pose(BOARD, CAMERA, rng, spread=0.4)) for _ in range(24)]
        smear = np.stack([np.roll(sharp[0], k, axis=1) for k in range(14)]).mean(axis=0).astype(np.uint8)
        frames = [frame for image in sharp for frame in (image, image, smear)]
        self._messages = [
            image_from_array(np.repeat(frame[..., None], 3, axis=2), "rgb8", header(1)) for frame in frames
        ]
        self.sent = 0
        self._node.create_timer(0.15, self._send)

    def _send(self) -> None:
        self._publisher.publish(self._messages[self.sent % len(self._messages)])
        self.sent += 1


@pytest.fixture
def camera(graph: Graph) -> MovingBoard:
    return MovingBoard(graph)


def start(folder: Path, *options: str) -> Any:
    command = [sys.executable, "-m", "kinema4d_ros.cli", "calibrate", "intrinsics", "--topic", TOPIC]
    command += ["--board", BOARD.text, "--out", str(folder / "side.yaml"), *options]
    return subprocess.Popen(
        command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(os.environ)
    )


def kept(folder: Path) -> list[Path]:
    return sorted((folder / "side_images").glob("*.png"))


def test_a_moved_board_gives_the_lens(camera: MovingBoard, tmp_path: Path) -> None:
    process = start(tmp_path, "--count", "12", "--json")
    out, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, err
    result = json.loads(out.strip().splitlines()[-1])
    assert len(kept(tmp_path)) == 12
    assert result["without_board"] == 0
    found = read_camera_info(tmp_path / "side.yaml").camera(np.eye(4))
    assert found.K[0, 0] == pytest.approx(610.0, rel=0.005)
    assert found.K[1, 1] == pytest.approx(606.0, rel=0.005)


def test_ctrl_c_loses_nothing_and_the_next_run_goes_on(camera: MovingBoard, tmp_path: Path) -> None:
    process = start(tmp_path, "--count", "500")
    wait_for(lambda: len(kept(tmp_path)) >= 6, WAIT_S, "six pictures")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, err
    assert "of the image has seen the board" in out
    assert "coverage" in err
    before = len(kept(tmp_path))
    assert (tmp_path / "side.yaml").is_file()
    process = start(tmp_path, "--count", str(before + 2), "--seconds", "60")
    process.communicate(timeout=WAIT_S)
    assert process.returncode == 0
    assert len(kept(tmp_path)) == before + 2


def test_a_silent_topic_is_named(tmp_path: Path) -> None:
    process = start(tmp_path)
    _, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 2
    assert "CAMERA_STALE" in err
    assert TOPIC in err
