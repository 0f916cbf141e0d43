"""The whole graph over real DDS: preview, approve, execute, supersede, refuse, play, survive."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import numpy as np
import pytest
from support.motions import WAIT_S, arm, refused, settle, swing
from support.sim_graph import NodeProcess, client, running

from kinema4d_msgs.msg import PreviewStatus
from kinema4d_msgs.srv import Playback, ResetLab
from kinema4d_ros.core.errors import ErrorCode, KinemaError
from kinema4d_ros.core.trajectory import JointTrajectory, hash_trajectory
from kinema4d_ros.kinematics.forward import forward_all
from kinema4d_ros.robot import Robot
from kinema4d_ros.ros import names
from kinema4d_ros.ros.client import PreviewClient
from kinema4d_ros.ros.messages.images import image_to_array
from kinema4d_ros.ros.messages.points import points_from_cloud
from kinema4d_ros.ros.messages.poses import matrices_to_pose_array
from kinema4d_ros.ros.messages.rollout import rollout_from_msg
from kinema4d_ros.ros.messages.stamps import header
from kinema4d_ros.ros.messages.trajectories import trajectory_to_msg
from kinema4d_ros.ros.qos import profile

NODES = ("lab", "twin", "preview", "generator", "playback", "gate")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def nodes() -> Iterator[dict[str, NodeProcess]]:
    with running(NODES) as made:
        yield made


@pytest.fixture(scope="module")
def graph(nodes: dict[str, NodeProcess]) -> Iterator[PreviewClient]:
    with client() as made:
        for endpoint in (names.PREDICTED_ROLLOUT, names.PREDICTED_IMAGE, names.PREDICTED_POINTS, names.TF):
            made.listen(endpoint)
        for endpoint in (names.MARKERS, names.ROBOT_DESCRIPTION, names.LAB_OBJECTS, names.ROBOT_POINTS):
            made.listen(endpoint)
        # Each is discovered and sent on its own: the overlay may be there before the first cloud or frame of TF.
        live = (
            names.ROBOT_OVERLAY,
            names.CAMERA_IMAGE,
            names.JOINT_STATES,
            names.ROBOT_POINTS,
            names.ROBOT_DESCRIPTION,
        )
        for endpoint in (*live, names.TF):
            made.wait_for(lambda e=endpoint: made.newest(e) is not None, WAIT_S, endpoint.name)  # type: ignore[misc]
        yield made


def test_the_twin_lies_on_the_picture(graph: PreviewClient, yam: Robot) -> None:
    """Overlay and cloud carry the stamp of the image; the drawn robot is where the lab's robot is."""
    image, drawn = graph.newest(names.CAMERA_IMAGE), graph.newest(names.ROBOT_OVERLAY)
    assert (drawn.width, drawn.height) == (image.width, image.height)
    assert drawn.header.frame_id == image.header.frame_id == "camera_optical_frame"
    pixels = image_to_array(drawn).astype(int)
    assert np.abs(pixels - image_to_array(image)).max() > 20
    points, colours = points_from_cloud(graph.newest(names.ROBOT_POINTS))
    assert points.size > 3000
    assert np.isfinite(points).all()
    assert colours is not None
    description = graph.newest(names.ROBOT_DESCRIPTION).data
    assert "file://" in description
    assert "joint6" in description


def test_tf_agrees_with_the_kinematics(graph: PreviewClient, yam: Robot) -> None:
    settle(graph)
    joints, q = arm(graph)
    graph.wait_for(lambda: len(graph.newest(names.TF).transforms) > 5, WAIT_S, "link frames")
    found = {t.child_frame_id: t.transform.translation for t in graph.newest(names.TF).transforms}
    poses = forward_all(yam, yam.positions(joints, q[None]))[0]
    for link, pose in zip(yam.links[1:], poses[1:], strict=True):
        np.testing.assert_allclose([found[link.name].x, found[link.name].y, found[link.name].z], pose[:3, 3], atol=1e-3)


