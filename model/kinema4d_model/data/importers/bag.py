"""ROS 2 bags (MCAP or SQLite) as recordings: images, depth, measured and commanded joints. Needs no ROS.

Depth must be registered to the images. Topics with such a name are found automatically (`camera/depth`,
`aligned_depth...`, `depth_registered...`); any other topic must be given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray
from rosbags.rosbag2 import Reader
from rosbags.typesys import Stores, get_typestore
from rosbags.typesys.store import Typestore

from kinema4d_model.data.importers.recording import Recording
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import DataError, ErrorCode, FileFormatError, KinemaError
from kinema4d_ros.core.trajectory import JointTrajectory
from kinema4d_ros.io.bags import JointSeries, opened_bag
from kinema4d_ros.io.joint_match import JointOptions, match_joints, to_robot
from kinema4d_ros.robot import Robot

__all__ = ["BagJoints", "Stamped", "bag_messages", "bag_recording", "find_topic", "read_bag_joints", "topic_types"]

# Measured and commanded joints of a bag, on the clock of its images.
#
# JointState on joint_states ──────────────────────> measured
# JointTrajectory on *_controller/joint_trajectory ─> commanded: each message replaces the last one from its start on
# JointState with "command" in its topic ───────────> commanded, if there is no trajectory
#
# The command is linear between trajectory points and holds after the last one. Controllers that only have an action
# leave no commands in a bag; measured joints are never used as commands without a note in `details`.


class Stamped(NamedTuple):
    """A message.

    Attributes:
        stamp_ns: of its header; 0 if it has no stamp.
        received_ns: receive time of the recorder.
        message: its content.
    """

    stamp_ns: int
    received_ns: int
    message: Any

    @property
    def time_ns(self) -> int:
        """Stamp, or receive time without a stamp."""
        return self.stamp_ns or self.received_ns


@lru_cache(maxsize=1)
def _store() -> Typestore:
    return get_typestore(Stores.ROS2_JAZZY)


def topic_types(reader: Reader) -> dict[str, str]:
    """Return the type of each topic."""
    return {c.topic: c.msgtype for c in reader.connections}


def find_topic(reader: Reader, types: tuple[str, ...], within: str = "", without: tuple[str, ...] = ()) -> str:
    """Return the topic with most messages of these types whose name has `within` and none of `without`; or ""."""
    counts = {c.topic: c.msgcount for c in reader.connections}
    fits = [
        topic
        for topic, kind in topic_types(reader).items()
        if counts[topic] and kind in types and within in topic and not any(word in topic for word in without)
    ]
    return max(fits, key=lambda topic: counts[topic], default="")


def bag_messages(reader: Reader, topic: str) -> Iterator[Stamped]:
    """Yield the messages of a topic."""
    connections = [c for c in reader.connections if c.topic == topic]
    if not connections:
        there = ", ".join(c.topic for c in reader.connections)
        raise DataError(f"the bag has no topic {topic}", expected=f"one of {there}", code=ErrorCode.FILE_UNSUPPORTED)
    for connection, received_ns, data in reader.messages(connections=connections):
        message: Any = _store().deserialize_cdr(data, connection.msgtype)
        stamp = message.header.stamp
        yield Stamped(stamp.sec * 1_000_000_000 + stamp.nanosec, received_ns, message)


Array = NDArray[np.float64]

STATE, TRAJECTORY = "sensor_msgs/msg/JointState", "trajectory_msgs/msg/JointTrajectory"
CONTROLLER = "controller/joint_trajectory"
_BEFORE_S = 1e-3
"""A replaced command is sampled this long before the new one starts, seconds."""


@dataclass(frozen=True, eq=False)
class BagJoints:
    """Joints of a bag, seconds since its first image, and their topics; None and "" if missing.

    `notes` list what was chosen, merged or left out.
    """

    joints: JointTrajectory | None
    actions: JointTrajectory | None
    joints_topic: str
    actions_topic: str
    notes: tuple[str, ...] = ()


def read_bag_joints(
    reader: Reader,
    path: Path,
    robot: Robot,
    first_s: float,
    last_s: float,
    joints_topic: str,
    actions_topic: str,
    options: JointOptions | None = None,
) -> BagJoints:
    """Read the joints between the stamps of the first and last image, seconds; find topics that are not given.

    Raises:
        FileFormatError: a joint of the arm is not measured, or not commanded while unknown joints are.
    """
    options = options or JointOptions()
    notes: list[str] = []
    types = topic_types(reader)
    for topic in (joints_topic, actions_topic):
        if topic and types.get(topic) not in (STATE, TRAJECTORY):
            there = ", ".join(f"{t} ({k})" for t, k in types.items() if k in (STATE, TRAJECTORY)) or "none"
            raise DataError(
                f"{path} has no joints on {topic}",
                expected=f"a topic with joints; the bag has {there}",
                code=ErrorCode.FILE_UNSUPPORTED,
            )
    seen = joints_topic or find_topic(reader, (STATE,), without=("command",))
    told = [actions_topic] if actions_topic else []
    told = told or sorted(t for t, k in types.items() if k == TRAJECTORY and t.endswith(CONTROLLER))
    plans = [topic for topic in told if types[topic] == TRAJECTORY]
    state = actions_topic if actions_topic and not plans else find_topic(reader, (STATE,), within="command")
    named = {topic: _names(reader, topic, types[topic]) for topic in dict.fromkeys((seen, *plans, state)) if topic}
    options.check(path, robot, [name for names in named.values() for name in names])
    joints, delay_s = _states(reader, path, robot, seen, first_s, options, notes) if seen else (None, 0.0)
    actions = None
    if plans:
        commanded = list(dict.fromkeys(name for topic in plans for name in named[topic]))
        matched = match_joints(path, robot, commanded, options, notes, whole_arm=False)
        in_robot = partial(_in_robot_terms, path, robot, options, matched, notes)
        actions = _plans(reader, path, in_robot, plans, joints, first_s + delay_s, first_s, last_s)
    if actions is None:
        plans = [state] if state else []
        actions = _states(reader, path, robot, state, first_s, options, notes)[0] if state else None
    return BagJoints(joints, actions, seen, ", ".join(plans), tuple(dict.fromkeys(notes)))


def _names(reader: Reader, topic: str, kind: str) -> list[str]:
    """Return all joint names of a topic."""
    field = "name" if kind == STATE else "joint_names"
    return list(dict.fromkeys(name for m in bag_messages(reader, topic) for name in getattr(m.message, field)))


def _in_robot_terms(
    path: Path,
    robot: Robot,
    options: JointOptions,
    matched: Mapping[str, str],
    notes: list[str],
    names: list[str],
    positions: Array,
) -> tuple[list[str], Array]:
    kept, columns = to_robot(path, robot, names, positions, options, notes, matched)
    return list(kept), columns


def _states(
    reader: Reader,
    path: Path,
    robot: Robot,
    topic: str,
    origin_s: float,
    options: JointOptions,
    notes: list[str],
) -> tuple[JointTrajectory, float]:
    """Return joint states since `origin_s`, and the typical delay in seconds from stamp to receive time."""
    series = JointSeries()
    first_ns: dict[str, int] = {}
    delays_ns = []
    for found in bag_messages(reader, topic):
        names = list(found.message.name)
        series.add(found.time_ns, names, np.asarray(found.message.position, dtype=np.float64))
        delays_ns.append(found.received_ns - found.time_ns)
        for name in names:
            first_ns[name] = min(found.time_ns, first_ns.get(name, found.time_ns))
    matched = match_joints(path, robot, series.names, options, notes) if series.names else None
    names, times, positions = series.join(path, matched, notes)
    # The series begins once all joints have been received.
    begin_s = 1e-9 * max(first_ns[name] for name in names)
    kept, columns = to_robot(path, robot, names, positions, options, notes, matched)
    delay_s = 1e-9 * float(np.median(delays_ns)) if delays_ns else 0.0
    return JointTrajectory(tuple(kept), times + (begin_s - origin_s), columns), delay_s


def _plans(
    reader: Reader,
    path: Path,
    in_robot: Callable[[list[str], Array], tuple[list[str], Array]],
    topics: list[str],
    joints: JointTrajectory | None,
    received_origin_s: float,
    origin_s: float,
    last_s: float,
) -> JointTrajectory | None:
    """Return the commands over time of the trajectories on `topics`; None if there is no trajectory.

    Args:
        reader, path, topics: source.
        in_robot: maps names and columns to the robot's joints.
        joints: measured, seconds since `origin_s`; gives a joint's position before its first command.
        received_origin_s: `origin_s` on the recorder's clock.
        origin_s, last_s: stamps of the first and last image.
    """
    tracks = []
    for topic in topics:
        starts: list[tuple[float, list[str], Array, Array]] = []
        for found in bag_messages(reader, topic):
            plan = found.message
            stamped = found.stamp_ns > 0
            start = 1e-9 * found.stamp_ns - origin_s if stamped else 1e-9 * found.received_ns - received_origin_s
            names, times, positions = _table(path, topic, plan)
            kept, q = in_robot(names, positions)
            if kept or not names:  # an empty trajectory means stop
                starts.append((start, kept, times, q))
        starts.sort(key=lambda entry: entry[0])
        track = _followed(starts, joints, last_s - origin_s)
        if track is not None:
            tracks.append(track)
    if not tracks:
        return None
    begin = min(float(track.times[0]) for track in tracks)
    times = np.unique(np.concatenate([track.times for track in tracks]))
    columns: dict[str, Array] = {}
    for track in tracks:
        values = track.at(times)
        before = times < track.times[0]
        for j, name in enumerate(track.names):
            if name in columns:
                raise DataError(f"{path}: two controllers command {name}", expected="one, or --actions-topic")
            if joints is not None and name in joints.names:
                values[before, j] = joints.at([begin])[0, joints.names.index(name)]
            columns[name] = values[:, j]
    return JointTrajectory(tuple(columns), times, np.stack(list(columns.values()), axis=1))


def _table(path: Path, topic: str, plan: object) -> tuple[list[str], Array, Array]:
    """Return names, (T,) seconds from its start and (T, N) positions of a trajectory's points."""
    names = list(plan.joint_names)  # type: ignore[attr-defined]
    points = plan.points  # type: ignore[attr-defined]
    rows = [np.asarray(point.positions, dtype=np.float64) for point in points]
    times = np.array([p.time_from_start.sec + 1e-9 * p.time_from_start.nanosec for p in points], dtype=np.float64)
    if any(row.shape != (len(names),) or not np.isfinite(row).all() for row in rows) or np.any(np.diff(times) <= 0):
        raise DataError(
            f"{path}: a trajectory on {topic} has points without positions or out of order",
            expected="a finite position for every joint, times that increase",
        )
    return names, times, np.array(rows, dtype=np.float64).reshape(-1, len(names))


