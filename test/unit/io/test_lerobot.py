"""LeRobot datasets written in both layouts, and damaged copies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kinema4d_ros.core.errors import ErrorCode, FileFormatError, KinemaError
from kinema4d_ros.io.joint_match import JointOptions
from kinema4d_ros.io.lerobot import _to_radians
from kinema4d_ros.io.trajectories import read_trajectory, read_with_notes
from kinema4d_ros.robot import Robot

NAMES = [*(f"joint{i}.pos" for i in range(1, 7)), "gripper.pos"]
FPS = 30
OPEN_IS_1 = (1.0, 0.0)


def episode_rows(episode: int, length: int = 20) -> dict[str, Any]:
    t = np.arange(length) / FPS
    state = np.stack([0.1 * episode + 0.05 * t * i for i in range(6)] + [np.linspace(0, 1, length)], axis=1)
    return {
        "observation.state": state.astype(np.float32),
        "action": (state + 0.5).astype(np.float32),
        "timestamp": t.astype(np.float32),
        "frame_index": np.arange(length),
        "episode_index": np.full(length, episode),
    }


def table(rows: dict[str, Any]) -> pa.Table:
    return pa.table({key: pa.array(value.tolist()) for key, value in rows.items()})


def info(version: str, names: Any = NAMES) -> dict[str, Any]:
    feature = {"dtype": "float32", "shape": [7], "names": names}
    return {
        "codebase_version": version,
        "fps": FPS,
        "total_episodes": 3,
        "chunks_size": 2,
        "features": {"observation.state": feature, "action": feature, "timestamp": {"dtype": "float32"}},
    }


def write_v2(path: Path, names: Any = NAMES) -> Path:
    (path / "meta").mkdir(parents=True)
    (path / "meta" / "info.json").write_text(json.dumps(info("v2.1", names)))
    for episode in range(3):
        file = path / "data" / f"chunk-{episode // 2:03d}" / f"episode_{episode:06d}.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table(episode_rows(episode)), file)
    return path


def write_v3(path: Path, names: Any = NAMES) -> Path:
    (path / "meta" / "episodes" / "chunk-000").mkdir(parents=True)
    (path / "data" / "chunk-000").mkdir(parents=True)
    (path / "meta" / "info.json").write_text(json.dumps(info("v3.0", names)))
    files = [[0, 1], [2]]
    for number, episodes in enumerate(files):
        joined = pa.concat_tables([table(episode_rows(episode)) for episode in episodes])
        pq.write_table(joined, path / "data" / "chunk-000" / f"file-{number:03d}.parquet")
    where = {"episode_index": [0, 1, 2], "data/chunk_index": [0, 0, 0], "data/file_index": [0, 0, 1]}
    pq.write_table(pa.table(where), path / "meta" / "episodes" / "chunk-000" / "file-000.parquet")
    return path


@pytest.fixture(params=[write_v2, write_v3], ids=["v2.1", "v3.0"])
def dataset(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return request.param(tmp_path / "set")


@pytest.mark.parametrize("episode", [0, 1, 2])
def test_an_episode_with_the_gripper_of_the_robot(dataset: Path, yam: Robot, episode: int) -> None:
    reading = read_with_notes(dataset, yam, episode=episode, gripper_range=OPEN_IS_1)
    read, expected = reading.trajectory, episode_rows(episode)
    assert read.names == yam.joint_names
    np.testing.assert_allclose(read.times, expected["timestamp"], atol=1e-6)
    np.testing.assert_allclose(read.positions[:, :6], expected["observation.state"][:, :6], atol=1e-6)
    assert yam.gripper is not None
    np.testing.assert_allclose(read.positions[:, 6], yam.gripper.position(np.linspace(0, 1, 20)), atol=1e-6)
    assert "gripper 'gripper': 1 = open, 0 = closed (--gripper-range)" in reading.notes
    assert any("observation.state" in note for note in reading.notes)


def test_actions_on_request(dataset: Path) -> None:
    read = read_trajectory(dataset, feature="action", episode=1)
    assert read.names == (*(f"joint{i}" for i in range(1, 7)), "gripper")
    np.testing.assert_allclose(read.positions, episode_rows(1)["action"], atol=1e-6)


@pytest.mark.parametrize("column", ["gripper", "gripper_pos", "Gripper_Open", "left_finger_joint"])
def test_a_gripper_of_any_name_is_not_in_degrees(yam: Robot, column: str) -> None:
    options = JointOptions(gripper_range=(100.0, 0.0))
    read = _to_radians(yam, ["joint1", column], options, np.array([[180.0, 50.0]]))
    np.testing.assert_allclose(read, [[np.pi, 50.0]])


def test_degrees_are_converted_but_not_the_gripper(dataset: Path, yam: Robot) -> None:
    read = read_trajectory(dataset, yam, degrees=True, episode=2, gripper_range=OPEN_IS_1)
    plain = read_trajectory(dataset, yam, episode=2, gripper_range=OPEN_IS_1)
    np.testing.assert_allclose(read.positions[:, :6], np.radians(plain.positions[:, :6]), atol=1e-12)
    np.testing.assert_array_equal(read.positions[:, 6], plain.positions[:, 6])


@pytest.mark.parametrize(
    "names",
    [
        {"motors": NAMES},
        {"axes": NAMES},
        {"arm": NAMES[:6], "hand": NAMES[6:]},
        {name: i for i, name in enumerate(NAMES)},
        [NAMES],
        [NAMES[:6], NAMES[6:]],
    ],
)
def test_names_may_be_nested(tmp_path: Path, yam: Robot, names: Any) -> None:
    folder = write_v2(tmp_path / "set", names)
    assert read_trajectory(folder, yam, gripper_range=OPEN_IS_1).names == yam.joint_names


def test_names_may_be_given_or_be_the_robots(tmp_path: Path, yam: Robot) -> None:
    path = write_v2(tmp_path / "set", None)
    reading = read_with_notes(path, yam, feature="observation.state", gripper_range=OPEN_IS_1)
    assert reading.trajectory.names == yam.joint_names
    assert any("has no names: taken as joint1, joint2" in note for note in reading.notes)
    given = read_trajectory(path, names=list("abcdefg"))
    assert given.names == tuple("abcdefg")
    assert read_trajectory(path).names == tuple("0123456")
    with pytest.raises(FileFormatError, match="7 names"):
        read_trajectory(path, names=["a"])
    wrong = write_v2(tmp_path / "wrong", ["a", "b"])
    with pytest.raises(FileFormatError, match=r"7 dimensions, but 2 joint names: a, b.*fix 'names' in meta/info.json"):
        read_trajectory(wrong)


def test_unknown_names_are_an_error_and_can_be_mapped(tmp_path: Path, yam: Robot) -> None:
    names = [*(f"joint_{i}.pos" for i in range(6)), "gripper.pos"]
    folder = write_v2(tmp_path / "set", [names])
    with pytest.raises(FileFormatError, match=r"no values for joint1.*the recording has joint_0, joint_1") as caught:
        read_trajectory(folder, yam)
    assert caught.value.code == ErrorCode.UNKNOWN_JOINT
    for suffix in ("", ".pos"):
        joint_map = {f"joint_{i}{suffix}": f"joint{i + 1}" for i in range(6)}
        read = read_trajectory(folder, yam, joint_map=joint_map, gripper_range=(0.0, 1.0))
        np.testing.assert_allclose(read.positions[:, :6], episode_rows(0)["observation.state"][:, :6], atol=1e-6)
        assert yam.gripper is not None
        np.testing.assert_allclose(read.positions[:, 6], yam.gripper.position(np.linspace(1, 0, 20)), atol=1e-6)
    unnamed = write_v2(tmp_path / "unnamed", None)
    by_place = {str(i): f"joint{i + 1}" for i in range(6)} | {"6": ""}
    assert read_trajectory(unnamed, yam, joint_map=by_place).names == yam.joint_names[:6]


@pytest.mark.parametrize("episode", [3, 99999, -1])
def test_missing_episodes(dataset: Path, episode: int) -> None:
    with pytest.raises(FileFormatError, match=f"episode {episode}") as caught:
        read_trajectory(dataset, episode=episode)
    assert caught.value.code == ErrorCode.FILE_MISSING


def test_missing_features(dataset: Path) -> None:
    with pytest.raises(FileFormatError, match=r"observation\.state, action"):
        read_trajectory(dataset, feature="velocity")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"codebase_version": "v1.6", "fps": 30, "features": {}}',
        '{"codebase_version": "v2.1", "fps": 0, "features": {}}',
        '{"codebase_version": "v2.1", "fps": "x", "features": {}}',
        '{"codebase_version": "v2.1", "fps": 30, "features": []}',
        '{"codebase_version": "v2.1", "fps": 30, "features": {"action": {}}, "chunks_size": 0}',
    ],
)
def test_broken_info_is_refused(dataset: Path, text: str) -> None:
    (dataset / "meta" / "info.json").write_text(text)
    with pytest.raises(FileFormatError):
        read_trajectory(dataset)


def test_truncated_parquet_is_refused(dataset: Path) -> None:
    file = min((dataset / "data").rglob("*.parquet"))
    whole = file.read_bytes()
    for share in (0.0, 0.1, 0.5, 0.9, 0.99):
        file.write_bytes(whole[: int(share * len(whole))])
        with pytest.raises(FileFormatError, match="may be truncated"):
            read_trajectory(dataset, episode=0)


def test_damaged_parquet_never_raises_anything_else(dataset: Path) -> None:
    file = min((dataset / "data").rglob("*.parquet"))
    whole, rng = file.read_bytes(), np.random.default_rng(0)
    refused = 0
    for _ in range(60):
        damaged = bytearray(whole)
        start = int(rng.integers(len(whole)))
        damaged[start : start + 8] = rng.bytes(len(damaged[start : start + 8]))
        file.write_bytes(damaged)
        try:
            read_trajectory(dataset, episode=0)
        except KinemaError:
            refused += 1
    assert refused > 0


def test_rows_that_are_ragged_are_refused(tmp_path: Path) -> None:
    path = write_v2(tmp_path / "set")
    rows = pa.table({"observation.state": [[0.0, 1.0], [0.0]], "timestamp": [0.0, 0.1], "episode_index": [0, 0]})
    pq.write_table(rows, path / "data" / "chunk-000" / "episode_000000.parquet")
    with pytest.raises(FileFormatError, match="table of numbers"):
        read_trajectory(path)


def test_missing_columns_are_named(tmp_path: Path) -> None:
    path = write_v2(tmp_path / "set")
    pq.write_table(pa.table({"action": [[0.0] * 7]}), path / "data" / "chunk-000" / "episode_000000.parquet")
    with pytest.raises(FileFormatError, match=r"episode_index, observation\.state are missing"):
        read_trajectory(path)


def test_without_timestamps_the_rate_is_used(tmp_path: Path) -> None:
    path = write_v2(tmp_path / "set")
    rows = pa.table({"observation.state": [[0.0] * 7, [0.1] * 7], "episode_index": [0, 0]})
    pq.write_table(rows, path / "data" / "chunk-000" / "episode_000000.parquet")
    np.testing.assert_allclose(read_trajectory(path).times, [0, 1 / FPS])


def test_an_episode_table_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = write_v3(tmp_path / "set")
    pq.write_table(pa.table({"a": [1]}), path / "meta" / "episodes" / "chunk-000" / "file-000.parquet")
    with pytest.raises(FileFormatError, match="data/file_index"):
        read_trajectory(path)
