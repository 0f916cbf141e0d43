"""Arm and camera driver for tests: publishes valid or invalid messages as set by the test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from sensor_msgs.msg import JointState
from support.ros_graph import Graph

from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.io.images import studio
from kinema4d_ros.robot import Robot
from kinema4d_ros.ros import names
from kinema4d_ros.ros.messages.camera import info_from_camera
from kinema4d_ros.ros.messages.images import image_from_array
from kinema4d_ros.ros.messages.stamps import header
from kinema4d_ros.ros.names import Endpoint
from kinema4d_ros.ros.qos import profile


class Drivers:
    """Publishes joint states at 50 Hz and images at 10 Hz until the graph is closed."""

    def __init__(self, graph: Graph, robot: Robot, camera: PinholeCamera) -> None:
        self.node = graph.node("drivers")
        self.robot = robot
        self.camera = camera
        self.positions = np.array(robot.home_position())
        self.pictures = True
        self.encoding = "rgb8"
        self.describe: Callable[[Any], None] = lambda info: None
        """Modifies the camera info before it is sent."""
        self.alter: Callable[[Any], Any] | None = None
        """Modifies a joint state before it is sent; returns None to drop it."""
        self._image = image_from_array(studio(camera), "rgb8", header(1, camera.frame_id))
        self._outputs = {e.name: self.publisher(e) for e in (names.JOINT_STATES, names.CAMERA_IMAGE, names.CAMERA_INFO)}
        self.node.create_timer(0.02, self._send_joints)
        self.node.create_timer(0.1, self._send_picture)

    def publisher(self, endpoint: Endpoint) -> Any:
        return self.node.create_publisher(endpoint.interface(), endpoint.name, profile(endpoint))

    def now(self) -> Any:
        return self.node.get_clock().now().to_msg()

    def _send_joints(self) -> None:
        state = JointState(header=header(self.now()), name=list(self.robot.joint_names))
        state.position = self.positions.tolist()
        if self.alter is not None and (state := self.alter(state)) is None:
            return
        self._outputs[names.JOINT_STATES.name].publish(state)

    def _send_picture(self) -> None:
        if not self.pictures:
            return
        stamp = self.now()
        info = info_from_camera(self.camera, stamp)
        self.describe(info)
        self._outputs[names.CAMERA_INFO.name].publish(info)
        self._image.header.stamp, self._image.encoding = stamp, self.encoding
        self._outputs[names.CAMERA_IMAGE.name].publish(self._image)
