"""Full or read-only disks for tests: a tmpfs of a few megabytes, mounted for one block."""

from __future__ import annotations

import errno
import gc
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

FILLER = ".filler"
"""File that fills the disk; removed by `make_room`."""

ROOM_TEXT = os.strerror(errno.ENOSPC)
READ_ONLY_TEXT = os.strerror(errno.EROFS)


class SmallDisk:
    """A mounted temporary file system.

    Attributes:
        path: mount point.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def fill(self, leave_bytes: int = 0) -> None:
        """Fill the disk except for the given number of bytes."""
        self.make_room()
        free = os.statvfs(self.path).f_bavail * os.statvfs(self.path).f_frsize
        with (self.path / FILLER).open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, max(1, free - leave_bytes))

    def make_room(self) -> None:
        """Free the space again."""
        (self.path / FILLER).unlink(missing_ok=True)

    def read_only(self) -> None:
        """Remount read-only."""
        gc.collect()  # a caught exception may still hold an open file
        subprocess.run(["mount", "-o", "remount,ro", str(self.path)], check=True)

    def writable(self) -> None:
        """Remount writable."""
        subprocess.run(["mount", "-o", "remount,rw", str(self.path)], check=True)

    def content(self) -> dict[str, bytes]:
        """Return all files by path, without the filler."""
        files = [p for p in sorted(self.path.rglob("*")) if p.is_file() and p.name != FILLER]
        return {str(p.relative_to(self.path)): p.read_bytes() for p in files}


@contextmanager
def small_disk(path: Path, megabytes: float = 4.0) -> Iterator[SmallDisk]:
    """Mount a disk at `path` for the block; skip the test if mounting is not possible."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    path.mkdir(parents=True)
    size = f"size={int(megabytes * 1024)}k"
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(path)], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"no disk can be mounted here: {done.stderr.strip()}")
    try:
        yield SmallDisk(path)
    finally:
        # Lazy unmount: a process left by a failed test must not block it.
        subprocess.run(["umount", "-l", str(path)], check=True)
