"""What Linux knows of a process: its children, memory and open files. For tests that watch for leaks."""

from __future__ import annotations

import contextlib
from pathlib import Path


def family(pid: int) -> list[int]:
    """A process and all below it."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError):  # a thread that has just ended
            for child in (task / "children").read_text().split():
                found += family(int(child))
    return found


def resident_mb(pid: int) -> float:
    """Memory that the process holds now, MB."""
    fields = Path(f"/proc/{pid}/status").read_text().split()
    return int(fields[fields.index("VmRSS:") + 1]) / 1024


def open_files(pid: int) -> int:
    """File handles, sockets and pipes among them."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))
