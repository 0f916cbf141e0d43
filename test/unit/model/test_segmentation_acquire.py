"""Tests of text prompts in `kinema4d acquire`: real detector and SAM 2 classes with tiny random weights."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pytest
from support.orbits import BASE_T_BOARD, BOARD, BOARD_POSE, Q, rough_description, small_orbit
from support.tiny_detectors import save_grounding_dino
from support.tiny_sam2 import save_tiny, tiny_sam2

from kinema4d_model.segmentation import GroundingDetector, Sam2Segmenter
from kinema4d_ros.acquisition.acquire import acquire
from kinema4d_ros.acquisition.options import Acquisition
from kinema4d_ros.acquisition.views import load_views
from kinema4d_ros.calibration import write_camera_info
from kinema4d_ros.calibration.camera_files import CameraInfo
from kinema4d_ros.cli import acquire as verb
from kinema4d_ros.core.errors import AssetError, KinemaError
from kinema4d_ros.core.trajectory import JointTrajectory
from kinema4d_ros.io.images import read_image
from kinema4d_ros.io.tables import write_trajectory
from kinema4d_ros.robot import Robot
from kinema4d_ros.segmentation import Prompt

WORDS = "a robot arm"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, yam: Robot) -> Path:
    folder = tmp_path_factory.mktemp("words")
    orbit = small_orbit(yam, Q, 8)
    orbit.write(folder / "frames", folder / "unused")
    write_camera_info(folder / "camera.yaml", CameraInfo.of(orbit.cameras[0]))
    write_trajectory(JointTrajectory(yam.joint_names, np.zeros(1), Q[None]), folder / "at.csv")
    rough_description(yam, folder / "rough")
    save_grounding_dino(folder / "dino")
    save_tiny(folder / "sam2", tiny_sam2(seed=2))  # its masks cover a part of the image
    return folder


@pytest.mark.full
def test_text_on_the_command_line_reaches_detector_and_sam_2(world: Path, tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    verb.register(parser.add_subparsers())
    words = [world / "frames", "--urdf", world / "rough/yam.urdf", "--joints", world / "at.csv", "--views", 8]
    words += ["--camera", world / "camera.yaml", "--board", BOARD.text, "--board-pose", *BOARD_POSE, "--rounds", 0]
    words += ["--segmenter", "sam2", "--weights", world / "sam2", "--text", WORDS, "--detector", world / "dino"]
    chosen = parser.parse_args(["acquire", *map(str, words), "--out", str(tmp_path / "out"), "--json"])
    with pytest.raises(KinemaError):  # random weights find no robot: no hull, or one that matches no URDF
        chosen.run(chosen)
    segmenter = Sam2Segmenter(world / "sam2", detector=world / "dino")
    for view in load_views(tmp_path / "out" / "2_poses"):
        expected = segmenter.segment(view.image, Prompt(text=WORDS)).masks
        written = read_image(tmp_path / "out" / "3_masks" / f"{view.name}.png")[..., 0] > 127
        assert expected.any()
        assert np.array_equal(written, expected), view.name


def test_text_without_detections_is_refused_and_earlier_stages_are_kept(world: Path, tmp_path: Path) -> None:
    blind = Sam2Segmenter(world / "sam2", detector=GroundingDetector(world / "dino", threshold=1.0))
    job = Acquisition(
        sources=(world / "frames",), robot=Robot.load(world / "rough/yam.urdf"), q=Q[None], out=tmp_path / "out",
        camera=small_orbit(Robot.load("yam"), Q, 1).cameras[0], board=BOARD, base_T_world=BASE_T_BOARD, views=8,
        segmenter=blind, text=WORDS,
    )  # fmt: skip
    with pytest.raises(AssetError, match="f000"):
        acquire(job)
    assert (tmp_path / "out" / "2_poses" / "sheet.png").is_file()
    assert not (tmp_path / "out" / "3_masks").exists()
