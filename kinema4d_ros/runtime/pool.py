"""`run_jobs`: a batch of jobs in worker processes, on this machine or on a Ray cluster.

    jobs ─> run_jobs ─┬─> worker 0: Recipe.build() once, then one job at a time
                      ├─> worker 1  ...
                      └─< Finished(job, value) or Lost(job, reason) in the order of completion

A worker that dies costs the job it was running: a new worker replaces it and runs the job again (`retries`). A job that
exceeds its time limit is lost and its worker is replaced. An error of this package (`KinemaError`) in a worker ends the
batch: it would occur in every job, or the disk is full. Any other exception ends the worker.

Jobs, values and recipes are pickled between processes that this module starts. On a Ray cluster that means: any client
that can reach the cluster can run code on it, and we run what the cluster sends. Use clusters you trust.
"""

from __future__ import annotations

import importlib
import math
import multiprocessing
import os
import signal
import socket
import sys
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Literal

from kinema4d_ros.core.errors import ErrorCode, KinemaError, SetupError
from kinema4d_ros.runtime.child import Child, how_it_ended

__all__ = ["ENGINES", "Finished", "Lost", "Recipe", "run_jobs"]

ENGINES = "local, ray, or ray:ADDRESS"
"""What `--engine` takes."""

LOOPBACK = "127.0.0.1"
POLL_S = 0.02
STOP_S = 5.0
CONNECT_S = 5.0
THREAD_LIMITS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
"""Workers fill the cores, so each of them uses one thread unless the environment says otherwise."""

Group = Callable[[Any], Hashable]


@dataclass(frozen=True)
class Recipe:
    """How a worker is built: `function(turn, *arguments)` returns a callable that runs one job.

    Attributes:
        function: "package.module:name", imported in the worker.
        arguments: pickled to the worker.

    The callable may have a `close` method. `turn` numbers the workers from 0.
    """

    function: str
    arguments: tuple[Any, ...] = ()

    def build(self, turn: int) -> Callable[[Any], Any]:
        """Import and call the function."""
        module, _, name = self.function.partition(":")
        made: Callable[[Any], Any] = getattr(importlib.import_module(module), name)(turn, *self.arguments)
        return made


@dataclass(frozen=True)
class Finished:
    """A job and what it returned."""

    job: Any
    value: Any


@dataclass(frozen=True)
class Lost:
    """A job without a result: its worker was killed by a signal, exited, or exceeded the time limit."""

    job: Any
    reason: Literal["killed", "exited", "timeout"]
    text: str


def run_jobs(
    recipe: Recipe,
    jobs: Sequence[Any],
    *,
    workers: int = 1,
    engine: str = "local",
    timeout_s: float = math.inf,
    retries: int = 1,
    group: Group | None = None,
    cancelled: Callable[[], bool] = lambda: False,
) -> Iterator[Finished | Lost]:
    """Run all jobs; yield results in the order of completion.

    Args:
        recipe: builds the workers.
        jobs: any picklable objects.
        workers: processes; 0 = run in this process, without a time limit.
        engine: "local", "ray" (a cluster of this machine alone) or "ray:ADDRESS" (a running cluster).
        timeout_s: for one job.
        retries: how often a job whose worker died is run again.
        group: jobs with equal values prefer one worker, which can then reuse what it prepared.
        cancelled: polled between jobs and while waiting; True ends the batch early.

    Raises:
        KinemaError: of a worker that could not be built, or of a job.
        SetupError: a worker ended before it was built, or Ray is not installed or not reachable.
    """
    if workers < 0:
        raise KinemaError(f"workers is {workers}", expected="0 or more", code=ErrorCode.ARGUMENT_INVALID)
    start = _engine(engine)
    if workers == 0 and engine != "local":
        raise KinemaError(
            f"engine '{engine}' with 0 workers",
            expected="1 worker or more, or the local engine",
            code=ErrorCode.ARGUMENT_INVALID,
        )
    if workers == 0:
        yield from _run_here(recipe, jobs, cancelled)
    elif jobs:
        with start() as make:
            yield from _run(recipe, _Queue(jobs, group, retries), min(workers, len(jobs)), make, timeout_s, cancelled)


