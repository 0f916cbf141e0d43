"""Conversion of generator requests and robot frames to goals of the generate action and back, validated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kinema4d_msgs.action import GenerateRollout
from kinema4d_msgs.msg import RobotFrames
from kinema4d_ros.core.errors import ErrorCode, GeneratorError, PointmapError, RobotError
from kinema4d_ros.core.pointmap import GripTrack, PointmapSequence
from kinema4d_ros.core.trajectory import DENSE_SAMPLES, LEAST_DENSITY, JointTrajectory
from kinema4d_ros.generators import CommandedMotion, GenerateRequest
from kinema4d_ros.io.wire import WireFrames, decode_frames, encode_frames
from kinema4d_ros.robot.description import description_sha256
from kinema4d_ros.robot.gripper import Fingers
from kinema4d_ros.robot.model import Robot
from kinema4d_ros.ros.messages.camera import camera_from_msg, info_from_camera, require_affordable
from kinema4d_ros.ros.messages.images import (
    bytes_from_compressed,
    compressed_from_bytes,
    decode_rgb,
    depth_from_image,
    encode_rgb,
    image_from_array,
    rgb_from_image,
)
from kinema4d_ros.ros.messages.poses import matrix_to_transform, transform_to_matrix
from kinema4d_ros.ros.messages.stamps import header
from kinema4d_ros.ros.messages.trajectories import trajectory_from_msg, trajectory_to_msg

__all__ = ["ReceivedFrames", "frames_from_msg", "frames_to_msg", "request_from_goal", "request_to_goal"]

# `PointmapSequence` <-> kinema4d_msgs/RobotFrames: 16-bit depth PNGs with a unit of 0.1 mm.


@dataclass(frozen=True, eq=False)
class ReceivedFrames:
    """Decoded content of a RobotFrames message.

    Attributes:
        sequence: the pointmaps; its camera has the pose and frames of the message.
        link_names: link id i + 1 is `link_names[i]`.
        stamp: the message's builtin_interfaces/Time.
    """

    sequence: PointmapSequence
    link_names: tuple[str, ...]
    stamp: Any


def frames_to_msg(
    sequence: PointmapSequence, stamp: Any, link_names: Sequence[str] = (), *, link_ids: bool = True
) -> Any:
    """Convert a sequence with times to a kinema4d_msgs/RobotFrames.

    Args:
        sequence: rendered robot; its camera's `frame_id`, `base_frame` and pose are included.
        stamp: Time message of the joint state or plan it was rendered from.
        link_names: names of the robot's links, in the order of the link ids.
        link_ids: False omits the ids; the receiver then has the robot's depth only.
    """
    if sequence.times is None:
        raise PointmapError("the sequence has no times", expected="seconds for every frame")
    wire = encode_frames(sequence, link_ids=link_ids)
    camera = sequence.camera
    head = header(stamp, camera.frame_id)
    message = RobotFrames(header=head, camera_info=info_from_camera(camera, stamp), base_frame=camera.base_frame)
    message.base_to_camera = matrix_to_transform(camera.base_T_camera)
    message.link_names = list(link_names)
    message.times = (sequence.times - sequence.times[0]).tolist()
    message.depth_unit_m = wire.depth_unit_m
    if sequence.grip is not None:
        message.grip = [matrix_to_transform(pose) for pose in sequence.grip.base_T_grip]
        message.grip_width_m = sequence.grip.width_m.tolist()
        message.finger_m = list(sequence.grip.fingers.sizes_m)
    message.depth = [compressed_from_bytes(data, "png", head) for data in wire.depth]
    message.link_ids = [compressed_from_bytes(data, "png", head) for data in wire.link_ids or ()]
    return message


def frames_from_msg(message: Any) -> ReceivedFrames:
    """Decode a kinema4d_msgs/RobotFrames; raise PointmapError for damaged images and inconsistent numbers."""
    times = np.array(message.times, dtype=np.float64)
    if len(times) != len(message.depth) or len(message.link_ids) not in (0, len(message.depth)):
        raise PointmapError(
            f"{len(times)} times, {len(message.depth)} depth and {len(message.link_ids)} link-id images",
            expected="as many times as depth images, and as many link-id images or none",
            code=ErrorCode.WIRE_CORRUPT,
        )
    if len(message.grip) not in (0, len(times)) or len(message.grip_width_m) != len(message.grip):
        raise PointmapError(
            f"{len(message.grip)} poses and {len(message.grip_width_m)} widths of the grip",
            expected=f"{len(times)} of each, one per frame, or none",
            code=ErrorCode.WIRE_CORRUPT,
        )
    if len(message.finger_m) not in (0, 5):
        raise PointmapError(
            f"finger_m has {len(message.finger_m)} values",
            expected="pad width, width, thickness, length and tip, or none",
            code=ErrorCode.WIRE_CORRUPT,
        )
    camera = camera_from_msg(message)
    require_affordable(len(times), camera)
    wire = WireFrames(
        depth=tuple(bytes_from_compressed(picture) for picture in message.depth),
        link_ids=tuple(bytes_from_compressed(picture) for picture in message.link_ids) or None,
        camera=camera,
        times=times,
        depth_unit_m=message.depth_unit_m,
    )
    sequence = decode_frames(wire)
    if len(message.grip):
        poses = np.stack([transform_to_matrix(pose) for pose in message.grip])
        width = np.array(message.grip_width_m, np.float64)
        try:
            fingers = Fingers(*message.finger_m)
        except RobotError as error:
            raise PointmapError(error.what, expected=error.expected, code=ErrorCode.WIRE_CORRUPT) from None
        sequence = replace(sequence, grip=GripTrack(poses, width, fingers))
    return ReceivedFrames(sequence, tuple(message.link_names), message.header.stamp)


def request_to_goal(
    request: GenerateRequest,
    image_stamp: Any,
    robot_stamp: Any,
    link_names: Sequence[str] = (),
    *,
    timeout_s: float = 0.0,
) -> Any:
    """Convert a request to a kinema4d_msgs/GenerateRollout goal.

    Args:
        request: the request.
        image_stamp: Time message of the image.
        robot_stamp: Time message of the joint state or plan that the robot frames were rendered from.
        link_names: names of the robot's links, in the order of the link ids.
        timeout_s: timeout of the rollout; 0 = the server's limit.
    """
    head = header(image_stamp, request.camera.frame_id)
    goal = GenerateRollout.Goal(plan_hash=request.plan_hash, seed=request.seed, timeout_s=float(timeout_s))
    goal.image = image_from_array(request.image, "rgb8", head)
    if request.depth is not None:
        goal.depth = image_from_array(request.depth, "32FC1", head)
    goal.robot_frames = frames_to_msg(request.robot, robot_stamp, link_names)
    if request.robot.rgb is not None:
        goal.robot_rgb = encode_rgb(request.robot.rgb, "jpeg", head)
    if request.motion is not None:
        commands = request.motion.commands
        # From the first frame, as the times of the frames.
        shifted = replace(commands, times=commands.times - commands.times[0])
        goal.commands = trajectory_to_msg(shifted, header(robot_stamp, request.camera.base_frame))
        goal.robot_sha256 = description_sha256(request.motion.robot)
    return goal


def request_from_goal(goal: Any, robot: Robot | None = None) -> GenerateRequest:
    """Convert a goal message to a request.

    Args:
        goal: kinema4d_msgs/GenerateRollout goal.
        robot: the receiver's own, for which commands are accepted; None accepts none.

    Raises:
        GeneratorError: GENERATOR_OTHER_ROBOT, the commands are those of another robot.
        KinemaError: damaged images, inconsistent numbers or invalid commands.
    """
    motion = _motion_from_goal(goal, robot)
    # The raw image first: its size cannot be forged, while a few bytes of PNG may decode to gigabytes.
    camera = camera_from_msg(goal.robot_frames)
    image = rgb_from_image(goal.image, width=camera.width, height=camera.height)
    drawn = frames_from_msg(goal.robot_frames).sequence
    camera = drawn.camera
    depth = depth_from_image(goal.depth) if len(goal.depth.data) else None
    if len(goal.robot_rgb):
        rgb = decode_rgb(goal.robot_rgb, width=camera.width, height=camera.height)
        drawn = replace(drawn, camera=camera, rgb=rgb)
    return GenerateRequest(image, drawn, depth, plan_hash=goal.plan_hash, seed=goal.seed, motion=motion)


MAX_COMMANDS = DENSE_SAMPLES // LEAST_DENSITY
"""Largest number of points of commands: as many as a plan with velocities may have."""


def _motion_from_goal(goal: Any, robot: Robot | None) -> CommandedMotion | None:
    """Return the commands of a goal for the receiver's robot; None without commands."""
    if not goal.commands.points and not goal.robot_sha256:
        return None
    own = "" if robot is None else description_sha256(robot)
    if robot is None or goal.robot_sha256 != own:
        named = "no robot" if robot is None else f"'{robot.name}' ({own[:12]})"
        raise GeneratorError(
            f"the commands are for the robot {goal.robot_sha256[:12]!r}, this generator has {named}",
            expected="commands for the generator's own robot",
            hint="start the generator with robot:= the robot of the plans, from the same version of its files",
            code=ErrorCode.GENERATOR_OTHER_ROBOT,
        )
    if len(goal.commands.points) > MAX_COMMANDS:
        raise GeneratorError(
            f"the commands have {len(goal.commands.points):,} points",
            expected=f"at most {MAX_COMMANDS:,}",
            code=ErrorCode.GENERATOR_BAD_REQUEST,
        )
    commands: JointTrajectory = trajectory_from_msg(goal.commands)
    return CommandedMotion.of(robot, commands)
