"""`DiffusionGenerator`: the learned generator behind the common generator protocol, and confidence from seeds.

    GenerateRequest ─ chunks of the preset's frames ─> Session ─> Rollout at the camera's own size

The network works at the preset's size. Images are filtered down to it, pointmaps and masks are sampled per pixel. The
prediction is upsampled, points never across an edge, and the exact robot is pasted at full size.
"""

from __future__ import annotations

import copy
import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import torch
from numpy.typing import NDArray

import kinema4d_ros
from kinema4d_model.checkpoints.bundle import ModelBundle
from kinema4d_model.checkpoints.loading import load_bundle, with_options
from kinema4d_model.cost.rollout import describe
from kinema4d_model.pipeline.kinema_pipeline import KinemaPipeline
from kinema4d_model.pipeline.lifting import load_lifter
from kinema4d_model.pipeline.metric import MetricFit
from kinema4d_model.pipeline.normalise import describe_normalisation
from kinema4d_model.pipeline.session import Drift, Session, chunk_slices, motion_frames, part_of
from kinema4d_model.preset import Preset, load_preset
from kinema4d_ros.core.errors import ErrorCode, GeneratorError
from kinema4d_ros.core.rollout import WARNING, Frames, Provenance, Rollout
from kinema4d_ros.generators.composite import CompositeGenerator, show_still
from kinema4d_ros.generators.protocol import (
    Cancel,
    GenerateRequest,
    Progress,
    ReceiveFrames,
    ReportProgress,
    deliver,
    request_sha256,
)

__all__ = ["Confidence", "Details", "DiffusionGenerator", "confidence_of"]

# Confidence per pixel: high where several seeds agree.


@dataclass(frozen=True, eq=False)
class Confidence:
    """Agreement of several rollouts of one request.

    Attributes:
        value: (T, H, W) float32 in [0, 1]; 1 = all seeds agree, 0.5 = they spread by `scale_m`, 1 on the exact robot,
            0 where only some seeds have a point.
        spread_m: (T, H, W) float32, metres, RMS distance of the seeds' points from their mean; NaN = no point.
        spread_rgb: (T, H, W) float32, grey levels, the same for colours.
        seeds: number of rollouts compared.
    """

    value: NDArray[np.float32]
    spread_m: NDArray[np.float32]
    spread_rgb: NDArray[np.float32]
    seeds: int


def confidence_of(runs: Sequence[Frames], robot_mask: NDArray[np.bool_], *, scale_m: float = 0.02) -> Confidence:
    """Compute confidence from the frames of at least two seeds and the whole robot's mask (T, H, W).

    Spreads are unbiased (n - 1).
    """
    seeds = len(runs)
    if seeds < 2:
        raise GeneratorError(
            f"cannot compare {seeds} rollouts", expected="two or more", code=ErrorCode.GENERATOR_BAD_REQUEST
        )
    spread_m, spread_rgb = np.empty(robot_mask.shape, np.float32), np.empty(robot_mask.shape, np.float32)
    value = np.empty(robot_mask.shape, np.float32)
    for t in range(len(robot_mask)):
        xyz = np.stack([run.xyz[t] for run in runs])
        rgb = np.stack([run.rgb[t] for run in runs]).astype(np.float32)
        known = np.isfinite(xyz).all(-1).sum(0)
        with np.errstate(invalid="ignore"):
            spread_m[t] = np.sqrt(((xyz - xyz.mean(0)) ** 2).sum(-1).sum(0) / (seeds - 1))
        spread_rgb[t] = np.sqrt(((rgb - rgb.mean(0)) ** 2).mean(-1).sum(0) / (seeds - 1))
        agreed = 1.0 / (1.0 + (spread_m[t] / scale_m) ** 2)
        value[t] = np.where(known == seeds, agreed, np.where(known == 0, 1.0, 0.0))
        value[t][robot_mask[t]] = 1.0
    return Confidence(value, spread_m, spread_rgb, seeds)


@dataclass(frozen=True, eq=False)
class Part:
    """Frames of a request that one run of the network predicts; the first is the last of the part before.

    Attributes:
        frames: of the request.
        shown: those of them that the network sees, counted from the part's first; None = all.
    """

    frames: slice
    shown: NDArray[np.intp] | None = None


