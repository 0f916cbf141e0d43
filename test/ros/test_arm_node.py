"""The arm node with the real gate over DDS: motion off by default, only the gate moves the arm, it stops when lost.

Its driver is an arm in memory; `test/unit/arm/test_i2rt_driver.py` tests I2RT's driver.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from rclpy.qos import QoSProfile, QoSReliabilityPolicy
from support.health import ERROR, HealthWatch
from support.motions import WAIT_S, arm, code_of, swing, wait_until_ready
from support.ros_graph import Graph, own_domain, wait_for
from support.sim_graph import NodeProcess, client, running

from kinema4d_msgs.msg import ExecutionStatus, PreviewedPlan
from kinema4d_ros.core.errors import ErrorCode
from kinema4d_ros.core.trajectory import JointTrajectory, hash_trajectory
from kinema4d_ros.robot import Robot
from kinema4d_ros.ros import names
from kinema4d_ros.ros.client import PreviewClient
from kinema4d_ros.ros.messages.stamps import header
from kinema4d_ros.ros.messages.trajectories import trajectory_to_msg
from kinema4d_ros.ros.qos import profile

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

FAKE = {"driver": "support.fake_arm:FakeArm", "timeout_s": 2.0}
"""A generous timeout: a loaded test machine delays the loop."""

MOVES = {**FAKE, "enable_motion": True, "gate_timeout_s": 30.0}


class Cell:
    """Arm and gate as processes; the test is the preview."""

    def __init__(self, graph: Graph, heard: PreviewClient, nodes: Mapping[str, NodeProcess]) -> None:
        self.graph, self.client, self.nodes = graph, heard, nodes
        self.node = graph.node("preview")
        self._plans = self.node.create_publisher(
            names.PREVIEWED_PLAN.interface(), names.PREVIEWED_PLAN.name, profile(names.PREVIEWED_PLAN)
        )
        self.health = HealthWatch(graph)

    def approved(self, angle: float, duration_s: float = 1.0, listeners: int = 2) -> tuple[JointTrajectory, str, str]:
        """Offer a plan and have it approved: plan, hash and token."""
        plan = swing(self.client, angle, duration_s)
        stamp = self.node.get_clock().now().to_msg()
        message = PreviewedPlan(header=header(stamp), plan_hash=hash_trajectory(plan), world_stamp=stamp)
        message.trajectory = trajectory_to_msg(plan, header(stamp))
        wait_for(lambda: self._plans.get_subscription_count() >= listeners, WAIT_S, "gate and arm")
        self._plans.publish(message)
        tokens: list[str] = []

        def heard() -> bool:
            request = names.APPROVE.interface().Request(plan_hash=message.plan_hash)
            answer = self.client.call(names.APPROVE, request, WAIT_S)
            assert answer.error.code in (ErrorCode.NONE, ErrorCode.PLAN_UNKNOWN), answer.error.message
            tokens.append(answer.token)
            return bool(answer.token)

        self.client.wait_for(heard, WAIT_S, "the gate to hear of the plan")
        return plan, message.plan_hash, tokens[-1]

    def status(self, plan_hash: str, phase: int) -> Any:
        def there() -> bool:
            newest = self.client.newest(names.EXECUTION_STATUS)
            return newest is not None and (newest.plan_hash, newest.phase) == (plan_hash, phase)

        self.client.wait_for(there, WAIT_S, f"status {phase}: {self.nodes['arm'].text}")
        return self.client.newest(names.EXECUTION_STATUS)

    def turned(self) -> float:
        joints, q = arm(self.client)
        return float(q[joints.index("joint1")])


@contextmanager
def cell(parameters: Mapping[str, Any], controller: str = "action") -> Iterator[Cell]:
    with (
        own_domain(),
        running(("arm", "gate"), {"arm": parameters, "gate": {"controller": controller}}) as nodes,
        client() as heard,
    ):
        graph = Graph(2)
        try:
            made = Cell(graph, heard, nodes)
            wait_until_ready(heard, "gate")
            yield made
        finally:
            graph.close()


def test_joint_states_without_motion_and_no_controller(yam: Robot) -> None:
    """The default: every joint is published, reliably, and nothing can move the arm."""
    with cell(FAKE) as it:
        joints, q = arm(it.client)
        assert joints == list(yam.joint_names)
        assert np.allclose(q, yam.home_position())
        (info,) = wait_for(
            lambda: it.node.get_publishers_info_by_topic(names.JOINT_STATES.name), WAIT_S, "the publisher"
        )
        assert info.qos_profile.reliability == QoSReliabilityPolicy.RELIABLE
        assert it.node.count_subscribers(names.ARM_TRAJECTORY.name) == 0
        _, plan_hash, token = it.approved(0.1, listeners=1)
        assert code_of(it.client.execute, plan_hash, token) == ErrorCode.ARM_UNAVAILABLE
        it.health.wait("arm", 0, "motion is off")


@pytest.mark.full
@pytest.mark.parametrize("controller", ["action", "topic"])
def test_an_approved_plan_moves_the_arm_once(controller: str) -> None:
    with cell(MOVES, controller) as it:
        plan, plan_hash, token = it.approved(0.2)
        it.client.execute(plan_hash, token)
        if controller == "action":
            it.status(plan_hash, ExecutionStatus.DONE)
        wait_for(lambda: abs(it.turned() - plan.positions[-1, 0]) < 2e-3, WAIT_S, "the end of the motion")
        assert it.nodes["arm"].text.count("the arm follows a plan") == 1


def try_until(it: Cell, publisher: Any, message: Any, text: str) -> None:
    """Publish until the arm has logged this refusal: it logs the same code at most every five seconds."""

    def said() -> bool:
        publisher.publish(message)
        time.sleep(0.2)
        return text in it.nodes["arm"].text

    wait_for(said, WAIT_S, text)


@pytest.mark.full
def test_nobody_but_the_gate_and_nothing_but_a_previewed_plan_moves_the_arm() -> None:
    with cell(MOVES, "topic") as it:
        start = it.turned()
        teleop = Graph(1)
        other = teleop.node("teleop").create_publisher(
            names.ARM_TRAJECTORY.interface(), names.ARM_TRAJECTORY.name, QoSProfile(depth=1)
        )
        wait_for(lambda: other.get_subscription_count() > 0, WAIT_S, "the arm")
        message = trajectory_to_msg(swing(it.client, 0.3), header(0))
        try_until(it, other, message, "node /teleop publishes on /arm_controller/joint_trajectory")
        teleop.close()
        # A node that took the gate's name: its plan was never previewed.
        forged = it.graph.node("gate").create_publisher(
            names.ARM_TRAJECTORY.interface(), names.ARM_TRAJECTORY.name, QoSProfile(depth=1)
        )
        wait_for(lambda: forged.get_subscription_count() > 0, WAIT_S, "the arm")

        try_until(it, forged, message, "this trajectory was not previewed")
        assert abs(it.turned() - start) < 1e-3
        assert "the arm follows a plan" not in it.nodes["arm"].text


@pytest.mark.full
def test_the_arm_stops_when_the_gate_is_lost() -> None:
    with cell({**MOVES, "gate_timeout_s": 6.0}) as it:
        plan, plan_hash, token = it.approved(1.0, 40.0)
        start = it.turned()
        it.client.execute(plan_hash, token)
        wait_for(lambda: it.turned() > start + 0.01, WAIT_S, "motion")
        it.nodes["gate"].kill()
        it.nodes["arm"].wait_for_line("the gate is lost")
        time.sleep(1.0)
        held = it.turned()
        time.sleep(0.5)
        assert abs(it.turned() - held) < 2e-3
        assert held < plan.positions[-1, 0] - 0.02
        it.nodes["gate"].lines.clear()
        it.nodes["gate"].start()  # so that it can be stopped as the others are
        it.nodes["gate"].wait_for_line("ready")


@pytest.mark.full
@pytest.mark.parametrize(
    ("fault", "text"),
    [("breaks", "motor 2 reported over current"), ("blocked", "did not follow"), ("silent", "late")],
)
def test_a_fault_in_a_motion_is_reported_and_ends_it(fault: str, text: str) -> None:
    with cell({**MOVES, "channel": fault, "path_tolerance_rad": 0.15}) as it:
        _, plan_hash, token = it.approved(0.8, 4.0)
        it.client.execute(plan_hash, token)
        status = it.status(plan_hash, ExecutionStatus.ABORTED)
        assert text in status.error.message, status.error.message
        if fault != "blocked":
            it.health.wait("arm", ERROR)
            time.sleep(2.5)
            stamp = it.client.newest(names.JOINT_STATES).header.stamp
            time.sleep(0.5)
            assert it.client.newest(names.JOINT_STATES).header.stamp == stamp, "an old state is not a new one"


@pytest.mark.full
@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"driver": "ur5"}, "driver 'ur5' is not known"),
        ({"driver": "nowhere.at_all:Arm"}, "cannot be imported"),
        ({**FAKE, "speed_share": 3.0}, "speed_share"),
        ({**FAKE, "rate_hz": 20.0, "timeout_s": 0.05}, "at least two periods"),
        ({**FAKE, "calibrate_gripper": True, "gripper_open_rad": 2.0}, "expected one of the two"),
    ],
)
def test_what_cannot_start_says_why(given: dict[str, Any], text: str) -> None:
    node = NodeProcess("arm", given)
    node.wait_for_line(text)
    assert node.stop() == 2
    assert "Traceback" not in node.text