def rollout_of(graph: PreviewClient) -> str:
    """The hash of the plan whose rollout came last."""
    newest = graph.newest(names.PREDICTED_ROLLOUT)
    return "" if newest is None else str(newest.plan_hash)


def test_a_plan_is_previewed_played_approved_and_executed(graph: PreviewClient) -> None:
    settle(graph)
    plan = swing(graph)
    phases: list[int] = []
    report = graph.preview(plan, lambda status: phases.append(status.phase), timeout_s=WAIT_S)
    assert [p for i, p in enumerate(phases) if i == 0 or phases[i - 1] != p] == [
        PreviewStatus.CHECKING,
        PreviewStatus.RENDERING,
        PreviewStatus.GENERATING,
        PreviewStatus.REPORTING,
        PreviewStatus.DONE,
    ]
    assert report.plan_hash == hash_trajectory(plan)
    assert len(report.clearance_m) == 49
    assert np.isfinite(report.min_clearance_m)

    graph.wait_for(lambda: rollout_of(graph) == report.plan_hash, WAIT_S, "the rollout")
    rollout = rollout_from_msg(graph.newest(names.PREDICTED_ROLLOUT))
    assert rollout.plan_hash == report.plan_hash
    assert rollout.rgb.shape == (49, 480, 720, 3)
    assert rollout.robot_mask.any(axis=(1, 2)).all()
    assert rollout.provenance.generator == "composite"
    graph.wait_for(lambda: graph.newest(names.MARKERS) is not None, WAIT_S, "the report's markers")
    assert graph.newest(names.MARKERS).markers

    def played() -> bool:
        image = graph.newest(names.PREDICTED_IMAGE)
        return image is not None and image.header.stamp != graph.newest(names.PREDICTED_ROLLOUT).header.stamp

    graph.wait_for(played, WAIT_S, "a second frame of the rollout")
    graph.wait_for(lambda: graph.newest(names.PREDICTED_POINTS) is not None, WAIT_S, "a cloud of the rollout")
    cloud = graph.newest(names.PREDICTED_POINTS)
    assert (cloud.width, cloud.height) == (720, 480)

    before = arm(graph)[1]
    token = graph.approve(report.plan_hash, "test")
    assert graph.execute(report.plan_hash, token) == pytest.approx(2.0)
    with pytest.raises(KinemaError) as again:
        graph.execute(report.plan_hash, token)
    assert again.value.code == ErrorCode.APPROVAL_USED
    graph.wait_for(lambda: arm(graph)[1][0] - before[0] > 0.19, WAIT_S, "the motion")
    settle(graph)
    moved = arm(graph)[1] - before
    np.testing.assert_allclose(moved[0], 0.2, atol=0.01)
    np.testing.assert_allclose(moved[1:], 0.0, atol=0.01)
    with pytest.raises(KinemaError) as elsewhere:
        graph.approve(report.plan_hash, "test")
    assert elsewhere.value.code == ErrorCode.PLAN_START_MISMATCH


def test_playback_is_controlled(graph: PreviewClient) -> None:
    settle(graph)
    report = graph.preview(swing(graph, 0.1), timeout_s=WAIT_S)
    graph.wait_for(lambda: rollout_of(graph) == report.plan_hash, WAIT_S, "the rollout")
    rollout_id = graph.newest(names.PREDICTED_ROLLOUT).rollout_id
    request = Playback.Request

    def command(which: int, value: float = 0.0) -> Playback.Response:
        return graph.call(names.PLAYBACK, request(command=which, value=value))

    graph.wait_for(lambda: command(request.STATUS).rollout_id == rollout_id, WAIT_S, "the rollout to be played")
    assert not command(request.PAUSE).playing
    sought = command(request.SEEK, 1.0)
    assert sought.time_s == pytest.approx(1.0)
    start = graph.newest(names.PREDICTED_ROLLOUT).header.stamp

    def at_one_second() -> bool:
        image = graph.newest(names.PREDICTED_IMAGE)
        if image is None:
            return False
        stamp = image.header.stamp
        return abs((stamp.sec - start.sec) + 1e-9 * (stamp.nanosec - start.nanosec) - 1.0) < 0.05

    graph.wait_for(at_one_second, WAIT_S, "the frame that was sought")
    assert command(request.SPEED, 2.0).speed == 2.0
    assert command(request.PLAY).playing
    for which, value in (
        (request.SEEK, -1.0),
        (request.SEEK, 1e9),
        (request.SPEED, 0.0),
        (request.OUTCOME, 1.0),
        (99, 0.0),
    ):
        assert command(which, value).error.code == ErrorCode.PLAYBACK_BAD_COMMAND
    command(request.SPEED, 1.0)