TOO_FAST = 1.5
"""Motions that are this many times faster than those of the training are reported as a warning."""
LONGEST_S = 12.0
"""Longer motions are predicted in several runs, seconds."""
MAX_SEEDS = 8


@dataclass(frozen=True, eq=False)
class Details:
    """Details of the last rollout that the rollout itself does not store.

    Attributes:
        fits: metric fit of every chunk.
        drift: drift of every chunk.
        confidence: agreement of the seeds; None with one seed.
        passes, skipped: network passes, and those shortened by the step cache, over all chunks and seeds.
    """

    fits: tuple[MetricFit, ...]
    drift: tuple[Drift, ...]
    confidence: Confidence | None
    passes: int
    skipped: int


class DiffusionGenerator:
    """Kinema4D at any preset; loaded once, handles one request at a time.

    Args:
        preset: a name, the path of a YAML file, or a `Preset`.
        checkpoint: folder of the weights; default: the preset's own, see `checkpoint_folder`.
        device: "auto", "cpu" or "cuda".
        sampler, speed: fields that replace the preset's, e.g. {"steps": 8}.
        lora: safetensors file of another adapter, for example one distilled for few steps.
        seeds: rollouts per request; with 2 or more, `details.confidence` shows where they agree. The returned rollout
            is that of the first seed.
        require_metric: fail with METRIC_REFUSED where the robot is too small in view; otherwise the bounds of the
            condition are used, and provenance records it.
        table_height_m: height of the plane assumed where no depth was measured.
        lift: estimate depth from the image where none was measured, for presets with `condition.carry`.
        warm_start: run one empty step at construction, so that the first request is as fast as later ones.
        random_weights: use an untrained network, for tests and timing.
        allow_base: use the base model alone if the folder has no adapter; provenance records it.
        bundle: an already loaded model; replaces the arguments above that select one.
    """

    name = "diffusion"

    def __init__(
        self,
        *,
        preset: str | Path | Preset = "nano",
        checkpoint: str | Path = "",
        device: str = "auto",
        sampler: Mapping[str, Any] | None = None,
        speed: Mapping[str, Any] | None = None,
        lora: str | Path = "",
        seeds: int = 1,
        require_metric: bool = False,
        table_height_m: float = 0.0,
        lift: bool = True,
        warm_start: bool = False,
        random_weights: bool = False,
        allow_base: bool = False,
        bundle: ModelBundle | None = None,
    ) -> None:
        if not 1 <= seeds <= MAX_SEEDS:
            raise GeneratorError(
                f"seeds is {seeds}", expected=f"1 to {MAX_SEEDS}", code=ErrorCode.GENERATOR_BAD_REQUEST
            )
        if bundle is None:
            if random_weights:
                chosen = preset if isinstance(preset, Preset) else load_preset(preset)
                bundle = ModelBundle.from_preset(with_options(chosen, sampler, speed))
            else:
                bundle = load_bundle(preset, checkpoint, lora, sampler=sampler, speed=speed, allow_base=allow_base)
        self.pipeline = KinemaPipeline(bundle, device=device)
        self._composite = CompositeGenerator(table_height_m=table_height_m)
        self._lifter = load_lifter() if lift and bundle.preset.condition.carry else None
        self._seeds = seeds
        self._require_metric = require_metric
        self.details: Details | None = None
        if warm_start:
            self.pipeline.warm_up()

    def generate(
        self, request: GenerateRequest, progress: ReportProgress | None = None, cancel: Cancel | None = None
    ) -> Rollout:
        """Generate the rollout of a request; equal for equal seed, inputs, checkpoint and options."""
        return self.stream(request, None, progress, cancel)

    def stream(
        self,
        request: GenerateRequest,
        receive: ReceiveFrames | None,
        progress: ReportProgress | None = None,
        cancel: Cancel | None = None,
    ) -> Rollout:
        """Generate the rollout; deliver the scene at rest at once, then the frames of each run of the network."""
        show_still(request, receive, cancel, table_height_m=self._composite.table_height_m)
        return self.refine(request, None, progress, cancel, receive=receive)

    def refine(
        self,
        request: GenerateRequest,
        drafted: Frames | None,
        progress: ReportProgress | None = None,
        cancel: Cancel | None = None,
        *,
        receive: ReceiveFrames | None = None,
    ) -> Rollout:
        """Generate with a drafted world, frames of the request at its size, in place of the carry hypothesis.

        With several seeds, `receive` gets the frames of the first, which are the rollout's.

        Raises:
            GeneratorError: GENERATOR_BAD_REQUEST, the preset has no `condition.carry`.
        """
        if drafted is not None and not self.pipeline.preset.condition.carry:
            raise GeneratorError(
                f"preset '{self.pipeline.preset.name}' cannot refine a draft",
                expected="a preset with condition.carry, such as nano",
                code=ErrorCode.GENERATOR_BAD_REQUEST,
            )
        parts = self._parts(request)
        overall = _Overall(progress, self._seeds * len(parts), self.pipeline.sampler.steps)
        runs = [
            self._run(request, parts, _run_seed(request.seed, k), overall, cancel, drafted, receive if k == 0 else None)
            for k in range(self._seeds)
        ]
        frames, session = runs[0]
        confidence = None
        if len(runs) > 1:
            confidence = confidence_of([run for run, _ in runs], request.robot.mask)
        chunks = [chunk for _, run in runs for chunk in run.chunks]
        self.details = Details(
            tuple(chunk.fit for chunk in session.chunks),
            session.drift,
            confidence,
            sum(chunk.passes for chunk in chunks),
            sum(chunk.skipped for chunk in chunks),
        )
        return Rollout(
            *frames.arrays,
            request.camera,
            request.times,
            self._provenance(request, session, parts),
            plan_hash=request.plan_hash,
        )

    def frames_for(self, duration_s: float) -> int:
        """Return the frames that a plan of this duration needs at the trained motion rate; 0 = any number will do."""
        motion = self.pipeline.preset.motion
        return 0 if motion is None else math.ceil(duration_s / motion.period_s) + 1

    def with_ablation(self, name: str) -> DiffusionGenerator:
        """Return a generator of the same weights with a row of the paper's ablation table, see `conditions.ablate`."""
        other = copy.copy(self)
        other.pipeline = self.pipeline.with_ablation(name)
        return other

    def with_condition(self, **changes: Any) -> DiffusionGenerator:
        """Return a generator of the same weights with changed fields of its condition."""
        other = copy.copy(self)
        other.pipeline = self.pipeline.with_condition(**changes)
        return other

    def _run(
        self,
        request: GenerateRequest,
        parts: list[Part],
        seed: int,
        overall: _Overall,
        cancel: Cancel | None,
        drafted: Frames | None,
        receive: ReceiveFrames | None,
    ) -> tuple[Frames, Session]:
        session = Session(
            self.pipeline,
            request.image,
            request.camera,
            depth=request.depth,
            seed=seed,
            composite=self._composite,
            require_metric=self._require_metric,
            lifter=self._lifter,
        )
        if len(parts) == 1:
            frames = session.advance(request.robot, overall, cancel, parts[0].shown, drafted).frames
            overall.finished()
            deliver(receive, "refined", 0, frames, final=True)
            return frames, session
        frames = Frames.empty(*request.robot.link_ids.shape)
        for part in parts:
            own = part.frames
            draft = None if drafted is None else drafted[own]
            chunk = session.advance(part_of(request.robot, own), overall, cancel, part.shown, draft)
            # The frame shared by two chunks keeps the first chunk's prediction.
            skip = 1 if own.start else 0
            new = slice(own.start + skip, own.stop)
            frames[new] = chunk.frames[skip:]
            overall.finished()
            deliver(receive, "refined", new.start, frames[new], final=True)
        return frames, session

    def _parts(self, request: GenerateRequest) -> list[Part]:
        """Split into network runs.

        With `motion` a run sees frames at the trained rate, up to the preset's number; with `condition.carry` there is
        one run unless the motion is longer than LONGEST_S.
        """
        preset = self.pipeline.preset
        if preset.motion is not None:
            shown = motion_frames(request.times, preset.motion.period_s)
            runs = [shown[part] for part in chunk_slices(len(shown), preset.frames)]
            return [Part(slice(int(run[0]), int(run[-1]) + 1), run - run[0]) for run in runs]
        if not preset.condition.carry:
            return [Part(part) for part in chunk_slices(len(request), preset.frames)]
        duration_s = float(request.times[-1] - request.times[0])
        count = max(1, math.ceil(duration_s / LONGEST_S))
        longest = max(2, math.ceil((len(request) - 1) / count) + 1)
        return [Part(part) for part in chunk_slices(len(request), longest)]

    def _motion(self, request: GenerateRequest, parts: list[Part]) -> dict[str, str]:
        """Describe the motion rate for provenance, with a warning if the request's frames are too far apart."""
        motion = self.pipeline.preset.motion
        seen = sum(len(part.shown) - 1 for part in parts if part.shown is not None)
        if motion is None or seen == 0:
            return {}
        apart_s = float(request.times[-1] - request.times[0]) / seen
        pace = apart_s / motion.period_s
        said = {"motion": f"the network saw a frame every {apart_s:.3f} s, trained every {motion.period_s:.3f} s"}
        if pace > TOO_FAST:
            said[WARNING] = f"The frames are {pace:.1f} times as far apart as in the training; ask for more frames."
        return said

    @staticmethod
    def _per_chunk(request: GenerateRequest, session: Session, parts: list[Part]) -> str:
        """Describe every chunk for provenance; neighbours share a frame, which is the earlier one's prediction."""
        lines = []
        for part, chunk in zip(parts, session.chunks, strict=True):
            times = request.times[part.frames]
            seen = len(times) if part.shown is None else len(part.shown)
            lines.append(
                f"{times[0] - request.times[0]:.2f} to {times[-1] - request.times[0]:.2f} s, {seen} frames seen, "
                f"seed {chunk.seed}, robot off {1000 * chunk.drift.robot_m:.1f} mm, "
                f"scene off {chunk.drift.world_rgb:.1f} levels"
            )
        return "; ".join(lines)

    def _provenance(self, request: GenerateRequest, session: Session, parts: list[Part]) -> Provenance:
        preset, pipeline, camera = self.pipeline.preset, self.pipeline, request.camera
        size = f"{preset.width} x {preset.height}"
        if (camera.width, camera.height) != (preset.width, preset.height):
            size += f", resized from and to {camera.width} x {camera.height}"
        # Other than what the weights were trained for: an ablation.
        changed = {} if preset.condition == pipeline.bundle.preset.condition else {"condition": str(preset.condition)}
        return Provenance(
            generator=self.name,
            preset=preset.name,
            checkpoint_sha256=pipeline.bundle.sha256,
            input_sha256=request_sha256(request),
            seed=request.seed,
            metric_residual_m=max(chunk.fit.residual_m for chunk in session.chunks),
            depth=session.chunks[0].depth,
            versions={
                "kinema4d_ros": kinema4d_ros.__version__,
                "torch": torch.__version__,
                "diffusers": diffusers.__version__,
                "numpy": np.__version__,
                "python": platform.python_version(),
                "network size": size,
                "recipe": describe(replace(preset, sampler=pipeline.sampler, speed=pipeline.speed)),
                **self._motion(request, parts),
                **pipeline.bundle.describe(),
                "normalisation": describe_normalisation(preset.condition.normalisation),
                "options": "; ".join(pipeline.notes) or "none",
                "device": str(pipeline.device),
                "chunks": f"{len(parts)} of up to {preset.frames} frames",
                **({"per chunk": self._per_chunk(request, session, parts)} if len(parts) > 1 else {}),
                **self._colours(request),
                "metric": session.chunks[-1].fit.summary(),
                "frames": "; ".join(chunk.note for chunk in session.chunks if chunk.note) or "the network's own",
                **changed,
            },
        )

    def _colours(self, request: GenerateRequest) -> dict[str, str]:
        """Say where a condition on the robot's colours had none to use."""
        if self.pipeline.preset.robot.variant == "pm" or request.robot.rgb is not None:
            return {}
        return {"robot colours": "shaded, not the real ones; a preset of the variant pm needs none"}


def _run_seed(seed: int, index: int) -> int:
    """Return the seed of rollout `index`; its stride differs from that of a session's chunks to avoid collisions."""
    return (seed + index * 0xD1B54A32D192ED03) % 2**64


class _Overall:
    """Progress over all chunks and seeds, so that "sample" ends only once."""

    def __init__(self, report: ReportProgress | None, chunks: int, steps: int) -> None:
        self.report = report or (lambda _: None)
        self._chunks = chunks
        self._steps = steps
        self._done = 0

    def __call__(self, progress: Progress) -> None:
        if progress.phase == "sample":
            progress = Progress("sample", self._done * self._steps + progress.step, self._chunks * self._steps)
        self.report(progress)

    def finished(self) -> None:
        """Count one finished chunk."""
        self._done += 1
