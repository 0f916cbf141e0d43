"""A whole evaluation: what is left to do, done in processes and ranks, each trial kept as soon as it is finished.

On a cluster every rank (RANK, WORLD_SIZE, as `accelerate launch` and torchrun set them) takes its share and writes a
file of its own into the same folder; rank 0 waits for the others and makes the one report.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from kinema4d_ros.errors import ErrorCode
from kinema4d_ros.evaluation.errors import EvaluationError
from kinema4d_ros.trials.settings import EvaluationSettings
from kinema4d_ros.trials.store import TrialStore
from kinema4d_ros.trials.trial import Trial, TrialRecord
from kinema4d_ros.trials.workers import Work, run_trials

__all__ = ["GROWS", "Campaign", "Share"]

GROWS = ("policies", "scenarios", "runs", "models", "modes", "checkpoints")
"""Settings that a later call may add to; all others stay what they were."""


@dataclass(frozen=True)
class Share:
    """Which part of the trials is ours: every world-th table, beginning with our rank."""

    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        """Refuse a rank that is not in its world."""
        if not 0 <= self.rank < self.world:
            raise EvaluationError(
                f"rank {self.rank} of {self.world}", expected="0 to world - 1", code=ErrorCode.ARGUMENT_INVALID
            )

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Share:
        """As a launcher says, or all of it."""
        try:
            return cls(int(environment.get("RANK", "0")), int(environment.get("WORLD_SIZE", "1")))
        except ValueError:
            raise EvaluationError(
                f"RANK is {environment.get('RANK')!r}, WORLD_SIZE is {environment.get('WORLD_SIZE')!r}",
                expected="two numbers",
                code=ErrorCode.ARGUMENT_INVALID,
            ) from None


class Campaign:
    """An evaluation in a folder.

    Args:
        settings: what to run.
        folder: where it is kept; a second call goes on where the first ended.
        share: of this process.
    """

    def __init__(self, settings: EvaluationSettings, folder: str | Path, share: Share | None = None) -> None:
        self.settings = settings
        self.share = share or Share()
        self.store = TrialStore(folder, self.share.rank)
        if self.share.rank == 0:
            self.store.agree(settings.to_json(), GROWS)

    def trials(self) -> list[Trial]:
        """Ours; all policies of a table go to one rank."""
        tables: dict[tuple[str, int], list[Trial]] = {}
        for trial in self.settings.trials():
            tables.setdefault((trial.scenario, trial.seed), []).append(trial)
        mine = list(tables.values())[self.share.rank :: self.share.world]
        return [trial for table in mine for trial in table]

    def pending(self) -> list[Work]:
        """Ours that are not finished, with what is known of them."""
        known = self.store.records()
        wanted = set(self.settings.labels())
        found = [(trial, known.get(trial.key)) for trial in self.trials()]
        return [(trial, record) for trial, record in found if record is None or not wanted <= set(record.models)]

    def run(
        self,
        *,
        workers: int = 1,
        trial_timeout_s: float = 900.0,
        progress: Callable[[TrialRecord, int, int], None] = lambda record, done, total: None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> int:
        """Do what is left of our share; returns how many trials were run.

        Args:
            workers: processes; 0 = in this one.
            trial_timeout_s: for one trial.
            progress: told of every record, with how many of our trials are finished and how many there are.
            cancelled: asked now and then; what is finished by then is kept.
        """
        work = self.pending()
        total = len(self.trials())
        done = total - len(work)
        for record in run_trials(
            self.settings, self.store, work, workers=workers, trial_timeout_s=trial_timeout_s, cancelled=cancelled
        ):
            self.store.add(record)
            done += 1
            progress(record, done, total)
        return done - (total - len(work))

    def wait_for_others(self, timeout_s: float = 24 * 3600.0, every_s: float = 1.0) -> dict[str, TrialRecord]:
        """All records, once every rank has finished its trials.

        Raises:
            EvaluationError: others are not done after `timeout_s`, with the number of trials that are missing.
        """
        deadline = time.monotonic() + timeout_s
        wanted = set(self.settings.labels())
        while True:
            known = self.store.records()
            missing = [
                t for t in self.settings.trials() if t.key not in known or not wanted <= set(known[t.key].models)
            ]
            if not missing:
                return known
            if time.monotonic() > deadline:
                raise EvaluationError(
                    f"{len(missing)} trials of other ranks are missing after {timeout_s:g} s, such as {missing[0].key}",
                    expected="every rank to finish",
                    hint="start the same command again: it goes on where it ended",
                )
            time.sleep(every_s)
