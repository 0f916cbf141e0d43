"""The gate over the controller's action, and what becomes of an approval when the world changes: over real DDS."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from support.motions import WAIT_S, arm, code_of, refused, settle, swing, wait_until_ready
from support.sim_graph import NodeProcess, client, running, small_camera

from kinema4d_msgs.msg import ExecutionStatus, PreviewStatus
from kinema4d_msgs.srv import ResetLab
from kinema4d_ros.core.errors import ErrorCode
from kinema4d_ros.core.trajectory import JointTrajectory
from kinema4d_ros.ros import names
from kinema4d_ros.ros.client import PreviewClient
from kinema4d_ros.ros.messages.stamps import header
from kinema4d_ros.ros.messages.trajectories import trajectory_to_msg
from kinema4d_ros.ros.qos import profile

NODES = ("lab", "preview", "generator", "gate")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, NodeProcess]]:
    scene = {"calibration": small_camera(tmp_path_factory.mktemp("camera"))}
    options: dict[str, dict[str, Any]] = {
        # Preview and gate let more pass than the controller does, so that it is the one who refuses.
        "preview": {**scene, "frames": 9, "start_tolerance_rad": 0.2},
        "gate": {"controller": "action", "start_tolerance_rad": 0.2},
        "lab": scene,
    }
    with running(NODES, options) as made:
        yield made


@pytest.fixture(scope="module")
def graph(nodes: dict[str, NodeProcess]) -> Iterator[PreviewClient]:
    with client() as made:
        made.listen(names.EXECUTION_STATUS)
        made.listen(names.PREVIEWED_PLAN)
        made.wait_for(lambda: made.newest(names.CAMERA_IMAGE) is not None, WAIT_S, "the camera")
        wait_until_ready(made, "preview", "gate")
        yield made


def reset(graph: PreviewClient) -> None:
    answer = graph.call(names.LAB_RESET, ResetLab.Request(scenario="canonical", seed=0), WAIT_S)
    assert answer.error.code == ErrorCode.NONE
    settle(graph)


def status_of(graph: PreviewClient, plan_hash: str, phase: int) -> Any:
    def there() -> bool:
        newest = graph.newest(names.EXECUTION_STATUS)
        return newest is not None and newest.plan_hash == plan_hash and newest.phase == phase

    graph.wait_for(there, WAIT_S, f"execution status {phase}")
    return graph.newest(names.EXECUTION_STATUS)


def with_velocities(plan: JointTrajectory, end: float = 0.0) -> JointTrajectory:
    """The same points with the slopes there, at rest at the start; joint 1 ends at this velocity."""
    rates = np.gradient(plan.positions, plan.times, axis=0)
    rates[[0, -1]] = 0.0
    rates[-1, plan.names.index("joint1")] = end
    return JointTrajectory(plan.names, plan.times, plan.positions, rates)


def test_velocities_that_the_arm_cannot_have_are_refused_before_anything_is_drawn(graph: PreviewClient) -> None:
    settle(graph)
    assert refused(graph, with_velocities(swing(graph), end=0.2)) == ErrorCode.TRAJECTORY_TOO_FAST
    assert refused(graph, with_velocities(swing(graph), end=50.0)) == ErrorCode.TRAJECTORY_TOO_FAST


def test_the_controller_says_that_the_arm_arrived(graph: PreviewClient) -> None:
    settle(graph)
    before = arm(graph)[1]
    plan = with_velocities(swing(graph, duration_s=5.0))
    report = graph.preview(plan, timeout_s=WAIT_S)
    announced = graph.newest(names.PREVIEWED_PLAN).trajectory
    np.testing.assert_array_equal([point.velocities for point in announced.points], plan.velocities)
    token = graph.approve(report.plan_hash, "test")
    assert graph.execute(report.plan_hash, token) == pytest.approx(5.0)
    assert code_of(graph.approve, report.plan_hash, "test") == ErrorCode.ARM_BUSY
    done = status_of(graph, report.plan_hash, ExecutionStatus.DONE)
    assert done.duration_s == pytest.approx(5.0)
    assert done.error.code == ErrorCode.NONE
    settle(graph)
    assert arm(graph)[1][0] - before[0] == pytest.approx(0.2, abs=0.01)


def test_a_plan_that_the_controller_rejects_is_a_refusal(graph: PreviewClient) -> None:
    settle(graph)
    before = arm(graph)[1]
    report = graph.preview(swing(graph, start=0.15), timeout_s=WAIT_S)
    token = graph.approve(report.plan_hash, "test")
    assert code_of(graph.execute, report.plan_hash, token) == ErrorCode.ARM_REFUSED
    assert code_of(graph.execute, report.plan_hash, token) == ErrorCode.APPROVAL_USED
    graph.approve(report.plan_hash, "test")  # and not ARM_BUSY: nothing moves
    settle(graph)
    assert abs(arm(graph)[1] - before).max() < 0.01


def test_a_motion_that_the_controller_aborts_is_reported(graph: PreviewClient) -> None:
    settle(graph)
    report = graph.preview(swing(graph, 0.3, duration_s=60.0), timeout_s=WAIT_S)
    graph.execute(report.plan_hash, graph.approve(report.plan_hash, "test"))
    status_of(graph, report.plan_hash, ExecutionStatus.SENT)
    reset(graph)
    aborted = status_of(graph, report.plan_hash, ExecutionStatus.ABORTED)
    assert aborted.error.code == ErrorCode.ARM_ABORTED
    assert "the scene was reset" in aborted.error.message
    # The gate waits no longer for a motion that has ended.
    again = graph.preview(swing(graph), timeout_s=WAIT_S)
    graph.approve(again.plan_hash, "test")


def test_a_table_laid_anew_voids_plan_and_approval_until_the_next_preview(graph: PreviewClient) -> None:
    reset(graph)
    plan = swing(graph)
    report = graph.preview(plan, timeout_s=WAIT_S)
    token = graph.approve(report.plan_hash, "test")
    reset(graph)
    assert code_of(graph.execute, report.plan_hash, token) == ErrorCode.WORLD_CHANGED
    assert code_of(graph.approve, report.plan_hash, "test") == ErrorCode.WORLD_CHANGED
    graph.preview(plan, timeout_s=WAIT_S)
    assert code_of(graph.execute, report.plan_hash, token) == ErrorCode.APPROVAL_INVALID
    graph.execute(report.plan_hash, graph.approve(report.plan_hash, "test"))
    status_of(graph, report.plan_hash, ExecutionStatus.DONE)


def test_a_preview_under_way_when_the_table_changes_fails(graph: PreviewClient) -> None:
    reset(graph)
    seen: list[Any] = []
    change = graph.node.create_publisher(
        names.WORLD_CHANGED.interface(), names.WORLD_CHANGED.name, profile(names.WORLD_CHANGED)
    )
    graph.wait_for(lambda: change.get_subscription_count() >= 2, WAIT_S, "preview and gate")
    plans = graph.node.create_publisher(names.PLAN.interface(), names.PLAN.name, profile(names.PLAN))
    graph.wait_for(lambda: plans.get_subscription_count() > 0, WAIT_S, "the preview")
    graph.listen(names.PREVIEW_STATUS, seen.append)
    stamp = graph.node.get_clock().now().to_msg()
    plans.publish(trajectory_to_msg(swing(graph, 0.25), header(stamp)))

    def phases() -> list[int]:
        return [status.phase for status in seen if status.header.stamp == stamp]

    graph.wait_for(lambda: PreviewStatus.RENDERING in phases(), WAIT_S, "the plan to be drawn")
    change.publish(header(graph.node.get_clock().now().to_msg()))
    graph.wait_for(lambda: PreviewStatus.FAILED in phases(), WAIT_S, "the preview to fail")
    assert PreviewStatus.DONE not in phases()
    failed = next(s for s in seen if s.header.stamp == stamp and s.phase == PreviewStatus.FAILED)
    assert failed.error.code == ErrorCode.WORLD_CHANGED
