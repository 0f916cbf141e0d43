"""Trials in several worker processes; a worker that dies is restarted and only its current trial is affected.

The parent sends one trial at a time; only the parent writes records. A worker that cannot start, for example because
the robot or camera does not exist, ends the evaluation with that error: it would fail in every trial.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from kinema4d_ros.core.errors import ErrorCode, EvaluationError, KinemaError, SetupError
from kinema4d_ros.evaluation.execute import Executor
from kinema4d_ros.evaluation.settings import EvaluationSettings
from kinema4d_ros.evaluation.store import TrialStore
from kinema4d_ros.evaluation.trial import WORKER_KILLED, LabOutcome, ModelOutcome, Trial, TrialRecord

__all__ = ["Refusal", "Work", "run_trials"]

Work = tuple[Trial, TrialRecord | None]
"""A trial and its earlier record; None = not run yet."""

STOP_S = 5.0


def run_trials(
    settings: EvaluationSettings,
    store: TrialStore,
    work: Sequence[Work],
    *,
    workers: int = 1,
    trial_timeout_s: float = 900.0,
    cancelled: Callable[[], bool] = lambda: False,
) -> Iterator[TrialRecord]:
    """Yield records in the order in which trials finish; stop early when `cancelled` returns True.

    Args:
        settings, store: of the evaluation.
        work: trials to run.
        workers: number of processes; 0 = run in this process.
        trial_timeout_s: timeout of a trial; its worker is killed and the trial recorded as failed.
        cancelled: called between trials and twice a second.
    """
    if workers < 0:
        raise EvaluationError(f"workers is {workers}", expected="0 or more", code=ErrorCode.ARGUMENT_INVALID)
    if workers == 0:
        executor = Executor(settings, store, store.rank)
        try:
            for trial, known in work:
                if cancelled():
                    return
                yield executor.execute(trial, known)
        finally:
            executor.close()
        return
    pool = _Pool(settings, store, min(workers, max(1, len(work))), trial_timeout_s)
    try:
        yield from pool.run(work, cancelled)
    finally:
        pool.close()


class _Pool:
    def __init__(self, settings: EvaluationSettings, store: TrialStore, count: int, timeout_s: float) -> None:
        self._settings, self._store, self._timeout_s = settings, store, timeout_s
        self._context = multiprocessing.get_context("spawn")
        self._workers = [self._start(number) for number in range(count)]

    def _start(self, number: int) -> _Worker:
        return _Worker(self._context, self._settings, self._store, self._store.rank + number)

    def run(self, work: Sequence[Work], cancelled: Callable[[], bool]) -> Iterator[TrialRecord]:
        tables = _Tables(work)
        while True:
            for worker in self._workers:
                if worker.idle and not cancelled():
                    following = tables.next(worker.table)
                    if following is not None:
                        worker.give(following)
            busy = [worker for worker in self._workers if not worker.idle]
            if not busy:
                return
            wait([w.connection for w in busy] + [w.process.sentinel for w in busy], timeout=0.5)
            if cancelled():
                return
            for number, worker in enumerate(self._workers):
                given, record = worker.work, worker.take(self._timeout_s)
                if record is not None and given is not None and worker.died and tables.again(given):
                    record = None
                if record is not None:
                    yield record
                # The record of a worker that just died may not have been read yet: the next iteration reads it.
                if worker.idle and not worker.process.is_alive():
                    worker.stop()
                    self._workers[number] = self._start(number)

    def close(self) -> None:
        for worker in self._workers:
            worker.stop()


class _Tables:
    """Trials grouped by scene: all policies of a scene go to one worker, which sets the scene up once."""

    def __init__(self, work: Sequence[Work]) -> None:
        self._waiting: dict[tuple[str, int], deque[Work]] = {}
        for trial, known in work:
            self._waiting.setdefault((trial.scenario, trial.seed), deque()).append((trial, known))
        self._begun: set[tuple[str, int]] = set()
        self._repeated: set[str] = set()

    def again(self, work: Work) -> bool:
        """Requeue a trial whose worker died, once: the cause may be outside the trial."""
        if work[0].key in self._repeated:
            return False
        self._repeated.add(work[0].key)
        self._waiting.setdefault((work[0].scenario, work[0].seed), deque()).append(work)
        return True

    def next(self, table: tuple[str, int] | None) -> Work | None:
        """Take a trial of this scene, else of a scene that no worker has started, else of any scene."""
        if table not in self._waiting:
            fresh = [key for key in self._waiting if key not in self._begun] or list(self._waiting)
            if not fresh:
                return None
            table = fresh[0]
        self._begun.add(table)
        queue = self._waiting[table]
        work = queue.popleft()
        if not queue:
            del self._waiting[table]
        return work


class _Worker:
    """A worker process and its current trial."""

    def __init__(self, context: Any, settings: EvaluationSettings, store: TrialStore, turn: int) -> None:
        self._labels = settings.labels()
        self.connection, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(
            target=_serve, args=(theirs, settings, str(store.folder), turn), daemon=True, name="kinema4d trials"
        )
        with _one_thread():
            self.process.start()
        theirs.close()
        self.work: Work | None = None
        self._begun = self._ended = False
        self._began = 0.0
        self.table: tuple[str, int] | None = None

    @property
    def idle(self) -> bool:
        return self.work is None

    @property
    def died(self) -> bool:
        """Whether the process ended without being killed for a timeout."""
        return not self._ended and not self.process.is_alive()

    def give(self, work: Work) -> None:
        self.work, self._began = work, time.monotonic()
        self.table = (work[0].scenario, work[0].seed)
        try:
            self.connection.send(work)
        except OSError:
            return  # the process died: `take` reports it

    def take(self, timeout_s: float) -> TrialRecord | None:
        """Return the record of the current trial once it is available; raise an error that the worker sent."""
        if self.work is None:
            return None
        trial, known = self.work
        answer: TrialRecord | Refusal | None = None
        with suppress(EOFError, OSError):
            while answer is None and self.connection.poll():
                answer = self.connection.recv()
                self._begun = True
        if isinstance(answer, Refusal):
            raise answer.error()
        if answer is not None:
            self.work = None
            return answer
        if not self.process.is_alive():
            self.work = None
            code = self.process.exitcode
            if not self._begun and code is not None and code >= 0:
                raise SetupError(f"a worker process could not start ({_how(code)})", expected="a worker that loads")
            # A signal comes from outside, mostly for lack of memory; an exit code comes from the policy.
            name = WORKER_KILLED if code is not None and code < 0 else ErrorCode.POLICY_FAILED.name
            return self._lost(trial, known, f"[{name}] the process died ({_how(code)})")
        if time.monotonic() - self._began > timeout_s:
            self._ended = True
            self.process.kill()
            self.process.join(STOP_S)
            self.work = None
            return self._lost(trial, known, f"[{ErrorCode.POLICY_FAILED.name}] not finished after {timeout_s:g} s")
        return None

    def _lost(self, trial: Trial, known: TrialRecord | None, error: str) -> TrialRecord:
        """Build a complete record with an error for every missing outcome."""
        begun = known is not None and (known.lab.success is not None or bool(known.lab.error))
        lab = known.lab if known is not None and begun else LabOutcome(None, error=error)
        missing = {label: ModelOutcome(None, error=error) for label in self._labels}
        return TrialRecord(trial, lab, {**missing, **(known.models if known is not None else {})})

    def stop(self) -> None:
        self.connection.close()
        self.process.join(0.5 if self.idle else 0.0)
        if self.process.is_alive():
            self.process.kill()
            self.process.join(STOP_S)


@dataclass(frozen=True)
class Refusal:
    """Error of a process in plain types, because errors of this package cannot be pickled."""

    what: str
    expected: str
    hint: str
    code: int

    @classmethod
    def of(cls, error: Exception) -> Refusal:
        """Convert any error."""
        if isinstance(error, KinemaError):
            return cls(error.what, error.expected, error.hint, int(error.code))
        return cls(f"{type(error).__name__}: {error}", "", "", int(ErrorCode.UNKNOWN))

    def error(self) -> KinemaError:
        """Convert back to an error to raise in the parent."""
        return KinemaError(self.what, expected=self.expected, hint=self.hint, code=ErrorCode(self.code))


def _how(code: int | None) -> str:
    if code is not None and code < 0:
        return signal.Signals(-code).name if -code in {int(s) for s in signal.Signals} else f"signal {-code}"
    return f"exit code {code}"


@contextmanager
def _one_thread() -> Iterator[None]:
    """Limit processes started inside the context to one thread each, because the workers fill the cores."""
    names = [name for name in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS") if name not in os.environ]
    os.environ.update(dict.fromkeys(names, "1"))
    try:
        yield
    finally:
        for name in names:
            del os.environ[name]


def _serve(connection: Connection, settings: EvaluationSettings, folder: str, turn: int) -> None:
    """Run trials in a worker process until the parent closes the connection."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    try:
        executor = Executor(settings, TrialStore(folder), turn)
    except Exception as error:
        connection.send(Refusal.of(error))
        return
    connection.send(None)
    try:
        while True:
            try:
                trial, known = connection.recv()
            except (EOFError, OSError):
                return
            try:
                connection.send(executor.execute(trial, known))
            except KinemaError as error:
                if error.code != ErrorCode.FILE_NOT_WRITABLE:
                    raise
                # A full disk ends the evaluation: a trial recorded as failed would not be run again.
                connection.send(Refusal.of(error))
    finally:
        executor.close()
