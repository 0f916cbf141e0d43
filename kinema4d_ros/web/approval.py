"""Allowed actions on the newest plan at the page: view, then approve, then execute.

The gate decides. This only disables actions that the gate would refuse, and approval of a plan whose prediction is
not the one on the screen.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

__all__ = ["Desk", "PlanDesk"]


@dataclass(frozen=True)
class Desk:
    """Currently allowed actions.

    Attributes:
        may_approve, may_execute: whether the buttons are enabled.
        text: one line about the state and the next step.
        plan_hash: hash of the plan that the buttons act on, "" without one.
        token: token of the approval, "" without one.
    """

    may_approve: bool
    may_execute: bool
    text: str
    plan_hash: str = ""
    token: str = ""


class PlanDesk:
    """State of one plan from preview to motion. Thread-safe; times are the caller's monotonic seconds."""

    def __init__(self, control: bool = True) -> None:
        self._control = control
        self._lock = threading.Lock()
        self._offered = ("", "")
        self._shown = ("", "")
        self._approval: tuple[str, str, float] | None = None
        self._moving_until_s = float("-inf")
        self._executed = ""

    def offer(self, plan_hash: str, rollout_id: str) -> None:
        """Set the previewed plan; it may be approved once its rollout is on the page."""
        with self._lock:
            if (plan_hash, rollout_id) != self._offered:
                self._approval = None
                self._executed = ""
            self._offered = (plan_hash, rollout_id)

    def show(self, plan_hash: str, rollout_id: str) -> None:
        """Set the rollout on the page."""
        with self._lock:
            if (plan_hash, rollout_id) != self._shown:
                self._approval = None
            self._shown = (plan_hash, rollout_id)

    def withdraw(self) -> None:
        """Discard the plan, the rollout and the approval after a change of the scene."""
        with self._lock:
            self._offered, self._shown, self._approval, self._executed = ("", ""), ("", ""), None, ""

    def approved(self, plan_hash: str, token: str, until_s: float) -> None:
        """Store the gate's approval token."""
        with self._lock:
            if plan_hash == self._offered[0] == self._shown[0]:
                self._approval = (plan_hash, token, until_s)

    def refused(self) -> None:
        """Discard the approval after a refusal of the gate."""
        with self._lock:
            self._approval = None

    def executed(self, plan_hash: str, now_s: float, duration_s: float) -> None:
        """Set the start of the motion."""
        with self._lock:
            self._approval = None
            self._executed = plan_hash
            self._moving_until_s = now_s + duration_s

    def stopped(self) -> None:
        """Set the end of the motion, completed or aborted."""
        with self._lock:
            self._moving_until_s = float("-inf")

    def now(self, now_s: float) -> Desk:
        """Return the currently allowed actions."""
        with self._lock:
            plan_hash, _ = self._offered
            if now_s < self._moving_until_s:
                return Desk(False, False, f"The arm is moving: {self._moving_until_s - now_s:.0f} s left", plan_hash)
            if not plan_hash:
                return Desk(False, False, "Preview a plan first")
            if self._executed == plan_hash:
                return Desk(False, False, "Done. Preview the next plan", plan_hash)
            if self._offered != self._shown:
                return Desk(False, False, "Waiting for the prediction", plan_hash)
            if not self._control:
                return Desk(False, False, "This page is view-only; approve on the robot's machine", plan_hash)
            approval = self._approval
            if approval is not None and now_s < approval[2]:
                left = f"Approved: execute within {approval[2] - now_s:.0f} s"
                return Desk(False, True, left, plan_hash, approval[1])
            if approval is not None:
                return Desk(True, False, "The approval has expired: check the prediction and approve again", plan_hash)
            return Desk(True, False, "Check the prediction, then approve", plan_hash)
