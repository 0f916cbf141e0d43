"""Trajectories from ROS 2 bags without ROS: MCAP and SQLite, joint states and planned paths.

sensor_msgs/JointState             every joint's own series, joined at all stamps
trajectory_msgs/JointTrajectory    one plan
moveit_msgs/DisplayTrajectory      MoveIt's plan; its definition must be in the bag (MCAP: always)
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from rosbags.interfaces import Connection, MessageDefinitionFormat
from rosbags.rosbag2 import Reader
from rosbags.typesys import Stores, get_types_from_msg, get_typestore
from rosbags.typesys.store import Typestore

from kinema4d_ros.errors import ErrorCode, FileFormatError, KinemaError
from kinema4d_ros.readers.common import MAX_JOINTS, MAX_SAMPLES, Reading, malformed
from kinema4d_ros.readers.match import JointOptions, match_joints, to_robot
from kinema4d_ros.readers.series import JointSeries
from kinema4d_ros.readers.unfinished import opened_bag
from kinema4d_ros.robot.model import Robot
from kinema4d_ros.trajectory import JointTrajectory

__all__ = ["read_bag"]

JOINT_STATE = "sensor_msgs/msg/JointState"
PLAN = "trajectory_msgs/msg/JointTrajectory"
DISPLAY = "moveit_msgs/msg/DisplayTrajectory"
TYPES = (JOINT_STATE, PLAN, DISPLAY)
"""What is read, in the order of preference when no topic is named: what happened before what was planned."""

MAX_MESSAGE_BYTES = 64 * 2**20


def read_bag(
    path: Path,
    robot: Robot | None = None,
    joints: JointOptions | None = None,
    *,
    topic: str | None = None,
    message: int = -1,
) -> Reading:
    """The trajectory on one topic of a bag: a folder with metadata.yaml, a .mcap or a .db3 file.

    An MCAP recording that was never finished is read as far as it goes, with a note.

    Args:
        path: the bag.
        robot: whose joints to keep.
        joints: how their names and the gripper's scale are to be read.
        topic: its name; by default the joint states with the most messages, else a plan.
        message: which message of a plan topic, counted from 0 or from the end; the last one by default.
    """
    try:
        return _read(path, robot, joints or JointOptions(), topic, message)
    except KinemaError:
        raise
    except Exception as error:  # a broken file can make its parser fail in any way
        raise malformed(
            path,
            f"the bag cannot be read: {type(error).__name__}: {error}",
            "a complete ROS 2 bag",
            "it may have been cut off: try 'ros2 bag reindex', or 'mcap recover' for an MCAP file",
        ) from error


def _read(path: Path, robot: Robot | None, joints: JointOptions, topic: str | None, message: int) -> Reading:
    notes: list[str] = []
    matched: dict[str, str] | None = None
    with opened_bag(path) as (reader, notice):
        if notice:
            notes.append(notice)
        connection = _choose(path, reader, topic, notes)
        messages = _messages(reader, connection)
        if connection.msgtype == JOINT_STATE:
            series = JointSeries()
            for stamp_ns, state in messages:
                series.add(stamp_ns, list(state.name), np.asarray(state.position, dtype=np.float64))
            joints.check(path, robot, series.names)
            if robot is not None and series.names:
                matched = match_joints(path, robot, series.names, joints, notes)
            names, times, positions = series.join(path, matched, notes)
        else:
            plan = _pick(path, connection, messages, message, notes)
            names, times, positions = _display(plan) if connection.msgtype == DISPLAY else _plan(plan)
            joints.check(path, robot, names)
    kept, columns = to_robot(path, robot, names, positions, joints, notes, matched)
    return Reading(JointTrajectory(kept, times, columns), tuple(notes))


def _choose(path: Path, reader: Reader, topic: str | None, notes: list[str]) -> Connection:
    usable = [c for c in reader.connections if c.msgtype in TYPES]
    found = [c for c in usable if topic is None or c.topic == topic]
    if not found:
        there = ", ".join(f"{c.topic} ({c.msgtype})" for c in reader.connections) or "none"
        raise FileFormatError(
            f"{path}: " + (f"topic {topic} has no joints" if topic else "no topic has joints"),
            expected=f"a topic of type {', '.join(TYPES)}; the bag's topics are: {there}",
            code=ErrorCode.FILE_UNSUPPORTED,
        )
    best = min(found, key=lambda c: (c.msgcount == 0, TYPES.index(c.msgtype), -c.msgcount, c.topic))
    if topic is None:
        notes.append(f"took topic {best.topic} ({best.msgtype}, {best.msgcount} messages)")
    return best


@lru_cache(maxsize=1)
def _standard_types() -> Typestore:
    return get_typestore(Stores.ROS2_JAZZY)


def _messages(reader: Reader, connection: Connection) -> Iterator[tuple[int, Any]]:
    store = _standard_types()
    if connection.msgtype not in store.fielddefs:
        if connection.msgdef.format != MessageDefinitionFormat.MSG:
            raise FileFormatError(
                f"the bag does not say what a {connection.msgtype} is",
                expected="message definitions in the bag",
                hint="record with the MCAP storage, which keeps them",
                code=ErrorCode.FILE_UNSUPPORTED,
            )
        store = get_typestore(Stores.ROS2_JAZZY)  # a bag's own types stay with this bag
        definitions = get_types_from_msg(connection.msgdef.data, connection.msgtype)
        store.register({name: d for name, d in definitions.items() if name not in store.fielddefs})
    for count, (_, received_ns, data) in enumerate(reader.messages(connections=[connection])):
        if count >= MAX_SAMPLES or len(data) > MAX_MESSAGE_BYTES:
            raise FileFormatError(
                f"topic {connection.topic} has message {count} of {len(data):,} bytes",
                expected=f"at most {MAX_SAMPLES:,} messages of at most {MAX_MESSAGE_BYTES:,} bytes",
            )
        decoded: Any = store.deserialize_cdr(data, connection.msgtype)
        stamp = getattr(getattr(decoded, "header", None), "stamp", None)
        stamp_ns = 0 if stamp is None else stamp.sec * 1_000_000_000 + stamp.nanosec
        yield stamp_ns or received_ns, decoded


def _pick(path: Path, connection: Connection, messages: Iterator[tuple[int, Any]], index: int, notes: list[str]) -> Any:
    plans = [plan for _, plan in messages]
    if not -len(plans) <= index < len(plans):
        raise malformed(path, f"topic {connection.topic} has no message {index}", f"one of its {len(plans)} messages")
    if len(plans) > 1:
        notes.append(f"took message {index % len(plans)} of {len(plans)} on {connection.topic}")
    return plans[index]


Table = tuple[list[str], "np.typing.NDArray[np.float64]", "np.typing.NDArray[np.float64]"]


def _plan(plan: Any) -> Table:
    names = list(plan.joint_names)
    rows = [np.asarray(point.positions, dtype=np.float64) for point in plan.points]
    bad = next((i for i, row in enumerate(rows) if row.shape != (len(names),)), None)
    if bad is not None or len(names) > MAX_JOINTS:
        raise FileFormatError(
            f"point {bad} of the plan has {rows[bad or 0].size} positions for {len(names)} joints",
            expected=f"a position for every joint, and at most {MAX_JOINTS} joints",
        )
    times = [p.time_from_start.sec + 1e-9 * p.time_from_start.nanosec for p in plan.points]
    return names, np.array(times), np.array(rows).reshape(-1, len(names))


def _display(display: Any) -> Table:
    """MoveIt's plan: its parts one after another, and joints that rest (the gripper) where they start."""
    parts = [_plan(part.joint_trajectory) for part in display.trajectory]
    parts = [part for part in parts if len(part[1])]
    if not parts:
        raise FileFormatError("the displayed plan is empty", expected="at least one point")
    names = parts[0][0]
    times, positions = parts[0][1], parts[0][2]
    for part_names, part_times, part_positions in parts[1:]:
        if sorted(part_names) != sorted(names):
            raise FileFormatError(
                f"the plan moves {', '.join(names)}, then {', '.join(part_names)}",
                expected="the same joints throughout",
            )
        ordered = part_positions[:, [part_names.index(name) for name in names]]
        # The first point of a part repeats the last one of the part before.
        later = part_times > part_times[0] if part_times[0] <= 0 else np.ones(len(part_times), dtype=bool)
        times = np.concatenate([times, times[-1] + part_times[later]])
        positions = np.concatenate([positions, ordered[later]])
    start = display.trajectory_start.joint_state
    resting = {n: float(p) for n, p in zip(start.name, start.position, strict=False) if n not in names}
    rest = np.tile(np.array(list(resting.values())), (len(times), 1))
    return [*names, *resting], times, np.hstack([positions, rest])
