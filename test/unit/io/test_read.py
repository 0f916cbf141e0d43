"""`read_trajectory`: detection of the file type, and rejected files and options."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from kinema4d_ros.core.errors import ErrorCode, FileFormatError
from kinema4d_ros.io.trajectories import read_trajectory
from kinema4d_ros.robot import Robot


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=r"gone\.csv does not exist") as caught:
        read_trajectory(tmp_path / "gone.csv")
    assert caught.value.code == ErrorCode.FILE_MISSING


@pytest.mark.parametrize("name", ["t.txt", "t", "folder"])
def test_unknown_kinds_list_the_known_ones(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name == "folder":
        path.mkdir()
    else:
        path.write_text("0")
    with pytest.raises(FileFormatError, match=r"\.mcap") as caught:
        read_trajectory(path)
    assert caught.value.code == ErrorCode.FILE_UNSUPPORTED


def test_options_of_another_kind_of_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("time,joint1\n0,1\n")
    with pytest.raises(FileFormatError, match="no option topic"):
        read_trajectory(tmp_path / "t.csv", topic="/joint_states")


def test_suffixes_are_read_in_any_case(tmp_path: Path) -> None:
    (tmp_path / "T.CSV").write_text("time,joint1\n0,1\n")
    assert read_trajectory(tmp_path / "T.CSV").names == ("joint1",)


def test_notes_go_to_the_log(tmp_path: Path, yam: Robot, caplog: pytest.LogCaptureFixture) -> None:
    arm = ",".join(joint.name for joint in yam.arm)
    (tmp_path / "t.csv").write_text(f"time,{arm},gantry\n0{6 * ',0.1'},5\n")
    with caplog.at_level(logging.INFO):
        read_trajectory(tmp_path / "t.csv", yam)
    assert "gantry" in caplog.text