def test_tool_poses_become_a_plan(graph: PreviewClient, yam: Robot) -> None:
    settle(graph)
    joints, q = arm(graph)
    tool = [link.name for link in yam.links].index(yam.tool_link)
    pose = forward_all(yam, yam.positions(joints, q[None]))[0, tool]
    poses = np.tile(pose, (10, 1, 1))
    poses[:, 2, 3] -= np.linspace(0.0, 0.04, 10)
    publisher = graph.node.create_publisher(names.EE_PATH.interface(), names.EE_PATH.name, profile(names.EE_PATH))
    graph.wait_for(lambda: publisher.get_subscription_count() > 0, WAIT_S, "a preview node")
    old = graph.newest(names.PREDICTED_ROLLOUT)
    publisher.publish(matrices_to_pose_array(poses, header(0, yam.base_link)))

    def new() -> bool:
        newest = graph.newest(names.PREDICTED_ROLLOUT)
        return newest is not None and (old is None or newest.rollout_id != old.rollout_id)

    graph.wait_for(new, WAIT_S, "the rollout of the path")


def test_bad_plans_are_refused_with_their_codes(graph: PreviewClient) -> None:
    settle(graph)
    joints, q = arm(graph)
    good = swing(graph)
    far = q.copy()
    far[0] += 0.5
    cases = {
        ErrorCode.UNKNOWN_JOINT: JointTrajectory.from_positions(["elbow"], [[0.0], [0.1]], times=[0.0, 1.0]),
        ErrorCode.PLAN_START_MISMATCH: JointTrajectory.from_positions(joints, [far, far], times=[0.0, 1.0]),
        ErrorCode.TRAJECTORY_OUT_OF_LIMITS: JointTrajectory.from_positions(joints, [q, q + 9.0], times=[0.0, 99.0]),
        ErrorCode.TRAJECTORY_TOO_FAST: JointTrajectory.from_positions(
            good.names, good.positions, times=good.times / 1e3
        ),
    }
    for code, plan in cases.items():
        assert refused(graph, plan) == code
    graph.preview(good, timeout_s=WAIT_S)


def test_broken_plan_messages_are_refused_and_the_next_one_works(graph: PreviewClient) -> None:
    settle(graph)
    good = trajectory_to_msg(swing(graph), header(0))
    publisher = graph.node.create_publisher(names.PLAN.interface(), names.PLAN.name, profile(names.PLAN))
    graph.wait_for(lambda: publisher.get_subscription_count() > 0, WAIT_S, "a preview node")

    def send(change: str) -> ErrorCode:
        message = trajectory_to_msg(swing(graph), header(graph.node.get_clock().now().to_msg()))
        if change == "empty":
            message.points = []
        elif change == "nan":
            message.points[3].positions[0] = float("nan")
        elif change == "short":
            message.points[3].positions = message.points[3].positions[:-1]
        elif change == "backwards":
            message.points[3].time_from_start = message.points[1].time_from_start
        publisher.publish(message)

        def answered() -> bool:
            status = graph.newest(names.PREVIEW_STATUS)
            mine = status is not None and status.header.stamp == message.header.stamp
            return mine and status.phase == PreviewStatus.FAILED

        graph.wait_for(answered, WAIT_S, f"a refusal of '{change}'")
        return ErrorCode(graph.newest(names.PREVIEW_STATUS).error.code)

    assert send("empty") == ErrorCode.TRAJECTORY_EMPTY
    assert send("nan") == ErrorCode.TRAJECTORY_NOT_FINITE
    assert send("short") == ErrorCode.TRAJECTORY_BAD_SHAPE
    assert send("backwards") == ErrorCode.TRAJECTORY_NOT_MONOTONIC
    assert good.points
    graph.preview(swing(graph), timeout_s=WAIT_S)