def _followed(
    starts: list[tuple[float, list[str], Array, Array]], joints: JointTrajectory | None, last_s: float
) -> JointTrajectory | None:
    """Return the command of one controller: each trajectory applies until the next one starts; the last one holds."""
    names = next((names for _, names, times, _ in starts if len(times)), None)
    if names is None:
        return None
    clock: list[float] = []
    rows: list[Array] = []

    def held(at_s: float) -> Array:
        if clock:
            return JointTrajectory(tuple(names), np.array(clock), np.array(rows)).at([at_s])[0]
        first = next(q for _, _, _, q in starts if len(q))[0].copy()
        for j, name in enumerate(names):
            if joints is not None and name in joints.names:
                first[j] = joints.at([at_s])[0, joints.names.index(name)]
        return first

    for start, given, times, q in starts:
        if sorted(given) != sorted(names) and len(times):
            raise DataError(f"a controller commands {', '.join(names)}, then {', '.join(given)}", expected="the same")
        now = held(start)
        kept = [i for i, t in enumerate(clock) if t < start - _BEFORE_S]
        if clock:
            before = held(start - _BEFORE_S)
            clock, rows = [clock[i] for i in kept], [rows[i] for i in kept]
            clock.append(start - _BEFORE_S)
            rows.append(before)
        if not len(times):  # an empty trajectory means stop
            clock.append(start)
            rows.append(now)
            continue
        ordered = q[:, [given.index(name) for name in names]]
        if times[0] > 0:
            clock.append(start)
            rows.append(now)
        clock += (start + times).tolist()
        rows += list(ordered)
    if clock[-1] < last_s:
        clock.append(last_s)
        rows.append(rows[-1])
    return JointTrajectory(tuple(names), np.array(clock), np.array(rows))


