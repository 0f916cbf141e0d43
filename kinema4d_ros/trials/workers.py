"""Trials in several processes: one that dies costs the trial it was at, and a new one takes its place.

The parent hands out one trial at a time and alone writes records.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from kinema4d_ros.errors import ErrorCode
from kinema4d_ros.evaluation.errors import EvaluationError
from kinema4d_ros.trials.execute import Executor
from kinema4d_ros.trials.settings import EvaluationSettings
from kinema4d_ros.trials.store import TrialStore
from kinema4d_ros.trials.trial import LabOutcome, ModelOutcome, Trial, TrialRecord

__all__ = ["Work", "run_trials"]

Work = tuple[Trial, TrialRecord | None]
"""A trial and what is known of it already."""

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
    """Records in the order in which they are finished; ends early when `cancelled` says so.

    Args:
        settings, store: of the evaluation.
        work: what is to be done.
        workers: processes; 0 = in this one.
        trial_timeout_s: a trial that takes longer is ended and recorded as failed.
        cancelled: asked between trials and twice a second.
    """
    if workers < 0:
        raise EvaluationError(f"workers is {workers}", expected="0 or more", code=ErrorCode.ARGUMENT_INVALID)
    if workers == 0:
        executor = Executor(settings, store)
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
        self._workers = [self._start() for _ in range(count)]

    def _start(self) -> _Worker:
        return _Worker(self._context, self._settings, self._store)

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
                # One that died a moment ago may not have told of its trial yet: the next round asks it.
                if worker.idle and not worker.process.is_alive():
                    worker.stop()
                    self._workers[number] = self._start()

    def close(self) -> None:
        for worker in self._workers:
            worker.stop()


class _Tables:
    """Trials by table: policies of one table stay with one worker, which then lays it once."""

    def __init__(self, work: Sequence[Work]) -> None:
        self._waiting: dict[tuple[str, int], deque[Work]] = {}
        for trial, known in work:
            self._waiting.setdefault((trial.scenario, trial.seed), deque()).append((trial, known))
        self._begun: set[tuple[str, int]] = set()
        self._repeated: set[str] = set()

    def again(self, work: Work) -> bool:
        """Put back a trial whose process died, once: somebody else may have killed it."""
        if work[0].key in self._repeated:
            return False
        self._repeated.add(work[0].key)
        self._waiting.setdefault((work[0].scenario, work[0].seed), deque()).append(work)
        return True

    def next(self, table: tuple[str, int] | None) -> Work | None:
        """Another trial of a table, or else of one that nobody is at, or else any."""
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
    """A process, and the trial it is at."""

    def __init__(self, context: Any, settings: EvaluationSettings, store: TrialStore) -> None:
        self._labels = settings.labels()
        self.connection, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(
            target=_serve, args=(theirs, settings, str(store.folder)), daemon=True, name="kinema4d trials"
        )
        with _one_thread():
            self.process.start()
        theirs.close()
        self.work: Work | None = None
        self._ended = False
        self._began = 0.0
        self.table: tuple[str, int] | None = None

    @property
    def idle(self) -> bool:
        return self.work is None

    @property
    def died(self) -> bool:
        """Whether it ended by itself, not by a time-out."""
        return not self._ended and not self.process.is_alive()

    def give(self, work: Work) -> None:
        self.work, self._began = work, time.monotonic()
        self.table = (work[0].scenario, work[0].seed)
        try:
            self.connection.send(work)
        except OSError:
            return  # it has died: `take` says so

    def take(self, timeout_s: float) -> TrialRecord | None:
        """The record of the trial it was given, once there is one."""
        if self.work is None:
            return None
        trial, known = self.work
        try:
            if self.connection.poll():
                record: TrialRecord = self.connection.recv()
                self.work = None
                return record
        except (EOFError, OSError):
            pass
        if not self.process.is_alive():
            self.work = None
            return self._lost(trial, known, f"the process died ({_how(self.process.exitcode)})")
        if time.monotonic() - self._began > timeout_s:
            self._ended = True
            self.process.kill()
            self.process.join(STOP_S)
            self.work = None
            return self._lost(trial, known, f"not finished after {timeout_s:g} s")
        return None

    def _lost(self, trial: Trial, known: TrialRecord | None, why: str) -> TrialRecord:
        """A record that is complete, so that nobody waits for it and no later call runs it again."""
        error = f"[{ErrorCode.POLICY_FAILED.name}] {why}"
        lab = known.lab if known is not None else LabOutcome(None, error=error)
        missing = {label: ModelOutcome(None, error=error) for label in self._labels}
        return TrialRecord(trial, lab, {**missing, **(known.models if known is not None else {})})

    def stop(self) -> None:
        self.connection.close()
        self.process.join(0.5 if self.idle else 0.0)
        if self.process.is_alive():
            self.process.kill()
            self.process.join(STOP_S)


def _how(code: int | None) -> str:
    if code is not None and code < 0:
        return signal.Signals(-code).name if -code in {int(s) for s in signal.Signals} else f"signal {-code}"
    return f"exit code {code}"


@contextmanager
def _one_thread() -> Iterator[None]:
    """Processes that start inside use one thread each: workers fill the cores."""
    names = [name for name in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS") if name not in os.environ]
    os.environ.update(dict.fromkeys(names, "1"))
    try:
        yield
    finally:
        for name in names:
            del os.environ[name]


def _serve(connection: Connection, settings: EvaluationSettings, folder: str) -> None:
    """What a worker does: one trial after the other until the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    executor = Executor(settings, TrialStore(folder))
    try:
        while True:
            try:
                trial, known = connection.recv()
            except (EOFError, OSError):
                return
            connection.send(executor.execute(trial, known))
    finally:
        executor.close()
