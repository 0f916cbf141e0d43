"""The caller's side: keeps one worker process alive and gets an answer or a clear error out of it, in time."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kinema4d_ros.core.errors import Cancelled, ErrorCode, GeneratorError, KinemaError
from kinema4d_ros.runtime.frames import Connection, Frame, Kind, error_from_json

__all__ = ["Worker", "WorkerTimes"]

POLL_S = 0.02
"""How often cancellation is looked at while the worker is silent."""

Report = Callable[[str, int, int], None]


@dataclass(frozen=True)
class WorkerTimes:
    """How long to wait before giving up.

    Attributes:
        load_s: for the worker to load its back-end.
        run_s: for one request, unless the request says otherwise.
        grace_s: for a cancelled worker to stop by itself before it is killed.
        send_s: for a worker to take a request's bytes.
    """

    load_s: float = 600.0
    run_s: float = 1800.0
    grace_s: float = 5.0
    send_s: float = 30.0


class Worker:
    """One worker process, started when it is needed and again after it died.

    `command` is run with `{fd}` replaced by the number of the socket to serve on. One request at a
    time; `run` may be called from any thread.
    """

    def __init__(self, command: Sequence[str], times: WorkerTimes | None = None) -> None:
        self.command = tuple(command)
        self.times = times or WorkerTimes()
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._job = 0
        self.starts = 0
        """How many times the process was started."""

    @property
    def pid(self) -> int | None:
        """Of the running process."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def start(self) -> None:
        """Start the process and wait until it has loaded; errors of loading are raised here."""
        with self._lock:
            self._ensure()

    def run(
        self,
        request: bytes,
        report: Report | None = None,
        cancelled: Callable[[], bool] | None = None,
        timeout_s: float | None = None,
    ) -> bytes:
        """The worker's answer to one request.

        Raises:
            Cancelled: `cancelled()` became true.
            GeneratorError: the worker's own error, or GENERATOR_TIMEOUT, or GENERATOR_FAILED when it died.
        """
        with self._lock:
            connection = self._ensure()
            self._job += 1
            limit_s = timeout_s or self.times.run_s
            try:
                # A worker that hangs takes no request: the caller's own time is not spent on offering it.
                connection.settimeout(min(self.times.send_s, limit_s))
                connection.send(Kind.REQUEST, self._job, request)
                connection.settimeout(self.times.send_s)
                return self._wait(connection, report, cancelled, limit_s)
            except OSError as error:
                raise self._died(f"stopped taking requests ({error})") from None

    def stop(self) -> None:
        """End the process."""
        with self._lock:
            self._kill()

    def _ensure(self) -> Connection:
        if self._connection is not None and self._process is not None and self._process.poll() is None:
            return self._connection
        self._kill()
        ours, theirs = socket.socketpair()
        ours.settimeout(self.times.send_s)
        # A worker that outlives us would hold the GPU: closing our end of the socket ends it.
        with theirs:
            command = [part.replace("{fd}", str(theirs.fileno())) for part in self.command]
            self._process = subprocess.Popen(command, pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL)  # noqa: S603
        self.starts += 1
        self._connection = Connection(ours)
        frame = self._next(self._connection, time.monotonic() + self.times.load_s)
        if frame is None:
            raise self._died("did not load in time" if self.pid else "ended while it loaded")
        if frame.kind == Kind.ERROR:
            self._kill()
            raise error_from_json(frame.payload)
        return self._connection

    def _next(self, connection: Connection, deadline: float) -> Frame | None:
        """The next frame; None when the worker has closed, or at the deadline."""
        while True:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return None
            readable, _, _ = select.select([connection], [], [], min(remaining, POLL_S))
            if readable:
                return connection.receive()

    def _wait(
        self,
        connection: Connection,
        report: Report | None,
        cancelled: Callable[[], bool] | None,
        timeout_s: float,
    ) -> bytes:
        deadline = time.monotonic() + timeout_s
        stop: KinemaError | None = None
        kill_at = float("inf")
        while True:
            now = time.monotonic()
            if stop is None:
                if cancelled is not None and cancelled():
                    stop = Cancelled("cancelled by the caller")
                elif now >= deadline:
                    stop = GeneratorError(
                        f"no rollout after {timeout_s:g} s",
                        expected="an answer in time",
                        hint="raise timeout_s, or use a smaller preset",
                        code=ErrorCode.GENERATOR_TIMEOUT,
                    )
                if stop is not None:
                    connection.send(Kind.CANCEL, self._job)
                    kill_at = now + self.times.grace_s
            elif now >= kill_at:
                self._kill()
                raise stop
            readable, _, _ = select.select([connection], [], [], POLL_S)
            if not readable:
                continue
            frame = connection.receive()
            if frame is None:
                raise self._died("ended") from stop
            if frame.job != self._job:
                continue
            if frame.kind == Kind.RESULT and stop is None:
                return frame.payload
            if frame.kind in (Kind.RESULT, Kind.ERROR):
                raise stop or error_from_json(frame.payload)
            if frame.kind == Kind.PROGRESS and report is not None:
                fields = json.loads(frame.payload)
                report(fields["phase"], fields["step"], fields["steps"])

    def _died(self, how: str) -> KinemaError:
        process = self._process
        code: int | None = None
        if process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = process.wait(timeout=1.0)
        self._kill()
        if code is not None and code < 0:
            why = f": signal {signal.Signals(-code).name}"
            if -code == signal.SIGKILL:
                why += ", which the kernel sends when memory runs out"
        else:
            why = "" if code is None else f": exit code {code}"
        return GeneratorError(
            f"the generator's process {how}{why}",
            expected="an answer",
            hint="its log says more; it starts again with the next request",
            code=ErrorCode.GENERATOR_FAILED,
        )

    def _kill(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
            process.wait(timeout=10.0)
