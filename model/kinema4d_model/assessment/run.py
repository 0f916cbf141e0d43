"""Assessment of predictors on a split of episodes: scores per episode, outcomes, and twins with a moved target."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinema4d_model.assessment.scores import (
    Predictor,
    Summary,
    episode_region,
    episode_request,
    holds,
    score,
    summarise,
)
from kinema4d_model.data.dataset_folder import DatasetFolder
from kinema4d_model.data.episode import Episode
from kinema4d_model.data.lab_config import LabConfig
from kinema4d_model.data.lab_episode import Change, TwinRefused, make_episode
from kinema4d_model.data.shards import read_episode
from kinema4d_ros.core.degrade import Degradation
from kinema4d_ros.core.rollout import Rollout
from kinema4d_ros.core.task import make_task
from kinema4d_ros.evaluation.judges import GeometricJudge
from kinema4d_ros.generators.protocol import GenerateRequest
from kinema4d_ros.lab import PlacedObject

__all__ = [
    "GRASPS",
    "OUT_OF_SIGHT",
    "Outcomes",
    "Scored",
    "Twin",
    "TwinTable",
    "assess",
    "degradation_seed",
    "episodes_of",
    "make_twin",
    "moved_by",
    "out_of_sight",
    "outcomes_of",
    "summaries",
    "twin_table",
]

# Twins of lab episodes: the same scene, camera and motion with the target moved, or out of sight.
#
# If the prediction of a twin follows the physics, the model reads the outcome from the image, not from the motion.

OUT_OF_SIGHT = (-0.30, -0.45)
"""x, y on the lab's table, metres, behind the arm: outside the view of all cameras of the dataset."""


@dataclass(frozen=True, eq=False)
class Twin:
    """An episode and its twin."""

    episode: Episode
    twin: Episode


def _at(target: PlacedObject, xy: NDArray[np.float64]) -> PlacedObject:
    pose = target.base_T_object.copy()
    pose[:2, 3] = xy
    return PlacedObject(target.object, pose)


def moved_by(distance_m: float) -> Change:
    """Return a change that moves the target by this distance around the arm, towards the workspace centre."""

    def change(target: PlacedObject) -> PlacedObject:
        x, y = target.position[:2]
        around = np.array([y, -x]) / max(float(np.hypot(x, y)), 1e-9)
        # Towards y = 0, so that the target stays on the table and mostly in view.
        side = 1.0 if around[1] * y < 0 else -1.0
        return _at(target, np.array([x, y]) + side * distance_m * around)

    return change


def out_of_sight(target: PlacedObject) -> PlacedObject:
    """Move the target out of view."""
    return _at(target, np.array(OUT_OF_SIGHT))


def make_twin(config: LabConfig, episode: Episode, change: Change) -> Twin | None:
    """Make the twin of an episode from `kinema4d data make`; None if the moved target does not fit."""
    seed, number = int(episode.seeds["dataset"]), int(episode.seeds["number"])
    try:
        return Twin(episode, make_episode(config, seed, str(episode.details["split"]), number, change))
    except TwinRefused:
        return None


GRASPS = ("pick", "miss")
"""Kinds of episodes whose outcome is a lift, and that differ only in the objects present."""


@dataclass(frozen=True)
class Scored:
    """One prediction of one episode.

    Attributes:
        key, kind, variant: of the episode.
        success: outcome by physics.
        predictor: name of the predictor.
        held: whether the gripper holds an object in the last predicted frame.
        judged: outcome by the geometric judge; None = undecided, or the task is not a grasp.
        numbers: see `scores.NAMES`.
        seconds: duration of the prediction.
    """

    key: str
    kind: str
    variant: str
    success: bool
    predictor: str
    held: bool
    judged: bool | None
    numbers: Mapping[str, float]
    seconds: float


@dataclass(frozen=True)
class Outcomes:
    """Confusion of grasp outcomes: "held" is predicted, "success" is by physics."""

    held_success: int
    held_failure: int
    empty_success: int
    empty_failure: int
    undecided: int = 0

    @property
    def count(self) -> int:
        """Number of episodes."""
        return self.held_success + self.held_failure + self.empty_success + self.empty_failure + self.undecided

    @property
    def agreement(self) -> float:
        """Share of episodes in which prediction and physics agree; undecided counts as disagreement."""
        return (self.held_success + self.empty_failure) / max(1, self.count)


@dataclass(frozen=True)
class TwinTable:
    """Outcomes of picks before and after the target was moved, by physics and by prediction."""

    change: str
    count: int
    physics_before: int
    physics_after: int
    predicted_before: int
    predicted_after: int
    agreement_after: float
    keys: Sequence[str] = field(default_factory=tuple)


