"""`GeneratorPool`: several generator nodes as one generator for several workers; one worker uses a node at a time.

worker 1 ─┐              ┌─ gpu1   a worker locks the first free node and unlocks it afterwards
worker 2 ─┼─ file locks ─┤
worker 3 ─┘              └─ gpu2   an unavailable or busy node is skipped for a while, and another one is used

File locks, because the lock of a killed worker is released by the kernel.
"""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from kinema4d_ros.core.errors import ErrorCode, FileFormatError, GeneratorError
from kinema4d_ros.core.rollout import Rollout
from kinema4d_ros.generators.protocol import (
    Cancel,
    GenerateRequest,
    Generator,
    Progress,
    ReportProgress,
    raise_if_cancelled,
)
from kinema4d_ros.generators.spec import load_generator

__all__ = ["GeneratorPool"]

FIND_S = 20.0
"""Time to wait for a node before another is tried."""
GONE_S = 300.0
"""Time for which a node that did not answer is skipped."""
BUSY_S = 1.0
"""Time for which a node with a full queue is skipped."""
POLL_S = 0.02

_GONE = (ErrorCode.GENERATOR_UNAVAILABLE, ErrorCode.GENERATOR_TIMEOUT)


def _ask_node(namespace: str) -> Generator:
    return load_generator(f"ros:{namespace}", server_timeout_s=FIND_S)


class GeneratorPool:
    """Generator that uses any free node.

    Args:
        namespaces: of the nodes.
        locks: folder shared by all workers; created if it is missing.
        turn: index of this worker; workers start with different nodes.
        make: creates a node's generator; by default the ROS action of its namespace.
        patience_s: maximum time to wait for a free node.
        gone_s: time for which a node that did not answer is skipped.
    """

    def __init__(
        self,
        namespaces: Sequence[str],
        locks: str | Path,
        *,
        turn: int = 0,
        make: Callable[[str], Generator] = _ask_node,
        patience_s: float = 1800.0,
        gone_s: float = GONE_S,
    ) -> None:
        self._names = tuple(namespaces)
        self._folder = Path(locks)
        self._make, self._patience_s, self._gone_s = make, patience_s, gone_s
        self._nodes: dict[str, Generator] = {}
        self._aside: dict[str, float] = {}
        self._first = turn % len(self._names)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FileFormatError(
                f"{self._folder} cannot be written: {error.strerror}", code=ErrorCode.FILE_NOT_WRITABLE
            ) from None

    @property
    def name(self) -> str:
        """All nodes, such as "ros:gpu1+ros:gpu2"."""
        return "+".join(f"ros:{name}" if name else "ros" for name in self._names)

    def generate(
        self, request: GenerateRequest, progress: ReportProgress | None = None, cancel: Cancel | None = None
    ) -> Rollout:
        """Generate a rollout on the first available node.

        Raises:
            GeneratorError: GENERATOR_UNAVAILABLE if no node answers, GENERATOR_BUSY if none is free in time, or the
                error of a node.
        """
        deadline = time.monotonic() + self._patience_s
        refused: dict[str, str] = {}
        while True:
            raise_if_cancelled(cancel, Progress("queued"))
            for name in self._in_turn(refused):
                lock = self._lock(name)
                if lock is None:
                    continue
                try:
                    return self._node(name).generate(request, progress, cancel)
                except GeneratorError as error:
                    if error.code in _GONE:
                        refused[name] = error.what
                        self._aside[name] = time.monotonic() + self._gone_s
                    elif error.code == ErrorCode.GENERATOR_BUSY:
                        self._aside[name] = time.monotonic() + BUSY_S
                    else:
                        raise
                finally:
                    os.close(lock)  # which also unlocks
            if len(refused) == len(self._names):
                raise self._nobody(refused)
            if time.monotonic() > deadline:
                raise GeneratorError(
                    f"none of {self.name} was free for {self._patience_s:g} s",
                    expected="a node for each worker",
                    hint="start fewer workers, or more nodes",
                    code=ErrorCode.GENERATOR_BUSY,
                )
            time.sleep(POLL_S)

    def ready(self, timeout_s: float = FIND_S) -> tuple[str, ...]:
        """Return the namespaces of the nodes that answer within `timeout_s` for all of them together."""
        deadline = time.monotonic() + timeout_s
        found: list[str] = []
        while len(found) < len(self._names) and time.monotonic() < deadline:
            for name in self._names:
                answers: Callable[[], bool] | None = getattr(self._node(name), "ready", None)
                if name not in found and (answers is None or answers()):
                    found.append(name)
            time.sleep(POLL_S)
        return tuple(name for name in self._names if name in found)

    def close(self) -> None:
        """Close the connections to the nodes."""
        for node in self._nodes.values():
            with suppress(Exception):  # closing fails for a node that is gone
                node.close()  # type: ignore[attr-defined]
        self._nodes.clear()

    def _in_turn(self, refused: dict[str, str]) -> list[str]:
        """List the nodes to try now. If all are skipped for long, they are tried once more."""
        now = time.monotonic()
        turned = [*self._names[self._first :], *self._names[: self._first]]
        until = {name: self._aside.get(name, 0.0) for name in turned if name not in refused}
        fresh = [name for name, when in until.items() if when <= now]
        soon = any(when <= now + BUSY_S for when in until.values())
        return fresh or ([] if soon else list(until))

    def _nobody(self, refused: dict[str, str]) -> GeneratorError:
        reasons = "; ".join(f"{name or 'ros'}: {refused[name]}" for name in self._names)
        return GeneratorError(
            f"no node of {self.name} answers ({reasons})",
            expected="at least one",
            hint="python -m kinema4d_ros.ros.nodes.generator --ros-args -r __ns:=/NAMESPACE",
            code=ErrorCode.GENERATOR_UNAVAILABLE,
        )

    def _node(self, name: str) -> Generator:
        if name not in self._nodes:
            self._nodes[name] = self._make(name)
        return self._nodes[name]

    def _lock(self, name: str) -> int | None:
        """Open and lock the node's file; None if another worker holds the lock."""
        path = self._folder / (re.sub(r"[^A-Za-z0-9_.]+", "-", f"node-{name or 'ros'}") + ".lock")
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(file)
            return None
        return file
