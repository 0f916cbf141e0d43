"""Execution of an evaluation in processes and cluster ranks; each trial is saved when it finishes, and can be resumed.

On a cluster every rank (RANK, WORLD_SIZE, as `accelerate launch` and torchrun set them) runs its share and writes its
own file into the same folder; rank 0 waits for the others and writes the report.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kinema4d_ros.core.errors import ErrorCode, EvaluationError
from kinema4d_ros.evaluation.judges import GEOMETRIC
from kinema4d_ros.evaluation.settings import EvaluationSettings
from kinema4d_ros.evaluation.store import TrialStore
from kinema4d_ros.evaluation.trial import LabOutcome, Trial, TrialRecord, is_outage
from kinema4d_ros.evaluation.workers import Work, run_trials
from kinema4d_ros.io.files import replacing_file

__all__ = ["GROWS", "Campaign", "Ranks", "Share"]

# Ranks of a cluster that share an evaluation.
#
# ranks/<rank>.json     last state of a rank other than 0: running or ended


@dataclass(frozen=True)
class Share:
    """Share of this rank: every world-th scene, starting with number `rank`."""

    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        """Refuse a rank outside 0 to world - 1."""
        if not 0 <= self.rank < self.world:
            raise EvaluationError(
                f"rank {self.rank} of {self.world}", expected="0 to world - 1", code=ErrorCode.ARGUMENT_INVALID
            )

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Share:
        """Read RANK and WORLD_SIZE; without them this process runs everything."""
        try:
            return cls(int(environment.get("RANK", "0")), int(environment.get("WORLD_SIZE", "1")))
        except ValueError:
            raise EvaluationError(
                f"RANK is {environment.get('RANK')!r}, WORLD_SIZE is {environment.get('WORLD_SIZE')!r}",
                expected="two integers",
                code=ErrorCode.ARGUMENT_INVALID,
            ) from None


class Ranks:
    """States of the ranks in the shared folder.

    Args:
        folder: of the evaluation.
        share: of this process.
    """

    def __init__(self, folder: Path, share: Share) -> None:
        self._folder, self._share = folder / "ranks", share

    def begin(self) -> None:
        """Delete the states of an earlier call (rank 0), or write the state "running" (other ranks)."""
        if self._share.world == 1:
            return
        if self._share.rank == 0:
            for path in self._folder.glob("*.json"):
                with suppress(OSError):
                    path.unlink()
        else:
            self.say("running")

    def say(self, state: str) -> None:
        """Write the state of this rank; repeated after every trial, because rank 0 may start later and delete it."""
        if self._share.rank:
            with replacing_file(self._folder / f"{self._share.rank}.json") as temporary:
                temporary.write_text(json.dumps({"state": state, "pid": os.getpid()}) + "\n")

    def state(self, rank: int) -> str:
        """Return the last state of a rank; "" = none."""
        with suppress(OSError, ValueError):
            document = json.loads((self._folder / f"{rank}.json").read_text())
            return str(document.get("state", "")) if isinstance(document, dict) else ""
        return ""


GROWS = ("policies", "scenarios", "runs", "models", "modes", "checkpoints", "weights", "software")
"""Settings that a later call may extend; all others must not change."""

ABSENT = {"judge": GEOMETRIC}
"""Values of settings that older folders do not have."""

SILENT_S = 60.0
"""A rank without a state for this long, with records of all its trials, counts as ended before rank 0 started."""


class Campaign:
    """An evaluation in a folder.

    Args:
        settings: of the evaluation.
        folder: of the evaluation; a second call resumes where the first ended.
        share: of this process.
        retry_failed: retry all failed trials, not only those that failed because of an outage.
        provenance: stored with the settings: "weights" by model, and "software", a list of versions by name.
    """

    def __init__(
        self,
        settings: EvaluationSettings,
        folder: str | Path,
        share: Share | None = None,
        *,
        retry_failed: bool = False,
        provenance: Mapping[str, object] | None = None,
    ) -> None:
        self.settings = settings
        self.share = share or Share()
        self._retry_failed = retry_failed
        self.store = TrialStore(folder, self.share.rank)
        self._ranks = Ranks(self.store.folder, self.share)
        document = {**settings.to_json(), **(provenance or {})}
        if self.share.rank == 0:
            self.store.agree(document, GROWS, ABSENT)
        else:
            self.store.check(document, GROWS, ABSENT)
        self._ranks.begin()

    def trials(self) -> list[Trial]:
        """List the trials of this rank; all policies of a scene belong to one rank."""
        return [trial for trial, rank in self._owners().items() if rank == self.share.rank]

    def pending(self) -> list[Work]:
        """List the unfinished trials of this rank, each with the outcomes that need not be run again."""
        known = self.store.records()
        found = [(trial, self._kept(known.get(trial.key))) for trial in self.trials()]
        return [(trial, record) for trial, record in found if record is None or not self._complete(record)]

    def run(
        self,
        *,
        workers: int = 1,
        trial_timeout_s: float = 900.0,
        progress: Callable[[TrialRecord, int, int], None] = lambda record, done, total: None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> int:
        """Run the remaining trials of this rank and return how many were run.

        Args:
            workers: number of processes; 0 = run in this process.
            trial_timeout_s: timeout of one trial.
            progress: called with every record, the number of finished trials and the total of this rank.
            cancelled: called repeatedly; finished trials are kept when it returns True.
        """
        work = self.pending()
        total = len(self.trials())
        done = total - len(work)
        try:
            for record in run_trials(
                self.settings, self.store, work, workers=workers, trial_timeout_s=trial_timeout_s, cancelled=cancelled
            ):
                self.store.add(record)
                self._ranks.say("running")
                done += 1
                progress(record, done, total)
        finally:
            self._ranks.say("ended")
        return done - (total - len(work))

    def outages(self) -> list[TrialRecord]:
        """List the records of all ranks with an outage, which the next call retries."""
        known = self.store.records()
        found = [known[t.key] for t in self.settings.trials() if t.key in known]
        return [record for record in found if _outage(record, set(self.settings.labels()))]

    def wait_for_others(
        self, timeout_s: float = 24 * 3600.0, every_s: float = 1.0, silent_s: float = SILENT_S
    ) -> dict[str, TrialRecord]:
        """Wait until every rank has finished its trials and return all records.

        Raises:
            EvaluationError: other ranks have not finished after `timeout_s`; names the number of missing trials.
        """
        began = time.monotonic()
        while True:
            known = self.store.records()
            waited_s = time.monotonic() - began
            missing = [
                trial
                for trial, rank in self._owners().items()
                if not self._settled(known.get(trial.key), rank, waited_s > silent_s)
            ]
            if not missing:
                return known
            if waited_s > timeout_s:
                raise EvaluationError(
                    f"{len(missing)} trials of other ranks are missing after {timeout_s:g} s, such as {missing[0].key}",
                    expected="every rank to finish",
                    hint="run the same command again: it resumes where it ended",
                )
            time.sleep(every_s)

    def _owners(self) -> dict[Trial, int]:
        tables: dict[tuple[str, int], list[Trial]] = {}
        for trial in self.settings.trials():
            tables.setdefault((trial.scenario, trial.seed), []).append(trial)
        return {t: number % self.share.world for number, table in enumerate(tables.values()) for t in table}

    def _complete(self, record: TrialRecord) -> bool:
        lab_known = record.lab.success is not None or bool(record.lab.error)
        return lab_known and set(self.settings.labels()) <= set(record.models)

    def _kept(self, record: TrialRecord | None) -> TrialRecord | None:
        """Return the record without the failed outcomes that are retried."""
        if record is None:
            return None

        def again(error: str) -> bool:
            return bool(error) and (self._retry_failed or is_outage(error))

        lab = LabOutcome(None) if again(record.lab.error) else record.lab
        return TrialRecord(record.trial, lab, {k: one for k, one in record.models.items() if not again(one.error)})

    def _settled(self, record: TrialRecord | None, rank: int, silent: bool) -> bool:
        """Return whether a trial will not change any more in this call."""
        if record is None or not self._complete(record):
            return False
        kept = self._kept(record)
        if rank == self.share.rank or (kept is not None and self._complete(kept)):
            return True
        # It failed, perhaps in an earlier call: its rank may still retry it.
        said = self._ranks.state(rank)
        return said == "ended" or (silent and not said)


def _outage(record: TrialRecord, labels: set[str]) -> bool:
    errors = [record.lab.error, *(one.error for label, one in record.models.items() if label in labels)]
    return any(is_outage(error) for error in errors)
