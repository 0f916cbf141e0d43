"""Scores of a prediction against the truth, means with bootstrap intervals, and the baseline predictors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kinema4d_model.data.episode import Episode, load_robot
from kinema4d_ros.core.errors import DataError, ErrorCode, GeneratorError
from kinema4d_ros.core.pointmap import GripTrack
from kinema4d_ros.core.rollout import Provenance, Rollout
from kinema4d_ros.core.task import make_task
from kinema4d_ros.core.trajectory import JointTrajectory
from kinema4d_ros.evaluation import dynamic_region, frame_distances, psnr_overall, ssim
from kinema4d_ros.generators.carry import find_grasps
from kinema4d_ros.generators.composite import CarryGenerator, CompositeGenerator
from kinema4d_ros.generators.protocol import CommandedMotion, GenerateRequest, Generator

__all__ = [
    "MODEL",
    "NAMES",
    "Predictor",
    "Summary",
    "ablated",
    "carry",
    "composite",
    "episode_region",
    "episode_request",
    "first_frame",
    "generated",
    "held_pixels",
    "holds",
    "score",
    "summarise",
    "truth",
]

NAMES = (
    "psnr", "psnr_dynamic", "ssim", "ssim_dynamic", "chamfer_l1_mm", "f_score", "chamfer_l1_dynamic_mm",
    "f_score_dynamic",
)  # fmt: skip
CLOUD_FRAMES = 4
"""Number of frames for cloud comparison, evenly spread, without the first frame, which is an input."""
MOVED_M = 0.01
REACH_PX = 6
RESAMPLES = 1000


@dataclass(frozen=True)
class Summary:
    """A mean over `count` episodes with its 95 % bootstrap interval."""

    mean: float
    low: float
    high: float
    count: int


def episode_region(episode: Episode) -> NDArray[np.bool_]:
    """Return (T, H, W) bool: pixels near the robot, its initial pose, or objects that moved."""
    moving = []
    for track in episode.outcome.objects:
        way = track.base_T_object[:, :3, 3]
        if track.name in episode.names and np.linalg.norm(way - way[0], axis=1).max() > MOVED_M:
            moving.append(episode.names.index(track.name) + 1)
    robot = episode.robot_mask | episode.robot_mask[:1]
    if episode.condition_ids is not None:
        robot = robot | (episode.condition_ids > 0)
    return dynamic_region(robot, episode.ids, moving, reach_px=REACH_PX)


def score(rollout: Rollout, episode: Episode, region: NDArray[np.bool_]) -> dict[str, float]:
    """Compute the scores listed in `NAMES`."""
    truth = episode.points()
    frames = np.unique(np.linspace(0, len(episode) - 1, CLOUD_FRAMES + 1).astype(int)[1:])
    whole = frame_distances(rollout.xyz[frames], truth[frames])
    near = frame_distances(rollout.xyz[frames], truth[frames], mask=region[frames])
    return {
        "psnr": psnr_overall(rollout.rgb, episode.rgb),
        "psnr_dynamic": psnr_overall(rollout.rgb, episode.rgb, region),
        "ssim": float(np.nanmean(ssim(rollout.rgb, episode.rgb))),
        "ssim_dynamic": float(np.nanmean(ssim(rollout.rgb, episode.rgb, region))),
        "chamfer_l1_mm": 1000 * float(np.nanmean([d.chamfer_l1 for d in whole])),
        "f_score": float(np.nanmean([d.f_score[0] for d in whole])),
        "chamfer_l1_dynamic_mm": 1000 * float(np.nanmean([d.chamfer_l1 for d in near])),
        "f_score_dynamic": float(np.nanmean([d.f_score[0] for d in near])),
    }


def summarise(rows: Sequence[Mapping[str, float]], seed: int = 0) -> dict[str, Summary]:
    """Return the mean over episodes of each score."""
    rng = np.random.default_rng(seed)
    found = {}
    for name in rows[0] if rows else ():
        values = np.array([row[name] for row in rows], np.float64)
        values = values[np.isfinite(values)]
        if not len(values):
            found[name] = Summary(float("nan"), float("nan"), float("nan"), 0)
            continue
        draws = values[rng.integers(0, len(values), (RESAMPLES, len(values)))].mean(1)
        low, high = np.percentile(draws, [2.5, 97.5])
        found[name] = Summary(float(values.mean()), float(low), float(high), len(values))
    return found


# Held object in the last frame of a rollout: the simplest measure of a grasp's outcome, without a tracker.

NEAR_M = 0.035
LEAST_SHARE = 8e-4
"""Minimum share of image pixels of a held object: half of the smallest object of the data."""


def held_pixels(rollout: Rollout, grip: GripTrack, frame: int = -1) -> int:
    """Count pixels of a frame that are not robot and lie within 3.5 cm of the grip point."""
    pose = rollout.camera.base_T_camera
    points = rollout.xyz[frame][~rollout.robot_mask[frame]].astype(np.float64)
    points = points[np.isfinite(points).all(-1)] @ pose[:3, :3].T + pose[:3, 3]
    return int((np.linalg.norm(points - grip.base_T_grip[frame, :3, 3], axis=1) < NEAR_M).sum())


def holds(rollout: Rollout, grip: GripTrack) -> bool:
    """Return whether a pick succeeded: the object in the gripper at the end moved with it since the fingers closed."""
    if held_pixels(rollout, grip) < LEAST_SHARE * rollout.robot_mask[0].size:
        return False
    grasps = [grasp for grasp in find_grasps(grip) if grasp.release >= len(grip)]
    if not grasps:
        return False
    hand = grip.base_T_grip[:, :3, 3]
    closing = hand[grasps[-1].start : grasps[-1].closed + 1]
    # Frames are far apart in time: the lowest frame while the fingers close is nearest to the grasp.
    taken = closing[int(closing[:, 2].argmin())]
    return bool(make_task("pick").outcome([taken, hand[-1]]).success)


# Predictors: first frame, composite, carry hypothesis, and trained models.

Predictor = Callable[[GenerateRequest], Rollout]

MODEL = "model"
"""Name of the assessed generator among the predictors."""


def episode_request(episode: Episode, *, depth: bool, seed: int = 0) -> GenerateRequest:
    """Make the generator's request: first image, robot rendered from the actions, the actions, optionally depth."""
    if depth and episode.depth_m is None:
        raise DataError(f"episode '{episode.key}' has no depth", expected="depth, or a request without it")
    measured = episode.depth_m[0] if depth and episode.depth_m is not None else None
    motion = None
    if episode.condition is None and episode.robot and episode.actions is not None:
        commands = JointTrajectory(episode.joint_names, episode.times, episode.actions)
        motion = CommandedMotion.of(load_robot(episode.robot), commands)
    return GenerateRequest(episode.rgb[0], episode.robot_condition(), measured, seed=seed, motion=motion)