def _run_here(recipe: Recipe, jobs: Iterable[Any], cancelled: Callable[[], bool]) -> Iterator[Finished | Lost]:
    work = recipe.build(0)
    try:
        for job in jobs:
            if cancelled():
                return
            yield Finished(job, work(job))
    finally:
        _close(work)


def _run(
    recipe: Recipe, queue: _Queue, count: int, make: _Make, timeout_s: float, cancelled: Callable[[], bool]
) -> Iterator[Finished | Lost]:
    members = [_Member(make(recipe, turn), turn) for turn in range(count)]
    try:
        while True:
            for member in members:
                if member.idle and queue and not cancelled():
                    if member.needs_replacement:
                        member.replace(make(recipe, member.turn))
                    member.give_next(queue)
            if all(member.idle for member in members) or cancelled():
                return
            waiting = True
            for member in members:
                result = member.take(timeout_s)
                if isinstance(result, Lost) and result.reason != "timeout" and queue.retry(result.job):
                    result = None
                if result is not None:
                    waiting = False
                    yield result
            if waiting:
                time.sleep(POLL_S)
    finally:
        for member in members:
            member.stop()


class _Queue:
    """Jobs by group: jobs of one group stay with the worker that began it while others have work of their own."""

    def __init__(self, jobs: Sequence[Any], group: Group | None, retries: int) -> None:
        self._retries = retries
        self._waiting: dict[Hashable, deque[Any]] = {}
        self._group = group
        for number, job in enumerate(jobs):
            self._waiting.setdefault(number if group is None else group(job), deque()).append(job)
        self._begun: set[Hashable] = set()
        self._retried: list[Any] = []

    def __bool__(self) -> bool:
        """Whether jobs are waiting."""
        return bool(self._waiting)

    def next(self, current: Hashable) -> tuple[Hashable, Any] | None:
        """Take a job of the worker's group, else of a group that no worker began, else any."""
        if current not in self._waiting:
            fresh = [key for key in self._waiting if key not in self._begun] or list(self._waiting)
            if not fresh:
                return None
            current = fresh[0]
        self._begun.add(current)
        queue = self._waiting[current]
        job = queue.popleft()
        if not queue:
            del self._waiting[current]
        return current, job

    def retry(self, job: Any) -> bool:
        """Put back a job whose worker died: the signal may have come from outside."""
        if sum(job is known for known in self._retried) >= self._retries:
            return False
        self._retried.append(job)
        key = ("retry", len(self._retried)) if self._group is None else self._group(job)
        self._waiting.setdefault(key, deque()).append(job)
        return True


class _Handle(ABC):
    """One worker, whatever runs it."""

    @abstractmethod
    def give(self, job: Any) -> None:
        """Send a job; a dead worker is reported by `answer`."""

    @abstractmethod
    def answer(self) -> _Answer | None:
        """Return the next answer, without waiting."""

    @abstractmethod
    def end(self) -> _End | None:
        """Say how the worker ended; None while it runs."""

    @abstractmethod
    def kill(self) -> None:
        """End it now."""

    @abstractmethod
    def stop(self, busy: bool) -> None:
        """Let it finish if it is idle, end it otherwise."""


_Make = Callable[[Recipe, int], _Handle]


@dataclass(frozen=True)
class _End:
    """How a worker ended: by a signal or by itself, and the words for it."""

    killed: bool
    text: str


@dataclass(frozen=True)
class _Answer:
    """`kind`: "built", "value", or "error" with a `_Refusal` as value."""

    kind: Literal["built", "value", "error"]
    value: Any = None


@dataclass(frozen=True)
class _Refusal:
    """A `KinemaError` in plain types: exceptions with keyword arguments do not survive pickling."""

    what: str
    expected: str
    hint: str
    code: int

    @classmethod
    def of(cls, error: KinemaError) -> _Refusal:
        return cls(error.what, error.expected, error.hint, int(error.code))

    def error(self) -> KinemaError:
        return KinemaError(self.what, expected=self.expected, hint=self.hint, code=ErrorCode(self.code))


