"""Joint states into one table: every joint's own series, in order, joined at all stamps."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.errors import ErrorCode, FileFormatError, TrajectoryError
from kinema4d_ros.readers.common import MAX_JOINTS, malformed

__all__ = ["JointSeries"]

Array = NDArray[np.float64]


class JointSeries:
    """Collects messages that may each name other joints, in any order of names and stamps.

    Several publishers (an arm and a gripper driver) then share one topic without trouble: each
    joint is interpolated between its own samples, over the time in which all of them report.
    """

    def __init__(self) -> None:
        """Start empty."""
        self._samples: dict[str, list[tuple[int, float]]] = {}
        self._without_positions = 0
        self._last_ns: dict[str, int] = {}
        self._late = 0

    def add(self, stamp_ns: int, names: list[str], positions: Array) -> None:
        """One message; without positions (velocities only) it is counted and left out."""
        if not positions.size:
            self._without_positions += 1
            return
        if positions.shape != (len(names),):
            raise FileFormatError(
                f"the message at {stamp_ns} ns has {positions.size} positions for {len(names)} joints",
                expected="a position for every name",
            )
        for name, value in zip(names, positions.tolist(), strict=True):
            if name not in self._samples and len(self._samples) >= MAX_JOINTS:
                raise FileFormatError(f"more than {MAX_JOINTS} joints", expected=f"at most {MAX_JOINTS}")
            self._samples.setdefault(name, []).append((stamp_ns, value))
        if names:
            self._late += stamp_ns < self._last_ns.get(names[0], stamp_ns)
            self._last_ns[names[0]] = max(stamp_ns, self._last_ns.get(names[0], stamp_ns))

    @property
    def names(self) -> list[str]:
        """Every joint that had a position so far."""
        return list(self._samples)

    def join(self, path: Path, keep: Collection[str] | None, notes: list[str]) -> tuple[list[str], Array, Array]:
        """Names, times (T,) in seconds from 0 and positions (T, N); what had to be repaired goes to the notes.

        `keep` chooses joints: those of another machine must not shorten the time in which all joints report.
        """
        samples = self._samples if keep is None else {n: s for n, s in self._samples.items() if n in keep}
        if not samples:
            raise TrajectoryError(
                f"{path}: the topic has no joint positions",
                expected="at least one message with names and positions",
                code=ErrorCode.TRAJECTORY_EMPTY,
            )
        repeated = 0
        series: dict[str, tuple[NDArray[np.int64], Array]] = {}
        for name, entries in samples.items():
            stamps, values = np.array([e[0] for e in entries]), np.array([e[1] for e in entries])
            order = np.argsort(stamps, kind="stable")
            stamps, values = stamps[order], values[order]
            # Of samples with one stamp the last one written counts.
            last = np.append(stamps[1:] != stamps[:-1], True)
            repeated += int(np.sum(~last))
            series[name] = stamps[last], values[last]
        begin, end = max(s[0] for s, _ in series.values()), min(s[-1] for s, _ in series.values())
        if begin > end:
            raise malformed(
                path,
                f"joints {', '.join(series)} never report at the same time",
                "joint states that overlap in time",
                "give a robot that has only some of these joints",
            )
        stamps = np.unique(np.concatenate([s for s, _ in series.values()]))
        stamps = stamps[(stamps >= begin) & (stamps <= end)]
        table = [np.interp((stamps - begin) * 1e-9, (s - begin) * 1e-9, v) for s, v in series.values()]
        self._report(repeated, notes)
        return list(series), (stamps - begin) * 1e-9, np.stack(table, axis=1)

    def _report(self, repeated: int, notes: list[str]) -> None:
        if self._without_positions:
            notes.append(f"left out {self._without_positions} messages without positions")
        if self._late:
            notes.append(f"put {self._late} messages with earlier stamps than the one before in order")
        if repeated:
            notes.append(f"left out {repeated} samples with a repeated stamp, the last one of each counts")
