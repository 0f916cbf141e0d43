"""A session is recorded as an MCAP bag, and its plans are previewed again without any graph."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from rosbags.rosbag2 import Reader
from sensor_msgs.msg import JointState
from support.ros_graph import Graph, wait_for
from support.sim_graph import NodeProcess, kinema4d, running

from kinema4d_ros.calibration import read_camera
from kinema4d_ros.core.rollout import Rollout
from kinema4d_ros.core.trajectory import JointTrajectory, hash_trajectory
from kinema4d_ros.io.images import studio
from kinema4d_ros.io.resources import share_path
from kinema4d_ros.robot import Robot
from kinema4d_ros.ros import names
from kinema4d_ros.ros.messages.images import image_from_array
from kinema4d_ros.ros.messages.stamps import header
from kinema4d_ros.ros.messages.trajectories import trajectory_to_msg
from kinema4d_ros.ros.nodes.recorder import _new_bag
from kinema4d_ros.ros.qos import profile

WAIT_S = 60.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def recorded(folder: Path, mark: str) -> bool:
    """Whether a message of this frame has reached the disk."""
    return any(mark.encode() in bag.read_bytes() for bag in folder.rglob("*.mcap"))


@pytest.mark.full
def test_plans_of_a_recording_are_previewed_again(graph: Graph, yam: Robot, tmp_path: Path) -> None:
    node = graph.node("session")
    outputs = {
        endpoint.name: node.create_publisher(endpoint.interface(), endpoint.name, profile(endpoint))
        for endpoint in (names.JOINT_STATES, names.CAMERA_IMAGE, names.PLAN)
    }
    q = yam.home_position()
    turned = q.copy()
    turned[0] += 0.3
    good = JointTrajectory.from_positions(yam.joint_names, [q, turned], times=[0.0, 2.0])
    bad = JointTrajectory.from_positions(["elbow"], [[0.0], [1.0]], times=[0.0, 2.0])
    image = studio(read_camera(share_path("calibration/demo_lab.yaml")))
    with running(["recorder"], {"recorder": {"folder": str(tmp_path / "runs")}}):
        for publisher in outputs.values():
            wait_for(lambda p=publisher: p.get_subscription_count() > 0, 60, "the recorder")
        for _ in range(40):
            now = node.get_clock().now().to_msg()
            outputs[names.JOINT_STATES.name].publish(
                JointState(header=header(now), name=list(yam.joint_names), position=q.tolist())
            )
            outputs[names.CAMERA_IMAGE.name].publish(image_from_array(image, "rgb8", header(now, "camera")))
            time.sleep(0.05)
        for plan, mark in ((good, "good_plan"), (bad, "bad_plan")):
            outputs[names.PLAN.name].publish(trajectory_to_msg(plan, header(node.get_clock().now().to_msg(), mark)))
            wait_for(partial(recorded, tmp_path, mark), WAIT_S, mark)

    (bag,) = (tmp_path / "runs").iterdir()
    with Reader(bag) as reader:
        counts = {c.topic: c.msgcount for c in reader.connections}
    assert counts["/kinema4d/plan"] == 2
    assert counts["/joint_states"] >= 8

    done = kinema4d("replay", str(bag), "--out", str(tmp_path / "out"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 of 2 plans previewed" in done.stdout
    assert "UNKNOWN_JOINT" in done.stdout
    rollout = Rollout.load(tmp_path / "out" / "plan_000")
    assert rollout.plan_hash == hash_trajectory(good)
    assert len(rollout) == 49
    assert np.isfinite(rollout.xyz).any()
    assert (tmp_path / "out" / "plan_000_clearance.png").is_file()


@pytest.mark.full
def test_a_killed_recorder_loses_a_second_at_most(graph: Graph, yam: Robot, tmp_path: Path) -> None:
    node = graph.node("session")
    states, plans = (
        node.create_publisher(endpoint.interface(), endpoint.name, profile(endpoint))
        for endpoint in (names.JOINT_STATES, names.PLAN)
    )
    q = yam.home_position()
    plan = JointTrajectory.from_positions(yam.joint_names, [q, q + 0.01], times=[0.0, 2.0])
    recorder = NodeProcess("recorder", {"folder": str(tmp_path / "runs")})
    try:
        recorder.wait_for_line("ready")
        for publisher in (states, plans):
            wait_for(lambda p=publisher: p.get_subscription_count() > 0, 60, "the recorder")
        states.publish(
            JointState(header=header(node.get_clock().now().to_msg()), name=list(yam.joint_names), position=q.tolist())
        )
        plans.publish(trajectory_to_msg(plan, header(node.get_clock().now().to_msg(), "the_plan")))
        # By itself the writer would keep these few messages in memory for ever.
        wait_for(lambda: recorded(tmp_path, "the_plan"), WAIT_S, "the messages")
    finally:
        recorder.kill()
    (bag,) = (tmp_path / "runs").iterdir()
    assert not (bag / "metadata.yaml").exists()
    done = kinema4d("replay", str(bag), "--out", str(tmp_path / "out"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "was never finished: its recorder was killed" in done.stdout
    assert "1 of 1 plans previewed" in done.stdout


def test_bags_of_one_second_do_not_meet(tmp_path: Path) -> None:
    """A recorder that starts again at once: the same name would be refused, which would end it for good."""
    made = [_new_bag(tmp_path) for _ in range(5)]
    assert len({writer.path for writer in made}) == 5
    for writer in made:
        writer.close()


def test_a_broken_bag_is_named(tmp_path: Path) -> None:
    broken = tmp_path / "cut.mcap"
    broken.write_bytes(b"\x89MCAP0\r\n" + bytes(100))
    done = kinema4d("replay", str(broken), "--out", str(tmp_path / "out"))
    assert done.returncode == 2
    assert "cut.mcap" in done.stderr
    assert "Traceback" not in done.stderr
