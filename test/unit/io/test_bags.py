"""ROS 2 bags written in both storages: joint states, plans, MoveIt's plans, and damaged copies."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rosbags.rosbag2 import StoragePlugin, Writer
from rosbags.typesys import Stores, get_types_from_msg, get_typestore

from kinema4d_ros.core.errors import ErrorCode, FileFormatError, KinemaError, TrajectoryError
from kinema4d_ros.io.trajectories import read_trajectory, read_with_notes
from kinema4d_ros.robot import Robot

STORE = get_typestore(Stores.ROS2_JAZZY)
STORAGES = [StoragePlugin.MCAP, StoragePlugin.SQLITE3]

# The parts of moveit_msgs that a displayed plan needs.
MOVEIT = {
    "moveit_msgs/msg/RobotTrajectory": "trajectory_msgs/JointTrajectory joint_trajectory\n",
    "moveit_msgs/msg/RobotState": "sensor_msgs/JointState joint_state\nbool is_diff\n",
    "moveit_msgs/msg/DisplayTrajectory": (
        "string model_id\nmoveit_msgs/RobotTrajectory[] trajectory\nmoveit_msgs/RobotState trajectory_start\n"
    ),
}
MOVEIT_STORE = get_typestore(Stores.ROS2_JAZZY)
for _name, _text in MOVEIT.items():
    MOVEIT_STORE.register(get_types_from_msg(_text, _name))


def make(kind: str, **fields: Any) -> Any:
    return MOVEIT_STORE.types[kind](**fields)


def stamp(time_s: float) -> Any:
    return make("builtin_interfaces/msg/Time", sec=int(time_s), nanosec=round(time_s % 1 * 1e9))


def state(time_s: float, names: list[str], positions: list[float]) -> Any:
    header = make("std_msgs/msg/Header", stamp=stamp(time_s), frame_id="")
    empty = np.empty(0)
    return make(
        "sensor_msgs/msg/JointState",
        header=header,
        name=names,
        position=np.array(positions, dtype=np.float64),
        velocity=empty,
        effort=empty,
    )


def plan(names: list[str], times: list[float], rows: list[list[float]], rates: list[list[float]] | None = None) -> Any:
    empty = np.empty(0)
    points = [
        make(
            "trajectory_msgs/msg/JointTrajectoryPoint",
            positions=np.array(row, dtype=np.float64),
            velocities=empty if rates is None else np.array(rates[i], dtype=np.float64),
            accelerations=empty,
            effort=empty,
            time_from_start=make("builtin_interfaces/msg/Duration", sec=int(t), nanosec=round(t % 1 * 1e9)),
        )
        for i, (t, row) in enumerate(zip(times, rows, strict=True))
    ]
    header = make("std_msgs/msg/Header", stamp=stamp(0), frame_id="")
    return make("trajectory_msgs/msg/JointTrajectory", header=header, joint_names=names, points=points)


def write(path: Path, storage: StoragePlugin, messages: list[tuple[str, str, float, Any]]) -> Path:
    """Write a bag of (topic, type, receive time in s, message)."""
    with Writer(path, version=9, storage_plugin=storage) as writer:
        connections: dict[str, Any] = {}
        for topic, kind, time_s, message in messages:
            if topic not in connections:
                connections[topic] = writer.add_connection(topic, kind, typestore=MOVEIT_STORE)
            writer.write(connections[topic], round(time_s * 1e9), MOVEIT_STORE.serialize_cdr(message, kind))
    return path


def states(*entries: tuple[float, list[str], list[float]], topic: str = "/joint_states") -> list[Any]:
    kind = "sensor_msgs/msg/JointState"
    return [(topic, kind, 50.0 + i, state(t, names, values)) for i, (t, names, values) in enumerate(entries)]


@pytest.fixture(params=STORAGES, ids=["mcap", "sqlite3"])
def bag(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[list[Any]], Path]:
    return lambda messages: write(tmp_path / "bag", request.param, messages)


def test_joint_states(bag: Callable[[list[Any]], Path]) -> None:
    path = bag(states((100.0, ["joint1", "joint2"], [0.1, 0.2]), (100.5, ["joint1", "joint2"], [0.3, 0.4])))
    reading = read_with_notes(path)
    assert reading.trajectory.names == ("joint1", "joint2")
    np.testing.assert_allclose(reading.trajectory.times, [0.0, 0.5])
    np.testing.assert_allclose(reading.trajectory.positions, [[0.1, 0.2], [0.3, 0.4]])
    assert any("/joint_states" in note for note in reading.notes)


def test_the_storage_file_alone_is_enough(bag: Callable[[list[Any]], Path]) -> None:
    path = bag(states((1.0, ["joint1"], [0.1]), (2.0, ["joint1"], [0.2])))
    (file,) = [f for f in path.iterdir() if f.suffix in {".mcap", ".db3"}]
    assert read_trajectory(file).positions.tolist() == [[0.1], [0.2]]


def test_messages_with_different_joints_are_joined(bag: Callable[[list[Any]], Path]) -> None:
    path = bag(
        states(
            (0.5, ["finger"], [0.0]),
            (1.0, ["a", "b"], [1.0, 10.0]),
            (2.0, ["b", "a"], [20.0, 2.0]),
            (2.5, ["finger"], [0.2]),
            (3.0, ["a", "b"], [3.0, 30.0]),
            (4.5, ["finger"], [0.4]),
        )
    )
    read = read_trajectory(path)
    columns = dict(zip(read.names, read.positions.T, strict=True))
    # From 1 s, when all joints have samples, to 3 s, when the first one ends; all stamps, each joint interpolated.
    np.testing.assert_allclose(read.times, [0.0, 1.0, 1.5, 2.0])
    np.testing.assert_allclose(columns["a"], [1.0, 2.0, 2.5, 3.0])
    np.testing.assert_allclose(columns["b"], [10.0, 20.0, 25.0, 30.0])
    np.testing.assert_allclose(columns["finger"], [0.05, 0.15, 0.2, 0.25])


def test_repeated_and_late_stamps_are_sorted_and_reported(bag: Callable[[list[Any]], Path]) -> None:
    path = bag(states((1.0, ["a"], [1.0]), (3.0, ["a"], [3.0]), (2.0, ["a"], [2.0]), (3.0, ["a"], [4.0])))
    reading = read_with_notes(path)
    assert reading.trajectory.positions.ravel().tolist() == [1.0, 2.0, 4.0]
    assert any("1 messages with earlier stamps" in note for note in reading.notes)
    assert any("1 samples with a repeated stamp" in note for note in reading.notes)


def test_without_stamps_the_receive_time_is_used(bag: Callable[[list[Any]], Path]) -> None:
    read = read_trajectory(bag(states((0.0, ["a"], [1.0]), (0.0, ["a"], [2.0]))))
    np.testing.assert_allclose(read.times, [0.0, 1.0])


def test_messages_without_positions_are_skipped(bag: Callable[[list[Any]], Path]) -> None:
    path = bag(states((1.0, ["a"], [1.0]), (2.0, ["a"], []), (3.0, ["a"], [3.0])))
    reading = read_with_notes(path)
    assert len(reading.trajectory) == 2
    assert any("1 messages without positions" in note for note in reading.notes)


def test_joints_of_other_machines_do_not_shorten_the_recording(bag: Callable[[list[Any]], Path], yam: Robot) -> None:
    arm = [joint.name for joint in yam.arm]
    later = [(t, arm, [0.1 * t] * 6) for t in (2.0, 3.0)]
    path = bag(states((1.0, [*arm, "wheel"], [*[0.1] * 6, 9.0]), *later))
    read = read_trajectory(path, yam)
    assert read.names == tuple(arm)
    assert len(read) == 3


def test_unknown_joint_names_are_an_error_and_can_be_mapped(bag: Callable[[list[Any]], Path], yam: Robot) -> None:
    names = [f"joint_{i}" for i in range(6)]
    path = bag(states((1.0, [*names, "hand"], [0.1] * 7), (2.0, [*names, "hand"], [0.2] * 7)))
    with pytest.raises(FileFormatError, match=r"no values for joint1.*the recording has joint_0") as caught:
        read_trajectory(path, yam)
    assert caught.value.code == ErrorCode.UNKNOWN_JOINT
    read = read_trajectory(path, yam, joint_map={name: f"joint{i + 1}" for i, name in enumerate(names)} | {"hand": ""})
    assert read.names == tuple(joint.name for joint in yam.arm)


def test_a_plan_for_a_part_of_the_arm_is_refused(bag: Callable[[list[Any]], Path], yam: Robot) -> None:
    half = [("/plan", "trajectory_msgs/msg/JointTrajectory", 1.0, plan(["joint1"], [0.0, 1.0], [[0.0], [0.1]]))]
    with pytest.raises(FileFormatError, match="no values for joint2, joint3"):
        read_trajectory(bag(half), yam)


def test_joints_that_never_overlap_in_time_are_refused(bag: Callable[[list[Any]], Path]) -> None:
    with pytest.raises(FileFormatError, match="never overlap in time"):
        read_trajectory(bag(states((1.0, ["a"], [1.0]), (2.0, ["b"], [1.0]))))


def test_positions_that_do_not_match_the_names_are_refused(bag: Callable[[list[Any]], Path]) -> None:
    with pytest.raises(FileFormatError, match="1 positions for 2 joints"):
        read_trajectory(bag(states((1.0, ["a", "b"], [1.0]))))


def test_the_topic_is_chosen_by_name_or_by_type(bag: Callable[[list[Any]], Path]) -> None:
    messages = [
        ("/plan", "trajectory_msgs/msg/JointTrajectory", 1.0, plan(["a"], [0.0, 1.0], [[5.0], [6.0]])),
        *states((1.0, ["a"], [1.0]), topic="/other/joint_states"),
        *states((1.0, ["a"], [2.0]), (2.0, ["a"], [3.0])),
    ]
    path = bag(messages)
    assert read_trajectory(path).positions.ravel().tolist() == [2.0, 3.0]
    assert read_trajectory(path, topic="/other/joint_states").positions.ravel().tolist() == [1.0]
    assert read_trajectory(path, topic="/plan").positions.ravel().tolist() == [5.0, 6.0]
    with pytest.raises(FileFormatError, match="/other/joint_states") as caught:
        read_trajectory(path, topic="/gone")
    assert caught.value.code == ErrorCode.FILE_UNSUPPORTED


def test_the_last_plan_is_taken_unless_another_is_named(bag: Callable[[list[Any]], Path]) -> None:
    kind = "trajectory_msgs/msg/JointTrajectory"
    messages = [("/plan", kind, float(i), plan(["a"], [0.0, 0.5], [[i], [i + 1]])) for i in range(3)]
    path = bag(messages)
    reading = read_with_notes(path)
    assert reading.trajectory.positions.ravel().tolist() == [2.0, 3.0]
    assert any("message 2 of 3" in note for note in reading.notes)
    np.testing.assert_allclose(reading.trajectory.times, [0.0, 0.5])
    assert read_trajectory(path, message=0).positions.ravel().tolist() == [0.0, 1.0]
    with pytest.raises(FileFormatError, match="no message 3"):
        read_trajectory(path, message=3)


def test_an_empty_plan_and_a_ragged_plan_are_refused(bag: Callable[[list[Any]], Path], tmp_path: Path) -> None:
    kind = "trajectory_msgs/msg/JointTrajectory"
    with pytest.raises(TrajectoryError) as caught:
        read_trajectory(bag([("/plan", kind, 1.0, plan(["a"], [], []))]))
    assert caught.value.code == ErrorCode.TRAJECTORY_EMPTY
    ragged = write(tmp_path / "ragged", StoragePlugin.MCAP, [("/plan", kind, 1.0, plan(["a", "b"], [0.0], [[1.0]]))])
    with pytest.raises(FileFormatError, match="point 0 of the plan has 1 positions for 2 joints"):
        read_trajectory(ragged)


def test_moveits_plan_with_its_definition_from_the_bag(bag: Callable[[list[Any]], Path]) -> None:
    parts = [
        make("moveit_msgs/msg/RobotTrajectory", joint_trajectory=plan(["a", "b"], [0.0, 1.0], [[0, 0], [1, 2]])),
        make("moveit_msgs/msg/RobotTrajectory", joint_trajectory=plan(["b", "a"], [0.0, 0.5], [[2, 1], [4, 3]])),
    ]
    start = make("moveit_msgs/msg/RobotState", joint_state=state(0, ["a", "b", "finger"], [0, 0, 0.03]), is_diff=False)
    shown = make("moveit_msgs/msg/DisplayTrajectory", model_id="yam", trajectory=parts, trajectory_start=start)
    read = read_trajectory(bag([("/display_planned_path", "moveit_msgs/msg/DisplayTrajectory", 1.0, shown)]))
    assert read.names == ("a", "b", "finger")
    np.testing.assert_allclose(read.times, [0.0, 1.0, 1.5])
    np.testing.assert_allclose(read.positions, [[0, 0, 0.03], [1, 2, 0.03], [3, 4, 0.03]])


def test_a_plan_keeps_its_velocities_and_so_its_spline(bag: Callable[[list[Any]], Path]) -> None:
    kind = "trajectory_msgs/msg/JointTrajectory"
    message = plan(["b", "a"], [0.0, 1.0], [[0, 0], [2, 1]], [[0, 0], [0, 0]])
    read = read_trajectory(bag([("/plan", kind, 1.0, message)]))
    assert read.velocities is not None
    np.testing.assert_allclose(read.at([0.25]), [[0.3125, 0.15625]])  # the cubic 3 s^2 - 2 s^3, not a straight line


@pytest.mark.parametrize(("meeting", "kept"), [(0.0, True), (0.4, False)])
def test_parts_of_moveits_plan_keep_velocities_if_they_meet_at_rest(
    bag: Callable[[list[Any]], Path], meeting: float, kept: bool
) -> None:
    first = plan(["a", "b"], [0.0, 1.0], [[0, 0], [1, 2]], [[0.0, 0.0], [meeting, 0.0]])
    second = plan(["b", "a"], [0.0, 0.5], [[2, 1], [4, 3]], [[0.0, meeting], [0.0, 0.0]])
    parts = [make("moveit_msgs/msg/RobotTrajectory", joint_trajectory=part) for part in (first, second)]
    start = make("moveit_msgs/msg/RobotState", joint_state=state(0, ["finger"], [0.03]), is_diff=False)
    shown = make("moveit_msgs/msg/DisplayTrajectory", model_id="yam", trajectory=parts, trajectory_start=start)
    read = read_trajectory(bag([("/display_planned_path", "moveit_msgs/msg/DisplayTrajectory", 1.0, shown)]))
    assert read.names == ("a", "b", "finger")
    assert (read.velocities is not None) == kept
    expected = [2.0, 3.0, 0.03]
    np.testing.assert_allclose(read.at([1.25])[0], expected)


def test_a_bag_without_joints_lists_its_topics(bag: Callable[[list[Any]], Path]) -> None:
    message = make("std_msgs/msg/String", data="hello")
    with pytest.raises(FileFormatError, match=r"/chat \(std_msgs/msg/String\)") as caught:
        read_trajectory(bag([("/chat", "std_msgs/msg/String", 1.0, message)]))
    assert caught.value.code == ErrorCode.FILE_UNSUPPORTED


@pytest.mark.parametrize("storage", STORAGES, ids=["mcap", "sqlite3"])
def test_truncated_bags_are_refused(tmp_path: Path, storage: StoragePlugin) -> None:
    entries = [(1.0 + 0.01 * i, ["joint1", "joint2"], [0.1 * i, 0.2]) for i in range(300)]
    path = write(tmp_path / "bag", storage, states(*entries))
    (file,) = [f for f in path.iterdir() if f.suffix in {".mcap", ".db3"}]
    whole = file.read_bytes()
    for share in (0.0, 0.01, 0.1, 0.3, 0.5, 0.7, 0.9):
        file.write_bytes(whole[: int(share * len(whole))])
        for target in (path, file):
            with pytest.raises(KinemaError) as caught:
                read_trajectory(target)
            assert caught.value.code in {ErrorCode.FILE_MALFORMED, ErrorCode.FILE_UNSUPPORTED}, str(caught.value)


@pytest.mark.parametrize("storage", STORAGES, ids=["mcap", "sqlite3"])
def test_bags_with_damaged_bytes_never_raise_anything_else(tmp_path: Path, storage: StoragePlugin) -> None:
    path = write(tmp_path / "bag", storage, states(*[(1.0 + i, ["joint1"], [0.1]) for i in range(50)]))
    (file,) = [f for f in path.iterdir() if f.suffix in {".mcap", ".db3"}]
    whole = bytearray(file.read_bytes())
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(40):
        damaged = bytearray(whole)
        start = int(rng.integers(len(whole)))
        damaged[start : start + 16] = rng.bytes(len(damaged[start : start + 16]))
        file.write_bytes(damaged)
        try:
            read_trajectory(file)
        except KinemaError:
            refused += 1
    assert refused > 0


def test_a_folder_without_its_file_is_refused(bag: Callable[[list[Any]], Path]) -> None:
    path = bag(states((1.0, ["a"], [1.0])))
    next(f for f in path.iterdir() if f.suffix in {".mcap", ".db3"}).unlink()
    with pytest.raises(FileFormatError, match="missing"):
        read_trajectory(path)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("which", ["metadata.yaml", "storage"])
def test_a_pipe_in_place_of_a_file_is_refused_at_once(bag: Callable[[list[Any]], Path], which: str) -> None:
    folder = bag(states((0.0, ["a"], [0.0]), (1.0, ["a"], [1.0])))
    file = next(f for f in folder.iterdir() if (f.name == "metadata.yaml") == (which == "metadata.yaml"))
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(FileFormatError, match=r"a pipe|is not a supported trajectory file"):
        read_trajectory(folder)


def test_broken_metadata_is_refused(bag: Callable[[list[Any]], Path]) -> None:
    path = bag(states((1.0, ["a"], [1.0])))
    for text in ("", "{", "rosbag2_bagfile_information: 3", "a: &a [*a]"):
        (path / "metadata.yaml").write_text(text)
        with pytest.raises(FileFormatError, match="cannot be read"):
            read_trajectory(path)
