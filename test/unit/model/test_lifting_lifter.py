"""Tests of depth from one image: the shipped weights on new scenes, sizes, bad input."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.lifting_scenes import lab_episode, lab_frames

from kinema4d_model.pipeline.lifting import LearnedLifter, load_lifter
from kinema4d_model.pipeline.lifting.evaluate import PlaneLifter, score_lifter, target_overlap
from kinema4d_model.pipeline.lifting.frames import ROBOT, THING
from kinema4d_model.pipeline.lifting.geometry import view_plane
from kinema4d_model.pipeline.lifting.lifter import WEIGHTS, working_size
from kinema4d_model.pipeline.lifting.network import HeightNet
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import CameraError, ErrorCode, FileFormatError, GeneratorError, KinemaError


@pytest.fixture
def untaught() -> LearnedLifter:
    torch.manual_seed(0)
    return LearnedLifter(HeightNet())


def level_camera(width: int = 60, height: int = 40) -> PinholeCamera:
    """Return a camera that sees the table below and the wall beyond its end."""
    return PinholeCamera.look_at((1.0, 0, 0.4), (0, 0, 0.3), width=width, height=height, fov_y_deg=50)


def test_the_shipped_weights_find_objects_in_new_scenes() -> None:
    frames = lab_frames(6)
    learned, plane = score_lifter(load_lifter(), frames), score_lifter(PlaneLifter(), frames)
    assert plane.iou == 0
    assert plane.found == 0
    assert learned.iou > 0.88
    assert learned.found > 0.9
    assert learned.depth_median_mm < 0.25 * plane.depth_median_mm
    assert learned.depth_p90_mm < 0.6 * plane.depth_p90_mm
    assert learned.false_share < 0.005


def test_the_shipped_weights_are_small_and_documented() -> None:
    size = sum(p.stat().st_size for p in WEIGHTS.iterdir())
    assert size < 3_000_000
    assert not [p.name for p in WEIGHTS.iterdir() if p.suffix not in (".json", ".safetensors")]
    record = json.loads((WEIGHTS / "training.json").read_text())
    assert record["pictures"] > 0
    assert record["steps"] > 0
    lifter = load_lifter()
    assert 300_000 < sum(p.numel() for p in lifter.network.parameters()) < 600_000
    assert len(lifter.sha256) == 64


def test_larger_images_get_depth_at_their_own_size() -> None:
    episode = lab_episode(1, width=432, height=288)
    assert episode.ids is not None
    assert episode.depth_m is not None
    lifted = load_lifter().lift(episode.rgb[0], episode.camera, episode.robot_mask[0])
    assert lifted.depth_m.shape == (288, 432)
    names = [o.name for o in episode.outcome.objects]
    truth = np.any([episode.object_mask(name)[0] for name in names], axis=0)
    thing = lifted.thing > 0.5
    assert (thing & truth).sum() / (thing | truth).sum() > 0.85
    error = np.abs(lifted.depth_m - episode.depth_m[0])[thing & truth]
    assert np.median(error) < 0.012


def test_empty_pixels_get_the_plane_and_nan_beyond_its_range(untaught: LearnedLifter) -> None:
    camera = level_camera()
    view = view_plane(camera)
    met = np.isfinite(view.depth_m)
    assert 0 < met.sum() < met.size
    image = np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8)
    robot = np.zeros((40, 60), bool)
    robot[20:40, 20:40] = True
    lifted = untaught.lift(image, camera, robot)
    assert lifted.depth_m.dtype == lifted.thing.dtype == np.float32
    assert np.array_equal(np.isfinite(lifted.depth_m), met)
    assert ((lifted.thing >= 0) & (lifted.thing <= 1)).all()
    assert (lifted.thing[~met] == 0).all()
    assert (lifted.thing[robot] == 0).all()
    flat = met & (lifted.thing <= 0.5)
    assert flat[robot & met].all()
    assert np.allclose(lifted.depth_m[flat], view.depth_m[flat], rtol=1e-6)
    raised = met & (lifted.thing > 0.5)
    assert (lifted.depth_m[raised] <= view.depth_m[raised] * (1 + 1e-6)).all(), "objects stand on the table"
    assert (lifted.depth_m[met] > 0).all()


@pytest.mark.parametrize(("width", "height"), [(144, 96), (97, 61), (320, 240), (640, 480), (40, 200)])
def test_any_size_gives_depth_of_that_size(untaught: LearnedLifter, width: int, height: int) -> None:
    camera = level_camera(width, height)
    image = np.random.default_rng(1).integers(0, 256, (height, width, 3), dtype=np.uint8)
    lifted = untaught.lift(image, camera)
    assert lifted.depth_m.shape == lifted.thing.shape == (height, width)
    rows, columns = working_size(view_plane(camera), camera)
    assert rows % 8 == columns % 8 == 0
    assert columns / rows == pytest.approx(width / height, rel=0.15)


def test_the_table_height_is_relative_to_the_base(untaught: LearnedLifter) -> None:
    frames = lab_frames(1)
    camera = frames.camera(0)
    pose = camera.base_T_camera.copy()
    pose[2, 3] += 0.7
    plain = untaught.lift(frames.rgb[0], camera, frames.kind[0] == ROBOT)
    raised = untaught.lift(frames.rgb[0], camera.posed(pose), frames.kind[0] == ROBOT, table_height_m=0.7)
    assert np.allclose(raised.thing, plain.thing, atol=1e-4)
    assert np.allclose(raised.depth_m, plain.depth_m, atol=1e-4)


def test_a_wide_view_uses_a_larger_network_size() -> None:
    close = PinholeCamera.look_at((0.6, 0, 0.6), (0, 0, 0), width=720, height=480, focal_px=1400)
    wide = PinholeCamera.look_at((0.6, 0, 0.6), (0, 0, 0), width=720, height=480, focal_px=450)
    assert working_size(view_plane(close), close) == (96, 144)
    rows, columns = working_size(view_plane(wide), wide)
    assert rows > 150
    assert columns <= 720


def test_the_target_s_overlap_counts_false_pixels_around_it() -> None:
    kind = np.full((30, 30), 2, np.uint8)
    kind[10:20, 10:20] = 4
    exact = kind == 4
    assert target_overlap(exact, kind) == 1.0
    assert target_overlap(~exact, kind) == 0.0
    wider = np.zeros_like(exact)
    wider[10:20, 10:22] = True
    assert target_overlap(wider, kind) == pytest.approx(100 / 120)
    assert np.isnan(target_overlap(exact, np.full((30, 30), THING, np.uint8)))


def test_weights_are_loaded_once(tmp_path: Path) -> None:
    assert load_lifter() is load_lifter(WEIGHTS)
    HeightNet(widths=(8, 16, 24)).save_pretrained(tmp_path)
    other = load_lifter(str(tmp_path))
    assert other is load_lifter(tmp_path)
    assert other is not load_lifter()
    assert tuple(other.network.config.widths) == (8, 16, 24)


def test_folders_without_a_lifter_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=r"config\.json is missing") as caught:
        load_lifter(tmp_path / "none")
    assert caught.value.code == ErrorCode.FILE_MISSING
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "config.json").write_text('{"_class_name": "HeightNet"}')
    with pytest.raises(FileFormatError, match="holds no weights"):
        load_lifter(empty)
    for name, text in (
        ("a", "{"),
        ("b", '{"_class_name": "Other"}'),
        ("c", '{"_class_name": "HeightNet", "widths": 3}'),
    ):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text(text)
        with pytest.raises(FileFormatError):
            load_lifter(folder)
    wrong = tmp_path / "wrong"
    HeightNet(widths=(8, 16, 24)).save_pretrained(wrong)
    (wrong / "config.json").write_text('{"_class_name": "HeightNet", "widths": [8, 16, 32]}')
    with pytest.raises(FileFormatError, match="wrong shape"):
        load_lifter(wrong)


def test_bad_input_is_refused_with_a_reason(untaught: LearnedLifter) -> None:
    camera = level_camera()
    image = np.zeros((40, 60, 3), np.uint8)
    for bad in (image[:30], image[..., :1], image.astype(np.float32), image.tolist()):
        with pytest.raises(GeneratorError, match="the image is") as caught:
            untaught.lift(bad, camera)
        assert caught.value.code == ErrorCode.GENERATOR_BAD_REQUEST
    for mask in (np.zeros((40, 61), bool), np.zeros((40, 60), np.uint8), [[True]]):
        with pytest.raises(GeneratorError, match="mask is"):
            untaught.lift(image, camera, mask)  # type: ignore[arg-type]
    with pytest.raises(GeneratorError, match="distortion"):
        untaught.lift(image, replace(camera, distortion=(0.05, 0, 0, 0)))
    with pytest.raises(GeneratorError, match="nan"):
        untaught.lift(image, camera, None, float("nan"))
    with pytest.raises(CameraError, match="below the table"):
        untaught.lift(image, camera, None, 0.5)
    away = PinholeCamera.look_at((0, 0, 0.4), (1, 0, 0.9), width=60, height=40, fov_y_deg=30)
    with pytest.raises(KinemaError, match="no pixel"):
        untaught.lift(image, away)
