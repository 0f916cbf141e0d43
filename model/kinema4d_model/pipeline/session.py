"""`Session`: prediction in chunks; each chunk starts from the last frame of the previous one.

    image ─> step(robot frames) ─> frames ─┐ last frame with the exact robot
               ^                           │
               └───────────────────────────┘   Drift: error accumulated along the chain

For policies with a renderer, closed loop: `session.step(action_chunk) -> frames`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinema4d_model.pipeline.blend import predict_two_worlds
from kinema4d_model.pipeline.inputs import NetworkInputs, prepare_inputs, shrink_request
from kinema4d_model.pipeline.kinema_pipeline import KinemaPipeline, Prediction
from kinema4d_model.pipeline.lifting import Lifter
from kinema4d_model.pipeline.metric import MetricFit, MetricLimits, bounds_fit, fit_metric
from kinema4d_model.pipeline.resize import fill_under_robot, grow_images, grow_points, paste_robot, points_on_rays
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import ErrorCode, GeneratorError
from kinema4d_ros.core.pointmap import PointmapSequence
from kinema4d_ros.core.rollout import DepthBasis, Frames
from kinema4d_ros.generators.composite import CompositeGenerator
from kinema4d_ros.generators.protocol import Cancel, GenerateRequest, ReportProgress

__all__ = ["Chunk", "Drift", "Session", "chunk_seed", "chunk_slices", "finish", "metres", "motion_frames"]

# From one chunk's prediction to metric frames with the exact robot, at the network's and the camera's size.


def metres(
    prediction: Prediction,
    inputs: NetworkInputs,
    request: GenerateRequest,
    *,
    limits: MetricLimits | None = None,
    require: bool = False,
) -> tuple[Frames, MetricFit]:
    """Convert a prediction to frames in metres at the network's size, with its own robot; also return the fit.

    Args:
        prediction: output of the network.
        inputs: that the prediction was made from.
        request: at the network's size.
        limits: of the fit.
        require: raise METRIC_REFUSED instead of falling back to the bounds of the condition.
    """
    robot = request.robot
    try:
        fit = fit_metric(prediction.values, robot.xyz, robot.mask, limits, per_frame=_own_bounds(inputs))
    except GeneratorError as error:
        if require:
            raise
        fit = bounds_fit(inputs.bounds, prediction.values, robot.xyz, robot.mask, error.what)
    return Frames(prediction.rgb, fit.apply(prediction.values), robot.mask), fit


def _own_bounds(inputs: NetworkInputs) -> NDArray[np.float64] | None:
    """Return the bounds (2, T, 3) of every frame; None if all frames share theirs."""
    return inputs.bounds if inputs.bounds.ndim == 3 else None


def finish(frames: Frames, robot: PointmapSequence) -> tuple[Frames, float]:
    """Make frames at the size of `robot`'s camera: upsampled if needed, moved onto rays, exact robot pasted.

    Args:
        frames: at the network's size.
        robot: exact, at the output size.

    Returns:
        The frames, and the RMS distance of the points from their rays, metres.
    """
    camera = robot.camera
    rgb, xyz, small = frames.arrays
    if rgb.shape[1:3] != (camera.height, camera.width):
        rgb = grow_images(fill_under_robot(rgb, small), camera.width, camera.height)
        xyz = grow_points(fill_under_robot(xyz, small), camera.width, camera.height)
    else:
        rgb = rgb.copy()
    points, off = points_on_rays(xyz, camera)
    finished = Frames(rgb, points, robot.mask)
    paste_robot(finished, robot)
    return finished, off


Render = Callable[[Any], PointmapSequence]
"""Renderer of robot frames for an action chunk; the first frame is the state before the actions."""


@dataclass(frozen=True)
class Drift:
    """Difference of a chunk from known data.

    Attributes:
        robot_m: RMS distance of the predicted robot from the exact one, metres; NaN = no robot in view.
        robot_rgb: mean colour difference of the predicted robot from the exact one, grey levels.
        world_rgb: median colour difference of the chunk's last frame from the session's first image where neither
            shows the robot, grey levels; includes moved objects, but a few of them do not change a median.
    """

    robot_m: float
    robot_rgb: float
    world_rgb: float


@dataclass(frozen=True, eq=False)
class Chunk:
    """One step of a session.

    Attributes:
        frames: at the camera's size, one per robot frame, including the first.
        fit: map from values to metres.
        drift: of this chunk.
        seed: that the chunk was sampled with.
        off_ray_m: RMS distance of predicted points from their pixels' rays, metres.
        passes, skipped: network passes, and those shortened by the cache.
        note: how the frames were made, for provenance.
        depth: source of the world's points.
    """

    frames: Frames
    fit: MetricFit
    drift: Drift
    seed: int
    off_ray_m: float
    passes: int
    skipped: int
    note: str = ""
    depth: DepthBasis = "lifted"


class Session:
    """Chain of chunks from one image.

    Args:
        pipeline: the model.
        image: (H, W, 3) uint8, rectified, current camera image.
        camera: of that image.
        depth: (H, W) float32 metres, current measured depth, NaN = none; or None.
        seed: of the first chunk; later chunks derive theirs from it.
        composite: makes the static world for the conditions.
        render: makes robot frames from an action chunk, for `step`.
        limits, require_metric: of the metric fit.
        lifter: estimates depth where none was measured, for presets with `condition.carry`.
    """

    def __init__(
        self,
        pipeline: KinemaPipeline,
        image: NDArray[np.uint8],
        camera: PinholeCamera,
        *,
        depth: NDArray[np.float32] | None = None,
        seed: int = 0,
        composite: CompositeGenerator | None = None,
        render: Render | None = None,
        limits: MetricLimits | None = None,
        require_metric: bool = False,
        lifter: Lifter | None = None,
    ) -> None:
        self._lifter = lifter
        self._pipeline = pipeline
        self._camera = camera
        self._seed = seed
        self._composite = composite or CompositeGenerator()
        self._render = render
        self._limits = limits
        self._require_metric = require_metric
        self._image = self._first = image
        self._depth = depth
        self._first_robot: NDArray[np.bool_] | None = None
        self.chunks: list[Chunk] = []

    @property
    def drift(self) -> tuple[Drift, ...]:
        """Drift of every chunk so far."""
        return tuple(chunk.drift for chunk in self.chunks)

    def step(self, action_chunk: Any, cancel: Cancel | None = None) -> Frames:
        """Predict the frames after the current one while the robot executes `action_chunk`.

        The chunk has the type that the session's renderer takes, for example (N, J) joint positions; N actions give N
        frames.
        """
        if self._render is None:
            raise GeneratorError(
                "the session has no renderer for actions",
                expected="Session(..., render=...), or `advance` with robot frames",
                code=ErrorCode.GENERATOR_BAD_REQUEST,
            )
        return self.advance(self._render(action_chunk), cancel=cancel).frames[1:]

    def advance(
        self,
        robot: PointmapSequence,
        progress: ReportProgress | None = None,
        cancel: Cancel | None = None,
        shown: NDArray[np.intp] | None = None,
        drafted: Frames | None = None,
    ) -> Chunk:
        """Predict while the robot moves from its current pose, the first frame; the last frame becomes current.

        Args:
            robot: exact robot frames.
            progress, cancel: as in every generator.
            shown: increasing indices of the frames that the network sees, first and last among them; None = all. The
                others show the world of the nearest one and the exact robot. Not for presets with `condition.carry`.
            drafted: a simulated world of these frames, which replaces the carry hypothesis of `condition.carry`.
        """
        if robot.times is None:
            robot = replace(robot, times=np.arange(len(robot), dtype=np.float64))
        seed = chunk_seed(self._seed, len(self.chunks))
        preset = self._pipeline.preset
        whole = GenerateRequest(self._current_image(robot), robot, self._current_depth(robot), seed=seed)
        if preset.condition.carry:
            chunk = self._blended(whole, seed, progress, cancel, drafted)
        else:
            chunk = self._grown(whole, seed, progress, cancel, shown)
        frames = chunk.frames
        self.chunks.append(chunk)
        self._image = frames.rgb[-1]
        self._depth = frames.xyz[-1, ..., 2]
        return chunk

    def _grown(
        self,
        whole: GenerateRequest,
        seed: int,
        progress: ReportProgress | None,
        cancel: Cancel | None,
        shown: NDArray[np.intp] | None,
    ) -> Chunk:
        """Predict frames with the network and upsample them to the camera's size and the request's times."""
        preset, robot = self._pipeline.preset, whole.robot
        some = whole if shown is None else replace(whole, robot=part_of(robot, shown))
        small = shrink_request(some, preset.width, preset.height)
        inputs, _ = prepare_inputs(
            small, self._composite, preset.codec.temporal_factor, preset.condition, preset.frames
        )
        prediction = self._pipeline(inputs, seed, progress, cancel)
        predicted, fit = metres(prediction, inputs, small, limits=self._limits, require=self._require_metric)
        frames, off_ray_m = finish(predicted if shown is None else _at_all_times(predicted, robot, shown), robot)
        drift = self._drift(fit, predicted, inputs, frames, robot)
        return Chunk(frames, fit, drift, seed, off_ray_m, prediction.passes, prediction.skipped)

    def _blended(
        self,
        whole: GenerateRequest,
        seed: int,
        progress: ReportProgress | None,
        cancel: Cancel | None,
        drafted: Frames | None,
    ) -> Chunk:
        """Blend two exact videos at the camera's size as the network selects."""
        done = predict_two_worlds(self._pipeline, whole, seed, self._composite, self._lifter, progress, cancel, drafted)
        prediction, small = done.prediction, done.small
        # The two worlds are already metric; the fit only measures how well the network follows the robot.
        predicted, fit = metres(prediction, done.inputs, small, limits=self._limits, require=self._require_metric)
        _, off_ray_m = points_on_rays(predicted.xyz, small.camera)
        drift = self._drift(fit, predicted, done.inputs, done.frames, whole.robot)
        passes = prediction.passes, prediction.skipped
        # Later chunks start from the first chunk's points, so they share its depth source.
        depth = self.chunks[0].depth if self.chunks else done.depth
        return Chunk(done.frames, fit, drift, seed, off_ray_m, *passes, done.note, depth)

    def _drift(
        self, fit: MetricFit, predicted: Frames, inputs: NetworkInputs, frames: Frames, robot: PointmapSequence
    ) -> Drift:
        if self._first_robot is None:
            self._first_robot = robot.mask[0]
        return Drift(
            fit.residual_m if fit.pixels else float("nan"),
            _mean_difference(predicted.rgb, inputs.robot_rgb[: len(predicted)], predicted.robot_mask),
            self._world_difference(frames.rgb[-1], robot.mask[-1]),
        )

    def _current_image(self, robot: PointmapSequence) -> NDArray[np.uint8]:
        if (robot.camera.width, robot.camera.height) != (self._camera.width, self._camera.height):
            raise GeneratorError(
                f"robot frames are {robot.camera.width} x {robot.camera.height}",
                expected=f"the session's {self._camera.width} x {self._camera.height}",
                code=ErrorCode.GENERATOR_BAD_REQUEST,
            )
        return self._image

    def _current_depth(self, robot: PointmapSequence) -> NDArray[np.float32] | None:
        if self._depth is None or not self.chunks:
            return self._depth
        # World points come from the prediction; the robot's own are exact.
        return np.where(robot.mask[0], robot.xyz[0, ..., 2], self._depth)

    def _world_difference(self, image: NDArray[np.uint8], robot: NDArray[np.bool_]) -> float:
        world = ~robot if self._first_robot is None else ~(robot | self._first_robot)
        if not world.any():
            return float("nan")
        difference = np.abs(image[world].astype(np.int16) - self._first[world].astype(np.int16))
        return float(np.median(difference.mean(-1)))


