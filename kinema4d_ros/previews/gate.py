"""The gate between preview and arm: one previewed plan, one approval by a person, one execution.

    previewed(plan) ──> approve(hash) ──> token ──> execute(hash, token) ──> the plan, once
          │                   │                            │
      newest only,     arm at its start          token valid, unused, unexpired;
   of the current scene                          arm still there and at rest

No ROS and no clock: the caller passes a monotonic time, so a clock jump cannot make anything valid again.
All state is in memory, so a restart closes the gate.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.core.errors import ErrorCode, KinemaError
from kinema4d_ros.core.trajectory import JointTrajectory, hash_trajectory
from kinema4d_ros.previews.arm import ArmState
from kinema4d_ros.robot.model import Robot

__all__ = ["Approval", "ExecutionGate", "GatePolicy"]


REMEMBERED = 1000
"""Number of superseded plans and used tokens that are stored for precise error codes. Dropping one is safe: only the
newest preview and the one open approval are accepted; the error is then "unknown" instead of "used"."""


@dataclass(frozen=True)
class GatePolicy:
    """Limits of age, position and speed for approval and execution.

    Attributes:
        plan_max_age_s: maximum age of a preview; the scene may have changed since.
        approval_ttl_s: lifetime of an approval.
        start_tolerance_rad: maximum distance of a revolute joint from the plan's first point. The preview checks
            plans against the same default, so that a previewed plan can be approved.
        start_tolerance_m: the same for prismatic joints.
        still_rad_s: speed below which the arm counts as at rest.
        still_m_s: the same for prismatic joints.
    """

    plan_max_age_s: float = 120.0
    approval_ttl_s: float = 30.0
    start_tolerance_rad: float = 0.02
    start_tolerance_m: float = 0.003
    still_rad_s: float = 0.05
    still_m_s: float = 0.01


@dataclass(frozen=True)
class Approval:
    """Permission for one plan: its token is valid once, until `expires_s` (the caller's clock)."""

    token: str
    plan_hash: str
    approver: str
    expires_s: float


@dataclass(frozen=True, eq=False)
class _Previewed:
    plan: JointTrajectory
    plan_hash: str
    at_s: float
    world_ns: int
    void: bool = False


class _Recent:
    """Set of the last `REMEMBERED` texts."""

    def __init__(self) -> None:
        self._texts: dict[str, None] = {}

    def add(self, text: str) -> None:
        self.discard(text)
        self._texts[text] = None
        if len(self._texts) > REMEMBERED:
            del self._texts[next(iter(self._texts))]

    def discard(self, text: str) -> None:
        self._texts.pop(text, None)

    def __contains__(self, text: object) -> bool:
        return text in self._texts


class ExecutionGate:
    """Decision whether a plan may move the arm. Thread-safe; every refusal raises an error with its own code."""

    def __init__(
        self,
        robot: Robot,
        policy: GatePolicy | None = None,
        permit: Callable[[JointTrajectory], None] = lambda plan: None,
    ) -> None:
        """`permit`, called at approval and execution, raises if a plan cannot be sent. It must not call the gate."""
        self.robot = robot
        self.policy = policy or GatePolicy()
        self._permit = permit
        self._lock = threading.Lock()
        self._previewed: _Previewed | None = None
        self._superseded = _Recent()
        self._approval: Approval | None = None
        self._used = _Recent()
        self._busy_until_s = -np.inf
        self._changed_ns = 0
        revolute = np.array([j.kind != "prismatic" for j in robot.actuated])
        self._start_tolerance = np.where(revolute, self.policy.start_tolerance_rad, self.policy.start_tolerance_m)
        self._still_speed = np.where(revolute, self.policy.still_rad_s, self.policy.still_m_s)

    def previewed(self, plan: JointTrajectory, plan_hash: str, now_s: float, world_ns: int | None = None) -> None:
        """Register a plan whose preview is available. It replaces the previous plan and its approval.

        `world_ns` is the stamp of the camera image that the preview starts from, nanoseconds; None = the current
        scene. A preview is refused if the scene has changed since, or if its image is older than the newest
        preview's, so that a replayed recording cannot renew a plan.
        """
        if plan_hash != (found := hash_trajectory(plan)):
            raise KinemaError(
                f"the plan's hash is {found}, not {plan_hash} as announced",
                expected="the plan that was previewed, unaltered",
                hint="preview it again",
                code=ErrorCode.PLAN_UNKNOWN,
            )
        plan.validate(self.robot, check_velocity=True)
        with self._lock:
            before = self._previewed
            seen_ns = before.world_ns if before is not None and not before.void else 0
            if world_ns is None:
                world_ns = max(self._changed_ns, seen_ns) + 1
            if world_ns <= self._changed_ns:
                raise self._refuse("the preview shows a world that has changed since", ErrorCode.WORLD_CHANGED)
            if world_ns < seen_ns:
                raise self._refuse("a preview of a newer image was announced already", ErrorCode.PLAN_STALE)
            if before is not None and before.plan_hash != plan_hash:
                self._superseded.add(before.plan_hash)
            if before is not None and (before.plan_hash != plan_hash or before.void):
                self._approval = None
            elif before is not None and before.world_ns == world_ns:
                # A repeated announcement, as a replayed recording sends it, must not renew the plan.
                now_s = before.at_s
            self._superseded.discard(plan_hash)
            self._previewed = _Previewed(plan, plan_hash, now_s, world_ns)

    def world_changed(self, stamp_ns: int) -> bool:
        """Invalidate previews of images up to this stamp, at which the scene changed; return True if there was one."""
        with self._lock:
            # A restarted simulation resets its clock; earlier stamps cannot be compared with it.
            went_back = stamp_ns < self._changed_ns
            self._changed_ns = stamp_ns
            if self._previewed is None or self._previewed.void:
                return False
            if self._previewed.world_ns > stamp_ns and not went_back:
                return False
            # The approval is kept, so that the client with its token gets the reason for the refusal.
            self._previewed = replace(self._previewed, void=True)
            return True

    def approve(self, plan_hash: str, approver: str, arm: ArmState, now_s: float) -> Approval:
        """Approve the newest previewed plan, named by its hash; an earlier approval is discarded."""
        with self._lock:
            previewed = self._require_current(plan_hash, now_s)
            self._require_idle(now_s)
            self._require_at_start(previewed.plan, arm, ErrorCode.PLAN_START_MISMATCH)
            self._permit(previewed.plan)
            self._approval = Approval(secrets.token_hex(16), plan_hash, approver, now_s + self.policy.approval_ttl_s)
            return self._approval

    def execute(self, plan_hash: str, token: str, arm: ArmState, now_s: float) -> JointTrajectory:
        """Return the approved plan, exactly as previewed, for execution; this call uses up the token."""
        with self._lock:
            if token in self._used:
                raise self._refuse("this approval was used already", ErrorCode.APPROVAL_USED)
            approval = self._approval
            if approval is None or not secrets.compare_digest(approval.token.encode(), token.encode()):
                raise self._refuse("no approval has this token", ErrorCode.APPROVAL_INVALID)
            if approval.plan_hash != plan_hash:
                raise self._refuse(
                    f"the approval is for plan {approval.plan_hash[:12]}, not {plan_hash[:12]}",
                    ErrorCode.APPROVAL_INVALID,
                )
            if now_s > approval.expires_s:
                self._approval = None
                raise self._refuse(
                    f"the approval expired {now_s - approval.expires_s:.1f} s ago", ErrorCode.APPROVAL_EXPIRED
                )
            previewed = self._require_current(plan_hash, now_s)
            self._require_idle(now_s)
            self._permit(previewed.plan)
            try:
                self._require_at_start(previewed.plan, arm, ErrorCode.ARM_MOVED)
            except KinemaError:
                self._approval = None
                raise
            self._used.add(token)
            self._approval = None
            # From 0, not from the first sample: a plan may start with a pause.
            self._busy_until_s = now_s + float(previewed.plan.times[-1])
            return previewed.plan

    def may_move(self, until_s: float) -> None:
        """Count the arm as busy until then, because it is unknown whether it follows the plan."""
        with self._lock:
            self._busy_until_s = max(self._busy_until_s, until_s)

    def finished(self) -> None:
        """Mark the arm as idle: the controller reported the end of the motion, successful or not."""
        with self._lock:
            self._busy_until_s = -np.inf

    def _require_current(self, plan_hash: str, now_s: float) -> _Previewed:
        previewed = self._previewed
        if plan_hash in self._superseded:
            raise self._refuse("a newer plan was previewed since", ErrorCode.PLAN_SUPERSEDED)
        if previewed is None or previewed.plan_hash != plan_hash:
            raise self._refuse(f"plan '{plan_hash[:12]}' was never previewed here", ErrorCode.PLAN_UNKNOWN)
        if previewed.void:
            raise self._refuse("the world has changed since this plan was previewed", ErrorCode.WORLD_CHANGED)
        age_s = now_s - previewed.at_s
        if age_s > self.policy.plan_max_age_s:
            raise self._refuse(
                f"the preview is {age_s:.0f} s old, more than {self.policy.plan_max_age_s:g} s", ErrorCode.PLAN_STALE
            )
        return previewed

    def _require_idle(self, now_s: float) -> None:
        if now_s < self._busy_until_s:
            raise self._refuse(
                f"the arm follows another plan for {self._busy_until_s - now_s:.1f} s more", ErrorCode.ARM_BUSY
            )

    def _require_at_start(self, plan: JointTrajectory, arm: ArmState, code: ErrorCode) -> None:
        start = self.robot.positions(plan.names, plan.positions[:1], fill=arm.positions)[0]
        self._require_small(arm.positions - start, self._start_tolerance, "away from the plan's start", code)
        unknown = np.flatnonzero(~np.isfinite(arm.velocities))
        if unknown.size:
            name = self.robot.actuated[int(unknown[0])].name
            raise self._refuse(f"whether joint '{name}' stands still is not known yet", code)
        self._require_small(arm.velocities, self._still_speed, "per second: the arm is moving", code)

    def _require_small(
        self, values: NDArray[np.float64], limits: NDArray[np.float64], what: str, code: ErrorCode
    ) -> None:
        worst = int(np.argmax(np.abs(values) / limits))
        if abs(values[worst]) > limits[worst]:
            joint = self.robot.actuated[worst]
            unit = "m" if joint.kind == "prismatic" else "rad"
            raise self._refuse(
                f"joint '{joint.name}' is {values[worst]:+.4f} {unit} {what} (allowed {limits[worst]:g})", code
            )

    @staticmethod
    def _refuse(why: str, code: ErrorCode) -> KinemaError:
        return KinemaError(
            f"the arm stays where it is: {why}",
            expected="the newest previewed plan, approved a moment ago, with the arm standing at its start",
            hint="preview, check, approve and execute again",
            code=code,
        )
