"""Plans in recorded bags, each with the arm state and the camera image at that time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rclpy.serialization import deserialize_message

from kinema4d_ros.core.errors import ErrorCode, FileFormatError, KinemaError
from kinema4d_ros.core.trajectory import JointTrajectory
from kinema4d_ros.io.bags import opened_bag
from kinema4d_ros.kinematics.protocol import Kinematics
from kinema4d_ros.previews.arm import ArmState, JointStateMonitor
from kinema4d_ros.previews.checks import plan_from_poses
from kinema4d_ros.robot.model import Robot
from kinema4d_ros.ros import names
from kinema4d_ros.ros.messages.images import depth_from_image, rgb_from_image
from kinema4d_ros.ros.messages.poses import path_to_matrices, pose_array_to_matrices
from kinema4d_ros.ros.messages.trajectories import joint_sample_from_msg, trajectory_from_display, trajectory_from_msg
from kinema4d_ros.ros.names import Endpoint

__all__ = ["RecordedPlan", "plans_in_bag"]

MAX_AGE_S = 5.0
"""Joint states and images older than this at the plan's stamp are stale."""


@dataclass(frozen=True, eq=False)
class RecordedPlan:
    """A plan with the arm state and images recorded before it.

    Attributes:
        topic: topic of the recording.
        stamp_ns: nanoseconds on the recorder's clock.
        plan: the trajectory, or None when it could not be read.
        error: why it could not be read, or None.
        arm: state of the arm, or None when the bag has no recent joint states.
        image: (H, W, 3) uint8 RGB as recorded, or None.
        depth: (H, W) float32 metres, or None.
    """

    topic: str
    stamp_ns: int
    plan: JointTrajectory | None
    error: KinemaError | None
    arm: ArmState | None
    image: NDArray[np.uint8] | None
    depth: NDArray[np.float32] | None


def plans_in_bag(
    path: str | Path,
    robot: Robot,
    kinematics: Callable[[], Kinematics],
    notice: Callable[[str], None] = lambda text: None,
) -> Iterator[RecordedPlan]:
    """Yield every plan that was sent for preview, in the order of the recording.

    Args:
        path: folder, .mcap or .db3 file of a bag.
        robot: robot of the joint states.
        kinematics: creates the kinematics when a plan of tool poses needs it.
        notice: called with a text when the recording is unfinished.
    """
    try:
        yield from _plans(Path(path), robot, kinematics, notice)
    except KinemaError:
        raise
    except FileNotFoundError as error:
        raise FileFormatError(f"{path} does not exist", expected="a ROS 2 bag", code=ErrorCode.FILE_MISSING) from error
    except Exception as error:  # a corrupt file can make the parser fail in any way
        raise FileFormatError(
            f"{path}: the bag cannot be read: {type(error).__name__}: {error}",
            expected="a complete ROS 2 bag",
            hint="it may be truncated: try 'mcap recover'",
        ) from error


def _matches(topic: str, endpoint: Endpoint) -> bool:
    return topic.lstrip("/") == endpoint.name or topic.endswith(f"/{endpoint.name}")


def _plans(
    path: Path, robot: Robot, kinematics: Callable[[], Kinematics], notice: Callable[[str], None]
) -> Iterator[RecordedPlan]:
    monitor = JointStateMonitor(robot, max_age_s=MAX_AGE_S)
    newest: dict[str, tuple[Any, int]] = {}
    plans = (names.PLAN, names.DISPLAY_PLAN, names.EE_PATH, names.EE_TIMED_PATH)
    context = (names.JOINT_STATES, names.CAMERA_IMAGE, names.CAMERA_DEPTH)
    with opened_bag(path) as (reader, unfinished):
        if unfinished:
            notice(unfinished)
        wanted: dict[int, Endpoint] = {}
        for connection in reader.connections:
            for endpoint in (*plans, *context):
                if _matches(connection.topic, endpoint) and connection.msgtype == endpoint.type:
                    wanted[connection.id] = endpoint
        chosen = [c for c in reader.connections if c.id in wanted]
        if not any(wanted[c.id] in plans for c in chosen):
            raise FileFormatError(
                f"{path} contains no plan",
                expected=f"a topic {', '.join(e.name for e in plans)}",
                code=ErrorCode.FILE_UNSUPPORTED,
            )
        for connection, stamp_ns, data in reader.messages(connections=chosen):
            endpoint = wanted[connection.id]
            message = deserialize_message(bytes(data), endpoint.interface())
            if endpoint is names.JOINT_STATES:
                _update(monitor, message, stamp_ns)
            elif endpoint in context:
                newest[endpoint.name] = (message, stamp_ns)
            else:
                yield _recorded(connection.topic, endpoint, message, stamp_ns, monitor, newest, kinematics)


def _update(monitor: JointStateMonitor, message: Any, stamp_ns: int) -> None:
    try:
        sample = joint_sample_from_msg(message)
        monitor.update(sample.names, sample.positions, (sample.stamp_ns or stamp_ns) * 1e-9, stamp_ns * 1e-9)
    except KinemaError:
        return  # the graph discards such messages too


def _recorded(
    topic: str,
    endpoint: Endpoint,
    message: Any,
    stamp_ns: int,
    monitor: JointStateMonitor,
    newest: dict[str, tuple[Any, int]],
    kinematics: Callable[[], Kinematics],
) -> RecordedPlan:
    try:
        arm: ArmState | None = monitor.state(stamp_ns * 1e-9)
    except KinemaError:
        arm = None

    def recent(which: Endpoint, read: Callable[[Any], NDArray[Any]]) -> NDArray[Any] | None:
        entry = newest.get(which.name)
        if entry is None or stamp_ns - entry[1] > MAX_AGE_S * 1e9:
            return None
        try:
            return read(entry[0])
        except KinemaError:
            return None

    plan, error = None, None
    try:
        plan = _read(endpoint, message, arm, kinematics)
    except KinemaError as refused:
        error = refused
    return RecordedPlan(
        topic,
        stamp_ns,
        plan,
        error,
        arm,
        recent(names.CAMERA_IMAGE, rgb_from_image),
        recent(names.CAMERA_DEPTH, depth_from_image),
    )


def _read(
    endpoint: Endpoint, message: Any, arm: ArmState | None, kinematics: Callable[[], Kinematics]
) -> JointTrajectory:
    if endpoint is names.PLAN:
        return trajectory_from_msg(message)
    if endpoint is names.DISPLAY_PLAN:
        return trajectory_from_display(message)
    if arm is None:
        raise KinemaError(
            "no joint states were recorded before the tool poses",
            expected="a bag with joint_states",
            code=ErrorCode.JOINT_STATES_STALE,
        )
    if endpoint is names.EE_PATH:
        return plan_from_poses(kinematics(), pose_array_to_matrices(message), None, arm)
    poses, times = path_to_matrices(message)
    return plan_from_poses(kinematics(), poses, times, arm)
