"""Episode files: lossless videos, JSON documents, atomic shards."""

from __future__ import annotations

import json
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch.utils.data import DataLoader

from kinema4d_model.data.dataset_folder import DatasetFolder, shard_name
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
from kinema4d_model.data.episode_files import (
    decode_episode,
    decode_stream,
    encode_episode,
    encode_stream,
    parse_document,
)
from kinema4d_model.data.shards import index_path, open_index, read_episode, write_shard
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import DataError
from kinema4d_ros.core.transforms import from_quaternion

T, H, W = 5, 12, 16


def make_episode(key: str = "a-000001", seed: int = 0) -> Episode:
    rng = np.random.default_rng(seed)
    depth = rng.uniform(0.3, 2.0, (T, H, W)).astype(np.float32)
    depth = unpack_depth(pack_depth(depth))
    depth[0, 0, 0] = np.nan
    camera = PinholeCamera.look_at((1, -0.5, 0.7), (0.3, 0, 0), width=W, height=H, fov_y_deg=40)
    poses = np.stack([from_quaternion([0, 0, np.sin(t), np.cos(t)], [0.3, 0.1 * t, 0.02 + 0.03 * t]) for t in range(T)])
    xyz = points_from_depth(depth, camera)
    return Episode(
        key=key,
        rgb=rng.integers(0, 256, (T, H, W, 3), dtype=np.uint8),
        depth_m=depth,
        ids=rng.integers(0, 4, (T, H, W), dtype=np.uint8),
        names=("base", "finger", "cube"),
        link_count=2,
        times=np.linspace(0, 2, T),
        camera=camera,
        robot="",
        joint_names=("j1", "j2"),
        joints=rng.normal(size=(T, 2)),
        actions=rng.normal(size=(T, 2)),
        condition_ids=rng.integers(0, 3, (T, H, W), dtype=np.uint8),
        bounds=point_bounds(xyz),
        known_bounds=point_bounds(xyz[:1]),
        task="pick",
        outcome=Outcome(True, "cube", {"lifted_m": 0.1}, (ObjectTrack("cube", "box", (1, 2, 3), (0, 1, 0), poses),)),
        source="test",
        condition=StoredCondition(rng.integers(0, 256, (T, H, W, 3), dtype=np.uint8), depth),
        captions={"instruction": "pick up the cube"},
        seeds={"scene": 7},
        versions={"kinema4d_ros": "0.1.0"},
        details={"sigma": 0.5},
    )


@settings(max_examples=15, deadline=None)
@given(hnp.arrays(np.uint16, st.tuples(st.integers(1, 4), st.integers(2, 9), st.integers(2, 9))))
def test_depth_video_is_lossless(steps: np.ndarray) -> None:
    assert np.array_equal(decode_stream(encode_stream(steps, "depth"), "depth", steps.shape), steps)


@settings(max_examples=15, deadline=None)
@given(hnp.arrays(np.uint8, st.tuples(st.integers(1, 4), st.integers(2, 9), st.integers(2, 9), st.just(3))))
def test_colour_video_is_lossless_for_any_size(rgb: np.ndarray) -> None:
    data = encode_stream(rgb, "rgb")
    assert np.array_equal(decode_stream(data, "rgb", rgb.shape[:3]), rgb)
    assert encode_stream(rgb, "rgb") == data, "the same frames must give the same bytes"