def test_the_newest_plan_wins(graph: PreviewClient) -> None:
    settle(graph)
    publisher = graph.node.create_publisher(names.PLAN.interface(), names.PLAN.name, profile(names.PLAN))
    graph.wait_for(lambda: publisher.get_subscription_count() > 0, WAIT_S, "a preview node")
    for angle in (0.05, 0.10, 0.15):
        publisher.publish(trajectory_to_msg(swing(graph, angle), header(0)))
        time.sleep(0.05)
    newest = swing(graph, 0.25)
    report = graph.preview(newest, timeout_s=WAIT_S)
    assert report.plan_hash == hash_trajectory(newest)
    graph.wait_for(lambda: rollout_of(graph) == report.plan_hash, WAIT_S, "its rollout")


def test_the_table_can_be_laid_anew(graph: PreviewClient) -> None:
    response = graph.call(names.LAB_RESET, ResetLab.Request(scenario="cluttered", seed=4), timeout_s=WAIT_S)
    assert response.error.code == ErrorCode.NONE
    assert len(response.objects) >= 4
    unknown = graph.call(names.LAB_RESET, ResetLab.Request(scenario="moon", seed=0), timeout_s=WAIT_S)
    assert unknown.error.code == ErrorCode.SCENARIO_UNKNOWN
    assert "canonical" in unknown.error.message
    graph.call(names.LAB_RESET, ResetLab.Request(scenario="canonical", seed=0), timeout_s=WAIT_S)
    settle(graph)


def test_a_silent_arm_is_refused_and_heard_again(nodes: dict[str, NodeProcess], graph: PreviewClient) -> None:
    settle(graph)
    plan = swing(graph)
    lab = nodes["lab"].process
    os.kill(lab.pid, signal.SIGSTOP)
    try:
        time.sleep(1.0)
        assert refused(graph, plan) == ErrorCode.JOINT_STATES_STALE
        with pytest.raises(KinemaError) as caught:
            graph.approve(hash_trajectory(plan), "test")
        assert caught.value.code == ErrorCode.JOINT_STATES_STALE
    finally:
        os.kill(lab.pid, signal.SIGCONT)
    time.sleep(1.0)
    settle(graph)
    graph.preview(swing(graph), timeout_s=WAIT_S)


@pytest.mark.full
@pytest.mark.parametrize("victim", ["generator", "preview", "playback", "gate", "twin", "lab"])
def test_a_killed_node_comes_back_into_the_graph(
    nodes: dict[str, NodeProcess], graph: PreviewClient, victim: str
) -> None:
    nodes[victim].kill()
    nodes[victim].lines.clear()
    nodes[victim].start()
    nodes[victim].wait_for_line("ready")
    settle(graph)

    def through() -> bool:
        try:
            # A plan may go to the one that was killed: DDS believes in it for a while.
            report = graph.preview(swing(graph, 0.05), timeout_s=WAIT_S / 3)
            token = graph.approve(report.plan_hash, "test")
            graph.execute(report.plan_hash, token)
        except KinemaError:
            time.sleep(0.5)
            return False
        return True

    graph.wait_for(through, WAIT_S, f"a preview and a motion after {victim} came back")
    time.sleep(2.5)
    settle(graph)
