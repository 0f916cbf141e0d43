"""Where joint states, time and the robot's state come from: the lab and the twin among other nodes, over real DDS."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import JointState
from std_msgs.msg import String
from support.health import WARN, HealthWatch
from support.ros_graph import Graph, own_domain, wait_for
from support.sim_graph import running, small_camera

from kinema4d_ros.ros import names
from kinema4d_ros.ros.messages.stamps import nanoseconds
from kinema4d_ros.ros.qos import profile

WAIT_S = 120.0

pytestmark = [pytest.mark.full, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Graph]:
    """Lab and twin on the time that the lab publishes."""
    scene = {"calibration": small_camera(tmp_path_factory.mktemp("camera"))}
    options: dict[str, dict[str, Any]] = {"lab": {**scene, "publish_clock": True}, "twin": scene}
    with own_domain(), running(("lab", "twin"), options, ["-p", "use_sim_time:=true"]):
        made = Graph(threads=2)
        yield made
        made.close()


def test_a_subscriber_with_default_qos_hears_the_arm_on_the_lab_s_clock(graph: Graph) -> None:
    """What `ros2 topic echo`, MoveIt and robot_state_publisher ask for: reliable, depth 10."""
    node = graph.node("default_qos")
    states: list[Any] = []
    clocks: list[int] = []
    node.create_subscription(JointState, names.JOINT_STATES.name, states.append, 10)
    node.create_subscription(Clock, names.CLOCK.name, lambda message: clocks.append(nanoseconds(message.clock)), 10)
    wait_for(lambda: len(states) > 50 and len(clocks) > 50, WAIT_S, "joint states and time")
    assert clocks == sorted(set(clocks)), "time never stands still or goes back"
    stamps = [nanoseconds(state.header.stamp) for state in states]
    steps = {later - earlier for earlier, later in pairwise(stamps)}
    assert all(step > 0 and step % 10_000_000 == 0 for step in steps), "one step of the physics at 100 Hz, or some"


def test_the_twin_leaves_the_robot_s_state_to_another_publisher_until_it_is_gone(graph: Graph) -> None:
    health = HealthWatch(graph)
    node = graph.node("listener")
    frames: list[float] = []
    endpoint = names.TF
    node.create_subscription(
        endpoint.interface(), endpoint.name, lambda _: frames.append(time.monotonic()), profile(endpoint)
    )
    wait_for(lambda: len(frames) > 10, WAIT_S, "link frames on the simulated time")
    wait_for(lambda: health.value("twin", "robot state from") == "twin", WAIT_S, "the twin's health")

    publisher_node = graph.node("robot_state_publisher")
    endpoint = names.ROBOT_DESCRIPTION
    publisher = publisher_node.create_publisher(String, endpoint.name, profile(endpoint))
    wait_for(lambda: health.value("twin", "robot state from") == "robot_state_publisher", WAIT_S, "the twin to yield")
    wait_for(
        lambda: (
            {one.node_name for one in node.get_publishers_info_by_topic(endpoint.name)} == {"robot_state_publisher"}
        ),
        WAIT_S,
        "one publisher of the description",
    )
    frames.clear()
    for _ in range(2):  # once a second; a warning, because the demonstration's calibration has no residual
        health.wait("twin", WARN, "live", WAIT_S)
    assert not frames, "the twin's frames double those of robot_state_publisher"

    publisher_node.destroy_publisher(publisher)
    wait_for(lambda: health.value("twin", "robot state from") == "twin", WAIT_S, "the twin to take over")
    wait_for(lambda: len(frames) > 10, WAIT_S, "its link frames")