def truth(episode: Episode) -> Rollout:
    """Return the ground truth as a rollout."""
    return Rollout(
        episode.rgb, episode.points(), episode.robot_mask, episode.camera, episode.times, Provenance("truth")
    )


def first_frame(request: GenerateRequest) -> Rollout:
    """Repeat the first image and its points; the robot does not move."""
    still = CompositeGenerator().generate(request)
    count = len(request)
    return Rollout(
        np.repeat(request.image[None], count, 0),
        np.repeat(still.xyz[:1], count, 0),
        np.repeat(still.robot_mask[:1], count, 0),
        request.camera,
        request.times,
        Provenance("first frame"),
    )


def composite(request: GenerateRequest) -> Rollout:
    """Predict a static scene with the exact robot in it."""
    return CompositeGenerator().generate(request)


def carry(request: GenerateRequest) -> Rollout:
    """Predict that the object between the closing fingers is always carried; depth is lifted if it was not measured."""
    return CarryGenerator().generate(request)


def generated(generator: Generator) -> Predictor:
    """Return a predictor that calls a generator."""
    return lambda request: generator.generate(request)


def ablated(generator: Generator, name: str) -> Predictor:
    """Return a predictor of the generator's weights with a row of the paper's ablation table.

    Raises:
        GeneratorError: ARGUMENT_INVALID; the row needs another network, or the generator has no network of ours.
    """
    change = getattr(generator, "with_ablation", None)
    if change is None:
        raise GeneratorError(
            f"generator '{generator.name}' has no ablation '{name}'",
            expected="a preset with weights, such as nano",
            code=ErrorCode.ARGUMENT_INVALID,
        )
    return generated(change(name))
