"""What killed processes leave in shared memory: DDS segments whose owner is dead, removed.

Fast DDS gives every process a segment `fastrtps_<id>` of 64 MB and a lock `fastrtps_<id>_el`, which the process holds
as long as it lives. It removes both when it ends, not when it is killed; a node that is killed again and again would
fill the memory.
"""

from __future__ import annotations

import fcntl
import os
import re
import time
from contextlib import suppress
from pathlib import Path

from kinema4d_ros.core.errors import SetupError

__all__ = ["require_shared_memory", "sweep_shared_memory"]

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
