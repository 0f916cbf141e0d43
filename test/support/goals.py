"""A client of the generate action, for tests of goal handling."""

from __future__ import annotations

from typing import Any

import numpy as np
from support.ros_graph import Asker, Graph

from kinema4d_msgs.action import GenerateRollout
from kinema4d_ros.calibration import read_camera
from kinema4d_ros.core.pointmap import PointmapSequence
from kinema4d_ros.io.images import studio
from kinema4d_ros.io.resources import share_path
from kinema4d_ros.render import render_pointmaps
from kinema4d_ros.robot import Robot
from kinema4d_ros.ros import names
from kinema4d_ros.ros.messages.images import image_from_array
from kinema4d_ros.ros.messages.request import frames_to_msg
from kinema4d_ros.ros.messages.stamps import header

WAIT_S = 120.0
"""Timeout against hangs, seconds; no test asserts the duration."""


def goal(frames: int = 5, width: int = 180, height: int = 120) -> Any:
    """Return a request for `frames` frames of a robot at rest."""
    robot = Robot.load("primitive_arm")
    camera = read_camera(share_path("calibration/demo_lab.yaml")).scaled(width, height)
    drawn = render_pointmaps(robot, np.tile(robot.home_position(), (frames, 1)), camera)
    drawn = PointmapSequence(drawn.xyz, drawn.link_ids, camera, np.arange(frames) * 0.1, None)
    links = [link.name for link in robot.links]
    made = GenerateRollout.Goal(robot_frames=frames_to_msg(drawn, header(1).stamp, links), plan_hash="ab" * 32)
    made.image = image_from_array(studio(camera), "rgb8", header(1, camera.frame_id))
    return made


class Goals:
    """A client of the generate action."""

    def __init__(self, graph: Graph) -> None:
        self._asker = Asker(graph.node("asker"), GenerateRollout, names.GENERATE.name)
        self.result, self.cancel = self._asker.result, self._asker.cancel
        self.phases: list[str] = []
        """Phases of the last goal, from its feedback."""

    def send(self, goal: Any, timeout_s: float = 0.0) -> Any:
        """Send a goal and return its handle."""
        goal.timeout_s = timeout_s
        self.phases = phases = []
        return self._asker.send(goal, lambda message: phases.append(message.feedback.phase))

    def ask(self, goal: Any, timeout_s: float = 0.0) -> Any:
        """Send a goal and wait for its result."""
        return self.result(self.send(goal, timeout_s))
