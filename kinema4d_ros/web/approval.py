"""What a person at the page may do with the newest plan: look, then approve, then execute; and why not yet.

The gate decides; this only keeps the page from offering what the gate would refuse, and from letting a person
approve a plan whose prediction is not the one on the screen.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

__all__ = ["Desk", "PlanDesk"]


@dataclass(frozen=True)
class Desk:
    """What is possible now.

    Attributes:
        may_approve, may_execute: whether the buttons work.
        text: one line: what has been done and what comes next.
        plan_hash: of the plan that the buttons speak of, "" without one.
        token: of the approval, "" without one.
    """

    may_approve: bool
    may_execute: bool
    text: str
    plan_hash: str = ""
    token: str = ""


class PlanDesk:
    """Follows one plan from preview to motion. Thread-safe; times are the caller's monotonic seconds."""

    def __init__(self, control: bool = True) -> None:
        self._control = control
        self._lock = threading.Lock()
        self._offered = ("", "")
        self._shown = ("", "")
        self._approval: tuple[str, str, float] | None = None
        self._moving_until_s = float("-inf")
        self._executed = ""

    def offer(self, plan_hash: str, rollout_id: str) -> None:
        """A plan has been previewed: it may be approved once its rollout is on the page."""
        with self._lock:
            if (plan_hash, rollout_id) != self._offered:
                self._approval = None
                self._executed = ""
            self._offered = (plan_hash, rollout_id)

    def show(self, plan_hash: str, rollout_id: str) -> None:
        """The page now shows this rollout."""
        with self._lock:
            if (plan_hash, rollout_id) != self._shown:
                self._approval = None
            self._shown = (plan_hash, rollout_id)

    def withdraw(self) -> None:
        """The world has changed (the table was laid anew): nothing on the page is true any more."""
        with self._lock:
            self._offered, self._shown, self._approval, self._executed = ("", ""), ("", ""), None, ""

    def approved(self, plan_hash: str, token: str, until_s: float) -> None:
        """The gate gave a token."""
        with self._lock:
            if plan_hash == self._offered[0] == self._shown[0]:
                self._approval = (plan_hash, token, until_s)

    def refused(self) -> None:
        """The gate refused: an approval that was there is spent."""
        with self._lock:
            self._approval = None

    def executed(self, plan_hash: str, now_s: float, duration_s: float) -> None:
        """The arm has begun to follow the plan."""
        with self._lock:
            self._approval = None
            self._executed = plan_hash
            self._moving_until_s = now_s + duration_s

    def stopped(self) -> None:
        """The arm's controller says that the motion is over, to its end or not."""
        with self._lock:
            self._moving_until_s = float("-inf")

    def now(self, now_s: float) -> Desk:
        """What may be done at this moment."""
        with self._lock:
            plan_hash, _ = self._offered
            if now_s < self._moving_until_s:
                return Desk(False, False, f"The arm moves: {self._moving_until_s - now_s:.0f} s to go", plan_hash)
            if not plan_hash:
                return Desk(False, False, "Preview a plan first")
            if self._executed == plan_hash:
                return Desk(False, False, "Done. Preview the next plan", plan_hash)
            if self._offered != self._shown:
                return Desk(False, False, "The prediction is on its way", plan_hash)
            if not self._control:
                return Desk(False, False, "This page only shows; approve at the robot's own machine", plan_hash)
            approval = self._approval
            if approval is not None and now_s < approval[2]:
                left = f"Approved: execute within {approval[2] - now_s:.0f} s"
                return Desk(False, True, left, plan_hash, approval[1])
            if approval is not None:
                return Desk(True, False, "The approval has expired: look again and approve", plan_hash)
            return Desk(True, False, "Look at the prediction, then approve", plan_hash)
