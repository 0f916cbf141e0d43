"""`Example`: the network inputs of one episode as at inference, and the ground truth.

Episode ─ first image, first depth, robot rendered from the actions ─> request ─> NetworkInputs   (as at inference)
        └ rgb, points ───────────────────────────────────────────────────────> truth, normalised with their bounds
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from kinema4d_model.data.episode import Episode
from kinema4d_model.data.shards import ShardIndex, open_index, read_episode
from kinema4d_model.pipeline.inputs import NetworkInputs, prepare_inputs, shrink_request
from kinema4d_model.pipeline.lifting import LearnedLifter, Lifter
from kinema4d_model.pipeline.resize import pick_pixels, shrink_images
from kinema4d_model.preset import Preset
from kinema4d_model.training.randomness import derive
from kinema4d_ros.core.errors import DataError, ErrorCode, KinemaError
from kinema4d_ros.core.pointmap import PointmapSequence
from kinema4d_ros.generators.composite import CompositeGenerator
from kinema4d_ros.generators.protocol import GenerateRequest

__all__ = ["EpisodeExamples", "Example", "ExampleSource", "example_from_episode", "picture", "values", "video"]

RGB_DIFFERS = 24
"""Difference between truth and composite, in levels of 255, above which a pixel is dynamic."""
XYZ_DIFFERS = 0.02
"""The same for normalised coordinates."""


@dataclass(frozen=True, eq=False)
class Example:
    """Inputs and ground truth of the network; T, H, W are the preset's.

    Attributes:
        name: of the episode.
        inputs: result of `prepare_inputs`.
        truth_rgb: (T, H, W, 3) uint8.
        truth_xyz01: (T, H, W, 3) float32 in [0, 1], by the bounds of `inputs`.
        focus: (T, H, W) bool: pixels that show a movable object; all False if unknown.
        actions: (T, A) float32, or None.
    """

    name: str
    inputs: NetworkInputs
    truth_rgb: NDArray[np.uint8]
    truth_xyz01: NDArray[np.float32]
    focus: NDArray[np.bool_]
    actions: NDArray[np.float32] | None = None

    @property
    def dynamic(self) -> NDArray[np.bool_]:
        """(T, H, W) bool: pixels where the truth differs from the composite."""
        colours = np.abs(self.truth_rgb.astype(np.int16) - self.inputs.composite_rgb).max(-1) > RGB_DIFFERS
        points = np.abs(self.truth_xyz01 - self.inputs.composite_xyz01).max(-1) > XYZ_DIFFERS
        return np.asarray(colours | points)


class ExampleSource(Protocol):
    """Examples by number, in a fixed order."""

    @property
    def names(self) -> Sequence[str]:
        """Name of each example."""
        ...

    @property
    def identity(self) -> str:
        """Identifier that is equal for equal examples."""
        ...

    def load(self, number: int) -> Example:
        """Load an example; raise DataError with its name if it is unusable."""
        ...


class EpisodeExamples:
    """Examples from shards of episodes.

    Args:
        where: a folder of shards, or FOLDER/NAME for the shards NAME-*.tar of a folder; separate several by ":".
        preset: gives the number of frames and the size.
        limit: use only the first episodes.
        depth_ratio: share of episodes that use their measured depth.
        lifter: estimates the depth of the others; None assumes the table plane.
    """

    def __init__(
        self,
        where: str | Path,
        preset: Preset,
        *,
        limit: int | None = None,
        depth_ratio: float = 1.0,
        lifter: LearnedLifter | None = None,
    ) -> None:
        self._lifter = lifter
        shards = [shard for part in str(where).split(os.pathsep) for shard in _shards(Path(part))]
        self._preset = preset
        self._depth_ratio = depth_ratio
        indices = [open_index(shard) for shard in shards]
        self._places: list[tuple[ShardIndex, int]] = [(i, n) for i in indices for n in range(len(i.episodes))][:limit]
        self.names: Sequence[str] = [i.episodes[n].key for i, n in self._places]
        hashes = ["".join(sorted(m.sha256 for m in i.episodes[n].files.values())) for i, n in self._places]
        guess = "" if lifter is None or depth_ratio == 1 else f" {lifter.sha256}"
        self.identity = f"{derive(depth_ratio_text(depth_ratio) + guess, *hashes):016x}"

    def load(self, number: int) -> Example:
        """Load an example at the preset's size."""
        index, within = self._places[number]
        name = self.names[number]
        measured = derive(name, "depth") / 2**63 < self._depth_ratio
        try:
            return example_from_episode(
                read_episode(index, within), self._preset, use_depth=measured, lifter=self._lifter
            )
        except KinemaError as error:
            if name in error.what:
                raise
            raise DataError(
                f"episode '{name}' of {index.path.name}: {error.what}",
                expected=error.expected,
                hint=error.hint or "run `kinema4d data check`, and exclude the episode or generate it again",
                code=error.code,
            ) from error


def _shards(path: Path) -> list[Path]:
    found = path.glob("*.tar") if path.is_dir() else path.parent.glob(f"{path.name}-*.tar")
    # Files that begin with a dot are still being written.
    shards = sorted(p for p in found if not p.name.startswith("."))
    if not shards:
        raise DataError(
            f"{path} holds no episodes",
            expected="a folder of shards, or FOLDER/SPLIT for its SPLIT-*.tar",
            hint="generate some with `kinema4d data make`",
            code=ErrorCode.FILE_MISSING,
        )
    return shards


