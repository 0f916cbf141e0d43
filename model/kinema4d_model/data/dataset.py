"""torch datasets of episodes: random access in a reproducible, resumable order, or a stream from shards.

    EpisodeDataset (map style) + EpisodeSampler ─> DataLoader     local disks: full shuffle every epoch
    EpisodeStream (iterable)                    ─> DataLoader     slow or remote disks: shards in random order

A sample is a dictionary of tensors, T frames of H x W:

    rgb          (3, T, H, W) uint8        robot_rgb   (3, T, H, W) uint8, 0 = no robot (as commanded)
    xyz01        (3, T, H, W) float32      robot_xyz01 (3, T, H, W) float32, 0 = no robot
    known        (T, H, W) bool, has depth robot_mask  (T, H, W) bool
    bounds       (2, 3) float64, metres: values of 0 and 1 in the pointmaps (known before the motion)
    ids          (T, H, W) uint8           target_mask (T, H, W) bool
    success      float32, NaN = unknown    key         str

The order depends only on seed and epoch, not on workers; a position is a number of samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, Sampler, get_worker_info

from kinema4d_model.data.dataset_folder import DatasetFolder
from kinema4d_model.data.episode import Episode
from kinema4d_model.data.shards import open_index, read_episode, stream_shard
from kinema4d_ros.core.errors import DataError

__all__ = ["EpisodeDataset", "EpisodeSampler", "EpisodeStream", "epoch_order", "sample_of"]

Sample = dict[str, Any]
Transform = Callable[[Episode], Any]


def sample_of(episode: Episode) -> Sample:
    """Return the tensors of an episode as listed in the module docstring.

    Raises:
        DataError: the episode has no depth, bounds or condition; the message contains its key.
    """
    if episode.pointmap01 is not None:
        return _sample_without_metres(episode)
    if episode.known_bounds is None:
        raise DataError(f"episode '{episode.key}' has no known_bounds", expected="depth and bounds")
    bounds = episode.known_bounds
    xyz = episode.points()
    robot = episode.robot_condition()
    known = np.asarray(np.isfinite(xyz).all(-1))
    # Empty pixels get the far end of their ray, as at inference.
    far = episode.camera.rays() * bounds[1, 2]
    target = episode.outcome.target
    ids = np.zeros(episode.shape, np.uint8) if episode.ids is None else episode.ids
    seen = episode.object_mask(target) if target in episode.names else np.zeros(episode.shape, bool)
    success = episode.outcome.success
    robot_rgb = np.zeros_like(episode.rgb) if robot.rgb is None else robot.rgb
    return {
        "key": episode.key,
        "rgb": _channels_first(episode.rgb),
        "xyz01": _channels_first(_unit(np.where(known[..., None], xyz, far), bounds)),
        "known": torch.from_numpy(known),
        "robot_rgb": _channels_first(robot_rgb),
        "robot_xyz01": _channels_first(np.where(robot.mask[..., None], _unit(robot.xyz, bounds), np.float32(0))),
        "robot_mask": torch.from_numpy(np.array(robot.mask)),
        "bounds": torch.from_numpy(np.array(bounds)),
        "ids": torch.from_numpy(np.array(ids)),
        "target_mask": torch.from_numpy(np.array(seen)),
        "success": torch.tensor(float("nan") if success is None else float(success)),
    }


def _sample_without_metres(episode: Episode) -> Sample:
    """Use the source's normalised pointmaps; bounds are NaN because their metric range is unknown."""
    stored = episode.condition
    if stored is None or stored.pointmap01 is None or episode.condition_ids is None or episode.pointmap01 is None:
        raise DataError(f"episode '{episode.key}' has no robot sequence", expected="condition_rgb and its pointmap")
    mask = np.asarray(episode.condition_ids > 0)
    success = episode.outcome.success
    return {
        "key": episode.key,
        "rgb": _channels_first(episode.rgb),
        "xyz01": _channels_first(episode.pointmap01).float() / 255,
        "known": torch.ones(episode.shape, dtype=torch.bool),
        "robot_rgb": _channels_first(stored.rgb),
        "robot_xyz01": _channels_first(stored.pointmap01).float() / 255,
        "robot_mask": torch.from_numpy(mask),
        "bounds": torch.full((2, 3), float("nan"), dtype=torch.float64),
        "ids": torch.from_numpy(np.array(episode.condition_ids)),
        "target_mask": torch.zeros(episode.shape, dtype=torch.bool),
        "success": torch.tensor(float("nan") if success is None else float(success)),
    }


def _unit(xyz: np.ndarray[Any, Any], bounds: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.float32]]:
    span = np.maximum(bounds[1] - bounds[0], 1e-9)
    return np.clip(np.nan_to_num((xyz - bounds[0]) / span), 0.0, 1.0).astype(np.float32)


def _channels_first(video: np.ndarray[Any, Any]) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(np.moveaxis(video, -1, 0)))


