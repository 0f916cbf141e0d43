"""Tests of training images and ground truth from episodes, and of their augmentation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.lifting_scenes import lab_episode, lab_frames

from kinema4d_model.data.episode_files import encode_episode
from kinema4d_model.data.shards import write_shard
from kinema4d_model.pipeline.lifting.frames import (
    ROBOT,
    TARGET,
    THING,
    WORLD,
    FrameSet,
    augmented_sample,
    frames_of,
    load_frames,
    plain_sample,
)
from kinema4d_model.pipeline.lifting.geometry import view_plane
from kinema4d_model.pipeline.lifting.network import INPUT_CHANNELS
from kinema4d_ros.core.errors import DataError


@pytest.fixture(scope="module")
def frames() -> FrameSet:
    return lab_frames(3)


def test_ground_truth_matches_the_episode(frames: FrameSet) -> None:
    episode = lab_episode(0)
    assert episode.ids is not None
    assert episode.depth_m is not None
    assert len(frames) == 6, "the first and the last frame of each"
    assert np.array_equal(frames.rgb[0], episode.rgb[0])
    assert np.array_equal(frames.kind[0] == ROBOT, episode.robot_mask[0])
    assert np.array_equal(frames.kind[0] == TARGET, episode.object_mask(episode.outcome.target)[0])
    things = [o.name for o in episode.outcome.objects if o.name != episode.outcome.target]
    assert (frames.kind[0] == THING).sum() == sum(episode.object_mask(name)[0].sum() for name in things)
    table = episode.object_mask("table")[0]
    assert (frames.kind[0][table] == WORLD).all()
    assert np.abs(frames.height_m[0][table]).max() < 2e-4
    target = next(o for o in episode.outcome.objects if o.name == episode.outcome.target)
    top = target.base_T_object[0, 2, 3] + target.size[2] / 2
    assert frames.height_m[0][frames.kind[0] == TARGET].max() == pytest.approx(top, abs=0.004)
    depth = view_plane(frames.camera(0)).depth_of(frames.height_m[0])
    assert np.abs(depth - episode.depth_m[0])[frames.kind[0] >= THING].max() < 2e-4


def test_a_target_in_the_gripper_gives_no_last_frame() -> None:
    episode = lab_episode(0)
    lifted = replace(episode, outcome=replace(episode.outcome, facts={"lifted_m": 0.06}))
    assert len(frames_of(lifted, last=True)) == 1
    assert len(frames_of(episode, last=False)) == 1
    with pytest.raises(DataError, match="no ground truth"):
        frames_of(replace(episode, ids=None), last=True)


def test_shards_are_decoded_once(tmp_path: Path, frames: FrameSet) -> None:
    data, cache = tmp_path / "train", tmp_path / "cache"
    for n in range(2):
        episode = lab_episode(n)
        write_shard(data / f"train-{n:06d}.tar", [(episode.key, encode_episode(episode))])
    (data / ".train-000002.tar").write_bytes(b"half written")
    read = load_frames(data, cache, last=True)
    assert np.array_equal(read.rgb, frames.rgb[:4])
    assert np.array_equal(read.height_m, frames.height_m[:4])
    stored = sorted(cache.glob("*.npz"))
    assert len(stored) == 2
    times = [p.stat().st_mtime_ns for p in stored]
    again = load_frames(data, cache, last=True)
    assert np.array_equal(again.key, read.key)
    assert [p.stat().st_mtime_ns for p in stored] == times
    assert len(load_frames(data, cache, last=True, limit=1)) == 2
    with pytest.raises(DataError, match="holds no episodes"):
        load_frames(tmp_path / "none", cache)


def test_a_plain_sample_equals_the_image(frames: FrameSet) -> None:
    sample = plain_sample(frames, 0)
    assert sample.x.shape == (INPUT_CHANNELS, 96, 144)
    assert np.allclose((np.moveaxis(sample.x[:3], 0, -1) + 1) * 127.5, frames.rgb[0], atol=1e-3)
    assert np.array_equal(sample.x[-1] > 0, frames.kind[0] == ROBOT)
    assert (sample.weight[frames.kind[0] == ROBOT] == 0).all()
    assert sample.thing.sum() == (frames.kind[0] >= THING).sum()


def test_augmentation_keeps_the_geometry_consistent(frames: FrameSet) -> None:
    """In a cropped, mirrored, scaled image, neighbouring plane points are one footprint apart."""
    mirrored = 0
    for seed in range(20):
        sample = augmented_sample(frames, seed % len(frames), (64, 96), np.random.default_rng(seed))
        assert sample.x.shape == (INPUT_CHANNELS, 64, 96)
        ray, point, above = sample.x[3:6], sample.x[6:8], float(sample.x[8, 0, 0])
        met = sample.x[10] > 0
        assert met.mean() > 0.9
        # For the ray from the camera to its plane point, x and y over the height must agree with its direction.
        assert np.allclose(point[:, met], above * ray[:2, met] / -ray[2, met], atol=0.01)
        mirrored += float(np.median(np.diff(point[0], axis=1))) > 0
        assert 0.003 < sample.height_m[sample.thing > 0].max() < 0.2 if sample.thing.any() else True
    assert mirrored == 20, "to the right in the picture is to the right of the camera, mirrored or not"


def test_the_same_seed_gives_the_same_sample(frames: FrameSet) -> None:
    one, two, other = (augmented_sample(frames, 1, (64, 96), np.random.default_rng(s)) for s in (5, 5, 6))
    assert np.array_equal(one.x, two.x)
    assert np.array_equal(one.height_m, two.height_m)
    assert not np.array_equal(one.x, other.x)
