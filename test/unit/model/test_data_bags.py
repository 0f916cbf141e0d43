"""Import of bags from our recorder: depth and commands by topic; measured joints are never taken as commands."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.recordings import (
    FPS,
    LATE,
    H,
    N,
    W,
    image,
    joint_state,
    joint_trajectory,
    table_camera,
    waving,
    write_bag,
    yam,
)

from kinema4d_model.data.check import check_dataset, dataset_warnings
from kinema4d_model.data.check_episode import check_episode
from kinema4d_model.data.dataset_folder import DatasetFolder
from kinema4d_model.data.importers.bag import bag_recording
from kinema4d_model.data.importers.build import build_episode
from kinema4d_model.data.shards import read_episode
from kinema4d_ros.calibration import save_camera
from kinema4d_ros.cli import main
from kinema4d_ros.core.errors import DataError, ErrorCode
from kinema4d_ros.io.joint_match import JointOptions

START = 50.0
DELAY = 0.5
"""Delay of the recorder's clock after the stamps: a trajectory without a stamp has only the receive time."""


def seen(depth_topic: str = "/camera/depth") -> list[tuple[float, str, Any]]:
    """Return images, depth and joint states of the waving arm."""
    recording = waving()
    assert recording.joints is not None
    assert recording.depth is not None
    found: list[tuple[float, str, Any]] = []
    for i in range(N):
        t = START + i / FPS
        millimetres = np.rint(recording.depth[i] * 1000).astype(np.uint16)
        found += [
            (t + DELAY, "/camera/image_raw", image(t, recording.images[i], "rgb8")),
            (t + DELAY, depth_topic, image(t, millimetres, "16UC1")),
            (t + DELAY, "/joint_states", joint_state(t, recording.joints.names, recording.joints.positions[i])),
        ]
    return found


def test_a_plan_on_the_controllers_topic_gives_the_commands(tmp_path: Path) -> None:
    told = waving().actions
    assert told is not None
    plan = joint_trajectory(told.names, told.times, told.positions)
    elsewhere = joint_trajectory(told.names, told.times, told.positions + 1.0)
    write_bag(
        tmp_path / "bag",
        [
            *seen(),
            (START + DELAY, "/arm_controller/joint_trajectory", plan),
            (START + DELAY, "/kinema4d/plan", elsewhere),
        ],
    )
    found = bag_recording(tmp_path / "bag", yam(), table_camera(), success=True)
    assert found.details["actions_topic"] == "/arm_controller/joint_trajectory"
    assert found.details["depth_topic"] == "/camera/depth"
    made = build_episode(found, frames=9, width=W, height=H)
    assert check_episode(made) == []
    assert made.details["condition"] == "commanded"
    assert made.actions - made.joints == pytest.approx(LATE, abs=1e-6)  # type: ignore[operator]
    assert made.depth_m is not None
    assert "actions" not in made.missing


def test_a_new_plan_replaces_the_old_one_and_an_uncommanded_gripper_holds(tmp_path: Path) -> None:
    """Two plans of the arm's joints, the second while the first runs; the gripper gets no commands."""
    robot = yam()[1]
    names = robot.joint_names[:6]
    home = robot.home_position()[:6]
    first = joint_trajectory(names, np.array([0.0, 2.0]), np.stack([home, home + 0.4]))
    second = joint_trajectory(names, np.array([0.5]), (home + 0.1)[None], stamp_s=START + 1.0)
    write_bag(
        tmp_path / "bag",
        [
            *seen(),
            (START + DELAY, "/arm_controller/joint_trajectory", first),
            (START + DELAY + 0.9, "/arm_controller/joint_trajectory", second),
        ],
    )
    found = bag_recording(tmp_path / "bag", yam(), table_camera())
    assert found.actions is not None
    assert found.actions.at([0.5])[0] == pytest.approx(home + 0.1, abs=1e-6)
    assert found.actions.at([1.0])[0] == pytest.approx(home + 0.2, abs=1e-3)
    assert found.actions.at([1.25])[0] == pytest.approx(home + 0.15, abs=1e-3)
    assert found.actions.at([2.0])[0] == pytest.approx(home + 0.1, abs=1e-6), "it holds"
    made = build_episode(found, frames=9, width=W, height=H)
    assert made.details["uncommanded"] == [robot.joint_names[6]]
    assert np.ptp(made.actions[:, 6]) == 0.0  # type: ignore[index]
    assert np.ptp(made.joints[:, 6]) > 0.005  # type: ignore[index]


def test_other_names_in_a_bag_are_an_error_and_can_be_mapped(tmp_path: Path) -> None:
    robot = yam()[1]
    theirs = tuple(f"elbow_{i}" for i in range(6))
    home = robot.home_position()[:6]
    told = joint_trajectory(theirs, np.array([0.0, 2.0]), np.stack([home, home + 0.4]))
    topic = "/arm_controller/joint_trajectory"
    write_bag(tmp_path / "bag", [*seen(), (START + DELAY, topic, told)])
    with pytest.raises(DataError, match=r"no values for joint1.*the recording has elbow_0, elbow_1") as caught:
        bag_recording(tmp_path / "bag", yam(), None)
    assert caught.value.code == ErrorCode.UNKNOWN_JOINT
    joints = JointOptions({name: f"joint{i + 1}" for i, name in enumerate(theirs)})
    found = bag_recording(tmp_path / "bag", yam(), None, joints=joints)
    assert found.actions is not None
    assert found.actions.names == tuple(f"joint{i}" for i in range(1, 7))
    assert found.actions.at([1.0])[0] == pytest.approx(home + 0.2, abs=1e-2)
    with pytest.raises(DataError, match="has no joint wrist; expected some of joint1"):
        bag_recording(tmp_path / "bag", yam(), None, joints=JointOptions({"wrist": "joint1"}))


