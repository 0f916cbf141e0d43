"""The worker's side: loads once, then answers requests one after the other until the supervisor goes."""

from __future__ import annotations

import json
import os
import queue
import socket
import sys
import threading
import traceback
from collections.abc import Callable

from kinema4d_ros.core.errors import KinemaError
from kinema4d_ros.runtime.frames import Connection, Frame, Kind, error_to_json

__all__ = ["Job", "serve"]


class Job:
    """What a handler knows about the request it works on."""

    def __init__(self, connection: Connection, number: int, cancelled: threading.Event) -> None:
        self._connection = connection
        self._number = number
        self._cancelled = cancelled

    def cancelled(self) -> bool:
        """True when nobody wants the result any more: ask between steps."""
        return self._cancelled.is_set()

    def progress(self, phase: str, step: int = 0, steps: int = 0) -> None:
        """Tell the supervisor where the work stands."""
        payload = json.dumps({"phase": phase, "step": step, "steps": steps}).encode()
        self._connection.send(Kind.PROGRESS, self._number, payload)


Handler = Callable[[bytes, Job], bytes]


def serve(descriptor: int, load: Callable[[], Handler]) -> int:
    """Serve requests on an inherited socket until it closes.

    Args:
        descriptor: of the socket.
        load: makes the handler, once; what it raises is reported, and the process ends with code 3.
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
            # What is refused on purpose says all there is to say in its answer.
            if not cancelled.is_set() and not isinstance(error, KinemaError):
                traceback.print_exc(file=sys.stderr)
            connection.send(Kind.ERROR, request.job, error_to_json(error))
        else:
            connection.send(Kind.RESULT, request.job, result)


class _Current:
    """The job in work and the cancellations that came for it, in either order."""

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
            # The supervisor is gone, whatever the handler is doing: nobody waits for its result.
            os._exit(0)
        if frame.kind == Kind.REQUEST:
            requests.put(frame)
        elif frame.kind == Kind.CANCEL:
            current.cancel(frame.job)
