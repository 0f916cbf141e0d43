"""A goal for the generator as sent by the preview: a lab pick, from one image and the planned motion."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from kinema4d_msgs.action import GenerateRollout
from kinema4d_ros.calibration import read_camera
from kinema4d_ros.io.resources import share_path
from kinema4d_ros.kinematics import choose_kinematics
from kinema4d_ros.lab import LabCamera, LabSimulation
from kinema4d_ros.lab.scripted import pick_plan
from kinema4d_ros.render import render_pointmaps
from kinema4d_ros.robot import Robot
from kinema4d_ros.ros.messages.images import image_from_array
from kinema4d_ros.ros.messages.request import frames_to_msg
from kinema4d_ros.ros.messages.stamps import header


@dataclass(frozen=True)
class PickGoal:
    """`goal` of the action; `target_mask` (H, W) bool marks the object to pick in its image."""

    goal: Any
    target_mask: np.ndarray


def pick_goal(width: int, height: int, frames: int, seed: int = 0) -> PickGoal:
    """Make a pick in the canonical scene, seen by the demonstration camera at another size."""
    robot = Robot.load("yam")
    camera = read_camera(share_path("calibration/demo_lab.yaml"), base_frame=robot.base_link).rectified()
    camera = camera.scaled(width, height)
    lab = LabSimulation("canonical", seed=seed, robot=robot)
    state = lab.state()
    seen = LabCamera(robot, camera).capture(state, truth=True)
    plan = pick_plan(state, state.target, choose_kinematics(robot)).resample(frames)
    drawn = render_pointmaps(robot, plan, camera, rgb=False)
    goal = GenerateRollout.Goal(
        robot_frames=frames_to_msg(drawn, header(1).stamp, [link.name for link in robot.links]), plan_hash="e" * 64
    )
    goal.image = image_from_array(seen.rgb, "rgb8", header(1, camera.frame_id))
    return PickGoal(goal, seen.mask(state.target))
