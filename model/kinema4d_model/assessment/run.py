"""Assessment of predictors on a split of episodes: scores per episode, outcomes, and twins with a moved target.

dataset ─> jobs, one for each episode or twin ─> run_jobs: `Assessor` in every worker ─> rows in the dataset's order
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kinema4d_model.assessment.scores import (
    MODEL,
    Predictor,
    Summary,
    ablated,
    carry,
    composite,
    episode_region,
    episode_request,
    first_frame,
    generated,
    holds,
    score,
    summarise,
)
from kinema4d_model.data.dataset_folder import DatasetFolder
from kinema4d_model.data.episode import Episode
from kinema4d_model.data.lab_config import LabConfig, load_config
from kinema4d_model.data.lab_episode import Change, TwinRefused, make_episode
from kinema4d_model.data.shards import ShardIndex, read_document, read_episode
from kinema4d_ros.core.degrade import Degradation
from kinema4d_ros.core.errors import DataError, GeneratorError
from kinema4d_ros.core.rollout import Rollout
from kinema4d_ros.core.task import make_task
from kinema4d_ros.evaluation.judges import GeometricJudge
from kinema4d_ros.generators.protocol import GenerateRequest, Generator
from kinema4d_ros.lab import PlacedObject
from kinema4d_ros.runtime.pool import Lost, Recipe, run_jobs

__all__ = [
    "CHANGES",
    "GRASPS",
    "OUT_OF_SIGHT",
    "Assessor",
    "Job",
    "Outcomes",
    "Scored",
    "Setup",
    "Twin",
    "TwinTable",
    "assess",
    "assess_episode",
    "degradation_seed",
    "episodes_of",
    "make_twin",
    "moved_by",
    "out_of_sight",
    "outcomes_of",
    "roll_out",
    "summaries",
    "twin_row",
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


CHANGES: Mapping[str, Change] = {"moved by 10 cm": moved_by(0.10), "out of sight": out_of_sight}
"""Changes of the target by label."""

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
    found = DatasetFolder.open(folder).episodes(split)
    for number in range(len(found) if limit is None else min(limit, len(found))):
        yield found[number]


def assess_episode(
    episode: Episode,
    predictors: Mapping[str, Predictor],
    *,
    depth: bool,
    degradations: Sequence[Degradation] = (),
) -> list[Scored]:
    """Score every predictor on an episode, given the exact robot and then each degraded one.

    Args:
        episode: held out from training.
        predictors: by name; with a degradation the row is "NAME, LABEL".
        depth: give them the measured depth of the first frame.
        degradations: of the robot pointmaps given to the predictors; the truth stays exact.
    """
    rows = []
    exact, region = episode_request(episode, depth=depth), episode_region(episode)
    for degradation in (None, *degradations):
        request = exact
        if degradation is not None:
            request = replace(exact, robot=degradation.apply(exact.robot, degradation_seed(episode.key)))
        for name, predict in predictors.items():
            row = name if degradation is None else f"{name}, {degradation.label}"
            rows.append(_scored(row, predict, request, episode, region))
    return rows


def degradation_seed(key: str) -> int:
    """Return the seed of an episode's degradations: by its key, so that neither order nor selection matters."""
    return zlib.crc32(key.encode())


def _scored(
    name: str, predict: Predictor, request: GenerateRequest, episode: Episode, region: NDArray[np.bool_]
) -> Scored:
    began = time.perf_counter()
    rollout = roll_out(predict, request)
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


def roll_out(predict: Predictor, request: GenerateRequest) -> Rollout:
    """Predict with `THREADS` threads of torch."""
    # Every time: the first parallel kernel of numba sets the number that torch uses.
    torch.set_num_threads(THREADS)
    return predict(request)


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


TwinRow = tuple[str, bool, bool, bool, bool]
"""Key; lifted by physics and by prediction; the same of the twin."""


def twin_row(config: LabConfig, episode: Episode, predict: Predictor, change: str, *, depth: bool) -> TwinRow | None:
    """Compare physics and prediction of a pick and of its twin by one of `CHANGES`; None if there is no such twin."""
    twin = make_twin(config, episode, CHANGES[change])
    if twin is None:
        return None
    found = []
    for one in (twin.episode, twin.twin):
        request = episode_request(one, depth=depth)
        grip = request.robot.grip
        found += [bool(one.outcome.success), grip is not None and holds(roll_out(predict, request), grip)]
    return episode.key, found[0], found[1], found[2], found[3]