def epoch_order(count: int, seed: int, epoch: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return a (count,) permutation that depends only on the arguments."""
    return np.random.default_rng([seed, epoch, 29]).permutation(count)


def _shards(source: str | Path | Sequence[str | Path], split: str) -> list[Path]:
    if isinstance(source, str | Path):
        folder = Path(source)
        found = DatasetFolder.open(folder).shards(split) if split else sorted(folder.glob("[!.]*.tar"))
    else:
        found = [Path(shard) for shard in source]
    if not found:
        raise DataError(f"{source} has no shards" + (f" of split '{split}'" if split else ""), expected="key.tar files")
    return found


class EpisodeDataset(Dataset[Any]):
    """Episodes of a dataset by number.

    Args:
        source: a dataset folder (with `split`), a folder of shards or a list of shards (without `split`).
        split: "train", "val", "ood" or "".
        transform: applied to each episode; default `sample_of`.
        streams: videos to decode; default all.
    """

    def __init__(
        self,
        source: str | Path | Sequence[str | Path],
        split: str = "",
        transform: Transform = sample_of,
        streams: Sequence[str] | None = None,
    ) -> None:
        self._indices = [open_index(shard) for shard in _shards(source, split)]
        self._ends = np.cumsum([len(index.episodes) for index in self._indices])
        self._transform, self._streams = transform, streams

    def __len__(self) -> int:
        """Number of episodes."""
        return int(self._ends[-1])

    def key(self, number: int) -> str:
        """Return the key of an episode."""
        shard, row = self._place(number)
        return self._indices[shard].episodes[row].key

    def __getitem__(self, number: int) -> Any:
        shard, row = self._place(number)
        return self._transform(read_episode(self._indices[shard], row, self._streams))

    def _place(self, number: int) -> tuple[int, int]:
        if not 0 <= number < len(self):
            raise IndexError(f"episode {number} of {len(self)}")
        shard = int(np.searchsorted(self._ends, number, side="right"))
        return shard, number - (int(self._ends[shard - 1]) if shard else 0)


class EpisodeSampler(Sampler[int]):
    """Endless sampler of episode numbers over epochs, starting at any position.

    The position counts the samples consumed by all ranks together. A DataLoader prefetches, so the training loop
    sets it: `sampler.position = steps * batch * world`. Samples are interleaved over ranks.

    Args:
        count: episodes in the dataset.
        seed: of the order.
        position: samples already consumed.
        rank, world: of distributed training.
        epochs: stop after this many; None = endless.
    """

    def __init__(
        self, count: int, seed: int = 0, position: int = 0, rank: int = 0, world: int = 1, epochs: int | None = None
    ) -> None:
        if count < 1 or position < 0 or not 0 <= rank < world:
            raise DataError(
                f"count {count}, position {position}, rank {rank} of {world}", expected="1 or more, 0 or more"
            )
        self.count, self.seed, self.position, self.rank, self.world, self.epochs = (
            count, seed, position, rank, world, epochs,
        )  # fmt: skip

    def __iter__(self) -> Iterator[int]:
        position = self.position
        epoch, order = -1, np.empty(0, np.int64)
        while self.epochs is None or position < self.epochs * self.count:
            if position // self.count != epoch:
                epoch = position // self.count
                order = epoch_order(self.count, self.seed, epoch)
            if position % self.world == self.rank:
                yield int(order[position % self.count])
            position += 1

    def state_dict(self) -> dict[str, int]:
        """Return the state for `load_state_dict`."""
        return {"count": self.count, "seed": self.seed, "position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Resume from a saved position; raise DataError if dataset size or seed differ."""
        if (state["count"], state["seed"]) != (self.count, self.seed):
            raise DataError(
                f"the saved position is for {state['count']} episodes with seed {state['seed']}",
                expected=f"{self.count} episodes, seed {self.seed}",
            )
        self.position = int(state["position"])


class EpisodeStream(IterableDataset[Any]):
    """Episodes read forward from shards in random order; every worker takes every n-th shard.

    Args:
        source, split, transform, streams: as `EpisodeDataset`.
        seed, epoch: of the shards' order; set `epoch` before each pass.
        skip: shards of this epoch that are already done.
        rank, world: of distributed training.
    """

    def __init__(
        self,
        source: str | Path | Sequence[str | Path],
        split: str = "",
        transform: Transform = sample_of,
        streams: Sequence[str] | None = None,
        *,
        seed: int = 0,
        epoch: int = 0,
        skip: int = 0,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        self._paths = _shards(source, split)
        self._transform, self._streams = transform, streams
        self.seed, self.epoch, self.skip, self.rank, self.world = seed, epoch, skip, rank, world

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        number, workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        share, shares = self.rank * workers + number, self.world * workers
        order = epoch_order(len(self._paths), self.seed, self.epoch)[self.skip :]
        for shard in order[share::shares]:
            for episode in stream_shard(self._paths[int(shard)], self._streams):
                yield self._transform(episode)
