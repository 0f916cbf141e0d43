"""Execution of an evaluation on a pool of workers; each trial is saved when it finishes, and can be resumed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from kinema4d_ros.core.errors import ErrorCode, EvaluationError, KinemaError
from kinema4d_ros.evaluation.execute import Executor
from kinema4d_ros.evaluation.judges import GEOMETRIC
from kinema4d_ros.evaluation.settings import EvaluationSettings
from kinema4d_ros.evaluation.store import TrialStore
from kinema4d_ros.evaluation.trial import (
    WORKER_KILLED,
    LabOutcome,
    ModelOutcome,
    Trial,
    TrialRecord,
    failure_text,
    is_outage,
)
from kinema4d_ros.lab.profile import CONSTANT
from kinema4d_ros.runtime.pool import Finished, Lost, Recipe, run_jobs

__all__ = ["GROWS", "Campaign", "TrialWorker", "Work", "run_trials"]

# Trials on the pool: a worker that dies costs the trial in progress, which is then run once more.
#
# Only the parent process writes records. A worker that cannot start, because the robot or camera is missing, ends the
# evaluation with that error: it would fail in every trial.

Work = tuple[Trial, TrialRecord | None]
"""A trial and what is already known of it."""


def run_trials(
    settings: EvaluationSettings,
    store: TrialStore,
    work: Sequence[Work],
    *,
    workers: int = 1,
    engine: str = "local",
    trial_timeout_s: float = 900.0,
    cancelled: Callable[[], bool] = lambda: False,
) -> Iterator[TrialRecord]:
    """Yield records in the order of completion; end early when `cancelled` returns True.

    Args:
        settings, store: of the evaluation.
        work: the trials to run.
        workers: processes; 0 = in this one.
        engine: where they run, see `runtime.pool`. Machines of a cluster must share the store's folder.
        trial_timeout_s: a trial that takes longer is ended and recorded as failed.
        cancelled: polled between trials and while waiting.
    """
    if workers < 0:
        raise EvaluationError(f"workers is {workers}", expected="0 or more", code=ErrorCode.ARGUMENT_INVALID)
    recipe = Recipe("kinema4d_ros.evaluation.campaign:TrialWorker", (settings, Path(store.folder).resolve()))
    for result in run_jobs(
        recipe,
        work,
        workers=workers,
        engine=engine,
        timeout_s=trial_timeout_s,
        # Policies of one scene stay with one worker, which then sets the scene up once.
        group=lambda one: (one[0].scenario, one[0].seed),
        cancelled=cancelled,
    ):
        yield result.value if isinstance(result, Finished) else _lost(settings, result)


class TrialWorker:
    """Runs trials in a worker of the pool.

    Args:
        turn: of the worker; workers start at different generator nodes.
        settings: of the evaluation.
        folder: of the store.
    """

    def __init__(self, turn: int, settings: EvaluationSettings, folder: Path) -> None:
        self._settings = settings
        self._executor = Executor(settings, TrialStore(folder), turn)

    def __call__(self, work: Work) -> TrialRecord:
        """Run one trial. A full disk ends the evaluation: a record that says "failed" would never be run again."""
        trial, known = work
        try:
            return self._executor.execute(trial, known)
        except KinemaError as error:
            if error.code == ErrorCode.FILE_NOT_WRITABLE:
                raise
            return _failed(self._settings, trial, known, failure_text(error))

    def close(self) -> None:
        """Close policies and models."""
        self._executor.close()


def _lost(settings: EvaluationSettings, lost: Lost) -> TrialRecord:
    trial, known = lost.job
    # A signal comes from outside, most often for lack of memory; an exit is the policy's own doing.
    name = WORKER_KILLED if lost.reason == "killed" else ErrorCode.POLICY_FAILED.name
    return _failed(settings, trial, known, f"[{name}] {lost.text}")


def _failed(settings: EvaluationSettings, trial: Trial, known: TrialRecord | None, error: str) -> TrialRecord:
    """Return a complete record, so that the trial is not waited for."""
    begun = known is not None and (known.lab.success is not None or bool(known.lab.error))
    lab = known.lab if known is not None and begun else LabOutcome(None, error=error)
    missing = {label: ModelOutcome(None, error=error) for label in settings.labels()}
    return TrialRecord(trial, lab, {**missing, **(known.models if known is not None else {})})


GROWS = ("policies", "scenarios", "runs", "models", "modes", "checkpoints", "weights", "software")
"""Settings that a later call may extend; all others must not change."""

ABSENT = {"judge": GEOMETRIC, "profile": CONSTANT}
"""Values of settings that older folders do not have."""


class Campaign:
    """An evaluation in a folder.

    Args:
        settings: of the evaluation.
        folder: of the evaluation; a second call resumes where the first ended.
        retry_failed: retry all failed trials, not only those that failed because of an outage.
        provenance: stored with the settings: "weights" by model, and "software", a list of versions by name.
    """

    def __init__(
        self,
        settings: EvaluationSettings,
        folder: str | Path,
        *,
        retry_failed: bool = False,
        provenance: Mapping[str, object] | None = None,
    ) -> None:
        self.settings = settings
        self._retry_failed = retry_failed
        self.store = TrialStore(folder)
        self.store.agree({**settings.to_json(), **(provenance or {})}, GROWS, ABSENT)

    def trials(self) -> list[Trial]:
        """List all trials, scene by scene."""
        scenes: dict[tuple[str, int], list[Trial]] = {}
        for trial in self.settings.trials():
            scenes.setdefault((trial.scenario, trial.seed), []).append(trial)
        return [trial for scene in scenes.values() for trial in scene]

    def pending(self) -> list[Work]:
        """List the unfinished trials, each with the outcomes that need not be run again."""
        known = self.store.records()
        found = [(trial, self._kept(known.get(trial.key))) for trial in self.trials()]
        return [(trial, record) for trial, record in found if record is None or not self._complete(record)]

    def run(
        self,
        *,
        workers: int = 1,
        engine: str = "local",
        trial_timeout_s: float = 900.0,
        progress: Callable[[TrialRecord, int, int], None] = lambda record, done, total: None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> int:
        """Run the remaining trials and return how many were run.

        Args:
            workers: number of processes; 0 = run in this process.
            engine: where the processes run, see `runtime.pool`.
            trial_timeout_s: timeout of one trial.
            progress: called with every record, the number of finished trials and the total.
            cancelled: called repeatedly; finished trials are kept when it returns True.
        """
        work = self.pending()
        total = len(self.trials())
        before = done = total - len(work)
        for record in run_trials(
            self.settings,
            self.store,
            work,
            workers=workers,
            engine=engine,
            trial_timeout_s=trial_timeout_s,
            cancelled=cancelled,
        ):
            self.store.add(record)
            done += 1
            progress(record, done, total)
        return done - before

    def outages(self) -> list[TrialRecord]:
        """List the records with an outage, which the next call retries."""
        known = self.store.records()
        found = [known[t.key] for t in self.settings.trials() if t.key in known]
        return [record for record in found if _outage(record, set(self.settings.labels()))]

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


def _outage(record: TrialRecord, labels: set[str]) -> bool:
    errors = [record.lab.error, *(one.error for label, one in record.models.items() if label in labels)]
    return any(is_outage(error) for error in errors)