def test_ids_and_bad_videos() -> None:
    ids = np.arange(T * H * W, dtype=np.uint8).reshape(T, H, W)
    data = encode_stream(ids, "ids")
    assert np.array_equal(decode_stream(data, "ids", (T, H, W)), ids)
    with pytest.raises(DataError, match="16 x 12"):
        decode_stream(data, "ids", (T, W, H))
    with pytest.raises(DataError, match="5 frames"):
        decode_stream(data, "ids", (T + 1, H, W))
    with pytest.raises(DataError):
        decode_stream(data[: len(data) // 2], "ids", (T, H, W))
    with pytest.raises(DataError, match="decoded"):
        decode_stream(b"nonsense", "ids", (T, H, W))
    with pytest.raises(DataError, match="2 x 2"):
        encode_stream(ids[:, :, :1], "ids")
    with pytest.raises(DataError, match="uint16"):
        encode_stream(ids.astype(np.int32), "depth")


def test_depth_steps_keep_nan_and_refuse_depth_out_of_range() -> None:
    depth = np.array([[[0.5, np.nan, 6.5535]]], np.float32)
    assert pack_depth(depth).tolist() == [[[5000, 0, 65535]]]
    back = unpack_depth(pack_depth(depth))
    assert np.allclose(back, depth, atol=5e-5, equal_nan=True)
    for bad in (7.0, 0.0, -1.0):
        with pytest.raises(DataError, match="depth ranges"):
            pack_depth(np.array([[[bad]]], np.float32))
    assert unpack_depth(pack_depth(np.array([[[20.0]]], np.float32), 1e-3), 1e-3)[0, 0, 0] == pytest.approx(20.0)


def assert_same(a: Episode, b: Episode) -> None:
    for name in ("rgb", "depth_m", "ids", "condition_ids", "times", "joints", "actions", "bounds", "known_bounds"):
        assert np.array_equal(getattr(a, name), getattr(b, name), equal_nan=name == "depth_m"), name
    for name in (
        "key",
        "names",
        "link_count",
        "robot",
        "joint_names",
        "task",
        "source",
        "captions",
        "seeds",
        "details",
    ):
        assert getattr(a, name) == getattr(b, name), name
    assert np.array_equal(a.camera.K, b.camera.K)
    assert np.array_equal(a.camera.base_T_camera, b.camera.base_T_camera)
    assert (a.outcome.success, a.outcome.target, a.outcome.facts) == (
        b.outcome.success,
        b.outcome.target,
        b.outcome.facts,
    )
    for one, two in zip(a.outcome.objects, b.outcome.objects, strict=True):
        assert (one.name, one.shape, one.size, one.rgb) == (two.name, two.shape, two.size, two.rgb)
        assert np.allclose(one.base_T_object, two.base_T_object, atol=1e-12)


def test_an_episode_round_trips() -> None:
    episode = make_episode()
    files = encode_episode(episode)
    again = decode_episode(files)
    assert_same(episode, again)
    assert again.condition is not None
    assert episode.condition is not None
    assert np.array_equal(again.condition.rgb, episode.condition.rgb)
    videos = [name for name in files if name.endswith(".mkv")]
    assert len(videos) == 6
    rewritten = encode_episode(again)
    assert all(rewritten[name] == files[name] for name in videos)
    assert np.array_equal(again.robot_mask, (episode.ids > 0) & (episode.ids < 3))  # type: ignore[operator]
    assert np.array_equal(again.object_mask("cube"), episode.ids == 3)
    sequence = again.robot_condition()
    assert np.array_equal(sequence.link_ids, episode.condition_ids)
    only = decode_episode(files, streams=("depth",))
    assert only.ids is None
    assert only.depth_m is not None


def test_missing_fields_stay_missing() -> None:
    bare = replace(
        make_episode(), depth_m=None, ids=None, joints=None, actions=None, condition=None, condition_ids=None,
        bounds=None, known_bounds=None, outcome=Outcome(None), missing=("depth", "actions"),
    )  # fmt: skip
    again = decode_episode(encode_episode(bare))
    assert (again.depth_m, again.ids, again.actions, again.bounds) == (None, None, None, None)
    assert again.missing == ("depth", "actions")
    assert again.outcome.success is None
    for ask in (again.points, again.robot_condition, lambda: again.robot_mask):
        with pytest.raises(DataError, match="a-000001"):
            ask()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "x"}, "format"),
        ({"frames": 4}, "5 times for 4 frames"),
        ({"joints": [[0, 0]]}, "joints has shape"),
        ({"width": 99}, "99 x"),
        ({"camera": {}}, "does not describe"),
        ({"outcome": {"success": 1, "target": "", "facts": {}, "objects": []}}, "success is 1"),
        ({"outcome": {"success": True}}, "does not describe"),
        ({"details": None, "task": "place"}, "does not describe"),
        ({"task": "place", "details": {"goal_xy": "here"}}, "has no goal position"),
        ({"task": "stack", "details": {"goal_xy": [0, 0], "support_height_m": 10**400}}, "does not describe"),
        ({"bounds_m": [[0, 0, 0]]}, "bounds_m"),
    ],
)
def test_bad_documents_are_named(change: dict[str, object], message: str) -> None:
    files = encode_episode(make_episode())
    document = {**json.loads(files["json"]), **change}
    with pytest.raises(DataError, match=message) as caught:
        decode_episode({**files, "json": json.dumps(document).encode()}, "shard:key")
    assert "shard:key" in str(caught.value)


def ended(task: str, end: list[float], stored: bool, **fields: object) -> Episode:
    """Make an episode of a cube that moves from (0.3, 0, 0.02) to `end`, with the stored label."""
    poses = np.tile(np.eye(4), (T, 1, 1))
    poses[:, :3, 3] = [0.3, 0.0, 0.02]
    poses[-1, :3, 3] = end
    thing = ObjectTrack("cube", "box", (0.04, 0.04, 0.04), (0, 1, 0), poses)
    facts = fields.pop("facts", {})
    return replace(make_episode(), task=task, outcome=Outcome(stored, "cube", facts, (thing,)), **fields)  # type: ignore


