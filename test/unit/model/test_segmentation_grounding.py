"""Tests of grounding detectors with tiny random weights: text to boxes to SAM 2, and invalid folders."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from support.tiny_detectors import save_grounding_dino
from support.tiny_sam2 import tiny_sam2

from kinema4d_model.segmentation import GroundingDetector, Sam2Segmenter
from kinema4d_ros.core.errors import ErrorCode, FileFormatError, KinemaError
from kinema4d_ros.segmentation import Prompt

IMAGE = np.random.default_rng(0).integers(0, 255, (90, 120, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_grounding_dino(tmp_path_factory.mktemp("detector") / "dino")


def test_text_gives_boxes_inside_the_image(folder: Path) -> None:
    boxes, scores = GroundingDetector(folder, threshold=0.0).detect(IMAGE, "a robot arm")
    assert boxes.shape == (len(scores), 4)
    assert len(boxes) > 0
    assert (boxes >= 0).all()
    assert (boxes <= (120, 90, 120, 90)).all()
    assert (boxes[:, :2] < boxes[:, 2:]).all()
    assert (np.diff(scores) <= 0).all()


def test_text_gives_a_mask_or_an_empty_one(folder: Path) -> None:
    model = tiny_sam2()
    found = Sam2Segmenter(model, detector=GroundingDetector(folder, threshold=0.0)).segment(
        IMAGE, Prompt(text="a robot arm")
    )
    assert found.masks.any()
    assert "'a robot arm'" in found.notes[0]
    nothing = Sam2Segmenter(model, detector=GroundingDetector(folder, threshold=1.0)).segment(
        np.stack([IMAGE, IMAGE]), Prompt(text="a robot arm")
    )
    assert nothing.empty == (0, 1)
    assert nothing.scores.tolist() == [0.0, 0.0]
    assert "0 boxes" in nothing.notes[0]


def test_folders_without_a_detector_are_refused(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(FileFormatError) as error:
        GroundingDetector(tmp_path / "nowhere")
    assert error.value.code == ErrorCode.FILE_MISSING
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    with pytest.raises(FileFormatError, match="'bert'"):
        GroundingDetector(tmp_path)
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    with pytest.raises(FileFormatError, match="holds no weights"):
        GroundingDetector(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04")
    with pytest.raises(FileFormatError, match="only pickle files"):
        GroundingDetector(tmp_path)
    with pytest.raises(KinemaError, match="threshold is 2"):
        GroundingDetector(folder, threshold=2)
