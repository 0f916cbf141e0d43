"""A generator's request as the goal of the generate action, and back: everything that arrives is checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kinema4d_msgs.action import GenerateRollout
from kinema4d_ros.bridge.camera import camera_from_msg
from kinema4d_ros.bridge.compressed import decode_rgb, encode_rgb
from kinema4d_ros.bridge.frames import frames_from_msg, frames_to_msg
from kinema4d_ros.bridge.images import depth_from_image, image_from_array, rgb_from_image
from kinema4d_ros.bridge.stamps import header
from kinema4d_ros.generators import GenerateRequest

__all__ = ["request_from_goal", "request_to_goal"]


def request_to_goal(
    request: GenerateRequest,
    image_stamp: Any,
    robot_stamp: Any,
    link_names: Sequence[str] = (),
    *,
    timeout_s: float = 0.0,
) -> Any:
    """kinema4d_msgs/GenerateRollout goal of a request.

    Args:
        request: what to predict.
        image_stamp: Time message of the picture.
        robot_stamp: Time message of the joint state or plan that the robot frames were drawn from.
        link_names: of the robot, in the order of the link ids.
        timeout_s: for the rollout; 0 = the server's own limit.
    """
    head = header(image_stamp, request.camera.frame_id)
    goal = GenerateRollout.Goal(plan_hash=request.plan_hash, seed=request.seed, timeout_s=float(timeout_s))
    goal.image = image_from_array(request.image, "rgb8", head)
    if request.depth is not None:
        goal.depth = image_from_array(request.depth, "32FC1", head)
    goal.robot_frames = frames_to_msg(request.robot, robot_stamp, link_names)
    if request.robot.rgb is not None:
        goal.robot_rgb = encode_rgb(request.robot.rgb, "jpeg", head)
    return goal


def request_from_goal(goal: Any) -> GenerateRequest:
    """The request of a goal message."""
    # The image first: its size cannot be forged, while a few bytes of PNG may stand for gigabytes.
    camera = camera_from_msg(goal.robot_frames)
    image = rgb_from_image(goal.image, width=camera.width, height=camera.height)
    robot = frames_from_msg(goal.robot_frames).sequence
    camera = robot.camera
    depth = depth_from_image(goal.depth) if len(goal.depth.data) else None
    if len(goal.robot_rgb):
        rgb = decode_rgb(goal.robot_rgb, width=camera.width, height=camera.height)
        robot = replace(robot, camera=camera, rgb=rgb)
    return GenerateRequest(image=image, robot=robot, depth=depth, plan_hash=goal.plan_hash, seed=goal.seed)
