"""Disks that are full or read-only, for tests: a memory file system of a few megabytes, mounted for one block."""

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
"""What takes the room; removed again by `make_room`."""

ROOM_TEXT = os.strerror(errno.ENOSPC)
READ_ONLY_TEXT = os.strerror(errno.EROFS)


class SmallDisk:
    """A mounted file system of the test's own.

    Attributes:
        path: where it is mounted.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def fill(self, leave_bytes: int = 0) -> None:
        """Take all room but so much."""
        self.make_room()
        free = os.statvfs(self.path).f_bavail * os.statvfs(self.path).f_frsize
        with (self.path / FILLER).open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, max(1, free - leave_bytes))

    def make_room(self) -> None:
        """Give it back."""
        (self.path / FILLER).unlink(missing_ok=True)

    def read_only(self) -> None:
        """Nothing can be written from now on."""
        gc.collect()  # an error that was caught may still hold the file that it came from
        subprocess.run(["mount", "-o", "remount,ro", str(self.path)], check=True)

    def writable(self) -> None:
        """As it was."""
        subprocess.run(["mount", "-o", "remount,rw", str(self.path)], check=True)

    def content(self) -> dict[str, bytes]:
        """Every file on it by its path, the filler apart."""
        files = [p for p in sorted(self.path.rglob("*")) if p.is_file() and p.name != FILLER]
        return {str(p.relative_to(self.path)): p.read_bytes() for p in files}


@contextmanager
def small_disk(path: Path, megabytes: float = 4.0) -> Iterator[SmallDisk]:
    """A disk mounted at `path`, gone afterwards; skips the test where it cannot be mounted."""
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
        # Lazily: a process that a failed test left behind must not keep it.
        subprocess.run(["umount", "-l", str(path)], check=True)
