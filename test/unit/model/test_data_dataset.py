"""torch datasets: samples normalised as at inference, order independent of workers and restarts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from kinema4d_model.data.dataset import EpisodeDataset, EpisodeSampler, EpisodeStream, epoch_order, sample_of
from kinema4d_model.data.dataset_folder import DatasetFolder
from kinema4d_model.data.episode import (
    Episode,
    Outcome,
    StoredCondition,
    pack_depth,
    point_bounds,
    points_from_depth,
    unpack_depth,
)
from kinema4d_model.data.episode_files import encode_episode
from kinema4d_model.data.shards import write_shard
from kinema4d_model.pipeline.inputs import normalise
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import DataError

T, H, W = 5, 8, 12


def episode(number: int) -> Episode:
    rng = np.random.default_rng(number)
    camera = PinholeCamera.look_at((1, -0.5, 0.7), (0.3, 0, 0), width=W, height=H, fov_y_deg=40)
    depth = unpack_depth(pack_depth(rng.uniform(0.5, 1.5, (T, H, W)).astype(np.float32)))
    depth[:, 0, 0] = np.nan
    ids = rng.integers(0, 3, (T, H, W), dtype=np.uint8)
    robot = np.where(ids == 1, depth, np.float32(np.nan))
    xyz = points_from_depth(depth, camera)
    return Episode(
        key=f"e-{number:04d}", rgb=rng.integers(0, 256, (T, H, W, 3), dtype=np.uint8), depth_m=depth, ids=ids,
        names=("link", "cube"), link_count=1, times=np.arange(T) * 0.1, camera=camera, robot="", joint_names=(),
        joints=None, actions=None, condition_ids=(ids == 1).astype(np.uint8) * np.isfinite(depth).astype(np.uint8),
        bounds=point_bounds(xyz), known_bounds=point_bounds(xyz), task="pick",
        outcome=Outcome(None if number == 0 else number % 2 == 0, "cube"), source="test",
        condition=StoredCondition(rng.integers(0, 256, (T, H, W, 3), dtype=np.uint8), robot),
    )  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data")
    DatasetFolder.create(path, {"name": "t", "splits": {"train": 10}})
    for shard in range(4):
        numbers = range(shard * 3, min(shard * 3 + 3, 10))
        write_shard(
            path / "train" / f"train-{shard:06d}.tar", ((f"e-{i:04d}", encode_episode(episode(i))) for i in numbers)
        )
    return path


def test_samples_have_the_documented_tensors(folder: Path) -> None:
    dataset = EpisodeDataset(folder, "train")
    assert len(dataset) == 10
    sample, source = dataset[7], episode(7)
    assert (sample["key"], dataset.key(7)) == ("e-0007", "e-0007")
    assert sample["rgb"].shape == (3, T, H, W)
    assert torch.equal(sample["rgb"].movedim(0, -1), torch.from_numpy(source.rgb))
    assert source.known_bounds is not None
    expected = normalise(source.points(), source.known_bounds, source.camera.rays())
    assert torch.allclose(sample["xyz01"].movedim(0, -1), torch.from_numpy(expected), atol=1e-5)
    assert not sample["known"][:, 0, 0].any()
    assert sample["known"].sum() == T * (H * W - 1)
    robot = source.robot_condition()
    assert torch.equal(sample["robot_mask"], torch.from_numpy(robot.mask))
    assert (sample["robot_xyz01"][:, ~sample["robot_mask"]] == 0).all()
    back = sample["robot_xyz01"].movedim(0, -1).numpy() * (source.known_bounds[1] - source.known_bounds[0])
    assert np.allclose((back + source.known_bounds[0])[robot.mask], robot.xyz[robot.mask], atol=1e-4)
    assert torch.equal(sample["target_mask"], torch.from_numpy(source.ids == 2))
    assert float(sample["success"]) == 0.0
    assert torch.isnan(dataset[0]["success"])
    with pytest.raises(IndexError):
        dataset[10]
    with pytest.raises(DataError, match="e-0003"):
        sample_of(replace(episode(3), known_bounds=None))


def keys(loader: DataLoader[dict[str, object]], count: int) -> list[str]:
    found: list[str] = []
    for batch in loader:
        found += batch["key"]  # type: ignore[arg-type]
        if len(found) >= count:
            break
    return found[:count]


def test_the_order_depends_on_seed_and_epoch_only(folder: Path) -> None:
    dataset = EpisodeDataset(folder / "train", transform=lambda e: {"key": e.key}, streams=())
    one = keys(DataLoader(dataset, batch_size=2, sampler=EpisodeSampler(10, seed=3)), 20)
    two = keys(DataLoader(dataset, batch_size=2, sampler=EpisodeSampler(10, seed=3), num_workers=2), 20)
    assert one == two
    assert sorted(one[:10]) == sorted(one[10:]) == [f"e-{i:04d}" for i in range(10)]
    assert one[:10] != one[10:]
    assert one != keys(DataLoader(dataset, batch_size=2, sampler=EpisodeSampler(10, seed=4)), 20)
    assert np.array_equal(epoch_order(10, 3, 0), epoch_order(10, 3, 0))


def test_sampler_resumes_at_a_position() -> None:
    straight = EpisodeSampler(7, seed=1, epochs=4)
    whole = list(straight)
    assert len(whole) == 28
    stopped = EpisodeSampler(7, seed=1, epochs=4)
    stopped.position = 11
    resumed = EpisodeSampler(7, seed=1, epochs=4)
    resumed.load_state_dict(stopped.state_dict())
    assert list(resumed) == whole[11:]
    ranks = [list(EpisodeSampler(7, seed=1, rank=r, world=2, epochs=2)) for r in range(2)]
    woven = [n for pair in zip(*ranks, strict=True) for n in pair]
    assert woven == whole[:14]
    with pytest.raises(DataError, match="seed 1"):
        EpisodeSampler(7, seed=2).load_state_dict(stopped.state_dict())
    with pytest.raises(DataError):
        EpisodeSampler(0)


def test_streams_give_every_episode_once_for_any_number_of_workers(folder: Path) -> None:
    everything = sorted(f"e-{i:04d}" for i in range(10))

    def stream(**options: int) -> EpisodeStream:
        return EpisodeStream(folder, "train", _key, (), **options)

    plain = list(stream(seed=2))
    assert sorted(plain) == everything
    assert plain != list(stream(seed=2, epoch=1))
    assert plain == list(stream(seed=2))
    halves = [list(stream(seed=2, rank=r, world=2)) for r in range(2)]
    assert sorted(halves[0] + halves[1]) == everything
    assert list(stream(seed=2, skip=2)) == plain[-len(list(stream(seed=2, skip=2))) :]
    loader = DataLoader(stream(seed=2), batch_size=None, num_workers=2)
    assert sorted(loader) == everything
    with pytest.raises(DataError, match="no shards"):
        EpisodeStream([])


def _key(found: Episode) -> str:
    return found.key