def twin_table(change: str, rows: Sequence[TwinRow]) -> TwinTable:
    """Count the rows of one change."""
    return TwinTable(
        change,
        len(rows),
        sum(r[1] for r in rows),
        sum(r[3] for r in rows),
        sum(r[2] for r in rows),
        sum(r[4] for r in rows),
        sum(r[3] == r[4] for r in rows) / max(1, len(rows)),
        tuple(r[0] for r in rows),
    )


# On the pool: a job is one episode, to be scored or to be compared with one of its twins.

THREADS = 1
"""Of torch: its sums, and so the numbers, depend on how many threads share them. More cores need more workers."""


@dataclass(frozen=True)
class Setup:
    """What a worker needs to build its predictors; picklable if `load` is.

    Attributes:
        load: loads the generator.
        depth: give predictors the measured depth of the first frame.
        degradations: of the robot pointmaps given to them.
        ablations: names of `ablation_table`, each adds a predictor "model, NAME".
        config: of the dataset, for twins.
    """

    load: Callable[[], Generator]
    depth: bool = False
    degradations: tuple[Degradation, ...] = ()
    ablations: tuple[str, ...] = ()
    config: str = "nano"


@dataclass(frozen=True)
class Job:
    """One episode of a split: `index` lists it alone, `change` is one of `CHANGES`, or "" to score it."""

    number: int
    index: ShardIndex
    change: str = ""

    @property
    def key(self) -> str:
        """Key of the episode."""
        return self.index.episodes[0].key


class Assessor:
    """Worker of the pool.

    Args:
        turn: of the worker.
        setup: how to build its predictors.
    """

    def __init__(self, turn: int, setup: Setup) -> None:
        # Before the model is loaded, which keeps the number that it finds.
        torch.set_num_threads(THREADS)
        self._setup = setup
        generator = setup.load()
        self._predictors: dict[str, Predictor] = {
            "first frame": first_frame,
            "composite": composite,
            "carry": carry,
            MODEL: generated(generator),
            **{f"{MODEL}, {name}": ablated(generator, name) for name in setup.ablations},
        }

    def __call__(self, job: Job) -> list[Scored] | TwinRow | None:
        """Score the episode, or compare it with its twin."""
        episode, setup = read_episode(job.index, 0), self._setup
        if job.change:
            model = self._predictors[MODEL]
            return twin_row(load_config(setup.config), episode, model, job.change, depth=setup.depth)
        return assess_episode(episode, self._predictors, depth=setup.depth, degradations=setup.degradations)


def assess(
    setup: Setup,
    data: Path,
    split: str,
    *,
    limit: int | None = None,
    twins: int = 0,
    workers: int = 0,
    engine: str = "local",
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> tuple[list[Scored], list[TwinTable]]:
    """Score the episodes of a split, and compare picks with their twins; equal for any number of workers.

    Args:
        setup: the predictors.
        data, split: of the dataset.
        limit: score only the first episodes.
        twins: number of picks to compare with their twins.
        workers, engine: processes, 0 = in this one, and where they run, see `runtime.pool`.
        progress: called with the number of finished jobs and of all.

    Raises:
        DataError: the split has no episodes.
        GeneratorError: GENERATOR_FAILED with the episode whose worker died twice.
    """
    jobs = _jobs(data, split, limit, twins)
    found: dict[int, Any] = {}
    recipe = Recipe("kinema4d_model.assessment.run:Assessor", (setup,))
    for result in run_jobs(recipe, jobs, workers=workers, engine=engine):
        if isinstance(result, Lost):
            raise GeneratorError(
                f"episode '{result.job.key}' was not assessed: {result.text}",
                expected="a worker that finishes its episode",
                hint="the worker's own error is above; --workers 0 runs in this process",
            )
        found[result.job.number] = result.value
        progress(len(found), len(jobs))
    rows = [row for job in jobs if not job.change for row in found[job.number]]
    pairs = {change: [found[job.number] for job in jobs if job.change == change] for change in CHANGES if twins}
    return rows, [twin_table(change, [row for row in some if row is not None]) for change, some in pairs.items()]


def _jobs(data: Path, split: str, limit: int | None, twins: int) -> list[Job]:
    # Absolute: workers of a cluster start in another folder.
    indices = DatasetFolder.open(data.resolve()).indices(split)
    alone = [replace(index, episodes=(entry,)) for index in indices for entry in index.episodes]
    scored = alone if limit is None else alone[: max(0, limit)]
    if not scored:
        raise DataError(
            f"no episode of split '{split}' of {data} was chosen",
            expected="a split with episodes, and a limit of 1 or more",
        )
    picks = list(islice((one for one in alone if read_document(one, 0)["task"] == "pick"), max(0, twins)))
    wanted = [(one, "") for one in scored] + [(one, change) for change in CHANGES for one in picks]
    return [Job(number, *one) for number, one in enumerate(wanted)]
