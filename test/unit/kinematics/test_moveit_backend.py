"""MoveIt's back-end from the parent's side: a real child process with the same protocol, which answers by pinocchio.

MoveIt itself cannot be installed here; `test_kinematics_contract.py` runs it where it can.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from support.panda_like import panda_like

from kinema4d_ros.core.errors import ErrorCode, KinemaError, KinematicsError, RobotError
from kinema4d_ros.core.transforms import slerp
from kinema4d_ros.kinematics import NoSolution, forward_all, moveit_backend
from kinema4d_ros.kinematics.moveit_backend import MoveItKinematics
from kinema4d_ros.kinematics.protocol import POSITION_TOLERANCE_M
from kinema4d_ros.robot import Robot
from kinema4d_ros.robot.moveit_files import MoveItFiles

CHILD = Path(__file__).resolve().parents[2] / "support" / "moveit_like.py"
SRDF = '<?xml version="1.0"?><robot name="panda_like"><group name="{group}">{inside}</group></robot>'


def command(fault: str = "none") -> tuple[str, ...]:
    return (sys.executable, str(CHILD), fault)


def running(kinematics: MoveItKinematics) -> int:
    connection = kinematics._solver._connection
    assert connection is not None
    return connection._child.pid


def has_ended(pid: int) -> bool:
    """Whether a process is gone; one that its parent has not waited for yet has no command line any more."""
    deadline = time.monotonic() + 60.0
    while time.monotonic() < deadline:
        try:
            if not Path(f"/proc/{pid}/cmdline").read_bytes():
                return True
        except OSError:
            return True
        time.sleep(0.05)
    return False


@pytest.fixture(scope="module")
def kinematics(yam: Robot) -> MoveItKinematics:
    return MoveItKinematics(yam, command())


def test_a_path_is_solved_and_agrees_with_the_exact_robot(kinematics: MoveItKinematics, yam: Robot) -> None:
    tool = [link.name for link in yam.links].index(yam.tool_link)
    home = yam.home_position()
    target = home.copy()
    target[:6] += [0.4, 0.1, 0.1, 0.1, 0.2, -0.3]
    ends = forward_all(yam, np.array([home, target]))[:, tool]
    path = kinematics.solve_path(slerp(ends[0], ends[1], np.linspace(0.0, 1.0, 12)), seed=home)
    assert path.reached.all()
    reached = kinematics.forward_all(path.q)[-1, tool]
    assert np.linalg.norm(reached[:3, 3] - ends[1][:3, 3]) < POSITION_TOLERANCE_M
    np.testing.assert_allclose(kinematics.forward(home), forward_all(yam, home[None])[0])


def test_out_of_reach_names_the_closest_pose(kinematics: MoveItKinematics) -> None:
    far = np.eye(4)
    far[:3, 3] = 9.0, 0.0, 0.3
    with pytest.raises(NoSolution):
        kinematics.inverse(far)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("start", "RuntimeError: Unable to construct robot model"),
        ("refuse", "no such group"),
        ("other model", "10.0 mm from where the URDF does"),
        ("no solver", "solved 0 of 8 tool poses.*ros-jazzy-moveit-kinematics"),
    ],
)
def test_the_self_test_names_what_is_wrong(yam: Robot, fault: str, words: str) -> None:
    with pytest.raises(KinematicsError, match=words) as caught:
        MoveItKinematics(yam, command(fault))
    assert caught.value.code == ErrorCode.BACKEND_MISSING


def test_a_program_that_ends_at_once_is_an_error(yam: Robot) -> None:
    with pytest.raises(KinematicsError, match="process ended: exit code 1"):
        MoveItKinematics(yam, ("/bin/false",))
    with pytest.raises(KinematicsError, match="cannot be started"):
        MoveItKinematics(yam, ("/nowhere/moveit",))


def test_a_crash_is_an_error_and_the_next_call_starts_another_child(yam: Robot) -> None:
    kinematics = MoveItKinematics(yam, command("crash"))
    first = running(kinematics)
    poses = np.repeat(forward_all(yam, yam.home_position()[None])[:, -1], 40, axis=0)
    tool = [link.name for link in yam.links].index(yam.tool_link)
    poses[:] = forward_all(yam, yam.home_position()[None])[0, tool]
    with pytest.raises(KinematicsError, match="process ended: signal SIGSEGV"):
        kinematics.solve_path(poses, seed=yam.home_position())
    assert np.isfinite(kinematics.inverse(poses[0], seed=yam.home_position())).all()
    assert running(kinematics) != first
    kinematics.close()


@pytest.mark.full
def test_a_child_that_hangs_is_killed(yam: Robot, monkeypatch: pytest.MonkeyPatch) -> None:
    kinematics = MoveItKinematics(yam, command("hang"))
    monkeypatch.setattr(moveit_backend, "ANSWER_S", 2.0)
    pid = running(kinematics)
    tool = [link.name for link in yam.links].index(yam.tool_link)
    pose = forward_all(yam, yam.home_position()[None])[0, tool]
    with pytest.raises(KinematicsError, match="did not answer within"):
        kinematics.solve_path(np.repeat(pose[None], 40, axis=0), seed=yam.home_position())
    assert has_ended(pid)


@pytest.mark.full
def test_the_child_ends_with_its_owner(yam: Robot) -> None:
    kinematics = MoveItKinematics(yam, command())
    pid = running(kinematics)
    os.kill(pid, 0)
    del kinematics
    gc.collect()
    assert has_ended(pid)


@pytest.mark.parametrize(
    "inside",
    [
        '<chain base_link="link0" tip_link="tool"/>',
        "".join(f'<joint name="joint{i}"/>' for i in range(1, 8)),
        "".join(f'<link name="link{i}"/>' for i in range(1, 8)),
    ],
)
def test_any_robot_with_an_srdf(tmp_path: Path, inside: str) -> None:
    robot = panda_like(tmp_path, tool=True)
    assert robot.path is not None
    inside = inside.replace("link0", robot.base_link).replace("tool", robot.tool_link)
    names = [joint.name for joint in robot.arm]
    for i, name in enumerate(names, 1):
        inside = inside.replace(f'"joint{i}"', f'"{name}"')
    robot.path.with_suffix(".srdf").write_text(SRDF.format(group="panda_arm", inside=inside))
    files = MoveItFiles.find(robot)
    assert files.group == "panda_arm"
    assert files.kinematics["panda_arm"]["kinematics_solver"].endswith("KDLKinematicsPlugin")
    assert files.ompl["panda_arm"]["default_planner_config"] in files.ompl["planner_configs"]
    assert "arm" not in files.ompl
    if "chain" in inside:
        kinematics = MoveItKinematics(robot, command())
        home = robot.home_position()
        pose = kinematics.forward(home)[[link.name for link in robot.links].index(robot.tool_link)]
        assert np.isfinite(kinematics.inverse(pose, seed=home)).all()
        kinematics.close()


def test_a_robot_without_srdf_or_without_its_group_is_named(tmp_path: Path) -> None:
    robot = panda_like(tmp_path)
    assert robot.path is not None
    with pytest.raises(RobotError, match="has no SRDF") as caught:
        MoveItKinematics(robot, command())
    assert caught.value.code == ErrorCode.FILE_MISSING
    srdf = robot.path.with_suffix(".srdf")
    srdf.write_text(SRDF.format(group="hand", inside='<joint name="nothing"/>'))
    with pytest.raises(RobotError, match="its groups are: hand: no moving joint"):
        MoveItKinematics(robot, command())
    srdf.write_text('<!DOCTYPE robot [<!ENTITY a "b">]><robot name="a">&a;</robot>')
    with pytest.raises(KinemaError):
        MoveItKinematics(robot, command())
