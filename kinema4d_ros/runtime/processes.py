"""Keeps a set of processes running: prefixes what they print, restarts what dies, ends them all cleanly."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from kinema4d_ros.core.errors import SetupError
from kinema4d_ros.runtime.lifetime import launched_by_me

__all__ = ["ProcessSpec", "Supervised", "Supervisor", "require_shared_memory", "sweep_shared_memory"]

# What killed processes leave in shared memory: DDS segments whose owner is dead, removed.
#
# Fast DDS gives every process a segment `fastrtps_<id>` of 64 MB and a lock `fastrtps_<id>_el`, which the process holds
# as long as it lives. It removes both when it ends, not when it is killed; a node that is killed again and again would
# fill the memory.

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  # nosec B108 - not a place of ours: where DDS keeps its segments
YOUNG_S = 10.0
"""A process makes its lock a moment before it takes it: one that is younger than this is left alone."""

_LOCK = re.compile(r"(fast(?:rtps|dds)_[0-9a-f]{16})_el")


LEAST_BYTES = 2**20
"""Below this DDS ends the process that only imports it, without a word (SIGBUS)."""


def require_shared_memory(folder: Path = SHARED_MEMORY) -> None:
    """Refuse to start a graph where DDS has no room; a machine without such a folder does without."""
    try:
        room = os.statvfs(folder)
    except OSError:
        return
    if room.f_blocks and room.f_bavail * room.f_frsize < LEAST_BYTES:
        raise SetupError(
            f"shared memory ({folder}) is full",
            expected=f"at least {LEAST_BYTES // 2**20} MB free, for DDS",
            hint="end what fills it, or remove the segments of dead processes: fastdds shm clean",
        )


def sweep_shared_memory(folder: Path = SHARED_MEMORY, young_s: float = YOUNG_S) -> int:
    """Remove the segments of dead processes that this user may remove; returns how many."""
    removed = 0
    with suppress(OSError):
        for lock in folder.iterdir():
            found = _LOCK.fullmatch(lock.name)
            if found is not None and _is_dead(lock, young_s):
                for path in (folder / found[1], lock):
                    with suppress(OSError):
                        path.unlink()
                removed += not lock.exists()
    return removed


def _is_dead(lock: Path, young_s: float) -> bool:
    """Nobody holds the lock, and nobody is about to take it."""
    try:
        handle = os.open(lock, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        if time.time() - os.fstat(handle).st_mtime < young_s:
            return False
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


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