class _Member:
    """A place in the pool: its worker, and the job that the worker runs."""

    def __init__(self, handle: _Handle, turn: int) -> None:
        self.turn = turn
        self._handle = handle
        self._job: list[Any] = []
        self._group: Hashable = None
        self._built = self._ended = False
        self._began = 0.0

    @property
    def idle(self) -> bool:
        return not self._job

    @property
    def needs_replacement(self) -> bool:
        return self._ended or self._handle.end() is not None

    def give_next(self, queue: _Queue) -> None:
        following = queue.next(self._group)
        if following is not None:
            self._group, job = following
            self._job, self._began = [job], time.monotonic()
            self._handle.give(job)

    def take(self, timeout_s: float) -> Finished | Lost | None:
        """Return the result of its job once there is one; raise what a worker refused."""
        if self.idle:
            return None
        (job,) = self._job
        # Before the answers: a worker that ends after this look has still sent what it finished.
        end = self._handle.end()
        while (answer := self._handle.answer()) is not None:
            self._built = True
            if answer.kind == "error":
                raise answer.value.error()
            if answer.kind == "value":
                self._job = []
                return Finished(job, answer.value)
        if end is not None:
            if not self._built and not end.killed:
                raise SetupError(f"a worker could not start ({end.text})", expected="a process that builds its recipe")
            self._job = []
            return Lost(job, "killed" if end.killed else "exited", f"the process died ({end.text})")
        if time.monotonic() - self._began > timeout_s:
            self._handle.kill()
            self._job, self._ended = [], True
            return Lost(job, "timeout", f"not finished after {timeout_s:g} s")
        return None

    def replace(self, handle: _Handle) -> None:
        self._handle.stop(busy=True)
        self._handle, self._built, self._ended = handle, False, False

    def stop(self) -> None:
        self._handle.stop(busy=not self.idle)


def _close(work: Any) -> None:
    close = getattr(work, "close", None)
    if callable(close):
        close()


def _engine(engine: str) -> Callable[[], Any]:
    if engine == "local":
        return _local
    kind, _, address = engine.partition(":")
    if kind == "ray" and (engine == "ray" or address):
        return lambda: _ray(address)
    raise KinemaError(f"engine '{engine}' is not known", expected=ENGINES, code=ErrorCode.ARGUMENT_INVALID)


# Local processes.


@contextmanager
def _local() -> Iterator[_Make]:
    yield _LocalHandle


class _LocalHandle(_Handle):
    def __init__(self, recipe: Recipe, turn: int) -> None:
        self._connection, theirs = multiprocessing.Pipe()
        limits = {name: "1" for name in THREAD_LIMITS if name not in os.environ}
        self._process = Child.spawn(_serve, theirs, recipe, turn, name=f"kinema4d worker {turn}", environment=limits)
        theirs.close()

    def give(self, job: Any) -> None:
        with suppress(OSError):
            self._connection.send(job)

    def answer(self) -> _Answer | None:
        with suppress(EOFError, OSError):
            if self._connection.poll():
                answer: _Answer = self._connection.recv()
                return answer
        return None

    def end(self) -> _End | None:
        code = self._process.poll()
        return None if code is None else _End(code < 0, how_it_ended(code))

    def kill(self) -> None:
        self._process.kill(STOP_S)

    def stop(self, busy: bool) -> None:
        self._connection.close()
        self._process.wait(0.0 if busy else 0.5)
        self.kill()


def _serve(connection: Connection, recipe: Recipe, turn: int) -> None:
    """Build the recipe, then run one job after the other until the parent is gone."""
    try:
        work = recipe.build(turn)
    except KinemaError as error:
        connection.send(_Answer("error", _Refusal.of(error)))
        return
    connection.send(_Answer("built"))
    try:
        while True:
            try:
                job = connection.recv()
            except (EOFError, OSError):
                return
            try:
                connection.send(_Answer("value", work(job)))
            except KinemaError as error:
                connection.send(_Answer("error", _Refusal.of(error)))
    finally:
        _close(work)


# Ray.


@contextmanager
def _ray(address: str) -> Iterator[_Make]:
    if not address:
        # Read when ray is imported: without a cluster in mind it uses the loopback address for every socket.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    try:
        import ray
    except ImportError as error:
        raise SetupError(
            "Ray is not installed", expected="it, for --engine ray", hint="pip install ray, or use --engine local"
        ) from error
    began = not ray.is_initialized()
    if began:
        _join_ray(ray, address)
    environment = {name: os.environ.get(name, "1") for name in THREAD_LIMITS}
    if not address:
        environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    actor = ray.remote(_RayWorker).options(num_cpus=1, max_restarts=0, runtime_env={"env_vars": environment})
    try:
        yield lambda recipe, turn: _RayHandle(ray, actor, recipe, turn)
    finally:
        if began:
            ray.shutdown()


