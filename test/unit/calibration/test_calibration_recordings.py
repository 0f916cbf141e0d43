"""Calibration on real recordings of a Franka Panda; skipped without the recordings (see `recordings`)."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from kinema4d_model.data.importers.video import read_video
from kinema4d_ros.calibration import read_camera, read_pose
from kinema4d_ros.calibration.drift import Drift, check_drift_by_edges
from kinema4d_ros.calibration.markerless import calibrate_markerless
from kinema4d_ros.core.errors import CalibrationError
from kinema4d_ros.robot import Robot
from kinema4d_ros.segmentation import ClassicalSegmenter, Prompt, rendered_masks

HELD_OUT = (("0006", 15), ("0007", 30), ("0008", 10))


@pytest.fixture(scope="module")
def recordings() -> Path:
    """Find the folder in KINEMA4D_RECORDINGS, or `shared/data/droid` next to the project."""
    beside = Path(__file__).resolve().parents[4] / "shared" / "data" / "droid"
    folder = Path(os.environ.get("KINEMA4D_RECORDINGS", beside))
    if not (folder / "camera_1_new_setup.yaml").is_file():
        pytest.skip(f"no recordings in {folder}: set KINEMA4D_RECORDINGS")
    return folder


@pytest.fixture(scope="module")
def panda(recordings: Path) -> Robot:
    return Robot.load(recordings / "robot" / "droid_panda.urdf")


def look(recordings: Path, robot: Robot, moments: tuple[tuple[str, int], ...]) -> tuple[NDArray, NDArray]:
    """Read joint positions and images of camera 1 at frames of runs."""
    q, pictures = [], []
    for run, frame in moments:
        folder = recordings / "new_setup" / run
        arm = json.loads((folder / "annotation.json").read_text())["joints"][frame]
        q.append([*arm[:7], 0.8 * arm[7]])  # the knuckle closes at 0.8
        pictures.append(read_video(folder / "1.mp4")[0][frame])
    assert robot.joint_names[7] == "robotiq_85_left_knuckle_joint"
    return np.array(q), np.stack(pictures)


def check(recordings: Path, robot: Robot, moments: tuple[tuple[str, int], ...]) -> Drift:
    file = recordings / "camera_1_new_setup.yaml"
    pose = read_pose(file)
    return check_drift_by_edges(
        robot,
        *look(recordings, robot, moments),
        read_camera(file),
        covariance=pose.covariance,
        freedom=pose.degrees_of_freedom,
        residual_px=pose.residuals.px or 0.0,
    )


def test_held_out_images_fit_their_calibration(recordings: Path, panda: Robot) -> None:
    for moments in (*[(one,) for one in HELD_OUT], HELD_OUT):
        found = check(recordings, panda, moments)
        assert found.verdict == "still", found.text


def test_runs_with_another_camera_pose_do_not_fit(recordings: Path, panda: Robot) -> None:
    assert check(recordings, panda, (("0001", 5), ("0001", 40))).verdict != "still"


def test_missing_black_gripper_is_reported(recordings: Path, panda: Robot) -> None:
    camera = read_camera(recordings / "camera_1_new_setup.yaml")
    q, pictures = look(recordings, panda, HELD_OUT)
    prompts = rendered_masks(panda, q, camera)
    for picture, prompt in zip(pictures, prompts, strict=True):
        found = ClassicalSegmenter().segment(picture, Prompt(mask=prompt))
        assert found.drawn == (0,)
        assert np.array_equal(found.masks, prompt)
    with pytest.raises(CalibrationError, match="masks are rendered"):
        calibrate_markerless(panda, q, prompts, camera, drawn=[0, 1, 2])
