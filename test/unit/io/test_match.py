"""Recorded names that differ from the robot's: errors with both lists, joint maps, and all gripper scales."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kinema4d_ros.cli import main
from kinema4d_ros.core.errors import ErrorCode, FileFormatError, KinemaError
from kinema4d_ros.core.trajectory import JointTrajectory
from kinema4d_ros.io.joint_match import GRIPPER, JointOptions, parse_gripper_range, parse_joint_map
from kinema4d_ros.io.tables import write_trajectory
from kinema4d_ros.io.trajectories import read_trajectory, read_with_notes
from kinema4d_ros.robot import Robot

OTHERS = tuple(f"joint_{i}" for i in range(6))
MAP = {name: f"joint{i + 1}" for i, name in enumerate(OTHERS)}


def write(folder: Path, names: tuple[str, ...], gripper: Any = (0.0, 0.5, 1.0), suffix: str = ".csv") -> Path:
    """Write three samples of joints that all differ; the last of seven columns is the gripper."""
    q = np.linspace(0.1, 0.6, 18).reshape(3, 6)
    table = np.column_stack([q, gripper])[:, : len(names)]
    path = folder / f"plan{suffix}"
    write_trajectory(JointTrajectory(names, [0.0, 1.0, 2.0], table), path)
    return path


@pytest.mark.parametrize("suffix", [".csv", ".json", ".npz"])
def test_an_arm_without_values_is_an_error_with_both_lists(tmp_path: Path, yam: Robot, suffix: str) -> None:
    path = write(tmp_path, (*OTHERS, GRIPPER), suffix=suffix)
    with pytest.raises(FileFormatError) as caught:
        read_trajectory(path, yam)
    assert caught.value.code == ErrorCode.UNKNOWN_JOINT
    text = str(caught.value)
    assert "no values for joint1, joint2, joint3, joint4, joint5, joint6 of robot 'yam'" in text
    assert "the recording has joint_0, joint_1, joint_2, joint_3, joint_4, joint_5, gripper" in text
    offered = text.split("--joint-map ")[1].split(";")[0]
    assert parse_joint_map(offered) == MAP, "it can be pasted"
    read = read_trajectory(path, yam, joint_map=MAP, gripper_range=(1.0, 0.0))
    assert read.names == (*(f"joint{i}" for i in range(1, 7)), "left_finger_joint")


@pytest.mark.parametrize(
    "verb",
    [
        *("render", "generate", "preview", "metrics", "segment", "acquire", "data import"),
        *("calibrate extrinsics", "calibrate markerless", "calibrate check", "calibrate page"),
    ],
)
def test_every_command_that_reads_joints_has_the_options_named_in_errors(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([*verb.split(), "--help"])
    text = capsys.readouterr().out
    assert "--joint-map" in text
    assert "--gripper-range" in text


def test_the_command_line_refuses_and_maps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, (*OTHERS, GRIPPER))
    arguments = [
        "render",
        "--trajectory",
        str(path),
        "--frames",
        "2",
        "--size",
        "48x32",
        "--out",
        str(tmp_path / "out"),
    ]
    assert main(arguments) == 2
    assert "the recording has joint_0" in capsys.readouterr().err
    mapped = ",".join(f"{a}={b}" for a, b in MAP.items())
    assert main([*arguments, "--joint-map", mapped, "--gripper-range", "0,1"]) == 0
    assert "note: gripper 'gripper': 0 = open, 1 = closed" in capsys.readouterr().err


def test_a_single_arm_joint_that_is_missing_is_an_error(tmp_path: Path, yam: Robot) -> None:
    path = write(tmp_path, ("joint1", "joint2", "joint3", "joint4", "joint5"))
    with pytest.raises(FileFormatError, match="no values for joint6 of robot 'yam'"):
        read_trajectory(path, yam)


def test_a_gripper_without_values_is_reported(tmp_path: Path, yam: Robot) -> None:
    reading = read_with_notes(write(tmp_path, tuple(MAP.values())), yam)
    assert reading.notes == ("no values for left_finger_joint of robot 'yam': taken as the home position",)


@pytest.mark.parametrize(
    ("joint_map", "words"),
    [
        ({"elbow": "joint1"}, "has no joint elbow; expected some of joint_0, joint_1"),
        ({"joint_0": "shoulder"}, "robot 'yam' has no joint shoulder; expected some of joint1, joint2"),
        ({**MAP, "joint_5": "joint1"}, "joint_0 and joint_5 are both read as 'joint1'"),
        ({**MAP, "joint_0": ""}, "no values for joint1 of robot 'yam'"),
    ],
)
def test_maps_that_do_not_fit_are_refused(tmp_path: Path, yam: Robot, joint_map: dict[str, str], words: str) -> None:
    path = write(tmp_path, (*OTHERS, GRIPPER))
    with pytest.raises(FileFormatError) as caught:
        read_trajectory(path, yam, joint_map=joint_map, gripper_range=(1, 0))
    assert words in str(caught.value)


def test_a_map_needs_a_robot(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="without a robot"):
        read_trajectory(write(tmp_path, OTHERS), joint_map=MAP)


def test_maps_are_text_or_a_file(tmp_path: Path) -> None:
    assert parse_joint_map("a=b, c=d,e=") == {"a": "b", "c": "d", "e": ""}
    (tmp_path / "map.yaml").write_text("a: b\nc: d\ne:\n")
    assert parse_joint_map(str(tmp_path / "map.yaml")) == {"a": "b", "c": "d", "e": ""}
    (tmp_path / "bad.yaml").write_text("a: [b]\n")
    for text in ("a=b,c", "=b", "a=b,a=c", str(tmp_path / "bad.yaml"), str(tmp_path / "gone.yaml")):
        with pytest.raises(KinemaError):
            parse_joint_map(text)


@pytest.mark.parametrize(
    ("recorded", "gripper_range"),
    [
        ([1.0, 0.25, 0.0], "1,0"),
        ([0.0, 0.75, 1.0], "0,1"),
        ([100.0, 25.0, 0.0], "100:0"),
        ([0.8, 0.2, 0.0], "0.8,0"),
        ([-1.0, 0.5, 1.0], "-1,1"),
    ],
)
def test_the_gripper_in_any_scale(tmp_path: Path, yam: Robot, recorded: list[float], gripper_range: str) -> None:
    path = write(tmp_path, (*MAP.values(), GRIPPER), recorded)
    reading = read_with_notes(path, yam, gripper_range=parse_gripper_range(gripper_range))
    assert yam.gripper is not None
    np.testing.assert_allclose(reading.trajectory.positions[:, 6], yam.gripper.position([1.0, 0.25, 0.0]), atol=1e-12)
    assert any("= open" in note and "--gripper-range" in note for note in reading.notes)


def test_an_unknown_gripper_scale_is_an_error(tmp_path: Path, yam: Robot) -> None:
    path = write(tmp_path, (*MAP.values(), "hand"), [0.0, 0.3, 0.79])
    for joint in (GRIPPER, "left_finger_joint"):
        with pytest.raises(FileFormatError, match=r"'hand' goes from 0 to 0\.79 and starts at 0.*--gripper-range") as e:
            read_trajectory(path, yam, joint_map={"hand": joint})
        assert e.value.code == ErrorCode.ARGUMENT_INVALID
    with pytest.raises(FileFormatError, match=r"beyond 0\.5 \(open\) to 0 \(closed\)"):
        read_trajectory(path, yam, joint_map={"hand": GRIPPER}, gripper_range=(0.5, 0.0))
    left_out = read_with_notes(path, yam, joint_map={"hand": ""})
    assert any("taken as the home position" in note for note in left_out.notes)


def test_a_scale_implied_by_the_name_is_used_if_the_values_fit(tmp_path: Path, yam: Robot) -> None:
    assert yam.gripper is not None
    width = yam.gripper.width_open_m
    for name, recorded in (
        ("gripper_width", [width, width / 2, 0.0]),
        ("gripper_opening", [1.0, 0.5, 0.0]),
        ("gripper_closed", [0.0, 0.5, 1.0]),
    ):
        reading = read_with_notes(write(tmp_path, (*MAP.values(), name), recorded), yam)
        assert reading.trajectory.positions[:, 6] == pytest.approx(yam.gripper.position([1.0, 0.5, 0.0]), abs=1e-6)
        assert any(f"guessed from the name '{name}'" in note for note in reading.notes)
        with pytest.raises(FileFormatError, match="--gripper-range"):
            read_trajectory(write(tmp_path, (*MAP.values(), name), [0.0, 50.0, 100.0]), yam)


def test_the_robots_own_gripper_joint_needs_no_scale(tmp_path: Path, yam: Robot) -> None:
    assert yam.gripper is not None
    own = [yam.gripper.closed, yam.gripper.open, yam.gripper.closed]
    reading = read_with_notes(write(tmp_path, (*MAP.values(), yam.gripper.joint), own), yam)
    assert reading.trajectory.positions[:, 6] == pytest.approx(own)
    assert reading.notes == ()


@pytest.mark.parametrize("text", ["", "1", "1,2,3", "open,closed", "nan,1", "1,1"])
def test_invalid_ranges_are_refused(text: str) -> None:
    with pytest.raises(KinemaError) as caught:
        JointOptions(gripper_range=parse_gripper_range(text))
    assert caught.value.code == ErrorCode.ARGUMENT_INVALID