def _join_ray(ray: Any, address: str) -> None:
    """Join a cluster; without an address start one that only this machine can reach, without its dashboard."""
    try:
        if address:
            _require_listener(address)
            ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        else:
            # Where ray was imported before the variable above was set. Checked below.
            ray._private.ray_constants.ENABLE_RAY_CLUSTER = False
            ray.init(
                address="local",
                include_dashboard=False,
                log_to_driver=False,
                logging_level="ERROR",
                _node_ip_address=LOOPBACK,
            )
    except (ConnectionError, ValueError, RuntimeError, OSError) as error:
        raise SetupError(
            f"no Ray cluster at '{address or LOOPBACK}': {error}",
            expected="a cluster that answers",
            hint="start one with `ray start --head`, or use --engine local",
        ) from error
    if not address and ray.util.get_node_ip_address() != LOOPBACK:
        ray.shutdown()
        raise SetupError(
            "the Ray cluster of this machine would listen on other addresses too",
            expected=LOOPBACK,
            hint="unset RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER before the start, or join a cluster with ray:ADDRESS",
        )


def _require_listener(address: str) -> None:
    """Raise OSError unless something listens there: Ray itself would try for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if address == "auto":
        return
    if not colon or not port.isdigit():
        raise ValueError("expected HOST:PORT, ray://HOST:PORT or auto")
    socket.create_connection((host, int(port)), timeout=CONNECT_S).close()


class _RayWorker:
    """The actor: what `_serve` is for a local process."""

    def __init__(self, recipe: Recipe, turn: int) -> None:
        self._work: Callable[[Any], Any] | None = None
        self._recipe, self._turn = recipe, turn

    def build(self) -> _Answer:
        """Build the recipe."""
        try:
            self._work = self._recipe.build(self._turn)
        except KinemaError as error:
            return _Answer("error", _Refusal.of(error))
        return _Answer("built")

    def run(self, job: Any) -> _Answer:
        """Run one job."""
        if self._work is None:
            return _Answer("built")
        try:
            return _Answer("value", self._work(job))
        except KinemaError as error:
            return _Answer("error", _Refusal.of(error))
        except Exception:
            # As a local worker does: anything unforeseen ends the process, and the job is run once more elsewhere.
            os._exit(1)

    def close(self) -> None:
        """Release what the recipe holds."""
        _close(self._work)


class _RayHandle(_Handle):
    def __init__(self, ray: Any, actor: Any, recipe: Recipe, turn: int) -> None:
        self._ray = ray
        self._actor = actor.remote(recipe, turn)
        self._question = self._actor.build.remote()
        self._built = False
        self._next: list[Any] = []
        self._end: _End | None = None

    def give(self, job: Any) -> None:
        # After the answer to `build`: an actor that dies in its first job would take that answer with it.
        if self._built:
            self._question = self._actor.run.remote(job)
        else:
            self._next = [job]

    def answer(self) -> _Answer | None:
        if self._end is not None or self._question is None:
            return None
        ready, _ = self._ray.wait([self._question], timeout=0)
        if not ready:
            return None
        question, self._question = self._question, None
        try:
            answer: _Answer = self._ray.get(question)
        except self._ray.exceptions.RayTaskError as error:
            last = str(error).strip().splitlines()[-1]
            raise SetupError(f"a worker could not start: {last}", expected="a process that builds its recipe") from None
        except self._ray.exceptions.RayActorError as error:
            self._end = _End(False, f"exit: {str(error).strip().splitlines()[0]}")
            return None
        if not self._built:
            self._built = True
            for job in self._next:
                self._question = self._actor.run.remote(job)
        return answer

    def end(self) -> _End | None:
        return self._end

    def kill(self) -> None:
        self._ray.kill(self._actor)
        self._end = self._end or _End(True, how_it_ended(-signal.SIGKILL))

    def stop(self, busy: bool) -> None:
        if self._end is None:
            if not busy:
                with suppress(Exception):
                    self._ray.get(self._actor.close.remote(), timeout=0.5)
            self.kill()
