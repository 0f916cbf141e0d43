from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from support.training_runs import tiny_linear

from kinema4d_model.data.episode import (
    Episode,
    ObjectTrack,
    Outcome,
    StoredCondition,
    pack_depth,
    point_bounds,
    points_from_depth,
    unpack_depth,
)
from kinema4d_model.data.episode_files import encode_episode
from kinema4d_model.data.shards import write_shard
from kinema4d_model.preset import load_preset
from kinema4d_model.training.examples import EpisodeExamples, example_from_episode
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import DataError, ErrorCode

T, H, W = 17, 64, 96


def episode(key: str = "e-0", frames: int = T, height: int = H, width: int = W) -> Episode:
    """Make an episode: a wall at 1 m, a cube in front that jumps in the last third, a one-link robot at the left."""
    camera = PinholeCamera.look_at((1, -0.5, 0.7), (0.3, 0, 0), width=width, height=height, fov_y_deg=40)
    ids = np.zeros((frames, height, width), np.uint8)
    ids[:, height // 4 : height // 2, : width // 4] = 1
    jump = 2 * frames // 3
    for t in range(frames):
        left = width // 2 + (width // 4 if t >= jump else 0)
        ids[t, height // 2 : 3 * height // 4, left : left + width // 8] = 2
    depth = np.choose(ids, [1.0, 0.5, 0.8]).astype(np.float32)
    depth = unpack_depth(pack_depth(depth))
    rgb = np.array([[120, 120, 120], [20, 20, 30], [220, 30, 30]], np.uint8)[ids]
    robot = np.where(ids == 1, depth, np.float32(np.nan)).astype(np.float32)
    poses = np.broadcast_to(np.eye(4), (frames, 4, 4))
    xyz = points_from_depth(depth, camera)
    return Episode(
        key=key, rgb=rgb, depth_m=depth, ids=ids, names=("link", "cube"), link_count=1,
        times=np.arange(frames) * 0.1, camera=camera, robot="", joint_names=(), joints=None, actions=None,
        condition_ids=(ids == 1).astype(np.uint8), bounds=point_bounds(xyz), known_bounds=point_bounds(xyz),
        task="pick", outcome=Outcome(True, "cube", {}, (ObjectTrack("cube", "box", (1, 1, 1), (1, 0, 0), poses),)),
        source="test", condition=StoredCondition(np.where(ids[..., None] == 1, rgb, 0).astype(np.uint8), robot),
    )  # fmt: skip


def test_an_episode_becomes_sampler_inputs_and_truth() -> None:
    preset, source = tiny_linear(), episode()
    example = example_from_episode(source, preset)
    inputs = example.inputs
    assert example.truth_rgb.shape == inputs.composite_rgb.shape == (9, 32, 48, 3)
    assert np.array_equal(inputs.robot_mask, source.ids[::2, ::2, ::2] == 1)  # type: ignore[index]
    assert np.array_equal(example.focus, source.ids[::2, ::2, ::2] == 2)  # type: ignore[index]
    # Nothing has moved yet: truth and composite agree, except for the filled margin around the robot.
    assert not example.dynamic[1, :, 16:].any()
    # The cube has jumped: its old and new position both differ from the static scene.
    assert example.dynamic[8, 17:23, 25:29].all()
    assert example.dynamic[8, 17:23, 37:41].all()
    low, high = inputs.bounds
    metres = example.truth_xyz01 * (high - low) + low
    picked = points_from_depth(source.depth_m[::2, 1::2, 1::2], source.camera.scaled(48, 32))  # type: ignore[index]
    assert np.abs(metres[..., 2] - picked[..., 2])[:, 2:14, 14:22].max() < 1e-4
    assert 0 <= example.truth_xyz01.min() <= example.truth_xyz01.max() <= 1


def test_without_measured_depth_the_scene_is_a_plane() -> None:
    with_depth, without = (example_from_episode(episode(), tiny_linear(), use_depth=flag) for flag in (True, False))
    assert np.array_equal(with_depth.truth_rgb, without.truth_rgb)
    assert not np.allclose(with_depth.inputs.composite_xyz01, without.inputs.composite_xyz01)


def write(folder: Path, episodes: list[Episode], name: str = "train-000000.tar") -> None:
    write_shard(folder / name, ((e.key, encode_episode(e)) for e in episodes))


def test_shards_are_examples_by_number(tmp_path: Path) -> None:
    write(tmp_path, [episode("a"), episode("b")])
    write(tmp_path, [episode("c")], "train-000001.tar")
    write(tmp_path, [episode("held-out")], "val-000000.tar")
    (tmp_path / ".train-000002.tar").write_bytes(b"still being written")
    preset = tiny_linear()
    source = EpisodeExamples(tmp_path / "train", preset)
    assert list(source.names) == ["a", "b", "c"]
    assert source.load(2).name == "c"
    assert list(EpisodeExamples(tmp_path, preset).names) == ["a", "b", "c", "held-out"]
    limited = EpisodeExamples(tmp_path / "train", preset, limit=2)
    assert list(limited.names) == ["a", "b"]
    assert source.identity == EpisodeExamples(tmp_path / "train", preset).identity
    assert len({source.identity, limited.identity, EpisodeExamples(tmp_path / "val", preset).identity}) == 3
    assert source.identity != EpisodeExamples(tmp_path / "train", preset, depth_ratio=0.5).identity
    both = f"{tmp_path / 'val'}:{tmp_path / 'train'}"
    assert list(EpisodeExamples(both, preset).names) == ["held-out", "a", "b", "c"]
    with pytest.raises(DataError, match="nowhere holds no episodes"):
        EpisodeExamples(f"{both}:{tmp_path / 'nowhere'}", preset)
    with pytest.raises(DataError, match="holds no episodes") as caught:
        EpisodeExamples(tmp_path / "nothing", preset)
    assert caught.value.code is ErrorCode.FILE_MISSING


def test_unusable_episodes_are_named(tmp_path: Path) -> None:
    short = episode("too-short", frames=7)
    flat = dataclasses.replace(episode("no-depth"), depth_m=None, bounds=None, known_bounds=None)
    no_robot = dataclasses.replace(episode("no-robot"), condition=None, condition_ids=None)
    for bad, message in ((short, "has 7 frames"), (flat, "has no depth"), (no_robot, "neither actions")):
        with pytest.raises(DataError, match=f"{bad.key}.*{message}"):
            example_from_episode(bad, tiny_linear())
    write(tmp_path, [episode("a"), episode("b")])
    shard = tmp_path / "train-000000.tar"
    source = EpisodeExamples(tmp_path / "train", tiny_linear())
    data = bytearray(shard.read_bytes())
    middle = len(data) // 4
    data[middle] ^= 0xFF
    shard.write_bytes(bytes(data))
    with pytest.raises(DataError, match=r"train-000000.*a"):
        source.load(0)
    assert source.load(1).name == "b"


def test_normalised_pointmaps_suit_networks_without_a_composite() -> None:
    source = episode()
    unit = (255 * np.stack([np.full((T, H, W), v) for v in (0.2, 0.4, 0.6)], -1)).astype(np.uint8)
    stored = dataclasses.replace(source.condition, depth_m=None, pointmap01=unit)  # type: ignore[type-var]
    bare = dataclasses.replace(
        source, depth_m=None, bounds=None, known_bounds=None, pointmap01=unit, condition=stored, ids=None
    )
    example = example_from_episode(bare, load_preset("tiny"))
    np.testing.assert_allclose(example.truth_xyz01[3, 5, 5], [0.2, 0.4, 0.6], atol=1 / 255)
    inside = example.inputs.robot_mask
    np.testing.assert_allclose(example.inputs.robot_xyz01[inside][0], [0.2, 0.4, 0.6], atol=1 / 255)
    assert not example.inputs.robot_xyz01[~inside].any()
    with pytest.raises(DataError, match=r"e-0.*builds on a composite"):
        example_from_episode(bare, tiny_linear())
