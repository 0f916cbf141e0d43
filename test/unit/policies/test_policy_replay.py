"""Exact replay of all kinds of recordings, and refusals: another robot, missing joints, another start."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rosbags.rosbag2 import StoragePlugin, Writer
from rosbags.typesys import Stores, get_typestore

from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import ErrorCode
from kinema4d_ros.core.trajectory import JointTrajectory
from kinema4d_ros.io.tables import write_trajectory
from kinema4d_ros.policies import EpisodeStart, Observation, Policy, PolicyError
from kinema4d_ros.policies.registry import make_policy
from kinema4d_ros.robot import Robot

CAMERA = PinholeCamera(4, 3, [[4, 0, 2], [0, 4, 1.5], [0, 0, 1]])
STORE = get_typestore(Stores.ROS2_JAZZY)


def motion(robot: Robot, names: tuple[str, ...] | None = None, rise: float = 0.2) -> JointTrajectory:
    times = np.arange(31) / 10
    q = robot.home_position() + np.outer(rise * times / 3, np.ones(len(robot.joint_names)))
    q[:, -1] = robot.home_position()[-1]
    kept = robot.joint_names if names is None else names
    return JointTrajectory(kept, 100.0 + times, q[:, [robot.joint_names.index(n) for n in kept]])


def played(policy: Policy, robot: Robot, seed: int = 0) -> JointTrajectory:
    policy.reset(EpisodeStart(robot, seed=seed))
    times, rows = [0.0], [robot.home_position()]
    for _ in range(100):
        chunk = policy.act(Observation(np.zeros((3, 4, 3), np.uint8), CAMERA, rows[-1], 0.05, times[-1]))
        assert chunk.joints is not None
        times, rows = [*times, *(times[-1] + chunk.times)], [*rows, *chunk.joints]
        if chunk.done:
            return JointTrajectory(robot.joint_names, np.array(times), np.array(rows))
    raise AssertionError("never done")


@pytest.mark.parametrize("suffix", [".npz", ".csv", ".json"])
def test_trajectory_files_are_replayed_exactly(tmp_path: Path, yam: Robot, suffix: str) -> None:
    write_trajectory(motion(yam), tmp_path / f"run{suffix}")
    made = played(make_policy(f"replay:{tmp_path / 'run'}{suffix}"), yam)
    np.testing.assert_allclose(made.positions, motion(yam).positions, atol=1e-12)
    np.testing.assert_allclose(made.times, motion(yam).times - 100.0, atol=1e-9)
    slow = played(make_policy(f"replay:{tmp_path / 'run'}{suffix},speed=0.5,chunk_s=0"), yam)
    np.testing.assert_allclose(slow.times, 2 * made.times, atol=1e-9)


def test_a_bag_is_replayed(tmp_path: Path, yam: Robot) -> None:
    wanted = motion(yam)
    kind, empty = "sensor_msgs/msg/JointState", np.empty(0)
    with Writer(tmp_path / "bag", version=9, storage_plugin=StoragePlugin.MCAP) as writer:
        connection = writer.add_connection("/joint_states", kind, typestore=STORE)
        for t, q in zip(wanted.times, np.array(wanted.positions, order="C"), strict=True):
            stamp = STORE.types["builtin_interfaces/msg/Time"](sec=int(t), nanosec=round(t % 1 * 1e9))
            header = STORE.types["std_msgs/msg/Header"](stamp=stamp, frame_id="")
            message = STORE.types[kind](
                header=header, name=list(wanted.names), position=q, velocity=empty, effort=empty
            )
            writer.write(connection, round(t * 1e9), STORE.serialize_cdr(message, kind))
    for source in (tmp_path / "bag", next((tmp_path / "bag").glob("*.mcap"))):
        made = played(make_policy(f"replay:{source},topic=/joint_states"), yam)
        np.testing.assert_allclose(made.positions, wanted.positions, atol=1e-12)


def lerobot(path: Path, robot: Robot) -> Path:
    """Two episodes whose actions and states differ."""
    names = [*(n for n in robot.joint_names[:-1]), "gripper"]
    feature = {"dtype": "float32", "shape": [len(names)], "names": names}
    info = {"codebase_version": "v2.1", "fps": 10, "total_episodes": 2, "chunks_size": 1000,
            "features": {"observation.state": feature, "action": feature}}  # fmt: skip
    (path / "meta").mkdir(parents=True)
    (path / "meta" / "info.json").write_text(json.dumps(info))
    (path / "data" / "chunk-000").mkdir(parents=True)
    for episode in range(2):
        q = motion(robot, rise=0.1 * (episode + 1)).positions.copy()
        q[:, -1] = 0.5
        rows: dict[str, Any] = {"action": q.tolist(), "observation.state": (q - 0.01).tolist()}
        rows |= {"timestamp": (np.arange(len(q)) / 10).tolist(), "episode_index": [episode] * len(q)}
        pq.write_table(pa.table(rows), path / "data" / "chunk-000" / f"episode_{episode:06d}.parquet")
    return path


def test_a_lerobot_dataset_is_replayed_by_episode(tmp_path: Path, yam: Robot) -> None:
    folder = lerobot(tmp_path / "set", yam)
    second = played(make_policy(f"replay:{folder},episode=1,gripper_range=1:0"), yam)
    np.testing.assert_allclose(second.positions[1:, :6], motion(yam, rise=0.2).positions[1:, :6], atol=1e-6)
    by_seed = played(make_policy(f"replay:{folder},episode=seed,gripper_range=1:0"), yam, seed=1)
    np.testing.assert_array_equal(by_seed.positions, second.positions)
    states = played(make_policy(f"replay:{folder},feature=observation.state,gripper_range=1:0"), yam)
    np.testing.assert_allclose(states.positions[1:, :6], motion(yam, rise=0.1).positions[1:, :6] - 0.01, atol=1e-6)
    with pytest.raises(PolicyError, match=r"'gripper' goes from 0\.5 to 0\.5.*gripper-range"):
        make_policy(f"replay:{folder}").reset(EpisodeStart(yam))
    with pytest.raises(PolicyError, match="episode 7 is not there"):
        make_policy(f"replay:{folder},episode=7").reset(EpisodeStart(yam))


@pytest.mark.parametrize(
    ("options", "words"),
    [("speed=0", "speed"), ("speed=fast", "speed"), ("episode=-1", "episode"), ("chunk_s=-1", "chunk_s")],
)
def test_options_that_make_no_sense(tmp_path: Path, yam: Robot, options: str, words: str) -> None:
    write_trajectory(motion(yam), tmp_path / "run.npz")
    with pytest.raises(PolicyError, match=words) as caught:
        make_policy(f"replay:{tmp_path / 'run.npz'},{options}")
    assert caught.value.code == ErrorCode.ARGUMENT_INVALID


@pytest.mark.parametrize("spec", ["replay", "replay:nowhere.npz"])
def test_missing_recordings(spec: str) -> None:
    with pytest.raises(PolicyError, match="does not exist") as caught:
        make_policy(spec)
    assert caught.value.code == ErrorCode.POLICY_UNAVAILABLE


def test_a_recording_of_another_robot(tmp_path: Path, yam: Robot) -> None:
    other = JointTrajectory(("wheel_left", "wheel_right"), [0.0, 1.0], [[0.0, 0.0], [1.0, 1.0]])
    write_trajectory(other, tmp_path / "run.npz")
    with pytest.raises(PolicyError, match="the recording has wheel_left, wheel_right"):
        make_policy(f"replay:{tmp_path / 'run.npz'}").reset(EpisodeStart(yam))


def test_a_recording_without_all_joints(tmp_path: Path, yam: Robot) -> None:
    write_trajectory(motion(yam, yam.joint_names[:4]), tmp_path / "run.npz")
    with pytest.raises(PolicyError, match="no values for joint5, joint6 of robot 'yam'"):
        make_policy(f"replay:{tmp_path / 'run.npz'}").reset(EpisodeStart(yam))
    write_trajectory(motion(yam, yam.joint_names[:-1]), tmp_path / "run.npz")
    with pytest.raises(PolicyError, match=f"no values for joint {yam.joint_names[-1]}"):
        make_policy(f"replay:{tmp_path / 'run.npz'}").reset(EpisodeStart(yam))


def test_a_recording_that_is_too_fast_or_truncated(tmp_path: Path, yam: Robot) -> None:
    fast = motion(yam, rise=1.0)
    write_trajectory(JointTrajectory(fast.names, fast.times / 30, fast.positions), tmp_path / "run.npz")
    with pytest.raises(PolicyError, match=r"cannot be replayed on robot 'yam'.* rad/s"):
        make_policy(f"replay:{tmp_path / 'run.npz'}").reset(EpisodeStart(yam))
    (tmp_path / "cut.npz").write_bytes((tmp_path / "run.npz").read_bytes()[:200])
    with pytest.raises(PolicyError, match=r"cut\.npz"):
        make_policy(f"replay:{tmp_path / 'cut.npz'}").reset(EpisodeStart(yam))


def test_options_of_datasets_are_refused_for_files(tmp_path: Path, yam: Robot) -> None:
    write_trajectory(motion(yam), tmp_path / "run.npz")
    with pytest.raises(PolicyError, match="episode is 3"):
        make_policy(f"replay:{tmp_path / 'run.npz'},episode=3").reset(EpisodeStart(yam))
    with pytest.raises(PolicyError, match="no option topic"):
        make_policy(f"replay:{tmp_path / 'run.npz'},topic=/joint_states").reset(EpisodeStart(yam))


def test_an_arm_away_from_the_start(tmp_path: Path, yam: Robot) -> None:
    write_trajectory(motion(yam), tmp_path / "run.npz")
    policy = make_policy(f"replay:{tmp_path / 'run.npz'}")
    policy.reset(EpisodeStart(yam))
    away = yam.home_position()
    away[1] += 0.3
    with pytest.raises(PolicyError, match=f"starts with joint '{yam.joint_names[1]}'"):
        policy.act(Observation(np.zeros((3, 4, 3), np.uint8), CAMERA, away, 0.05, 0.0))
