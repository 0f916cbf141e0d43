"""What is compared: a still picture, the composite, the carry hypothesis taken for true, and trained models."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from kinema4d_model.data.episode import Episode
from kinema4d_model.pipeline.lifting import Lifter
from kinema4d_ros.core.errors import DataError
from kinema4d_ros.core.rollout import Provenance, Rollout
from kinema4d_ros.generators.carry import carried_frames, find_candidate
from kinema4d_ros.generators.composite import CompositeGenerator
from kinema4d_ros.generators.protocol import GenerateRequest, Generator

__all__ = ["Predictor", "carry", "composite", "episode_request", "first_frame", "generated", "truth"]

Predictor = Callable[[GenerateRequest], Rollout]


def episode_request(episode: Episode, *, depth: bool, seed: int = 0) -> GenerateRequest:
    """What a generator would be given before the motion: first image, robot drawn from the actions, depth or none."""
    if depth and episode.depth_m is None:
        raise DataError(f"episode '{episode.key}' has no depth", expected="depth, or a request without it")
    measured = episode.depth_m[0] if depth and episode.depth_m is not None else None
    return GenerateRequest(episode.rgb[0], episode.robot_condition(), measured, seed=seed)


def truth(episode: Episode) -> Rollout:
    """What really happened, in the form of a prediction."""
    return Rollout(
        episode.rgb, episode.points(), episode.robot_mask, episode.camera, episode.times, Provenance("truth")
    )


def first_frame(request: GenerateRequest) -> Rollout:
    """The first picture and its points, over and over; the robot stays where it was."""
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
    """The world at rest with the exact robot in it."""
    return CompositeGenerator().generate(request)


def carry(lifter: Lifter | None) -> Predictor:
    """Whatever is within reach of the closing fingers goes along: the hypothesis, never doubted."""

    def predict(request: GenerateRequest) -> Rollout:
        generator = CompositeGenerator()
        if request.depth is None and lifter is not None:
            lifted = lifter.lift(request.image, request.camera, request.robot.mask[0])
            request = GenerateRequest(request.image, request.robot, lifted.depth_m)
        world = generator.still_world(request)
        still = generator.compose(request, world)
        candidate = find_candidate(world, request.robot)
        if candidate is not None and request.robot.rgb is not None:
            carried_frames(world, candidate, request.robot, request.robot.rgb, still.rgb, still.xyz, still.robot_mask)
        return Rollout(still.rgb, still.xyz, still.robot_mask, request.camera, request.times, Provenance("carry"))

    return predict


def generated(generator: Generator) -> Predictor:
    """A generator's own rollouts."""
    return lambda request: generator.generate(request)