IMAGE, COMPRESSED = "sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage"
_COLOUR = {"rgb8": (3, None), "bgr8": (3, cv2.COLOR_BGR2RGB), "rgba8": (4, cv2.COLOR_RGBA2RGB),
           "bgra8": (4, cv2.COLOR_BGRA2RGB), "mono8": (1, cv2.COLOR_GRAY2RGB)}  # fmt: skip
_DEPTH: dict[str, tuple[Any, float]] = {
    "16UC1": (np.uint16, 1e-3),
    "mono16": (np.uint16, 1e-3),
    "32FC1": (np.float32, 1.0),
}
_MAX_IMAGES = 20_000


def bag_recording(
    path: Path,
    robot: tuple[str, Robot],
    camera: PinholeCamera | None,
    *,
    image_topic: str = "",
    depth_topic: str = "",
    joints_topic: str = "",
    actions_topic: str = "",
    task: str = "unknown",
    success: bool | None = None,
    details: Mapping[str, Any] | None = None,
    joints: JointOptions | None = None,
) -> Recording:
    """Read a whole bag as one motion; topics that are not given are found by type and name.

    Images: the colour topic with most messages. Commands: see `bag_joints`. Times are message stamps, not receive
    times; a trajectory without a stamp begins when it was received. `joints` maps joint names and the gripper's scale.
    """
    try:
        with opened_bag(path) as (reader, unfinished):
            topics = topic_types(reader)
            colour = image_topic or find_topic(reader, (IMAGE, COMPRESSED), without=("depth",))
            if not colour or topics.get(colour) not in (IMAGE, COMPRESSED):
                there = ", ".join(f"{t} ({k})" for t, k in topics.items()) or "none"
                raise DataError(
                    f"{path} has no images on {colour or 'any topic'}",
                    expected=f"an image topic; the bag has {there}",
                    code=ErrorCode.FILE_UNSUPPORTED,
                )
            pictures = list(_images(reader, colour))
            depth_topic = depth_topic or _registered_depth(reader)
            deep = list(_images(reader, depth_topic)) if depth_topic else []
            if not pictures:
                raise DataError(f"{path}: topic {colour} has no messages", expected="images")
            times = np.array([t for t, _ in pictures])
            found = read_bag_joints(reader, path, robot[1], times[0], times[-1], joints_topic, actions_topic, joints)
    except FileFormatError as error:
        raise DataError(error.what, expected=error.expected, hint=error.hint, code=error.code) from error
    except KinemaError:
        raise
    except Exception as error:  # the parser can raise anything on a corrupt file
        raise DataError(f"{path} cannot be read: {type(error).__name__}: {error}"[:300], expected="a bag") from error
    depth = [deep[int(np.argmin([abs(d - t) for d, _ in deep]))][1] for t in times] if deep else None
    return Recording(
        key=path.stem.replace(".", "_"),
        images=[image for _, image in pictures],
        image_times=times - times[0],
        source="bag",
        joints=found.joints,
        actions=found.actions,
        depth=depth,
        camera=camera,
        robot=robot,
        task=task,
        success=success,
        details={
            "image_topic": colour,
            "depth_topic": depth_topic,
            "joints_topic": found.joints_topic,
            "actions_topic": found.actions_topic,
            **({"unfinished": unfinished} if unfinished else {}),
            **({"notes": list(found.notes)} if found.notes else {}),
            **(details or {}),
        },
    )


