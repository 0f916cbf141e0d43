"""`make_dataset`: generate a lab dataset in several processes, deterministic and resumable.

A shard is the unit of work and depends only on its numbers. A killed run resumes with the first missing shard and ends
with the same bytes as an uninterrupted one. Failures of a shard's demonstrations go to a separate shard of the same
split, because they show the same scene.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from kinema4d_model.data.dataset_folder import DatasetFolder, failure_shard_name, lock_folder, shard_name
from kinema4d_model.data.episode import Episode, versions
from kinema4d_model.data.episode_files import encode_episode
from kinema4d_model.data.lab_config import SPLITS, LabConfig
from kinema4d_model.data.lab_episode import ATTEMPTS, draw_scene, make_episode
from kinema4d_model.data.lab_plans import SIGMAS, VARIANTS, disturb
from kinema4d_model.data.lab_record import Refused, Scene, first_look, kinematics_of, outcome_of, record, simulate
from kinema4d_model.data.lab_scene import SceneDraw
from kinema4d_model.data.shards import open_index, read_document, write_shard
from kinema4d_ros.core.errors import DataError, TrajectoryError
from kinema4d_ros.lab import PlacedObject
from kinema4d_ros.runtime.pool import Lost, Recipe, run_jobs

__all__ = [
    "Demonstration",
    "FailureJob",
    "Job",
    "failure_episodes",
    "failure_jobs",
    "failure_key",
    "make_dataset",
    "pending_jobs",
]

# Failure synthesis: nine episodes per demonstration, its motion with noise in a re-styled scene.
#
# demonstration (JSON) ─> scene and plan, recomputed ─┬─ noise on one of three segments ───┐
#                                                     └─ new colours, distractors, room ───┴─> physics ─> Episode
#
# Arm, camera and the pose, shape and size of the task's objects stay those of the demonstration, so that only the noise
# changes the outcome. Physics decides the label: with small noise the task may still succeed.

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
            outcome = outcome_of(scene, run.states)
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


Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Job:
    """Job for one shard: episodes `first` to `last` - 1 of a split."""

    folder: Path
    config: LabConfig
    seed: int
    split: str
    number: int
    first: int
    last: int

    @property
    def path(self) -> Path:
        """Path of the shard."""
        return self.folder / shard_name(self.split, self.number)

    def run(self) -> int:
        """Generate and write the shard; return its number of episodes."""

        def episodes() -> Iterator[tuple[str, dict[str, bytes]]]:
            for number in range(self.first, self.last):
                episode = make_episode(self.config, self.seed, self.split, number)
                yield episode.key, encode_episode(episode)

        write_shard(self.path, episodes())
        return self.last - self.first


@dataclass(frozen=True)
class FailureJob:
    """Job for one shard of failures: nine per demonstration of a shard."""

    folder: Path
    config: LabConfig
    split: str
    number: int
    demonstrations: tuple[Demonstration, ...]

    @property
    def path(self) -> Path:
        """Path of the shard."""
        return self.folder / failure_shard_name(self.split, self.number)

    @property
    def keys(self) -> list[str]:
        """Keys of its episodes."""
        return [key for d in self.demonstrations for key in d.failure_keys]

    @property
    def is_done(self) -> bool:
        """Whether the shard exists with these episodes."""
        if not self.path.is_file():
            return False
        try:
            return [e.key for e in open_index(self.path).episodes] == self.keys
        except DataError:
            return False

    def run(self) -> int:
        """Generate and write the shard; return its number of episodes."""
        made = (e for d in self.demonstrations for e in failure_episodes(self.config, d))
        return len(write_shard(self.path, ((e.key, encode_episode(e)) for e in made)).episodes)


def make_dataset(
    config: LabConfig,
    folder: str | Path,
    counts: Mapping[str, int],
    seed: int,
    workers: int = 1,
    progress: Progress | None = None,
    failures: bool = False,
    engine: str = "local",
) -> DatasetFolder:
    """Generate the missing shards of a dataset with `counts` episodes by split; `progress` gets (done, total).

    `workers` processes run on `engine`, see `runtime.pool`.
    `failures` adds nine failures of every demonstration once all episodes exist.

    Raises:
        DataError: the folder holds a dataset of another configuration or seed, or another process is writing to it.
    """
    target = Path(folder)
    if workers < 1 or seed < 0 or any(count < 0 for count in counts.values()) or not set(counts) <= set(SPLITS):
        raise DataError(
            f"workers {workers}, seed {seed}, episodes {dict(counts)}",
            expected=f"1 or more, 0 or more, and counts of {', '.join(SPLITS)}",
        )
    with lock_folder(target):
        dataset = _claim(config, target, counts, seed)
        _sweep(target)
        jobs = pending_jobs(config, target, counts, seed)
        total = sum(counts.values())
        done = total - sum(job.last - job.first for job in jobs)
        if progress is not None:
            progress(done, total)
        for made in _results(jobs, workers, engine):
            done += made
            if progress is not None:
                progress(done, total)
        if not failures:
            return dataset
        wanted = failure_jobs(config, dataset)
        promised = {split: sum(len(j.keys) for j in wanted if j.split == split) for split in dataset.splits}
        dataset = DatasetFolder.create(target, {**dataset.document, "failures": promised})
        left = [job for job in wanted if not job.is_done]
        total += sum(promised.values())
        done = total - sum(len(job.keys) for job in left)
        for made in _results(left, workers, engine):
            done += made
            if progress is not None:
                progress(done, total)
    return dataset


def failure_jobs(config: LabConfig, dataset: DatasetFolder) -> list[FailureJob]:
    """Return the failure jobs of all existing demonstrations."""
    jobs = []
    for split in dataset.splits:
        for shard in dataset.shards(split):
            if shard.name.startswith(f"{split}-failures-"):
                continue
            index = open_index(shard)
            documents = (read_document(index, i) for i in range(len(index.episodes)))
            found = tuple(d for d in map(Demonstration.of, documents) if d is not None)
            if found:
                jobs.append(FailureJob(dataset.path, config, split, int(shard.stem.split("-")[-1]), found))
    return jobs


def pending_jobs(config: LabConfig, folder: Path, counts: Mapping[str, int], seed: int) -> list[Job]:
    """Return jobs for missing or incomplete shards; small splits first, since evaluation needs them."""
    jobs = []
    size = config.shard_episodes
    for split in sorted(counts, key=lambda name: counts[name]):
        for number, first in enumerate(range(0, counts[split], size)):
            job = Job(folder, config, seed, split, number, first, min(first + size, counts[split]))
            if not _is_complete(job):
                jobs.append(job)
    return jobs


def _is_complete(job: Job) -> bool:
    if not job.path.is_file():
        return False
    try:
        return len(open_index(job.path).episodes) == job.last - job.first
    except DataError:
        # Damaged by something other than a kill: generate it again.
        return False


def _claim(config: LabConfig, folder: Path, counts: Mapping[str, int], seed: int) -> DatasetFolder:
    document = {
        "name": config.name,
        "seed": seed,
        "splits": {split: int(counts.get(split, 0)) for split in SPLITS},
        "config": dict(config.document),
        "versions": versions(),
    }
    if not (folder / "dataset.json").exists():
        return DatasetFolder.create(folder, document)
    there = DatasetFolder.open(folder).document
    for name in ("seed", "config"):
        if there.get(name) != document[name]:
            raise DataError(
                f"{folder} was started with another {name}",
                expected="the same configuration and seed, or another folder",
                hint="a dataset has one configuration: choose another --out",
            )
    # A larger count extends the dataset; existing episodes are kept.
    splits = {split: max(int(counts.get(split, 0)), int(there["splits"].get(split, 0))) for split in SPLITS}
    kept = {"failures": there["failures"]} if "failures" in there else {}
    return DatasetFolder.create(folder, {**document, "splits": splits, **kept})


def _sweep(folder: Path) -> None:
    """Remove temporary files of killed writers; safe because the folder is locked."""
    for pattern in ("*/.*.tar", "*/.*.json", ".*.json"):
        for path in folder.glob(pattern):
            with suppress(OSError):
                path.unlink()


def _results(jobs: Sequence[Job | FailureJob], workers: int, engine: str) -> Iterator[int]:
    here = engine == "local" and (workers == 1 or len(jobs) < 2)
    maker = Recipe("kinema4d_model.data.make:shard_maker")
    for result in run_jobs(maker, jobs, workers=0 if here else workers, engine=engine):
        if isinstance(result, Lost):
            raise DataError(
                f"shard {result.job.path} was not made: {result.text}",
                expected="a worker that finishes its shard",
                hint="run the same command again: it resumes with the missing shards",
            )
        yield int(result.value)


def shard_maker(turn: int) -> Callable[[Job | FailureJob], int]:
    """Build a worker of the pool: it makes one shard per job."""
    return lambda job: job.run()
