"""A tree of frames over time, in numpy: which pose had which frame in which other, and why there is no answer.

Rules as tf2 has them: each frame has one parent and a history of limited length; between two samples
the translation is linear and the rotation a slerp; time 0 means the newest moment all frames on the
way have in common; nothing is extrapolated.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.core.transforms import invert, slerp

__all__ = [
    "ConnectivityException",
    "ExtrapolationException",
    "FrameTree",
    "InvalidArgumentException",
    "LookupException",
    "TimeoutException",
    "TransformException",
]

Matrix = NDArray[np.float64]


class TransformException(Exception):  # noqa: N818 - tf2 names it so
    """Base of everything a look-up can raise."""


class LookupException(TransformException):
    """A frame that nobody has ever published."""


class ConnectivityException(TransformException):
    """Two frames in trees that are not connected."""


class ExtrapolationException(TransformException):
    """A time before the oldest or after the newest sample."""


class InvalidArgumentException(TransformException):
    """A frame name or a transform that cannot be one."""


class TimeoutException(TransformException):
    """An answer that did not come in time."""


@dataclass
class _History:
    """Samples of one frame, oldest first."""

    static: bool
    stamps: list[int] = field(default_factory=list)
    samples: list[tuple[str, Matrix]] = field(default_factory=list)

    def insert(self, stamp: int, parent: str, parent_T_child: Matrix, keep_ns: int) -> bool:
        if self.static:
            self.stamps, self.samples = [0], [(parent, parent_T_child)]
            return True
        if self.stamps and stamp < self.stamps[-1] - keep_ns:
            return False
        index = bisect_left(self.stamps, stamp)
        if index < len(self.stamps) and self.stamps[index] == stamp:
            self.samples[index] = (parent, parent_T_child)
        else:
            self.stamps.insert(index, stamp)
            self.samples.insert(index, (parent, parent_T_child))
        stale = bisect_left(self.stamps, self.stamps[-1] - keep_ns)
        if stale:
            del self.stamps[:stale], self.samples[:stale]
        return True

    def parent(self, stamp: int) -> str:
        """Parent at a time; 0 = newest, before the first sample that one's."""
        if stamp == 0:
            return self.samples[-1][0]
        return self.samples[max(bisect_right(self.stamps, stamp) - 1, 0)][0]

    def at(self, child: str, stamp: int) -> tuple[str, Matrix]:
        """Parent and parent_T_child at a time; 0 = newest."""
        if self.static:
            return self.samples[0]
        if stamp == 0:
            return self.samples[-1]
        index = bisect_left(self.stamps, stamp)
        if index < len(self.stamps) and self.stamps[index] == stamp:
            return self.samples[index]
        if index == 0 or index == len(self.stamps):
            side = ("past", "before the oldest") if index == 0 else ("future", "after the newest")
            nearest = self.stamps[0 if index == 0 else -1]
            raise ExtrapolationException(
                f"Lookup would require extrapolation into the {side[0]}. Requested time {stamp * 1e-9:.9f} is "
                f"{abs(stamp - nearest) * 1e-9:.6f} s {side[1]} data at time {nearest * 1e-9:.9f} of frame [{child}]"
            )
        (parent, T0), (next_parent, T1) = self.samples[index - 1], self.samples[index]
        if parent != next_parent:
            # Between two parents there is no path to interpolate along; the earlier one still held.
            return parent, T0
        before, after = self.stamps[index - 1], self.stamps[index]
        return parent, slerp(T0, T1, (stamp - before) / (after - before))[0]


class FrameTree:
    """Poses of frames in each other; not synchronised, the caller locks.

    >>> tree = FrameTree()
    >>> tree.insert("base", "tool", np.eye(4), 0, static=True)
    True
    >>> tree.lookup("base", "tool", 0)[0].shape
    (4, 4)
    """

    def __init__(self, keep_s: float = 10.0) -> None:
        self._keep_ns = int(keep_s * 1e9)
        self._frames: dict[str, _History] = {}
        self._known: set[str] = set()

    def insert(self, parent: str, child: str, parent_T_child: Matrix, stamp_ns: int, *, static: bool) -> bool:
        """Add a sample; False when it is older than the history reaches."""
        if parent == child:
            raise InvalidArgumentException(f"frame [{child}] cannot be its own parent")
        for name in (parent, child):
            _require_name(name)
        if not np.all(np.isfinite(parent_T_child)):
            raise InvalidArgumentException(f"transform of [{child}] in [{parent}] holds NaN or infinity")
        history = self._frames.get(child)
        if history is None or history.static != static:
            history = self._frames[child] = _History(static)
        self._known.update((parent, child))
        return history.insert(stamp_ns, parent, parent_T_child, self._keep_ns)

    def clear(self) -> None:
        """Forget everything that moves; static frames stay."""
        self._frames = {name: history for name, history in self._frames.items() if history.static}
        self._known = {n for child, history in self._frames.items() for n in (child, history.samples[0][0])}

    def frames(self) -> dict[str, str]:
        """Parent of every frame that has one."""
        return {child: history.samples[-1][0] for child, history in self._frames.items()}

    def lookup(self, target: str, source: str, stamp_ns: int) -> tuple[Matrix, int]:
        """target_T_source and its time; stamp 0 = the newest time that all frames on the way have."""
        for name in (target, source):
            _require_name(name)
            if name not in self._known:
                raise LookupException(f'"{name}" passed to lookupTransform does not exist.')
        if target == source:
            return np.eye(4), stamp_ns
        up_target, up_source = self._ancestors(target, stamp_ns), self._ancestors(source, stamp_ns)
        common = next((frame for frame in up_source if frame in up_target), None)
        if common is None:
            raise ConnectivityException(
                f"Could not find a connection between '{target}' and '{source}' because they are not part of the same "
                f"tree. Tf has two or more unconnected trees."
            )
        way = up_target[: up_target.index(common)] + up_source[: up_source.index(common)]
        stamp = stamp_ns or self._newest_common(way)
        common_T_target = self._chain(up_target, common, stamp)
        common_T_source = self._chain(up_source, common, stamp)
        return invert(common_T_target) @ common_T_source, stamp

    def _ancestors(self, frame: str, stamp_ns: int) -> list[str]:
        """The frame and its ancestors at that time, root last; outside the history the nearest sample tells."""
        line = [frame]
        while (history := self._frames.get(line[-1])) is not None:
            parent = history.parent(stamp_ns)
            if parent in line:
                raise ConnectivityException(f"The tf tree contains a loop: {' -> '.join([*line, parent])}")
            line.append(parent)
        return line

    def _newest_common(self, way: list[str]) -> int:
        moving = [self._frames[frame].stamps[-1] for frame in way if not self._frames[frame].static]
        return min(moving, default=0)

    def _chain(self, line: list[str], end: str, stamp: int) -> Matrix:
        end_T_frame = np.eye(4)
        for frame in line[: line.index(end)]:
            _, parent_T_frame = self._frames[frame].at(frame, stamp)
            end_T_frame = parent_T_frame @ end_T_frame
        return end_T_frame


def _require_name(name: str) -> None:
    if not name:
        raise InvalidArgumentException("a frame name is empty")
    if name.startswith("/"):
        raise InvalidArgumentException(f'frame "{name}" starts with a "/"; tf2 names do not')
