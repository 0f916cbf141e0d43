"""Worker process for generators: message framing, the caller (`Worker`) and the child (`serve`)."""

from __future__ import annotations

import json
import os
import queue
import select
import socket
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum, unique
from typing import Any

from kinema4d_ros.core.errors import Cancelled, ErrorCode, GeneratorError, KinemaError
from kinema4d_ros.runtime.child import KILL_S, Child

__all__ = ["Connection", "Frame", "Job", "Kind", "Worker", "WorkerTimes", "error_from_json", "error_to_json", "serve"]

# Message framing over a stream socket: kind, job number, length, payload.

_HEADER = struct.Struct("!BQQ")
_MAX_BYTES = 4 << 30
"""Maximum payload size; a 49-frame rollout of raw floats is a quarter of a gigabyte."""


@unique
class Kind(IntEnum):
    """Message type of a frame."""

    READY = 1
    REQUEST = 2
    CANCEL = 3
    PROGRESS = 4
    RESULT = 5
    ERROR = 6


@dataclass(frozen=True)
class Frame:
    """One message; `job` is 0 if it belongs to no job."""

    kind: Kind
    job: int
    payload: bytes


class Connection:
    """Socket that sends and receives whole frames; one thread may send while another receives."""

    def __init__(self, endpoint: socket.socket) -> None:
        self._socket = endpoint

    def fileno(self) -> int:
        """Return the socket's file descriptor, for select."""
        return self._socket.fileno()

    def settimeout(self, seconds: float) -> None:
        """Set the timeout of one socket call."""
        self._socket.settimeout(seconds)

    def send(self, kind: Kind, job: int = 0, payload: bytes = b"") -> None:
        """Send one frame; raise OSError if the peer is gone or does not read before the timeout."""
        self._socket.sendall(_HEADER.pack(kind, job, len(payload)))
        self._socket.sendall(payload)

    def receive(self) -> Frame | None:
        """Return the next frame; None if the peer has closed or the frame is too large. Blocks as the socket does."""
        head = self._exactly(_HEADER.size)
        if head is None:
            return None
        kind, job, size = _HEADER.unpack(head)
        if size > _MAX_BYTES:
            return None
        payload = self._exactly(size)
        return None if payload is None else Frame(Kind(kind), job, payload)

    def _exactly(self, count: int) -> bytes | None:
        data = bytearray(count)
        view = memoryview(data)
        filled = 0
        while filled < count:
            try:
                received = self._socket.recv_into(view[filled:])
            except ConnectionError:
                return None
            if received == 0:
                return None
            filled += received
        return bytes(data)

    def close(self) -> None:
        """Close this end; the peer's `receive` returns None."""
        self._socket.close()


def error_to_json(error: BaseException) -> bytes:
    """Serialise an exception; out-of-memory errors of any library get GENERATOR_OUT_OF_MEMORY."""
    if isinstance(error, KinemaError):
        fields: dict[str, Any] = {
            "code": int(error.code),
            "what": error.what,
            "expected": error.expected,
            "hint": error.hint,
        }
    elif _is_about_memory(error):
        fields = {
            "code": int(ErrorCode.GENERATOR_OUT_OF_MEMORY),
            "what": f"the generator ran out of memory: {error}",
            "expected": "a rollout that fits into memory",
            "hint": "use a smaller preset, fewer frames or a smaller image",
        }
    else:
        fields = {
            "code": int(ErrorCode.GENERATOR_FAILED),
            "what": f"the generator failed: {type(error).__name__}: {error}",
            "expected": "a rollout",
            "hint": "its log has the traceback",
        }
    return json.dumps(fields).encode()


