"""Actions of the page's buttons: ordinary messages and service calls of the graph."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from kinema4d_ros.core.trajectory import JointTrajectory
from kinema4d_ros.kinematics.protocol import Kinematics
from kinema4d_ros.physics.objects import PlacedObject
from kinema4d_ros.ros import names
from kinema4d_ros.ros.calls import ANSWER_S, ServiceCalls, execute_once, missing
from kinema4d_ros.ros.messages.errors import raise_from_msg
from kinema4d_ros.ros.messages.stamps import header, nanoseconds
from kinema4d_ros.ros.messages.trajectories import trajectory_to_msg
from kinema4d_ros.ros.nodes.common import KinemaNode
from kinema4d_ros.ros.nodes.inputs import ArmInput
from kinema4d_ros.web.approval import PlanDesk
from kinema4d_ros.web.demo import plan_home, plan_pick_and_place
from kinema4d_ros.web.page import Page

__all__ = ["Buttons"]

RESET_S, SETTLE_S = 30.0, 5.0
"""Timeouts in seconds: for a reset of the scene, and until messages of the new scene have arrived."""


class Buttons:
    """Actions of the buttons; they run in the caller's thread and show their outcome on the page."""

    def __init__(
        self, node: KinemaNode, page: Page, desk: PlanDesk, calls: ServiceCalls, arm: ArmInput, kinematics: Kinematics
    ) -> None:
        self._node = node
        self._page = page
        self._desk = desk
        self._calls = calls
        self._arm = arm
        self._kinematics = kinematics
        self._plans = node.publisher(names.PLAN)
        self.execution: Any = None
        """The newest message of `execution_status`."""

    def preview_pick(self, name: str, objects: Mapping[str, PlacedObject]) -> None:
        """Plan a pick and place of an object, and send the plan for preview."""
        self._send(plan_pick_and_place(self._kinematics, self._arm.state().positions, dict(objects), name))

    def preview_home(self) -> None:
        """Plan a motion to the home position, and send the plan for preview."""
        self._send(plan_home(self._kinematics, self._arm.state().positions))

    def _send(self, plan: JointTrajectory) -> None:
        if self._plans.get_subscription_count() == 0:
            raise missing(names.PLAN, "no subscriber")
        self._page.say("busy", f"A plan of {plan.duration_s:.1f} s was sent for preview")
        base = self._kinematics.robot.base_link
        self._plans.publish(trajectory_to_msg(plan, header(self._node.get_clock().now().to_msg(), base)))

    def approve(self, approver: str) -> None:
        """Approve the current plan."""
        desk = self._desk.now(self._node.now_s())
        if not desk.may_approve:
            self._page.say("bad", f"Not approved. {desk.text}")
            return
        request = names.APPROVE.interface().Request(plan_hash=desk.plan_hash, approver=approver)
        answer = self._calls.call(names.APPROVE, request)
        raise_from_msg(answer.error)
        left_s = (nanoseconds(answer.expires) - self._node.get_clock().now().nanoseconds) * 1e-9
        self._desk.approved(desk.plan_hash, answer.token, self._node.now_s() + left_s)
        self._page.say("good", "Approved. The robot moves when Execute is pressed")

    def execute(self) -> None:
        """Execute the approved plan."""
        desk = self._desk.now(self._node.now_s())
        if not desk.may_execute:
            self._page.say("bad", f"Not executed. {desk.text}")
            return
        # A token is used once, whatever the outcome.
        self._desk.refused()
        duration_s = execute_once(self._calls, lambda: self.execution, desk.plan_hash, desk.token, ANSWER_S)
        self._desk.executed(desk.plan_hash, self._node.now_s(), duration_s)
        self._page.say("good", f"The robot follows the plan, {duration_s:.1f} s")

    def reset(self, scenario: str, seed: int, forget: Callable[[], None], settled: Callable[[int], bool]) -> None:
        """Reset the scene of the lab.

        `forget` discards the predictions of the old scene; `settled` returns whether all inputs of a plan have
        arrived since a stamp in nanoseconds.
        """
        request = names.LAB_RESET.interface().Request(scenario=scenario, seed=seed)
        self._page.say("busy", f"Resetting the scene: {scenario}, seed {seed}")
        answer = self._calls.call(names.LAB_RESET, request, RESET_S)
        raise_from_msg(answer.error)
        laid_ns = self._node.get_clock().now().nanoseconds
        forget()
        deadline = time.monotonic() + SETTLE_S
        while not settled(laid_ns) and time.monotonic() < deadline:
            if self._node.closing.wait(0.02):
                return
        self._page.say("good", f"On the table: {', '.join(answer.objects)}")
