"""The bridge between two processes over real DDS: rollouts, clouds, frames, and an action that can be cancelled."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bridge_peer
import numpy as np
import pytest
from action_msgs.msg import GoalStatus
from rclpy.duration import Duration
from rclpy.time import Time
from support.ros_graph import DISCOVERY_S, Asker, Graph, peer, wait_for

from kinema4d_msgs.action import GenerateRollout
from kinema4d_ros.core.errors import ErrorCode
from kinema4d_ros.core.pointmap import PointmapSequence
from kinema4d_ros.ros import names, qos
from kinema4d_ros.ros.messages.errors import error_from_msg
from kinema4d_ros.ros.messages.points import points_from_cloud
from kinema4d_ros.ros.messages.poses import transform_to_matrix
from kinema4d_ros.ros.messages.request import frames_to_msg
from kinema4d_ros.ros.messages.rollout import rollout_from_msg
from kinema4d_ros.ros.messages.stamps import nanoseconds, time_from_ns
from kinema4d_ros.ros.tf import Buffer, ExtrapolationException, LookupException, TransformListener

PEER = Path(__file__).with_name("bridge_peer.py")


@pytest.fixture(scope="module")
def publisher() -> Iterator[None]:
    with peer(PEER, "publish"):
        yield


@pytest.fixture(scope="module")
def server() -> Iterator[None]:
    with peer(PEER, "serve"):
        yield


def collect(graph: Graph, endpoint: names.Endpoint, count: int) -> list[Any]:
    received: list[Any] = []
    node = graph.node("collector")
    node.create_subscription(endpoint.interface(), endpoint.name, received.append, qos.profile(endpoint))
    wait_for(lambda: len(received) >= count, DISCOVERY_S + 5, f"{count} messages on {endpoint.name}")
    return received


@pytest.mark.usefixtures("publisher")
def test_a_late_joiner_gets_the_rollout(graph: Graph) -> None:
    [message] = collect(graph, names.PREDICTED_ROLLOUT, 1)
    read, sent = rollout_from_msg(message), bridge_peer.make_rollout()
    assert (read.rollout_id, read.plan_hash) == (sent.rollout_id, sent.plan_hash)
    assert nanoseconds(message.header.stamp) == 5
    np.testing.assert_array_equal(read.rgb, sent.rgb)
    np.testing.assert_array_equal(read.robot_mask, sent.robot_mask)
    np.testing.assert_array_equal(np.isnan(read.xyz), np.isnan(sent.xyz))
    assert np.nanmax(np.abs(read.xyz - sent.xyz)) < 0.051e-3


@pytest.mark.usefixtures("publisher")
def test_clouds_arrive_whole_and_in_order(graph: Graph) -> None:
    messages = list(collect(graph, names.PREDICTED_POINTS, 20))
    assert np.all(np.diff([nanoseconds(m.header.stamp) for m in messages]) > 0)
    xyz, rgb = bridge_peer.picture(0)
    points, colours = points_from_cloud(messages[-1])
    np.testing.assert_array_equal(points, xyz)
    np.testing.assert_array_equal(colours, rgb)
    assert messages[-1].header.frame_id == bridge_peer.CAMERA.frame_id


@pytest.mark.usefixtures("publisher")
def test_frames_can_be_looked_up_across_processes(graph: Graph) -> None:
    node, buffer = graph.node("listener"), Buffer()
    listener = TransformListener(buffer, node)
    # Both static frames, though they were sent one after the other, before we were there.
    for frame in (names.CAMERA_FRAME, "table"):
        found = buffer.lookup_transform(names.BASE_FRAME, frame, Time(), Duration(seconds=DISCOVERY_S))
        np.testing.assert_allclose(transform_to_matrix(found.transform), bridge_peer.CAMERA.base_T_camera, atol=1e-12)
    first = buffer.lookup_transform(names.BASE_FRAME, "tool", Time(), Duration(seconds=DISCOVERY_S))
    start = nanoseconds(first.header.stamp)
    # A time that is still to come: the call waits for it, then interpolates.
    later = start + 150_000_000
    found = buffer.lookup_transform(names.CAMERA_FRAME, "tool", Time(nanoseconds=later), Duration(seconds=5))
    expected = bridge_peer.CAMERA.camera_T_base @ bridge_peer.base_T_tool(later)
    np.testing.assert_allclose(transform_to_matrix(found.transform), expected, atol=1e-6)
    assert nanoseconds(found.header.stamp) == later
    with pytest.raises(ExtrapolationException):
        buffer.lookup_transform(names.BASE_FRAME, "tool", Time(nanoseconds=later + 10**12))
    with pytest.raises(LookupException):
        buffer.lookup_transform(names.BASE_FRAME, "unknown_frame", Time(), Duration(seconds=0.1))
    assert buffer.can_transform("tool", "table", Time())
    listener.unregister()


class Client:
    """A client of the generate action that keeps its feedback."""

    def __init__(self, graph: Graph) -> None:
        self._asker = Asker(graph.node("client"), GenerateRollout, names.GENERATE.name)
        self.result, self.cancel = self._asker.response, self._asker.cancel
        self.feedback: list[Any] = []

    def send(self, seed: int) -> Any:
        camera = bridge_peer.CAMERA.scaled(72, 48)
        ids = np.ones((3, 48, 72), np.uint8)
        xyz = np.broadcast_to(camera.rays(), (3, 48, 72, 3)).astype(np.float32)
        sequence = PointmapSequence(xyz, ids, camera, np.array([0.0, 0.1, 0.2]))
        goal = GenerateRollout.Goal(
            robot_frames=frames_to_msg(sequence, time_from_ns(77)), seed=seed, plan_hash="ef" * 32
        )
        return self._asker.send(goal, lambda message: self.feedback.append(message.feedback))


@pytest.mark.usefixtures("server")
def test_the_action_reports_progress_and_gives_a_rollout(graph: Graph) -> None:
    client = Client(graph)
    handle = client.send(seed=1)
    assert handle.accepted
    answer = client.result(handle)
    assert answer.status == GoalStatus.STATUS_SUCCEEDED
    assert error_from_msg(answer.result.error) is None
    rollout = rollout_from_msg(answer.result.rollout)
    assert (len(rollout), rollout.plan_hash) == (3, "ef" * 32)
    assert nanoseconds(answer.result.rollout.header.stamp) == 77
    assert [f.step for f in client.feedback] == list(range(bridge_peer.STEPS))
    assert {f.phase for f in client.feedback} == {"sample"}


@pytest.mark.usefixtures("server")
def test_the_action_is_cancelled_within_a_step_or_two(graph: Graph) -> None:
    client = Client(graph)
    handle = client.send(seed=2)
    wait_for(lambda: client.feedback, DISCOVERY_S, "feedback")
    client.cancel(handle)
    at_cancel = len(client.feedback)
    answer = client.result(handle)
    assert answer.status == GoalStatus.STATUS_CANCELED
    assert answer.result.error.code == ErrorCode.CANCELLED
    assert len(client.feedback) <= at_cancel + 3 < bridge_peer.STEPS


@pytest.mark.usefixtures("server")
def test_refusal_and_failure_have_their_own_answers_and_the_next_goal_works(graph: Graph) -> None:
    client = Client(graph)
    assert not client.send(seed=13).accepted
    answer = client.result(client.send(seed=14))
    assert answer.status == GoalStatus.STATUS_ABORTED
    assert answer.result.error.code == ErrorCode.GENERATOR_OUT_OF_MEMORY
    assert answer.result.error.message
    assert client.result(client.send(seed=1)).status == GoalStatus.STATUS_SUCCEEDED