def episodes_of(folder: str | Path, split: str, limit: int | None = None) -> Iterator[Episode]:
    """Yield the first `limit` episodes of a split, in order."""
    left = limit
    for index in DatasetFolder.open(folder).indices(split):
        for number in range(len(index.episodes)):
            if left is not None and left <= 0:
                return
            yield read_episode(index, number)
            left = None if left is None else left - 1


def assess(
    episodes: Iterator[Episode],
    predictors: Mapping[str, Predictor],
    *,
    depth: bool,
    degradations: Sequence[Degradation] = (),
    progress: Callable[[Scored], object] = lambda _: None,
) -> list[Scored]:
    """Score every predictor on every episode, given the exact robot and then each degraded one.

    Args:
        episodes: held out from training.
        predictors: by name; with a degradation the row is "NAME, LABEL".
        depth: give them the measured depth of the first frame.
        degradations: of the robot pointmaps given to the predictors; the truth stays exact.
        progress: called after every prediction.
    """
    rows = []
    for episode in episodes:
        exact, region = episode_request(episode, depth=depth), episode_region(episode)
        for degradation in (None, *degradations):
            request = exact
            if degradation is not None:
                request = replace(exact, robot=degradation.apply(exact.robot, degradation_seed(episode.key)))
            for name, predict in predictors.items():
                row = name if degradation is None else f"{name}, {degradation.label}"
                rows.append(_scored(row, predict, request, episode, region))
                progress(rows[-1])
    return rows


def degradation_seed(key: str) -> int:
    """Return the seed of an episode's degradations: by its key, so that neither order nor selection matters."""
    return zlib.crc32(key.encode())


def _scored(
    name: str, predict: Predictor, request: GenerateRequest, episode: Episode, region: NDArray[np.bool_]
) -> Scored:
    began = time.perf_counter()
    rollout = predict(request)
    seconds = time.perf_counter() - began
    grip = request.robot.grip
    return Scored(
        episode.key,
        episode.task,
        str(episode.details.get("variant", "")),
        bool(episode.outcome.success),
        name,
        grip is not None and holds(rollout, grip),
        _judged(rollout, episode),
        score(rollout, episode, region),
        seconds,
    )


def summaries(rows: Sequence[Scored]) -> dict[str, dict[str, Summary]]:
    """Return the means of all scores by predictor."""
    names = list(dict.fromkeys(row.predictor for row in rows))
    return {name: summarise([row.numbers for row in rows if row.predictor == name]) for name in names}


def _judged(rollout: Rollout, episode: Episode) -> bool | None:
    if episode.task not in GRASPS or not episode.outcome.target:
        return None
    name = episode.outcome.target
    return GeometricJudge().judge(rollout, make_task(episode.task, name), episode.object_mask(name)[0]).success


def outcomes_of(rows: Sequence[Scored], predictor: str, *, judge: bool = True) -> Outcomes:
    """Return one predictor's confusion on picks and near-misses, by geometric judge or by the held object."""
    mine = [row for row in rows if row.predictor == predictor and row.kind in GRASPS]
    said = [(row.judged if judge else row.held, row.success) for row in mine]
    counts = [said.count(pair) for pair in ((True, True), (True, False), (False, True), (False, False))]
    return Outcomes(counts[0], counts[1], counts[2], counts[3], sum(answer is None for answer, _ in said))


def twin_table(
    config: LabConfig,
    episodes: Iterator[Episode],
    predict: Predictor,
    *,
    depth: bool,
    distance_m: float | None,
    progress: Callable[[str], object] = lambda _: None,
) -> TwinTable:
    """Compare physics and prediction of picks whose target is moved by `distance_m`, or out of sight for None."""
    change = out_of_sight if distance_m is None else moved_by(distance_m)
    rows: list[tuple[str, bool, bool, bool, bool]] = []
    for episode in episodes:
        if episode.task != "pick":
            continue
        twin = make_twin(config, episode, change)
        if twin is None:
            continue
        row: list[Any] = [episode.key]
        for one in (twin.episode, twin.twin):
            request = episode_request(one, depth=depth)
            grip = request.robot.grip
            row += [bool(one.outcome.success), grip is not None and holds(predict(request), grip)]
        rows.append((row[0], row[1], row[2], row[3], row[4]))
        progress(episode.key)
    after = [r[3] == r[4] for r in rows]
    return TwinTable(
        "out of sight" if distance_m is None else f"moved by {100 * distance_m:g} cm",
        len(rows),
        sum(r[1] for r in rows),
        sum(r[3] for r in rows),
        sum(r[2] for r in rows),
        sum(r[4] for r in rows),
        sum(after) / max(1, len(after)),
        tuple(r[0] for r in rows),
    )
