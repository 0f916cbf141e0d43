"""CSV, JSON and NPZ: exact round trips, units, and clear errors for damaged or hostile files."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from kinema4d_ros.core.errors import ErrorCode, FileFormatError, KinemaError, TrajectoryError
from kinema4d_ros.core.trajectory import JointTrajectory
from kinema4d_ros.io.tables import write_trajectory
from kinema4d_ros.io.trajectories import read_trajectory, read_with_notes
from kinema4d_ros.robot import Robot

SUFFIXES = [".csv", ".json", ".npz"]


@pytest.fixture
def trajectory() -> JointTrajectory:
    rng = np.random.default_rng(0)
    return JointTrajectory(("joint1", "joint2"), np.cumsum(rng.uniform(0.01, 0.1, 50)), rng.normal(size=(50, 2)))


@pytest.mark.parametrize("suffix", SUFFIXES)
@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
def test_round_trips_are_exact(tmp_path: Path, suffix: str, data: st.DataObject) -> None:
    samples, joints = data.draw(st.integers(1, 8)), data.draw(st.integers(1, 4))
    steps = data.draw(arrays(np.float64, samples, elements=st.floats(1e-3, 1e3)))
    positions = data.draw(arrays(np.float64, (samples, joints), elements=st.floats(-1e6, 1e6)))
    written = JointTrajectory(tuple(f"joint {i}/é" for i in range(joints)), np.cumsum(steps), positions)
    write_trajectory(written, tmp_path / f"t{suffix}")
    read = read_trajectory(tmp_path / f"t{suffix}")
    assert read.names == written.names
    np.testing.assert_array_equal(read.times, written.times)
    np.testing.assert_array_equal(read.positions, written.positions)


def test_units_in_the_header_convert(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(
        "# made by hand\ntime[ms], joint1[deg], joint2[rad], finger[mm]\n0,90,1,5\n20,180,2,10\n"
    )
    read = read_trajectory(tmp_path / "t.csv")
    assert read.names == ("joint1", "joint2", "finger")
    np.testing.assert_allclose(read.times, [0, 0.02])
    np.testing.assert_allclose(read.positions, [[np.pi / 2, 1, 0.005], [np.pi, 2, 0.01]])


def test_a_byte_order_mark_and_windows_line_ends_are_fine(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b"\xef\xbb\xbftime,joint1\r\n0,1\r\n1,2\r\n")
    assert read_trajectory(tmp_path / "t.csv").positions.tolist() == [[1.0], [2.0]]


def test_joints_of_other_machines_are_skipped_with_a_note(tmp_path: Path, yam: Robot) -> None:
    arm = [joint.name for joint in yam.arm]
    (tmp_path / "t.csv").write_text(f"time,{','.join(arm)},gantry\n0{6 * ',0.1'},5\n1{6 * ',0.2'},6\n")
    reading = read_with_notes(tmp_path / "t.csv", yam)
    assert reading.trajectory.names == tuple(arm)
    assert any("gantry" in note for note in reading.notes)
    (tmp_path / "t.csv").write_text("time,gantry\n0,5\n")
    with pytest.raises(FileFormatError, match="gantry") as caught:
        read_with_notes(tmp_path / "t.csv", yam)
    assert caught.value.code == ErrorCode.UNKNOWN_JOINT


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        ("\n\n", "header"),
        ("joint1,joint2\n0,1\n", "header is 'joint1,joint2'"),
        ("time\n0\n", "header"),
        ("time,joint1[furlong]\n0,1\n", "furlong"),
        ("time[deg],joint1\n0,1\n", "time is in 'deg'"),
        ("time,joint1[ms]\n0,1\n", r"joint1\[ms\]"),
        ("time,joint1\n0,1\n1\n", "columns"),
        ("time,joint1\n0,1\n1,\n", "convert"),
        ("time,joint1\n0,one\n", "one"),
        ("time,joint1\n0,1,2\n", "3 numbers for 2 columns"),
        ("time,,joint2\n0,1,2\n", "not understood"),
        ("time,joint1\n\x00\x01\x02\n", "convert"),
    ],
)
def test_broken_csv_files_are_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(FileFormatError, match=message) as caught:
        read_trajectory(tmp_path / "t.csv")
    assert "t.csv" in str(caught.value)


def test_a_csv_of_another_encoding_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes("time,jöint\n0,1\n".encode("utf-16"))
    with pytest.raises(FileFormatError, match="UTF-8"):
        read_trajectory(tmp_path / "t.csv")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("time,joint1\n", ErrorCode.TRAJECTORY_EMPTY),
        ("time,joint1\n0,1\n0,1\n", ErrorCode.TRAJECTORY_NOT_MONOTONIC),
        ("time,joint1\n0,nan\n", ErrorCode.TRAJECTORY_NOT_FINITE),
        ("time,joint1,joint1\n0,1,2\n", ErrorCode.TRAJECTORY_BAD_SHAPE),
    ],
)
def test_a_good_file_with_a_bad_trajectory_gets_the_trajectorys_error(
    tmp_path: Path, text: str, code: ErrorCode
) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(TrajectoryError) as caught:
        read_trajectory(tmp_path / "t.csv")
    assert caught.value.code == code


@pytest.mark.parametrize("suffix", [".json", ".npz"])
def test_every_truncation_is_an_error(tmp_path: Path, trajectory: JointTrajectory, suffix: str) -> None:
    path = tmp_path / f"t{suffix}"
    write_trajectory(trajectory, path)
    whole = path.read_bytes()
    # The last byte of the JSON file is a line end.
    for length in [*range(0, len(whole) - 2, max(1, len(whole) // 40)), len(whole) - 2]:
        path.write_bytes(whole[:length])
        with pytest.raises(FileFormatError):
            read_trajectory(path)


def test_a_csv_cut_within_a_row_is_an_error(tmp_path: Path, trajectory: JointTrajectory) -> None:
    path = tmp_path / "t.csv"
    write_trajectory(trajectory, path)
    text = path.read_text()
    path.write_text(text[: text.rindex(",")])
    with pytest.raises(FileFormatError, match="may be truncated"):
        read_trajectory(path)


@pytest.mark.parametrize(
    "data",
    [
        [],
        {"names": ["a"], "times": [0], "positions": [[0]]},
        {"format": "kinema4d_joint_trajectory", "version": 2, "names": ["a"], "times": [0], "positions": [[0]]},
        {"format": "kinema4d_joint_trajectory", "version": 1, "names": "a", "times": [0], "positions": [[0]]},
        {"format": "kinema4d_joint_trajectory", "version": 1, "names": [1], "times": [0], "positions": [[0]]},
        {"format": "kinema4d_joint_trajectory", "version": 1, "names": ["a"], "times": [0]},
        {"format": "kinema4d_joint_trajectory", "version": 1, "names": ["a"], "times": "x", "positions": [[0]]},
        {"format": "kinema4d_joint_trajectory", "version": 1, "names": ["a"], "times": [0], "positions": {"a": 0}},
    ],
)
def test_json_of_another_kind_is_refused(tmp_path: Path, data: object) -> None:
    (tmp_path / "t.json").write_text(json.dumps(data))
    with pytest.raises(KinemaError):
        read_trajectory(tmp_path / "t.json")


def test_deeply_nested_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text("[" * 200_000)
    with pytest.raises(FileFormatError, match="not JSON"):
        read_trajectory(tmp_path / "t.json")


def test_pickled_arrays_are_refused(tmp_path: Path) -> None:
    objects = np.array([{"a": 1}, None], dtype=object)
    np.savez(tmp_path / "t.npz", names=objects, times=np.zeros(2), positions=np.zeros((2, 2)))
    with pytest.raises(FileFormatError, match="names"):
        read_trajectory(tmp_path / "t.npz")


def test_missing_arrays_are_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "t.npz", names=np.array(["a"]), times=np.zeros(1))
    with pytest.raises(FileFormatError, match="positions"):
        read_trajectory(tmp_path / "t.npz")


def test_names_that_are_numbers_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "t.npz", names=np.zeros(1), times=np.zeros(1), positions=np.zeros((1, 1)))
    with pytest.raises(FileFormatError, match="names have type"):
        read_trajectory(tmp_path / "t.npz")


def test_a_forged_array_size_is_refused_before_allocation(tmp_path: Path) -> None:
    header = (
        b"\x93NUMPY\x01\x00v\x00"
        + b"{'descr': '<f8', 'fortran_order': False, 'shape': (99999999999, 9), }".ljust(117)
        + b"\n"
    )
    with zipfile.ZipFile(tmp_path / "t.npz", "w") as archive:
        archive.writestr("positions.npy", header + bytes(80))
    with pytest.raises(FileFormatError, match="claims shape"):
        read_trajectory(tmp_path / "t.npz")


def test_an_archive_that_unpacks_to_too_much_is_refused(tmp_path: Path) -> None:
    with (
        zipfile.ZipFile(tmp_path / "t.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("a.npy", "w") as entry,
    ):
        for _ in range(257):
            entry.write(bytes(2**20))
    assert (tmp_path / "t.npz").stat().st_size < 2**22
    with pytest.raises(FileFormatError, match="unpacks to"):
        read_trajectory(tmp_path / "t.npz")


def test_a_table_that_is_too_large_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "t.csv").open("wb") as file:
        file.truncate(2**30)  # sparse: uses no disk space
    with pytest.raises(FileFormatError, match="1,073,741,824 bytes"):
        read_trajectory(tmp_path / "t.csv")


def test_other_suffixes_are_not_written(tmp_path: Path, trajectory: JointTrajectory) -> None:
    with pytest.raises(FileFormatError, match="xlsx") as caught:
        write_trajectory(trajectory, tmp_path / "t.xlsx")
    assert caught.value.code == ErrorCode.FILE_UNSUPPORTED