def depth_ratio_text(ratio: float) -> str:
    """Format a depth ratio for the identity of examples."""
    return f"depth {ratio:g}"


def example_from_episode(
    episode: Episode, preset: Preset, *, use_depth: bool = True, lifter: Lifter | None = None
) -> Example:
    """Convert an episode to the preset's length and size; frames are selected evenly.

    `use_depth` uses the first frame's measured depth; otherwise depth comes from the lifter or the table plane.
    """
    if len(episode) < preset.frames:
        raise DataError(f"episode '{episode.key}' has {len(episode)} frames", expected=f"at least {preset.frames}")
    chosen = np.rint(np.linspace(0, len(episode) - 1, preset.frames)).astype(int)
    if episode.depth_m is None and episode.pointmap01 is not None:
        return _without_metres(episode, preset, chosen)
    if episode.depth_m is None:
        raise DataError(f"episode '{episode.key}' has no depth", expected="depth, or a lifter that estimates it")
    condition = episode.robot_condition()
    robot = PointmapSequence(
        condition.xyz[chosen],
        condition.link_ids[chosen],
        condition.camera,
        episode.times[chosen],
        None if condition.rgb is None else condition.rgb[chosen],
        None if condition.grip is None else condition.grip.at(chosen),
    )
    depth = episode.depth_m[0] if use_depth else None
    if depth is None and lifter is not None:
        depth = lifter.lift(episode.rgb[0], robot.camera, robot.mask[0]).depth_m
    request = GenerateRequest(episode.rgb[0], robot, depth)
    small = shrink_request(request, preset.width, preset.height)
    inputs, scale = prepare_inputs(
        small, CompositeGenerator(quick_fill=True), preset.codec.temporal_factor, preset.condition, preset.frames
    )
    truth = pick_pixels(episode.points()[chosen], preset.width, preset.height)
    return Example(
        episode.key,
        inputs,
        shrink_images(episode.rgb[chosen], preset.width, preset.height),
        scale.values(truth, small.camera.rays()),
        pick_pixels(_objects(episode)[chosen], preset.width, preset.height),
        None if episode.actions is None else episode.actions[chosen].astype(np.float32),
    )


def _without_metres(episode: Episode, preset: Preset, chosen: NDArray[np.int64]) -> Example:
    """Convert an episode with normalised pointmaps only, as in the released dataset; it has no composite."""
    stored = episode.condition
    if stored is None or stored.pointmap01 is None or episode.condition_ids is None or episode.pointmap01 is None:
        raise DataError(f"episode '{episode.key}' has no robot sequence", expected="its images and pointmaps")
    if preset.prediction == "residual" or preset.condition.environment:
        raise DataError(
            f"episode '{episode.key}' is not metric, and preset '{preset.name}' builds on a composite",
            expected="prediction: velocity, or episodes with depth",
        )
    size = (preset.width, preset.height)
    mask = pick_pixels(episode.condition_ids[chosen] > 0, *size)
    truth_rgb = shrink_images(episode.rgb[chosen], *size)
    truth_xyz01 = _unit(pick_pixels(episode.pointmap01[chosen], *size))
    inputs = NetworkInputs(
        image=truth_rgb[0],
        robot_rgb=np.where(mask[..., None], pick_pixels(stored.rgb[chosen], *size), 0).astype(np.uint8),
        robot_xyz01=np.where(mask[..., None], _unit(pick_pixels(stored.pointmap01[chosen], *size)), np.float32(0)),
        robot_mask=mask,
        composite_rgb=truth_rgb[:1].repeat(preset.frames, 0),
        composite_xyz01=truth_xyz01[:1].repeat(preset.frames, 0),
        bounds=np.full((2, 3), np.nan),
        frames=preset.frames,
    )
    return Example(episode.key, inputs, truth_rgb, truth_xyz01, np.zeros(mask.shape, bool))


def _unit(levels: NDArray[np.uint8]) -> NDArray[np.float32]:
    return np.asarray(levels, np.float32) / np.float32(255)


def _objects(episode: Episode) -> NDArray[np.bool_]:
    if episode.ids is None:
        return np.zeros(episode.shape, bool)
    known = [episode.names.index(o.name) + 1 for o in episode.outcome.objects if o.name in episode.names]
    return np.isin(episode.ids, known)


def picture(images: NDArray[np.uint8]) -> torch.Tensor:
    """Convert (T, H, W, 3) uint8 to (T, 3, H, W) float32 in [-1, 1]."""
    return torch.from_numpy(np.ascontiguousarray(images)).permute(0, 3, 1, 2).float() / 127.5 - 1


def video(images: NDArray[np.uint8]) -> torch.Tensor:
    """Convert (T, H, W, 3) uint8 to (1, 3, T, H, W) float32 in [-1, 1]."""
    return picture(images).transpose(0, 1)[None]


def values(array: NDArray[Any]) -> torch.Tensor:
    """Convert (T, H, W, 3) to (1, 3, T, H, W) float32."""
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32)).permute(3, 0, 1, 2)[None]