def _at_all_times(frames: Frames, robot: PointmapSequence, shown: NDArray[np.intp]) -> Frames:
    """Return the frame nearest in time for every frame of `robot`, at the network's size.

    Repeated frames are filled under their own robot, which is elsewhere by then.
    """
    times = robot.times if robot.times is not None else np.arange(len(robot), dtype=np.float64)
    middle = (times[shown][1:] + times[shown][:-1]) / 2
    nearest = np.searchsorted(middle, times, side="right")
    rgb, xyz, mask = frames.arrays
    clean = Frames(fill_under_robot(rgb, mask), fill_under_robot(xyz, mask), mask)
    expanded = Frames(clean.rgb[nearest], clean.xyz[nearest], np.zeros_like(mask[nearest]))
    for own, at in enumerate(shown):
        expanded.rgb[at], expanded.xyz[at], expanded.robot_mask[at] = rgb[own], xyz[own], mask[own]
    return expanded


def motion_frames(times: NDArray[np.float64], period_s: float) -> NDArray[np.intp]:
    """Select the frames nearest to one per `period_s`; the first and the last are always among them.

    >>> motion_frames(np.linspace(0.0, 2.0, 9), 0.5).tolist()
    [0, 2, 4, 6, 8]
    """
    steps = max(1, round(float(times[-1] - times[0]) / period_s))
    wanted = times[0] + period_s * np.arange(steps)
    nearest = np.abs(times[None] - wanted[:, None]).argmin(1)
    return np.unique([*nearest, len(times) - 1]).astype(np.intp)


