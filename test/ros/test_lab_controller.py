"""The lab's controller: a motion that ends early is never reported as completed, whatever the physics thread does."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest
import rclpy

from kinema4d_ros.core.errors import KinemaError
from kinema4d_ros.core.trajectory import JointTrajectory
from kinema4d_ros.lab import LabSimulation
from kinema4d_ros.robot import Robot
from kinema4d_ros.ros import names
from kinema4d_ros.ros.messages.stamps import header
from kinema4d_ros.ros.messages.trajectories import trajectory_to_msg
from kinema4d_ros.ros.nodes.common import KinemaNode
from kinema4d_ros.ros.nodes.lab import LabController


@pytest.fixture
def controller(yam: Robot) -> Iterator[LabController]:
    """A controller whose `tick` a second thread calls all the time, as the physics thread does."""
    names.FOLLOW_TRAJECTORY.interface()
    rclpy.init()
    node = KinemaNode("lab_controller_test")
    made = LabController(node, LabSimulation("canonical", 0, yam))
    ended = threading.Event()

    def tick() -> None:
        while not ended.is_set():
            made.tick()

    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    yield made
    ended.set()
    thread.join(10.0)
    node.destroy_node()
    rclpy.shutdown()


def start(controller: LabController) -> SimpleNamespace:
    """Accept a goal of one minute and return its handle."""
    lab = controller._lab
    q = lab.state().commanded
    end = q + np.array([0.3, 0, 0, 0, 0, 0, 0])
    plan = JointTrajectory(lab.robot.joint_names, [0.0, 60.0], np.stack([q, end]))
    goal = names.FOLLOW_TRAJECTORY.interface().Goal()
    goal.trajectory = trajectory_to_msg(plan, header(controller._node.get_clock().now().to_msg()))
    controller._admit(goal)
    handle = SimpleNamespace(goal_id=SimpleNamespace(uuid=bytes(16)), execute=lambda: None)
    controller._accept(handle)
    assert lab.moving
    return handle


def test_a_reset_aborts_the_goal(controller: LabController) -> None:
    start(controller)
    controller.reset(None, 0, lambda: time.sleep(0.05))
    assert controller._motion is not None
    assert controller._motion.result() == "the scene was reset"


def test_a_reset_that_fails_lets_the_goal_continue(controller: LabController) -> None:
    start(controller)
    with pytest.raises(KinemaError, match="does not exist"):
        controller.reset("moon", 0, lambda: None)
    assert controller._motion is not None
    assert not controller._motion.done()
    assert controller._lab.moving


def test_a_cancelled_goal_is_not_a_completed_one(controller: LabController) -> None:
    handle = start(controller)
    motion = controller._motion
    stop = controller._lab.stop

    def slow_stop() -> None:
        stop()
        time.sleep(0.05)

    controller._lab.stop = slow_stop  # type: ignore[method-assign]
    controller._cancel(handle)
    assert motion is not None
    assert motion.result() == "cancelled"
