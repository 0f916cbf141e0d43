"""Trials on the pool: a worker that dies costs the trial in progress, which is then run once more.

Only the parent process writes records. A worker that cannot start, because the robot or camera is missing, ends the
evaluation with that error: it would fail in every trial.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from kinema4d_ros.core.errors import ErrorCode, EvaluationError, KinemaError
from kinema4d_ros.evaluation.execute import Executor
from kinema4d_ros.evaluation.settings import EvaluationSettings
from kinema4d_ros.evaluation.store import TrialStore
from kinema4d_ros.evaluation.trial import WORKER_KILLED, LabOutcome, ModelOutcome, Trial, TrialRecord, failure_text
from kinema4d_ros.runtime.pool import Finished, Lost, Recipe, run_jobs

__all__ = ["TrialWorker", "Work", "run_trials"]

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
    recipe = Recipe("kinema4d_ros.evaluation.workers:TrialWorker", (settings, Path(store.folder).resolve()))
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
