"""Children, memory and open files of a process on Linux, for leak tests."""

from __future__ import annotations

import contextlib
from pathlib import Path


def family(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError):  # a thread that has just ended
            for child in (task / "children").read_text().split():
                found += family(int(child))
    return found


def resident_mb(pid: int) -> float:
    """Return the resident memory of a process, MB."""
    fields = Path(f"/proc/{pid}/status").read_text().split()
    return int(fields[fields.index("VmRSS:") + 1]) / 1024


def open_files(pid: int) -> int:
    """Return the number of open file descriptors, including sockets and pipes."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))
