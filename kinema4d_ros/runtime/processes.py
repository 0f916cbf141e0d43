"""Keeps a set of processes running: prefixes what they print, restarts what dies, ends them all cleanly."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from kinema4d_ros.runtime.lifetime import launched_by_me
from kinema4d_ros.runtime.shared_memory import sweep_shared_memory

__all__ = ["ProcessSpec", "Supervised", "Supervisor"]

FIRST_DELAY_S = 0.5
LONGEST_DELAY_S = 10.0
STEADY_S = 20.0
"""A process that ran this long is trusted again: its next restart comes at once."""

STOP_STAGES: tuple[tuple[signal.Signals, float], ...] = (
    (signal.SIGINT, 8.0),
    (signal.SIGTERM, 3.0),
    (signal.SIGKILL, 5.0),
)
"""How a process is asked to end, and how long it is given each time."""

FATAL_EXIT = 2
"""A process that ends with this code has said what it cannot work with: trying again would not help."""


@dataclass(frozen=True)
class ProcessSpec:
    """What to run."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    essential: bool = True
    """The others are of no use without it."""


class Supervised:
    """One process over its lives."""

    def __init__(self, spec: ProcessSpec, write: Callable[[str], None]) -> None:
        self.spec = spec
        self._write = write
        self.process: subprocess.Popen[bytes] | None = None
        self.restarts = -1
        self.failed = False
        """True when it ended with `FATAL_EXIT`."""
        self._started_s = 0.0
        self._delay_s = FIRST_DELAY_S
        self._start_at_s = 0.0
        self._reader: threading.Thread | None = None

    @property
    def state(self) -> str:
        """For the status line."""
        if self.failed:
            return "failed"
        if self.process is not None and self.process.poll() is None:
            again = f", restarted {self.restarts} x" if self.restarts else ""
            return f"running (pid {self.process.pid}{again})"
        return "waiting to start again" if self.restarts >= 0 else "not started"

    def tick(self, now_s: float) -> bool:
        """Start or restart when due; True when the state changed."""
        if self.failed:
            return False
        if self.process is None:
            if now_s < self._start_at_s:
                return False
            if self.restarts >= 0:
                sweep_shared_memory()
            self._start(now_s)
            return True
        code = self.process.poll()
        if code is None:
            return False
        self._join_reader()
        self.process = None
        if code == FATAL_EXIT:
            self.failed = True
            self._write(f"{self.spec.name} cannot work with what it was given; it is not started again")
            return True
        if now_s - self._started_s > STEADY_S:
            self._delay_s = FIRST_DELAY_S
        self._start_at_s = now_s + self._delay_s
        self._write(f"{self.spec.name} ended ({_reason(code)}); starting again in {self._delay_s:.1f} s")
        self._delay_s = min(2 * self._delay_s, LONGEST_DELAY_S)
        return True

    def _start(self, now_s: float) -> None:
        self.process = subprocess.Popen(  # noqa: S603 (our own modules)
            list(self.spec.command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **launched_by_me(), **self.spec.environment},
            # Ctrl-C in the terminal goes to the whole group: the supervisor alone decides who ends when.
            start_new_session=True,
        )
        self.restarts += 1
        self._started_s = now_s
        self._reader = threading.Thread(target=self._forward, args=(self.process,), daemon=True)
        self._reader.start()

    def _forward(self, process: subprocess.Popen[bytes]) -> None:
        if process.stdout is None:
            return
        with contextlib.suppress(ValueError, OSError):
            for line in process.stdout:
                self._write(f"[{self.spec.name}] {line.decode(errors='replace').rstrip()}")

    def send(self, which: signal.Signals) -> None:
        """Signal the process and what it started."""
        if self.process is not None and self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if which == signal.SIGKILL:
                    os.killpg(self.process.pid, which)
                else:
                    self.process.send_signal(which)

    def wait(self, timeout_s: float) -> bool:
        """True when the process has ended."""
        if self.process is None:
            return True
        try:
            self.process.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            return False
        self._join_reader()
        return True

    def _join_reader(self) -> None:
        if self._reader is not None:
            self._reader.join(timeout=1.0)


class Supervisor:
    """Runs all processes until `stop` is set, then ends them."""

    def __init__(self, specs: Sequence[ProcessSpec], write: Callable[[str], None] | None = None) -> None:
        self._print_lock = threading.Lock()
        self._sink = write
        self.members = [Supervised(spec, self.write) for spec in specs]
        self.stop = threading.Event()

    @property
    def failed(self) -> bool:
        """True when there is no point in going on: something essential cannot work, or something never could.

        What has worked before and is not essential (a recorder whose disk is full by now) is only missed.
        """
        return any(m.failed and (m.spec.essential or m.restarts == 0) for m in self.members)

    def write(self, line: str) -> None:
        """One line to the terminal, whole."""
        with self._print_lock:
            if self._sink is not None:
                self._sink(line)
            else:
                with contextlib.suppress(OSError):  # the terminal is closed
                    print(line, flush=True)

    def tick(self) -> None:
        """Look after every process once."""
        for member in self.members:
            if member.tick(time.monotonic()):
                self.write(f"{member.spec.name:<10} {member.state}")

    def run(self, until: Callable[[], bool] | None = None) -> None:
        """Look after the processes until `stop` is set or `until()` is true; always ends them all."""
        try:
            while not self.stop.is_set() and not (until is not None and until()):
                self.tick()
                self.stop.wait(0.1)
        finally:
            self.shutdown()

    def shutdown(self) -> None:
        """End every process: politely, then firmly."""
        for which, patience_s in STOP_STAGES:
            alive = [m for m in self.members if not m.wait(0.0)]
            if not alive:
                return
            for member in alive:
                member.send(which)
            deadline = time.monotonic() + patience_s
            for member in alive:
                member.wait(max(0.0, deadline - time.monotonic()))
        for member in self.members:
            if not member.wait(0.0):
                print(f"{member.spec.name} could not be ended", file=sys.stderr)


def _reason(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    with contextlib.suppress(ValueError):
        return signal.Signals(-code).name
    return f"signal {-code}"
