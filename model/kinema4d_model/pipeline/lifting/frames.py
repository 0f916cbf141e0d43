"""Training images and ground truth (object heights) from episodes, decoded once and cached; augmentation.

Uses the first frame of every episode, and the last one where the target is back on the table: other frames are not
scenes that a lifter sees.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from kinema4d_model.data.episode import Episode
from kinema4d_model.data.shards import ShardIndex, open_index, read_episode
from kinema4d_model.pipeline.lifting.geometry import PlaneView, view_plane
from kinema4d_model.pipeline.lifting.lifter import network_input
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import DataError, ErrorCode
from kinema4d_ros.io.files import replacing_file

__all__ = [
    "ROBOT",
    "TARGET",
    "THING",
    "UNKNOWN",
    "WORLD",
    "FrameSet",
    "Sample",
    "augmented_sample",
    "frames_of",
    "load_frames",
    "plain_sample",
    "shifted_mask",
    "worsen",
]

UNKNOWN, ROBOT, WORLD, THING, TARGET = range(5)
RESTS_M = 0.005
"""A target that ended at most this far above its start lies on the table, metres."""
_FIELDS = ("rgb", "height_m", "kind", "K", "base_T_camera", "key")


@dataclass(frozen=True, eq=False)
class FrameSet:
    """N images of one size.

    Attributes:
        rgb: (N, H, W, 3) uint8.
        height_m: (N, H, W) float16, metres above the table, NaN = nothing seen.
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
        """Return the camera of an image."""
        height, width = self.rgb.shape[1:3]
        return PinholeCamera(width, height, self.K[number], base_T_camera=self.base_T_camera[number])

    def first(self, count: int) -> FrameSet:
        """Return the first `count` images."""
        return FrameSet(*(getattr(self, name)[:count] for name in _FIELDS))

    @classmethod
    def join(cls, sets: list[FrameSet]) -> FrameSet:
        """Concatenate several sets."""
        return cls(*(np.concatenate([getattr(s, name) for s in sets]) for name in _FIELDS))


