"""Recipes and jobs for the tests of `runtime.pool`: workers that answer, die, hang, or refuse."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kinema4d_ros.core.errors import ErrorCode, KinemaError


def build(turn: int, folder: str = "") -> Callable[[Any], Any]:
    """A worker that does what its jobs say: (verb, value)."""

    def work(job: tuple[str, Any]) -> Any:
        verb, value = job
        if verb == "double":
            return 2 * value
        if verb == "who":
            time.sleep(0.05)
            return value, os.getpid(), turn
        if verb == "kill once":
            mark = Path(folder) / f"killed-{value}"
            if not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return "survived"
        if verb == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if verb == "crash":
            raise ValueError("unforeseen")
        if verb == "hang":
            time.sleep(600)
        if verb == "refuse":
            raise KinemaError("the disk is full", expected="room", hint="free some", code=ErrorCode.FILE_NOT_WRITABLE)
        return os.environ.get("OMP_NUM_THREADS", "")

    return work


def cannot_build(turn: int) -> Callable[[Any], Any]:
    """A worker that is missing something of ours."""
    raise KinemaError(f"no robot for worker {turn}", expected="a robot", code=ErrorCode.FILE_MISSING)


def dies_while_building(turn: int) -> Callable[[Any], Any]:
    """A worker that ends before it is ready."""
    os._exit(3)


class Closing:
    """A worker that leaves a mark when it is closed."""

    def __init__(self, turn: int, folder: str) -> None:
        self._mark = Path(folder) / f"closed-{turn}"

    def __call__(self, job: Any) -> Any:
        """Return the job."""
        return job

    def close(self) -> None:
        """Leave the mark."""
        self._mark.touch()
