"""Process supervisor: prefixes output, restarts crashed processes, shuts all down, cleans DDS shared memory."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from kinema4d_ros.core.errors import SetupError
from kinema4d_ros.runtime.child import Child, Stages, end_all

__all__ = ["ProcessSpec", "Supervised", "Supervisor", "require_shared_memory", "sweep_shared_memory"]

# Cleanup of DDS shared memory left by killed processes.
#
# Fast DDS gives every process a 64 MB segment `fastrtps_<id>` and a lock `fastrtps_<id>_el`, held while the process
# runs. It removes both on a normal exit but not on SIGKILL; a node that is killed repeatedly would fill the memory.

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  # nosec B108 - where DDS keeps its segments
YOUNG_S = 10.0
"""Minimum age of a lock file before it is removed: a process creates its lock shortly before it takes it."""

_LOCK = re.compile(r"(fast(?:rtps|dds)_[0-9a-f]{16})_el")


LEAST_BYTES = 2**20
"""With less free memory than this, merely importing DDS ends the process with SIGBUS and no message."""


def require_shared_memory(folder: Path = SHARED_MEMORY) -> None:
    """Raise SetupError if DDS has too little shared memory; without the folder, do nothing."""
    try:
        room = os.statvfs(folder)
    except OSError:
        return
    if room.f_blocks and room.f_bavail * room.f_frsize < LEAST_BYTES:
        raise SetupError(
            f"shared memory ({folder}) is full",
            expected=f"at least {LEAST_BYTES // 2**20} MB free, for DDS",
            hint="free space there, or remove the segments of dead processes: fastdds shm clean",
        )


def sweep_shared_memory(folder: Path = SHARED_MEMORY, young_s: float = YOUNG_S) -> int:
    """Remove the segments of dead processes that this user may remove; return how many."""
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
    """Return True if no process holds the lock and it is too old to be taken by a starting process."""
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
"""After running this long a process is considered stable and its restart delay is reset."""

STOP_STAGES: Stages = (
    (signal.SIGINT, 8.0),
    (signal.SIGTERM, 3.0),
    (signal.SIGKILL, 5.0),
)
"""Signals sent to stop a process, in order, and the timeout in seconds after each."""

FATAL_EXIT = 2
"""Exit code for an invalid configuration: a restart would not help."""


@dataclass(frozen=True)
class ProcessSpec:
    """Name, command and environment of one supervised process."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    essential: bool = True
    """The other processes cannot work without it."""


class Supervised:
    """One supervised process across its restarts."""

    def __init__(self, spec: ProcessSpec, write: Callable[[str], None]) -> None:
        self.spec = spec
        self._write = write
        self.process: Child | None = None
        self.restarts = -1
        self.failed = False
        """True after an exit with `FATAL_EXIT`."""
        self._started_s = 0.0
        self._delay_s = FIRST_DELAY_S
        self._start_at_s = 0.0
        self._reader: threading.Thread | None = None

    @property
    def state(self) -> str:
        """Text for the status line."""
        if self.failed:
            return "failed"
        if self.process is not None and self.process.poll() is None:
            again = f", restarted {self.restarts} x" if self.restarts else ""
            return f"running (pid {self.process.pid}{again})"
        return "waiting to restart" if self.restarts >= 0 else "not started"

    def tick(self, now_s: float) -> bool:
        """Start or restart the process when due; return True if the state changed."""
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
        self.join_reader()
        how, self.process = self.process.how_it_ended(), None
        if code == FATAL_EXIT:
            self.failed = True
            self._write(f"{self.spec.name} rejected its configuration; not restarted")
            return True
        if now_s - self._started_s > STEADY_S:
            self._delay_s = FIRST_DELAY_S
        self._start_at_s = now_s + self._delay_s
        self._write(f"{self.spec.name} ended ({how}); restarting in {self._delay_s:.1f} s")
        self._delay_s = min(2 * self._delay_s, LONGEST_DELAY_S)
        return True

    def _start(self, now_s: float) -> None:
        self.process = Child.start(
            self.spec.command,
            # Ctrl-C in the terminal goes to the whole process group; the supervisor controls the shutdown order.
            own_session=True,
            tied=True,
            environment={"PYTHONUNBUFFERED": "1", **self.spec.environment},
            piped=True,
        )
        self.restarts += 1
        self._started_s = now_s
        self._reader = threading.Thread(target=self._forward, args=(self.process,), daemon=True)
        self._reader.start()

    def _forward(self, process: Child) -> None:
        with contextlib.suppress(ValueError, OSError):
            for line in process.lines():
                self._write(f"[{self.spec.name}] {line.decode(errors='replace').rstrip()}")

    def join_reader(self) -> None:
        """Wait until what the ended process wrote is forwarded."""
        if self._reader is not None:
            self._reader.join(timeout=1.0)


class Supervisor:
    """Supervisor that runs all processes until `stop` is set, then ends them."""

    def __init__(self, specs: Sequence[ProcessSpec], write: Callable[[str], None] | None = None) -> None:
        self._print_lock = threading.Lock()
        self._sink = write
        self.members = [Supervised(spec, self.write) for spec in specs]
        self.stop = threading.Event()

    @property
    def failed(self) -> bool:
        """True if an essential process failed, or any process failed on its first start.

        A non-essential process that failed after a restart (a recorder whose disk is now full) does not count.
        """
        return any(m.failed and (m.spec.essential or m.restarts == 0) for m in self.members)

    def write(self, line: str) -> None:
        """Print one complete line to the terminal."""
        with self._print_lock:
            if self._sink is not None:
                self._sink(line)
            else:
                with contextlib.suppress(OSError):  # the terminal is closed
                    print(line, flush=True)

    def tick(self) -> None:
        """Start, restart or check every process once."""
        for member in self.members:
            if member.tick(time.monotonic()):
                self.write(f"{member.spec.name:<10} {member.state}")

    def run(self, until: Callable[[], bool] | None = None) -> None:
        """Supervise until `stop` is set or `until()` is true; always shut all processes down."""
        try:
            while not self.stop.is_set() and not (until is not None and until()):
                self.tick()
                self.stop.wait(0.1)
        finally:
            self.shutdown()

    def shutdown(self) -> None:
        """End every process with SIGINT, then SIGTERM, then SIGKILL."""
        left = end_all([m.process for m in self.members if m.process is not None], STOP_STAGES)
        for member in self.members:
            if member.process in left:
                print(f"{member.spec.name} could not be stopped", file=sys.stderr)
            else:
                member.join_reader()