def _registered_depth(reader: Reader) -> str:
    """Return a depth topic whose name indicates registration to the images, or ""."""
    for word in ("camera/depth", "aligned_depth", "depth_registered"):
        topic = find_topic(reader, (IMAGE,), within=word)
        if topic and (word != "camera/depth" or topic.endswith(word)):
            return topic
    return ""


def _images(reader: Reader, topic: str) -> Iterator[tuple[float, NDArray[Any]]]:
    for count, found in enumerate(bag_messages(reader, topic)):
        if count >= _MAX_IMAGES:
            raise DataError(
                f"topic {topic} has more than {_MAX_IMAGES} images", expected="one motion", hint="split the bag"
            )
        message = found.message
        yield 1e-9 * found.time_ns, _decompressed(message) if hasattr(message, "format") else _plain(message)


def _decompressed(message: Any) -> NDArray[Any]:
    image = cv2.imdecode(np.asarray(message.data, np.uint8), cv2.IMREAD_UNCHANGED)
    if image is None:
        raise DataError(f"a compressed image ({message.format}) cannot be decoded", expected="JPEG or PNG")
    if image.ndim == 2 and image.dtype == np.uint16:
        return np.asarray(image * np.float32(1e-3), np.float32)
    return np.asarray(cv2.cvtColor(image, cv2.COLOR_GRAY2RGB if image.ndim == 2 else cv2.COLOR_BGR2RGB))


def _plain(message: Any) -> NDArray[Any]:
    height, width, step = int(message.height), int(message.width), int(message.step)
    data = np.asarray(message.data, np.uint8)
    kind = message.encoding
    if kind in _COLOUR:
        channels, convert = _COLOUR[kind]
        dtype: Any = np.uint8
    elif kind in _DEPTH:
        channels, convert, dtype = 1, None, _DEPTH[kind][0]
    else:
        raise DataError(f"image encoding {kind!r}", expected=f"one of {', '.join([*_COLOUR, *_DEPTH])}")
    row = width * channels * np.dtype(dtype).itemsize
    if height < 1 or width < 1 or step < row or data.size != step * height:
        raise DataError(f"an image of {width} x {height} {kind} with {data.size} bytes", expected=f"{step} x {height}")
    pixels = np.ascontiguousarray(data.reshape(height, step)[:, :row]).view(dtype)
    if message.is_bigendian and np.dtype(dtype).itemsize > 1:
        pixels = pixels.byteswap()
    if kind in _DEPTH:
        return np.asarray(pixels * np.float32(_DEPTH[kind][1]), np.float32)
    image = pixels.reshape(height, width, channels)
    return np.asarray(image if convert is None else cv2.cvtColor(image, convert))
