"""Pictures with their truth, taken from episodes: what stands on the table, and how high. Decoded once, then cached.

The first frame of every episode, and the last one where the target lies on the table again: nothing else of a video
is a scene that a lifter would be asked about.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kinema4d_model.data.episode import Episode
from kinema4d_model.data.shards import ShardIndex, open_index, read_episode
from kinema4d_model.pipeline.lifting.geometry import view_plane
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import DataError, ErrorCode
from kinema4d_ros.io.files import replacing_file

__all__ = ["ROBOT", "TARGET", "THING", "UNKNOWN", "WORLD", "FrameSet", "frames_of", "load_frames"]

UNKNOWN, ROBOT, WORLD, THING, TARGET = range(5)
RESTS_M = 0.005
"""A target that ended no higher than this above where it began lies on the table."""
_FIELDS = ("rgb", "height_m", "kind", "K", "base_T_camera", "key")


@dataclass(frozen=True, eq=False)
class FrameSet:
    """N pictures of one size.

    Attributes:
        rgb: (N, H, W, 3) uint8.
        height_m: (N, H, W) float16, above the table, NaN = nothing seen.
        kind: (N, H, W) uint8: UNKNOWN, ROBOT, WORLD (table, walls), THING or TARGET.
        K: (N, 3, 3) float64.
        base_T_camera: (N, 4, 4) float64.
        key: (N,) str: episode and frame.
    """

    rgb: NDArray[np.uint8]
    height_m: NDArray[np.float16]
    kind: NDArray[np.uint8]
    K: NDArray[np.float64]
    base_T_camera: NDArray[np.float64]
    key: NDArray[np.str_]

    def __len__(self) -> int:
        return len(self.rgb)

    def camera(self, number: int) -> PinholeCamera:
        """The camera of a picture."""
        height, width = self.rgb.shape[1:3]
        return PinholeCamera(width, height, self.K[number], base_T_camera=self.base_T_camera[number])

    def first(self, count: int) -> FrameSet:
        """The first so many pictures."""
        return FrameSet(*(getattr(self, name)[:count] for name in _FIELDS))

    @classmethod
    def join(cls, sets: list[FrameSet]) -> FrameSet:
        """All pictures of several sets."""
        return cls(*(np.concatenate([getattr(s, name) for s in sets]) for name in _FIELDS))


def frames_of(episode: Episode, *, last: bool, table_height_m: float = 0.0) -> FrameSet:
    """The first frame of an episode; with `last` also the last one, if the target rests there."""
    if episode.ids is None or episode.depth_m is None or "base_T_camera" in episode.missing:
        raise DataError(
            f"episode '{episode.key}' has no truth to learn lifting from",
            expected="segmentation, depth and the camera's pose",
            code=ErrorCode.FILE_UNSUPPORTED,
        )
    numbers = [0]
    if last and float(episode.outcome.facts.get("lifted_m", np.inf)) < RESTS_M:
        numbers.append(len(episode) - 1)
    movable = {o.name for o in episode.outcome.objects}
    kinds = [UNKNOWN, *([ROBOT] * episode.link_count)]
    for name in episode.names[episode.link_count :]:
        kinds.append(TARGET if name == episode.outcome.target else THING if name in movable else WORLD)
    view = view_plane(episode.camera, table_height_m, max_range_m=np.inf)
    count = len(numbers)
    return FrameSet(
        rgb=episode.rgb[numbers],
        height_m=np.stack([view.height_of(episode.depth_m[n]) for n in numbers]).astype(np.float16),
        kind=np.array(kinds, np.uint8)[episode.ids[numbers]],
        K=np.stack([episode.camera.K] * count),
        base_T_camera=np.stack([episode.camera.base_T_camera] * count),
        key=np.array([f"{episode.key}:{n}" for n in numbers]),
    )


def load_frames(
    folder: str | Path,
    cache: Path,
    *,
    last: bool = False,
    limit: int | None = None,
) -> FrameSet:
    """The pictures of the shards in a folder; every shard is decoded once and kept in `cache`.

    `limit` takes the first so many episodes, rounded up to whole shards.
    """
    shards = sorted(p for p in Path(folder).glob("*.tar") if not p.name.startswith("."))
    if not shards:
        raise DataError(
            f"{folder} holds no episodes",
            expected="a split of a dataset: shards NAME-000000.tar, ...",
            hint="kinema4d data make --out FOLDER makes one",
            code=ErrorCode.FILE_MISSING,
        )
    sets: list[FrameSet] = []
    episodes = 0
    for shard in shards:
        index = open_index(shard)
        sets.append(_cached(index, cache, last))
        episodes += len(index.episodes)
        if limit is not None and episodes >= limit:
            break
    return FrameSet.join(sets)


def _cached(index: ShardIndex, cache: Path, last: bool) -> FrameSet:
    path = cache / f"{index.path.stem}-{index.size}-{'both' if last else 'first'}.npz"
    if not path.is_file():
        made = FrameSet.join(list(_decode(index, last)))
        with replacing_file(path) as temporary:
            np.savez(temporary, **{name: getattr(made, name) for name in _FIELDS})
    with np.load(path, allow_pickle=False) as stored:
        return FrameSet(*(stored[name] for name in _FIELDS))


def _decode(index: ShardIndex, last: bool) -> Iterator[FrameSet]:
    for number in range(len(index.episodes)):
        yield frames_of(read_episode(index, number, ("rgb", "depth", "ids")), last=last)