def _is_about_memory(error: BaseException) -> bool:
    """Return True for memory errors of Python and torch, and for those of torch's CPU allocator and OpenCV."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    words = ("can't allocate memory", "OutOfMemoryError", "std::bad_alloc")
    # OpenCV's error is not a RuntimeError; neither library is imported here.
    return type(error).__name__ in ("RuntimeError", "error") and any(word in str(error) for word in words)


def error_from_json(payload: bytes) -> KinemaError:
    """Rebuild the exception that `error_to_json` serialised, as a GeneratorError."""
    fields = json.loads(payload)
    return GeneratorError(
        fields["what"], expected=fields["expected"], hint=fields["hint"], code=ErrorCode(fields["code"])
    )


POLL_S = 0.02
"""Interval in seconds for checking cancellation while the worker sends nothing."""

Report = Callable[[str, int, int], None]


@dataclass(frozen=True)
class WorkerTimes:
    """Timeouts in seconds.

    Attributes:
        load_s: for the worker to load its back-end.
        run_s: for one request, unless the request sets its own.
        grace_s: for a cancelled worker to stop by itself before it is killed.
        send_s: for a worker to read a request.
    """

    load_s: float = 600.0
    run_s: float = 1800.0
    grace_s: float = 5.0
    send_s: float = 30.0


class Worker:
    """Client of one worker process, which is started on demand and restarted after it died.

    `{fd}` in `command` is replaced by the number of the socket to serve on. One request at a time; `run` may be
    called from any thread.
    """

    def __init__(self, command: Sequence[str], times: WorkerTimes | None = None) -> None:
        self.command = tuple(command)
        self.times = times or WorkerTimes()
        self._lock = threading.Lock()
        self._process: Child | None = None
        self._connection: Connection | None = None
        self._job = 0
        self.starts = 0
        """Number of times the process was started."""

    @property
    def pid(self) -> int | None:
        """Process id, or None if the process is not running."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def start(self) -> None:
        """Start the process and wait until it has loaded; raise its load errors."""
        with self._lock:
            self._ensure()

    def run(
        self,
        request: bytes,
        report: Report | None = None,
        cancelled: Callable[[], bool] | None = None,
        timeout_s: float | None = None,
    ) -> bytes:
        """Send one request and return the result.

        Raises:
            Cancelled: `cancelled()` became true.
            GeneratorError: the worker's own error, GENERATOR_TIMEOUT, or GENERATOR_FAILED if the worker died.
        """
        with self._lock:
            connection = self._ensure()
            self._job += 1
            limit_s = timeout_s or self.times.run_s
            try:
                # A hung worker does not read requests: sending must not exceed the caller's own timeout.
                connection.settimeout(min(self.times.send_s, limit_s))
                connection.send(Kind.REQUEST, self._job, request)
                connection.settimeout(self.times.send_s)
                return self._wait(connection, report, cancelled, limit_s)
            except OSError as error:
                raise self._died(f"stopped reading requests ({error})") from None

    def stop(self) -> None:
        """Kill the process."""
        with self._lock:
            self._kill()

    def _ensure(self) -> Connection:
        if self._connection is not None and self._process is not None and self._process.poll() is None:
            return self._connection
        self._kill()
        ours, theirs = socket.socketpair()
        ours.settimeout(self.times.send_s)
        # An orphaned worker would hold the GPU: it exits when our end of the socket closes.
        with theirs:
            command = [part.replace("{fd}", str(theirs.fileno())) for part in self.command]
            self._process = Child.start(command, pass_fds=(theirs.fileno(),))
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
        """Return the next frame, or None if the worker has closed or at the deadline."""
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
                        expected="a result before the timeout",
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
        why = ""
        if self._process is not None and self._process.wait(1.0) is not None:
            why = f": {self._process.how_it_ended()}"
        self._kill()
        return GeneratorError(
            f"the generator's process {how}{why}",
            expected="a result",
            hint="see its log; it restarts with the next request",
            code=ErrorCode.GENERATOR_FAILED,
        )

    def _kill(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        process, self._process = self._process, None
        if process is not None and not process.kill(KILL_S):
            raise GeneratorError(
                f"the generator's process {process.pid} was killed and still runs after {KILL_S:g} s",
                expected="a process that the kernel can end",
                hint="it may wait for a device; see the kernel's log",
            )


# Child process: loads the back-end once, then serves requests in order until the parent closes the socket.


class Job:
    """Cancellation and progress of the request that a handler works on."""

    def __init__(self, connection: Connection, number: int, cancelled: threading.Event) -> None:
        self._connection = connection
        self._number = number
        self._cancelled = cancelled

    def cancelled(self) -> bool:
        """Return True if the client no longer wants the result; call it between steps."""
        return self._cancelled.is_set()

    def progress(self, phase: str, step: int = 0, steps: int = 0) -> None:
        """Report the current phase and step to the parent."""
        payload = json.dumps({"phase": phase, "step": step, "steps": steps}).encode()
        self._connection.send(Kind.PROGRESS, self._number, payload)


Handler = Callable[[bytes, Job], bytes]


def serve(descriptor: int, load: Callable[[], Handler]) -> int:
    """Serve requests on an inherited socket until it closes.

    Args:
        descriptor: file descriptor of the socket.
        load: creates the handler, once; an exception is reported to the parent and the process exits with code 3.
    """
    connection = Connection(socket.socket(fileno=descriptor))
    try:
        handler = load()
    except Exception as error:
        traceback.print_exc(file=sys.stderr)
        connection.send(Kind.ERROR, 0, error_to_json(error))
        return 3
    connection.send(Kind.READY)

    requests: queue.SimpleQueue[Frame] = queue.SimpleQueue()
    current = _Current()
    threading.Thread(target=_read, args=(connection, requests, current), daemon=True).start()
    while True:
        request = requests.get()
        cancelled = current.begin(request.job)
        try:
            result = handler(request.payload, Job(connection, request.job, cancelled))
        except Exception as error:
            # Deliberate errors are fully described in the reply; only unexpected ones need a traceback.
            if not cancelled.is_set() and not isinstance(error, KinemaError):
                traceback.print_exc(file=sys.stderr)
            connection.send(Kind.ERROR, request.job, error_to_json(error))
        else:
            connection.send(Kind.RESULT, request.job, result)


class _Current:
    """The active job and its cancellation, which may arrive before the job starts."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._job = 0
        self._event = threading.Event()
        self._cancelled_ahead: set[int] = set()

    def begin(self, job: int) -> threading.Event:
        with self._lock:
            self._job = job
            self._event = threading.Event()
            if job in self._cancelled_ahead:
                self._event.set()
            self._cancelled_ahead.clear()
            return self._event

    def cancel(self, job: int) -> None:
        with self._lock:
            if job == self._job:
                self._event.set()
            elif job > self._job:
                self._cancelled_ahead.add(job)


def _read(connection: Connection, requests: queue.SimpleQueue[Frame], current: _Current) -> None:
    while True:
        frame = connection.receive()
        if frame is None:
            # The parent is gone: exit even if the handler is still running.
            os._exit(0)
        if frame.kind == Kind.REQUEST:
            requests.put(frame)
        elif frame.kind == Kind.CANCEL:
            current.cancel(frame.job)
