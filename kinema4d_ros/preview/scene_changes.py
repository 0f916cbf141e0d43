"""When the world was seen and when it changed: stamps of others, believed as far as this machine's clock allows."""

from __future__ import annotations

import threading

__all__ = ["AHEAD_NS", "WorldChanges", "believed"]

AHEAD_NS = 5_000_000_000
"""How far the clock of another machine may be ahead of this one's, nanoseconds."""


def believed(stamp_ns: int, now_ns: int) -> int:
    """The moment that a stamp can stand for: itself, or that of its arrival where nobody can have meant it.

    No stamp (0), one before 1970 and one from the far future would otherwise decide for ever whether an image
    shows the world as it is. `now_ns` is the receiver's own clock when the message came.
    """
    return stamp_ns if 0 < stamp_ns <= now_ns + AHEAD_NS else now_ns


class WorldChanges:
    """The newest change of the world that was told of. Thread-safe.

    A change without a usable stamp counts from its arrival; one that is older than a known one changes
    nothing, so a message that is replayed makes no old image valid again. Only where the receiver's own clock
    went back, because a simulation started again, does the change go back with it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._changed_ns = 0
        self._heard_ns = 0

    @property
    def newest_ns(self) -> int:
        """Stamp of the newest change; 0 when there was none."""
        return self._changed_ns

    def hear(self, stamp_ns: int, now_ns: int) -> int:
        """Take a message's stamp, and the receiver's clock; the stamp that the change counts from."""
        stamp_ns = believed(stamp_ns, now_ns)
        with self._lock:
            went_back = now_ns < self._heard_ns
            self._heard_ns = now_ns
            self._changed_ns = stamp_ns if went_back else max(self._changed_ns, stamp_ns)
            return self._changed_ns
