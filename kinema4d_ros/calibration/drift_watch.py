"""Turns single drift checks into a state that one bad picture cannot change."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Literal

from kinema4d_ros.calibration.drift import Drift

__all__ = ["DriftState", "DriftWatch"]


@dataclass(frozen=True)
class DriftState:
    """What the checks so far say.

    Attributes:
        verdict: "still", "moved", or "unknown": nothing could be told for a while, or ever.
        sure: False while fewer checks than needed agree; the next one should come soon.
        checks: made.
        text: one line: the newest check's for the verdict that holds.
        seen_px, seen_mm: of that check; NaN where unknown.
        shift_mm, turn_deg: of that check.
    """

    verdict: Literal["still", "moved", "unknown"] = "unknown"
    sure: bool = False
    checks: int = 0
    text: str = "not checked yet"
    seen_px: float = float("nan")
    seen_mm: float = float("nan")
    shift_mm: float = float("nan")
    turn_deg: float = float("nan")


class DriftWatch:
    """Takes checks, one after another; a verdict holds once enough of them in a row agree. Thread-safe.

    Args:
        agree: checks in a row that raise or clear "moved".
        blind: checks in a row that tell nothing, after which the state is "unknown".
    """

    def __init__(self, agree: int = 3, blind: int = 5) -> None:
        self._agree, self._blind = agree, blind
        self._lock = threading.Lock()
        self._state = DriftState()
        self._run: tuple[str, int] = ("", 0)

    @property
    def state(self) -> DriftState:
        """As of the newest check."""
        with self._lock:
            return self._state

    def take(self, check: Drift) -> DriftState:
        """Count a check."""
        with self._lock:
            verdict, count = self._run
            count = count + 1 if check.verdict == verdict else 1
            self._run = (check.verdict, count)
            needed = self._blind if check.verdict == "unknown" else self._agree
            checks = self._state.checks + 1
            if count >= needed or check.verdict == self._state.verdict:
                self._state = DriftState(
                    check.verdict,
                    count >= needed,
                    checks,
                    check.text,
                    check.seen_px,
                    check.seen_mm,
                    check.shift_mm,
                    check.turn_deg,
                )
            else:
                old = self._state
                self._state = DriftState(
                    old.verdict, False, checks, old.text, old.seen_px, old.seen_mm, old.shift_mm, old.turn_deg
                )
            return self._state
