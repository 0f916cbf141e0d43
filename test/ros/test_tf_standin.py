"""Our own tf2_ros: the same calls, also without an executor of the caller's, and bad frames that do no harm."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from geometry_msgs.msg import TransformStamped
from rclpy.duration import Duration
from rclpy.node import Node
from rclpy.time import Time
from support.ros_graph import DISCOVERY_S, Graph, wait_for
from tf2_msgs.msg import TFMessage

from kinema4d_ros.core.transforms import from_rpy, invert
from kinema4d_ros.ros import names, qos
from kinema4d_ros.ros._tf_standin import (
    Buffer,
    ExtrapolationException,
    InvalidArgumentException,
    LookupException,
    StaticTransformBroadcaster,
    TransformBroadcaster,
    TransformListener,
)
from kinema4d_ros.ros.messages.poses import matrix_to_transform, transform_to_matrix
from kinema4d_ros.ros.messages.stamps import header, nanoseconds

SECOND = 10**9


def edge(parent: str, child: str, x: float, stamp_ns: int) -> TransformStamped:
    message = TransformStamped(header=header(stamp_ns, parent), child_frame_id=child)
    message.transform = matrix_to_transform(from_rpy((0, 0, 0.3), (x, 0, 0)))
    return message


def test_a_listener_with_a_thread_of_its_own_fills_its_buffer(graph: Graph) -> None:
    talker = graph.node("talker")
    StaticTransformBroadcaster(talker).sendTransform([edge("world", "base", 1.0, 0), edge("base", "eye", 2.0, 0)])
    moving = TransformBroadcaster(talker)
    hearer = Node("hearer", context=graph.context)
    buffer = Buffer()
    listener = TransformListener(buffer, hearer, spin_thread=True)
    found = buffer.lookup_transform("world", "eye", Time(), timeout=Duration(seconds=DISCOVERY_S))
    step = from_rpy((0, 0, 0.3), (1.0, 0, 0))
    np.testing.assert_allclose(
        transform_to_matrix(found.transform), step @ from_rpy((0, 0, 0.3), (2.0, 0, 0)), atol=1e-12
    )
    assert (found.header.frame_id, found.child_frame_id) == ("world", "eye")
    wait_for(lambda: moving.pub_tf.get_subscription_count(), DISCOVERY_S, "the listener")
    moving.sendTransform(edge("base", "tool", 3.0, 7 * SECOND))
    found = buffer.lookup_transform("tool", "base", Time(), Duration(seconds=5))
    np.testing.assert_allclose(
        transform_to_matrix(found.transform), invert(from_rpy((0, 0, 0.3), (3.0, 0, 0))), atol=1e-12
    )
    assert nanoseconds(found.header.stamp) == 7 * SECOND
    assert "Frame tool exists with parent base." in buffer.all_frames_as_string()
    listener.unregister()
    hearer.destroy_node()


def test_another_nodes_bad_frames_are_ignored(graph: Graph) -> None:
    talker, hearer, buffer = graph.node("talker"), graph.node("hearer"), Buffer()
    publisher = talker.create_publisher(TFMessage, names.TF.name, qos.TF)
    listener = TransformListener(buffer, hearer)
    wait_for(lambda: publisher.get_subscription_count(), DISCOVERY_S, "the listener")
    broken = edge("a", "b", 1.0, SECOND)
    broken.transform.rotation.w = 9.0
    lost = edge("a", "c", float("nan"), SECOND)
    publisher.publish(TFMessage(transforms=[broken, lost, edge("a", "a", 1.0, SECOND), edge("a", "good", 1.0, SECOND)]))
    assert buffer.can_transform("a", "good", Time(), Duration(seconds=5))
    good, reason = buffer.can_transform("a", "b", Time(), return_debug_tuple=True)
    assert not good
    assert '"b"' in reason
    listener.unregister()


def test_a_look_up_waits_for_data_and_gives_up_in_time() -> None:
    buffer = Buffer(cache_time=Duration(seconds=5))
    buffer.set_transform(edge("a", "b", 0.0, SECOND))
    threading.Timer(0.2, buffer.set_transform, [edge("a", "b", 2.0, 3 * SECOND)]).start()
    found = buffer.lookup_transform("a", "b", Time(nanoseconds=2 * SECOND), Duration(seconds=10))
    assert found.transform.translation.x == pytest.approx(1.0)
    started = time.monotonic()
    with pytest.raises(ExtrapolationException):
        buffer.lookup_transform("a", "b", Time(nanoseconds=9 * SECOND), Duration(seconds=0.2))
    assert time.monotonic() - started >= 0.2
    with pytest.raises(InvalidArgumentException):
        buffer.lookup_transform("/a", "b", Time(), Duration(seconds=100))
    buffer.clear()
    with pytest.raises(LookupException):
        buffer.lookup_transform("a", "b", Time())


def test_two_times_meet_in_a_fixed_frame() -> None:
    buffer = Buffer()
    for second in (1, 2, 3):
        buffer.set_transform(edge("world", "robot", float(second), second * SECOND))
    buffer.set_transform_static(edge("world", "table", 10.0, 0))
    found = buffer.lookup_transform_full("robot", Time(seconds=3), "robot", Time(seconds=1), "world")
    expected = invert(from_rpy((0, 0, 0.3), (3, 0, 0))) @ from_rpy((0, 0, 0.3), (1, 0, 0))
    np.testing.assert_allclose(transform_to_matrix(found.transform), expected, atol=1e-12)
    assert (found.header.frame_id, found.child_frame_id) == ("robot", "robot")
