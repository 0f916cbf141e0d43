"""Failure synthesis: nine episodes per demonstration, its motion with noise in a re-styled scene.

demonstration (JSON) ─> scene and plan, recomputed ─┬─ noise on one of three segments ───┐
                                                    └─ new colours, distractors, room ───┴─> physics ─> Episode

Arm, camera and the pose, shape and size of the task's objects stay those of the demonstration, so that only the noise
changes the outcome. Physics decides the label: with small noise the task may still succeed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kinema4d_model.data.episode import Episode
from kinema4d_model.data.lab_config import SPLITS, LabConfig
from kinema4d_model.data.lab_episode import ATTEMPTS, draw_scene
from kinema4d_model.data.lab_plans import SIGMAS, VARIANTS, disturb
from kinema4d_model.data.lab_record import Refused, Scene, first_look, kinematics_of, outcome_of, record, simulate
from kinema4d_model.data.lab_scene import SceneDraw
from kinema4d_ros.core.errors import DataError, TrajectoryError
from kinema4d_ros.lab import PlacedObject

__all__ = [
    "Demonstration",
    "failure_episodes",
    "failure_key",
]


_STREAM = 9119
"""Separates the random streams of failures and demonstrations."""


@dataclass(frozen=True)
class Demonstration:
    """Identity of a successful lab episode; with the configuration it determines the motion."""

    key: str
    kind: str
    split: str
    seed: int
    number: int
    attempt: int

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Demonstration | None:
        """Return the demonstration of an episode's JSON; None if it failed or is of kind "noise"."""
        if document["outcome"]["success"] is not True or document["task"] == "noise":
            return None
        try:
            seeds, split = document["seeds"], str(document["details"]["split"])
            numbers = (int(seeds["dataset"]), int(seeds["number"]), int(seeds["attempt"]))
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"episode '{document['key']}' does not contain its seeds: {error!r}"[:300],
                expected="an episode written by `kinema4d data make`",
            ) from None
        return cls(str(document["key"]), str(document["task"]), split, *numbers)

    @property
    def failure_keys(self) -> list[str]:
        """Keys of its nine failures."""
        return [failure_key(self.key, segment, sigma) for segment, sigma in VARIANTS]


def failure_key(parent: str, segment: int, sigma: float) -> str:
    """Return the key of a failure, such as "train-000042-s1-08": segment 1, sigma 0.8."""
    return f"{parent}-s{segment}-{round(10 * sigma):02d}"


def failure_episodes(config: LabConfig, demonstration: Demonstration) -> Iterator[Episode]:
    """Generate the nine failures, in the order of `VARIANTS`."""
    d = demonstration
    parent = draw_scene(config, d.kind, d.seed, d.split, d.number, d.attempt)
    for segment, sigma in VARIANTS:
        yield _failure(config, d, parent, segment, sigma)


def _failure(config: LabConfig, d: Demonstration, parent: Scene, segment: int, sigma: float) -> Episode:
    reasons: dict[str, int] = {}
    for attempt in range(ATTEMPTS):
        variant = VARIANTS.index((segment, sigma))
        rng = np.random.default_rng([d.seed, SPLITS.index(d.split), d.number, _STREAM, variant, attempt])
        try:
            scene = _disturbed(config, d, parent, segment, sigma, rng)
            run = simulate(config, scene)
            outcome = outcome_of(scene, run)
            eye, first = first_look(config, scene, run.states[0])
        except Refused as refusal:
            reasons[str(refusal)] = reasons.get(str(refusal), 0) + 1
            continue
        seeds = {"dataset": d.seed, "number": d.number, "attempt": attempt, "parent_attempt": d.attempt}
        key = failure_key(d.key, segment, sigma)
        return record(config, scene, run, outcome, eye, first, key=key, seeds=seeds, refused=reasons)
    counts = ", ".join(f"{name} {count}" for name, count in reasons.items())
    raise DataError(
        f"episode '{d.key}', segment {segment}, sigma {sigma:g}: no usable motion in {ATTEMPTS} attempts: {counts}",
        expected=f"a motion that tolerates noise of {max(SIGMAS):g}",
    )


def _disturbed(
    config: LabConfig, d: Demonstration, parent: Scene, segment: int, sigma: float, rng: np.random.Generator
) -> Scene:
    cast = parent.cast
    draw = SceneDraw(config.ranges(d.split), rng)
    try:
        motion = disturb(kinematics_of(config.robot), cast.plan.trajectory, segment, sigma, rng)
    except TrajectoryError:
        raise Refused("reach") from None
    needed = [_recoloured(thing, draw) for thing in (cast.target, *cast.others)]
    objects = (*needed, *draw.distractors(needed, cast.target.position[:2], cast.clear))
    labels = {"parent": d.key, "segment": segment, "sigma": sigma}
    noisy = replace(
        cast,
        variant=f"segment {segment}, sigma {sigma:g}",
        plan=replace(cast.plan, trajectory=motion),
        target=needed[0],
        others=tuple(needed[1:]),
        expected=None,
        details={**cast.details, **labels},
    )
    return replace(parent, cast=noisy, objects=objects, style=draw.style())


def _recoloured(placed: PlacedObject, draw: SceneDraw) -> PlacedObject:
    return replace(placed, object=replace(placed.object, rgb=draw.colour()))