def test_an_arm_joint_that_is_neither_commanded_nor_measured_is_an_error(tmp_path: Path) -> None:
    robot = yam()[1]
    half = robot.joint_names[:3]
    home = robot.home_position()[:3]
    told = joint_trajectory(half, np.array([0.0, 2.0]), np.stack([home, home + 0.4]))
    topic = "/arm_controller/joint_trajectory"
    write_bag(tmp_path / "bag", [*seen(), (START + DELAY, topic, told)])
    found = bag_recording(tmp_path / "bag", yam(), None)
    made = build_episode(found, frames=9, width=W, height=H)
    assert made.details["uncommanded"] == list(robot.joint_names[3:]), "measured joints give their positions"
    assert any(note.startswith("not commanded: joint4") for note in made.details["notes"])
    with pytest.raises(DataError, match="joint4, joint5, joint6 of robot 'yam' is neither commanded nor measured"):
        build_episode(replace(found, joints=None), frames=9, width=W, height=H)


def test_without_commands_the_condition_is_measured_and_check_warns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_bag(tmp_path / "bags" / "kitchen" / "one", seen("/other/depth/image"))
    save_camera(tmp_path / "camera.yaml", table_camera())
    size = ["--frames", "9", "--width", str(W), "--height", str(H), "--camera", str(tmp_path / "camera.yaml")]
    out = tmp_path / "out"
    arguments = ["data", "import", "bag", str(tmp_path / "bags"), "--out", str(out), "--val", "0", *size]
    assert main(arguments) == 0
    made = read_episode(DatasetFolder.open(out).indices("train")[0], 0)
    assert made.details["condition"] == "measured"
    assert (made.details["scene"], made.details["scene_key"]) == ("kitchen", "folder")
    assert {"actions", "depth"} <= set(made.missing), "depth that may not be registered is not used"
    assert made.condition_ids is not None
    assert check_dataset(out) == []
    assert len(dataset_warnings(out)) == 1
    capsys.readouterr()
    assert main(["data", "check", str(out)]) == 0
    assert (
        "warning: 1 of 1 episodes (one ...): the condition is rendered from measured joints" in capsys.readouterr().out
    )

    deep = tmp_path / "deep"
    assert main([*arguments[:5], str(deep), *arguments[6:], "--depth-topic", "/other/depth/image"]) == 0
    assert read_episode(DatasetFolder.open(deep).indices("train")[0], 0).depth_m is not None
    with pytest.raises(DataError, match="/camera/image_raw"):
        bag_recording(tmp_path / "bags" / "kitchen" / "one", yam(), None, actions_topic="/camera/image_raw")


def test_an_empty_plan_stops_and_a_broken_one_is_named(tmp_path: Path) -> None:
    robot = yam()[1]
    names = robot.joint_names[:6]
    home = robot.home_position()[:6]
    plan = joint_trajectory(names, np.array([0.0, 2.0]), np.stack([home, home + 0.4]))
    stop = joint_trajectory(names, np.empty(0), np.empty((0, 6)), stamp_s=START + 1.0)
    topic = "/arm_controller/joint_trajectory"
    write_bag(tmp_path / "bag", [*seen(), (START + DELAY, topic, plan), (START + DELAY + 1.0, topic, stop)])
    found = bag_recording(tmp_path / "bag", yam(), None)
    assert found.actions is not None
    assert found.actions.at([1.9])[0] == pytest.approx(home + 0.2, abs=1e-3)
    bad = joint_trajectory(names, np.array([1.0, 0.5]), np.stack([home, home]))
    write_bag(tmp_path / "bad", [*seen(), (START + DELAY, topic, bad)])
    with pytest.raises(DataError, match="out of order"):
        bag_recording(tmp_path / "bad", yam(), None)


def test_import_with_segmenter_and_lifter_refuses_other_options_on_resume(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    depthless = [entry for entry in seen() if entry[1] != "/camera/depth"]
    for room in ("a", "b"):
        write_bag(tmp_path / "bags" / room / f"in_{room}", depthless)
    save_camera(tmp_path / "camera.yaml", table_camera())
    out = tmp_path / "out"
    arguments = ["data", "import", "bag", str(tmp_path / "bags"), "--out", str(out), "--frames", "5"]
    arguments += ["--width", str(W), "--height", str(H), "--camera", str(tmp_path / "camera.yaml")]
    arguments += ["--lift", "shipped", "--segmenter", "classical", "--val-episodes", "1"]
    assert main(arguments) == 0
    dataset = DatasetFolder.open(out)
    assert dataset.document["splits"] == {"train": 1, "val": 1}
    made = read_episode(dataset.indices("val")[0], 0)
    assert made.details["masks"]["method"] == "classical"
    assert "depth" not in made.missing
    assert [d for d in check_dataset(out) if d.name != "leak"] == [], "both rooms show the same images here"
    capsys.readouterr()
    assert main([*arguments, "--table-height", "0.02"]) == 2
    assert "another table_height (0.0, now 0.02)" in capsys.readouterr().err
    assert main(arguments) == 0
