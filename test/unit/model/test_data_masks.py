"""Robot masks from a segmenter, a folder or a command; import of RGB video without a camera."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
from support.recordings import H, N, W, table_camera, waving

from kinema4d_model.data.check_episode import check_episode
from kinema4d_model.data.episode_files import decode_episode, encode_episode
from kinema4d_model.data.importers.build import build_episode
from kinema4d_model.data.importers.lifter import Lifted, RobotSeen
from kinema4d_model.data.importers.masks import CommandSegmenter, FolderMasks, SegmenterMasks, make_mask_source
from kinema4d_model.data.importers.recording import Recording, Unusable
from kinema4d_ros.core.errors import DataError
from kinema4d_ros.render import render_pointmaps
from kinema4d_ros.segmentation import RobotSegmenter

SIZE = {"frames": 7, "width": W, "height": H}


@pytest.fixture(scope="module")
def truth() -> np.ndarray:
    """Return (N, H, W) robot masks of the recording's images."""
    joints = waving().joints
    assert joints is not None
    return np.asarray(render_pointmaps(waving().robot[1], joints, table_camera()).mask)  # type: ignore[index]


def plain() -> Recording:
    """Return a recording with images only."""
    return replace(waving(), joints=None, actions=None, depth=None, camera=None, robot=None)


def overlap(a: np.ndarray, b: np.ndarray) -> float:
    return float((a & b).sum() / (a | b).sum())


class Flat:
    """A lifter that returns 1 m everywhere; it requires the robot mask."""

    def lift(self, rgb: np.ndarray, camera: object, robot: RobotSeen | None = None) -> Lifted:
        assert robot is not None
        assert robot.mask.any()
        return Lifted(np.ones(rgb.shape[:3], np.float32))


def test_rgb_video_gets_masks_and_a_masked_condition(truth: np.ndarray) -> None:
    found = build_episode(plain(), **SIZE, masks=make_mask_source("classical"), lifter=Flat())
    frames = np.linspace(0, N - 1, 7).round().astype(int)
    moving = truth[frames] & ~truth.all(axis=0)
    assert overlap(found.robot_mask, moving) > 0.4, "static parts are in the median"
    assert found.details["condition"] == "masked"
    assert found.details["masks"]["method"] == "classical"
    assert not {"condition", "ids", "depth"} & set(found.missing)
    assert check_episode(found) == []
    back = decode_episode(encode_episode(found))
    assert back.condition is not None
    assert np.array_equal(back.condition.rgb, np.where(found.robot_mask[..., None], found.rgb, 0))
    assert back.robot_condition().mask.any()
    without = build_episode(plain(), **SIZE)
    assert {"condition", "ids", "depth"} <= set(without.missing)
    assert check_episode(without) == []


def test_the_rendered_robot_prompts_the_segmenter_and_gives_link_ids(truth: np.ndarray) -> None:
    found = build_episode(waving(), **SIZE, masks=make_mask_source("classical"))
    drawn = build_episode(waving(), **SIZE)
    assert overlap(found.robot_mask, drawn.robot_mask) > 0.8
    assert not np.array_equal(found.robot_mask, drawn.robot_mask), "the mask is the segmenter's, not the rendering"
    both = found.robot_mask & drawn.robot_mask
    assert (found.ids[both] == drawn.ids[both]).all()  # type: ignore[index]
    assert np.array_equal(found.condition_ids, drawn.condition_ids), "the condition is still rendered from commands"
    assert found.details["condition"] == "commanded"
    assert check_episode(found) == []


def test_masks_of_a_folder_match_images_or_frames(tmp_path: Path, truth: np.ndarray) -> None:
    def write(name: str, masks: np.ndarray) -> Path:
        folder = tmp_path / name / "toy"
        folder.mkdir(parents=True)
        for i, mask in enumerate(masks):
            cv2.imwrite(str(folder / f"{i:05d}.png"), mask.astype(np.uint8) * 255)
        return tmp_path / name

    frames = np.linspace(0, N - 1, 7).round().astype(int)
    for folder in (write("all", truth), write("few", truth[frames])):
        source = make_mask_source(str(folder))
        assert isinstance(source, FolderMasks)
        found = build_episode(plain(), **SIZE, masks=source)
        assert np.array_equal(found.robot_mask, truth[frames])
    bent = replace(table_camera(), distortion=(-0.2, 0.05, 0.0, 0.0))
    straight = build_episode(replace(plain(), camera=bent), **SIZE, masks=FolderMasks(tmp_path / "all"))
    wanted = bent.rectify(truth[0].astype(np.uint8) * 255, "nearest") > 0
    assert np.array_equal(straight.robot_mask[0], wanted), "masks of distorted images are rectified too"
    with pytest.raises(DataError, match="holds 3 masks"):
        build_episode(plain(), **SIZE, masks=FolderMasks(write("three", truth[:3])))
    with pytest.raises(DataError, match="holds 0 masks"):
        build_episode(replace(plain(), key="other"), **SIZE, masks=FolderMasks(tmp_path / "all"))
    with pytest.raises(DataError, match="is 12 x 8"):
        build_episode(plain(), **SIZE, masks=FolderMasks(write("small", truth[:7, :8, :12])))
    with pytest.raises(Unusable, match="no robot was found"):
        build_episode(plain(), **SIZE, masks=FolderMasks(write("none", truth & False)))


SCRIPT = """
import json, sys
from pathlib import Path
import cv2, numpy as np
source, result = map(Path, sys.argv[1:])
request = json.loads((source / "request.json").read_text())
for t in range(request["frames"]):
    name = f"{t:05d}.png"
    drawn = source / "masks" / name
    mask = cv2.imread(str(drawn), 0) if drawn.is_file() else np.zeros((request["height"], request["width"]), np.uint8)
    mask[:4, :4] = 7
    cv2.imwrite(str(result / name), mask)
"""


def test_any_command_segments_and_gets_the_rendered_robot(tmp_path: Path) -> None:
    script = tmp_path / "masks.py"
    script.write_text(SCRIPT)
    source = make_mask_source(f"{sys.executable} {script}")
    assert isinstance(source, SegmenterMasks)
    assert isinstance(CommandSegmenter("x"), RobotSegmenter)
    found = build_episode(waving(), **SIZE, masks=source)
    drawn = build_episode(waving(), **SIZE)
    assert found.robot_mask[:, :4, :4].all()
    assert np.array_equal(found.robot_mask[:, 4:], drawn.robot_mask[:, 4:])
    assert build_episode(plain(), **SIZE, masks=source).robot_mask.sum() == 7 * 16
    for command, what in (
        (f"{sys.executable} -c 'pass'", "is missing"),
        (f"{sys.executable} -c 'raise SystemExit(4)'", "segmenter ended with exit code 4"),
        ("/no/such/program", "segmenter '/no/such/program' does not exist"),
    ):
        with pytest.raises(DataError, match=what):
            build_episode(plain(), **SIZE, masks=make_mask_source(command))
    assert make_mask_source("rendered") is None
    with pytest.raises(DataError, match="--segmenter-weights"):
        make_mask_source("sam2")