@pytest.mark.parametrize(
    ("task", "end", "details", "facts", "label"),
    [
        ("push", [0.3, 0.025, 0.02], {}, {}, False),
        ("push", [0.3, 0.035, 0.02], {}, {}, True),
        ("slip", [0.3, 0.0, 0.07], {}, {}, True),
        ("place", [0.3, 0.1, 0.02], {"goal_xy": [0.3, 0.11]}, {}, True),
        ("place", [0.3, 0.1, 0.02], {}, {"goal_error_m": 0.02}, True),
        ("place", [0.3, 0.1, 0.02], {}, {"goal_error_m": 0.031}, False),
        ("stack", [0.3, 0.1, 0.06], {"goal_xy": [0.3, 0.11], "support_height_m": 0.04}, {}, True),
    ],
)
def test_a_stored_label_follows_from_the_recorded_poses(
    task: str, end: list[float], details: dict[str, object], facts: dict[str, float], label: bool
) -> None:
    files = encode_episode(ended(task, end, not label, details=details, facts=facts))
    assert decode_episode(files).outcome.success is label
    assert parse_document(files["json"], "shard:key")["outcome"]["success"] is label


def test_a_label_is_kept_without_poses_goal_or_known_task() -> None:
    for stored in (True, False):
        unknown = ended("place", [0.3, 0.1, 0.02], stored)
        for episode in (unknown, replace(unknown, task="fold"), replace(unknown, task="push", outcome=Outcome(stored))):
            assert decode_episode(encode_episode(episode)).outcome.success is stored


def test_missing_and_swapped_streams_are_named() -> None:
    files = encode_episode(make_episode())
    with pytest.raises(DataError, match=r"depth\.mkv is missing"):
        decode_episode({k: v for k, v in files.items() if k != "depth.mkv"})
    with pytest.raises(DataError, match="no JSON"):
        decode_episode({"rgb.mkv": b""})
    with pytest.raises(DataError, match="not JSON"):
        decode_episode({**files, "json": files["json"][:-40]})
    with pytest.raises(DataError, match="key"):
        encode_episode(replace(make_episode(), key="../evil"))
    with pytest.raises(DataError, match="JSON cannot hold"):
        encode_episode(replace(make_episode(), details={"x": float("nan")}))


def test_shards_are_plain_tars_with_random_access(tmp_path: Path) -> None:
    episodes = [make_episode(f"k-{i:06d}", i) for i in range(3)]
    shard = tmp_path / "train-000000.tar"
    index = write_shard(shard, ((e.key, encode_episode(e)) for e in episodes))
    with tarfile.open(shard) as tar:
        assert tar.getnames()[0] == "k-000000.json"
    assert open_index(shard).episodes == index.episodes
    assert_same(read_episode(index, 2), episodes[2])
    first = shard.read_bytes()
    write_shard(shard, ((e.key, encode_episode(e)) for e in episodes))
    assert shard.read_bytes() == first
    index_path(shard).unlink()
    assert open_index(shard) == index, "the index is rebuilt from the tar"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["train-000000.index.json", "train-000000.tar"]


def test_episodes_of_a_split_are_read_by_number_and_by_a_loader(tmp_path: Path) -> None:
    DatasetFolder.create(tmp_path, {"name": "t", "splits": {"train": 3}})
    for shard, numbers in enumerate(((0, 1), (2,))):
        some = [make_episode(f"k-{i:06d}", i) for i in numbers]
        write_shard(tmp_path / shard_name("train", shard), ((e.key, encode_episode(e)) for e in some))
    episodes = DatasetFolder.open(tmp_path).episodes("train")
    assert len(episodes) == 3
    assert episodes.keys == ["k-000000", "k-000001", "k-000002"]
    assert_same(episodes[2], make_episode("k-000002", 2))
    with pytest.raises(IndexError):
        episodes[3]
    loader: Any = DataLoader(episodes, batch_size=2, num_workers=1, collate_fn=list)  # type: ignore[arg-type]
    assert [[e.key for e in batch] for batch in loader] == [["k-000000", "k-000001"], ["k-000002"]]


def test_a_writer_that_fails_leaves_nothing(tmp_path: Path) -> None:
    shard = tmp_path / "train-000000.tar"

    def broken():  # type: ignore[no-untyped-def]
        yield "k-0", encode_episode(make_episode())
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError):
        write_shard(shard, broken())
    assert list(tmp_path.iterdir()) == []
    same = encode_episode(make_episode())
    with pytest.raises(DataError, match="twice"):
        write_shard(shard, [("k-0", same), ("k-0", same)])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("keep", [0.2, 0.5, 0.99])
def test_truncated_and_damaged_shards_are_refused(tmp_path: Path, keep: float) -> None:
    shard = tmp_path / "train-000000.tar"
    index = write_shard(shard, ((f"k-{i}", encode_episode(make_episode(f"k-{i}", i))) for i in range(2)))
    whole = shard.read_bytes()
    shard.write_bytes(whole[: int(len(whole) * keep)])
    with pytest.raises(DataError):
        open_index(shard)
    damaged = bytearray(whole)
    damaged[index.episodes[1].files["rgb.mkv"].offset + 300] ^= 1
    shard.write_bytes(bytes(damaged))
    with pytest.raises(DataError, match=r"k-1: rgb\.mkv is not what was written"):
        read_episode(index, 1)