def frames_of(episode: Episode, *, last: bool, table_height_m: float = 0.0) -> FrameSet:
    """Extract the first frame of an episode; with `last` also the last one, if the target rests there."""
    if episode.ids is None or episode.depth_m is None or "base_T_camera" in episode.missing:
        raise DataError(
            f"episode '{episode.key}' has no ground truth for the lifter",
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
    """Load the images of the shards in a folder; every shard is decoded once and kept in `cache`.

    `limit` takes the first that many episodes, rounded up to whole shards.
    """
    shards = sorted(p for p in Path(folder).glob("*.tar") if not p.name.startswith("."))
    if not shards:
        raise DataError(
            f"{folder} holds no episodes",
            expected="a split of a dataset: shards NAME-000000.tar, ...",
            hint="make one with kinema4d data make --out FOLDER",
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


# Augmentation: crop, mirror, rescale, repaint, degrade. Every change of pixel positions changes the camera as well, so
# that the plane's channels stay correct. Heights do not depend on the camera.

ZOOM = (0.75, 1.45)
WORLD_SCALE = (0.8, 1.5)
_MIRRORED = (0, 3)
"""Channels of the plane's geometry that change sign when mirrored (they point right)."""
_TO_YIQ = np.array([[0.299, 0.587, 0.114], [0.596, -0.274, -0.322], [0.211, -0.523, 0.312]])


@dataclass(frozen=True, eq=False)
class Sample:
    """One image as network input, with targets.

    Attributes:
        x: (12, H, W) float32, see `network_input`.
        thing: (H, W) float32, 1 = an object stands here.
        height_m: (H, W) float32, metres, 0 where no object stands.
        weight: (H, W) float32, 0 where the loss is ignored: on the robot, and where the ray misses the plane.
    """

    x: NDArray[np.float32]
    thing: NDArray[np.float32]
    height_m: NDArray[np.float32]
    weight: NDArray[np.float32]


def plain_sample(frames: FrameSet, number: int) -> Sample:
    """Make a sample without augmentation."""
    view = view_plane(frames.camera(number))
    return _sample(frames.rgb[number], view, frames.kind[number], frames.height_m[number].astype(np.float32))


def augmented_sample(frames: FrameSet, number: int, size: tuple[int, int], rng: np.random.Generator) -> Sample:
    """Make an augmented sample; `size` is (height, width) of the crop."""
    image, kind, height_m, camera = _cut(frames, number, size, rng)
    scale = float(np.exp(rng.uniform(*np.log(WORLD_SCALE))))
    view = view_plane(camera, scale=scale)
    if rng.uniform() < 0.4:
        image = _repaint_table(image, view, kind, rng)
    image = worsen(image, rng)
    # Shift the mask by a few pixels, as calibration errors do.
    mask = shifted_mask(kind == ROBOT, rng)
    sample = _sample(image, view, kind, scale * height_m, mask)
    return _mirror(sample) if rng.uniform() < 0.5 else sample


def _sample(
    image: NDArray[np.uint8],
    view: PlaneView,
    kind: NDArray[np.uint8],
    height_m: NDArray[np.float32],
    robot: NDArray[np.bool_] | None = None,
) -> Sample:
    thing = kind >= THING
    known = (kind != ROBOT) & (kind != UNKNOWN) & np.isfinite(view.depth_m)
    return Sample(
        network_input(image, view, kind == ROBOT if robot is None else robot),
        thing.astype(np.float32),
        np.where(thing, height_m, 0.0).astype(np.float32),
        known.astype(np.float32),
    )


def _cut(
    frames: FrameSet, number: int, size: tuple[int, int], rng: np.random.Generator
) -> tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.float32], PinholeCamera]:
    """Crop a rectangle and resize it; half of the crops are around an object."""
    height, width = frames.rgb.shape[1:3]
    rows, columns = size
    least = max(rows / height, columns / width)
    zoom = float(np.exp(rng.uniform(np.log(max(ZOOM[0], least)), np.log(max(ZOOM[1], least)))))
    window = np.array([columns, rows]) / zoom
    room = np.array([width, height]) - window
    corner = rng.uniform(0, 1, 2) * room
    things = np.argwhere(frames.kind[number] >= THING)
    if len(things) and rng.uniform() < 0.5:
        middle = things[rng.integers(len(things))][::-1] + rng.uniform(-0.35, 0.35, 2) * window
        corner = np.clip(middle - window / 2, 0, room)
    # Pixel centres are at + 0.5 here, at integers in OpenCV.
    warp = np.array([[zoom, 0, -zoom * corner[0]], [0, zoom, -zoom * corner[1]]])
    shifted = warp.copy()
    shifted[:, 2] += 0.5 * zoom - 0.5
    shape = (columns, rows)
    image = cv2.warpAffine(frames.rgb[number], shifted, shape, flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
    nearest = {"flags": cv2.INTER_NEAREST, "borderMode": cv2.BORDER_REPLICATE}
    kind = cv2.warpAffine(frames.kind[number], shifted, shape, **nearest)
    height_m = cv2.warpAffine(frames.height_m[number].astype(np.float32), shifted, shape, **nearest)
    K = np.vstack([warp, [0, 0, 1]]) @ frames.K[number]
    camera = PinholeCamera(columns, rows, K, base_T_camera=frames.base_T_camera[number])
    return np.asarray(image), np.asarray(kind), np.asarray(height_m), camera


def _repaint_table(
    image: NDArray[np.uint8], view: PlaneView, kind: NDArray[np.uint8], rng: np.random.Generator
) -> NDArray[np.uint8]:
    """Paint flat patterns on the table that are not objects: stripes, tiles, sheets; shading is kept."""
    turn = rng.uniform(0, np.pi)
    right, forward = view.channels[3], view.channels[4]
    u, v = np.cos(turn) * right + np.sin(turn) * forward, -np.sin(turn) * right + np.cos(turn) * forward
    pitch, phase = rng.uniform(0.02, 0.12), rng.uniform(0, 1, 2)
    a, b = u / pitch + phase[0], v / (pitch * rng.uniform(0.7, 1.4)) + phase[1]
    pattern = rng.integers(3)
    if pattern == 0:
        on = np.mod(a, 1.0) < rng.uniform(0.1, 0.9)
    elif pattern == 1:
        on = np.mod(np.floor(a) + np.floor(b), 2.0) == 0
    else:
        centre = np.argwhere(kind == WORLD)
        if not len(centre):
            return image
        row, column = centre[rng.integers(len(centre))]
        half = rng.uniform(0.01, 0.08, 2)
        on = (np.abs(u - u[row, column]) < half[0]) & (np.abs(v - v[row, column]) < half[1])
    factor = rng.uniform(0.35, 1.5) * (1 + rng.uniform(-0.35, 0.35, 3))
    painted = np.clip(image.astype(np.float32) * factor, 0, 255)
    return np.where((on & (kind == WORLD))[..., None], painted, image).astype(np.uint8)


def worsen(image: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.uint8]:
    """Change colours, brightness, sharpness and noise."""
    colours = image.astype(np.float32) / 255
    if rng.uniform() < 0.7:
        colours = colours @ _hue_and_saturation(rng.uniform(-np.pi, np.pi), rng.uniform(0.5, 1.3))
    gain = np.exp(rng.normal(0, 0.25) + rng.normal(0, 0.08, 3)).astype(np.float32)
    colours = np.clip(colours * gain, 0, 1) ** np.float32(np.exp(rng.normal(0, 0.2)))
    if rng.uniform() < 0.4:
        colours = cv2.GaussianBlur(colours, (0, 0), float(rng.uniform(0.3, 1.0)))
    if rng.uniform() < 0.7:
        colours = colours + rng.normal(0, rng.uniform(0, 0.04), colours.shape).astype(np.float32)
    return (np.clip(colours, 0, 1) * 255 + 0.5).astype(np.uint8)


def _hue_and_saturation(turn: float, saturation: float) -> NDArray[np.float32]:
    c, s = saturation * np.cos(turn), saturation * np.sin(turn)
    turned = np.linalg.inv(_TO_YIQ) @ np.array([[1, 0, 0], [0, c, -s], [0, s, c]]) @ _TO_YIQ
    return turned.T.astype(np.float32)


def shifted_mask(mask: NDArray[np.bool_], rng: np.random.Generator) -> NDArray[np.bool_]:
    """Shift or grow a mask (H, W) by at most a pixel, half of the time."""
    if rng.uniform() < 0.5:
        return mask
    dy, dx = rng.integers(-1, 2, 2)
    warp = np.array([[1.0, 0.0, dx], [0.0, 1.0, dy]])
    moved = cv2.warpAffine(mask.astype(np.uint8), warp, mask.shape[::-1], flags=cv2.INTER_NEAREST)
    if rng.uniform() < 0.5:
        moved = cv2.dilate(moved, np.ones((3, 3), np.uint8))
    return np.asarray(moved) > 0


def _mirror(sample: Sample) -> Sample:
    x = sample.x[..., ::-1].copy()
    x[[3 + c for c in _MIRRORED]] *= -1
    return Sample(x, *(a[:, ::-1].copy() for a in (sample.thing, sample.height_m, sample.weight)))