def chunk_seed(seed: int, index: int) -> int:
    """Return the seed of a chunk: the session's own for the first, then spread over 0 to 2^64 - 1."""
    return (seed + index * 0x9E3779B97F4A7C15) % 2**64


def chunk_slices(frames: int, longest: int) -> list[slice]:
    """Split into parts of at most `longest` frames; neighbours share one frame.

    >>> chunk_slices(9, 5), chunk_slices(5, 5), chunk_slices(7, 5)
    ([slice(0, 5, None), slice(4, 9, None)], [slice(0, 5, None)], [slice(0, 5, None), slice(4, 7, None)])
    """
    starts = range(0, max(frames - 1, 1), longest - 1) if longest > 1 else range(1)
    return [slice(start, min(start + longest, frames)) for start in starts]


def part_of(robot: PointmapSequence, part: slice | NDArray[np.intp]) -> PointmapSequence:
    """Return some of a sequence's frames."""
    return replace(
        robot,
        xyz=robot.xyz[part],
        link_ids=robot.link_ids[part],
        times=None if robot.times is None else robot.times[part],
        rgb=None if robot.rgb is None else robot.rgb[part],
        grip=None if robot.grip is None else robot.grip.at(part),
    )


def _mean_difference(predicted: NDArray[np.uint8], exact: NDArray[np.uint8], mask: NDArray[np.bool_]) -> float:
    if not mask.any():
        return float("nan")
    return float(np.abs(predicted[mask].astype(np.int16) - exact[mask].astype(np.int16)).mean())
