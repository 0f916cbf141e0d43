"""Approval and execution of the plan of a `PlanDesk` through the gate, for the page and for the menu in RViz."""

from __future__ import annotations

from typing import Any

from kinema4d_ros.ros import names
from kinema4d_ros.ros.calls import ANSWER_S, ServiceCalls, execute_once
from kinema4d_ros.ros.messages.errors import raise_from_msg
from kinema4d_ros.ros.messages.stamps import nanoseconds
from kinema4d_ros.ros.nodes.common import KinemaNode
from kinema4d_ros.web.approval import Desk, PlanDesk

__all__ = ["DeskCalls"]


class DeskCalls:
    """Calls of the gate for what a person chose. The caller has checked that the `Desk` allows it."""

    def __init__(self, node: KinemaNode, desk: PlanDesk, calls: ServiceCalls) -> None:
        self._node = node
        self._desk = desk
        self._calls = calls
        self.execution: Any = None
        """The newest message of `execution_status`."""

    def approve(self, desk: Desk, approver: str) -> None:
        """Approve the plan; raise the gate's refusal."""
        request = names.APPROVE.interface().Request(plan_hash=desk.plan_hash, approver=approver)
        answer = self._calls.call(names.APPROVE, request)
        raise_from_msg(answer.error)
        left_s = (nanoseconds(answer.expires) - self._node.get_clock().now().nanoseconds) * 1e-9
        self._desk.approved(desk.plan_hash, answer.token, self._node.now_s() + left_s)

    def execute(self, desk: Desk) -> float:
        """Execute the approved plan and return its duration in seconds; raise the gate's refusal."""
        # A token is used once, whatever the outcome.
        self._desk.refused()
        duration_s = execute_once(self._calls, lambda: self.execution, desk.plan_hash, desk.token, ANSWER_S)
        self._desk.executed(desk.plan_hash, self._node.now_s(), duration_s)
        return duration_s
