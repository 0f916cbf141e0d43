from __future__ import annotations

import numpy as np
import pytest

from kinema4d_ros.core.errors import ErrorCode, RobotError
from kinema4d_ros.robot import Robot

ARM = ("joint1", "joint2", "joint3", "joint4", "joint5", "joint6")


def test_names_and_orders(yam: Robot) -> None:
    assert yam.base_link == "base_link"
    assert yam.joint_names == (*ARM, "left_finger_joint")
    assert tuple(j.name for j in yam.arm) == ARM
    assert yam.chain("tool") == ("base_joint", *ARM, "tool_joint")
    assert yam.chain("base_link") == ()
    seen = {yam.base_link}
    for joint, link in zip(yam.joints, yam.links[1:], strict=True):
        assert joint.child == link.name
        assert joint.parent in seen
        seen.add(link.name)


def test_unknown_names_list_the_known_ones(yam: Robot) -> None:
    with pytest.raises(RobotError, match=r"link 'tip_left' is not in robot 'yam'.*left_finger") as link:
        yam.link("tip_left")
    assert link.value.code is ErrorCode.UNKNOWN_LINK
    with pytest.raises(RobotError, match=r"joint 'elbow' is not in robot 'yam'.*joint3") as joint:
        yam.joint("elbow")
    assert joint.value.code is ErrorCode.UNKNOWN_JOINT
    with pytest.raises(RobotError, match=r"convert it by Robot\.from_vendor"):
        yam.joint("joint7")
    with pytest.raises(RobotError, match="UNKNOWN_LINK"):
        yam.chain("nowhere")
    with pytest.raises(RobotError, match=r"pose 'sleep'.*folded, ready"):
        yam.pose("sleep")


def test_positions_fill_what_is_not_named(yam: Robot) -> None:
    q = yam.positions(["joint2"], [[0.5], [0.6]])
    assert q.shape == (2, 7)
    np.testing.assert_array_equal(q[:, 1], [0.5, 0.6])
    np.testing.assert_array_equal(np.delete(q, 1, axis=1), np.delete(np.tile(yam.home_position(), (2, 1)), 1, axis=1))
    zeros = yam.positions(["joint1"], [1.0], fill=np.zeros(7))
    assert zeros.tolist() == [[1, 0, 0, 0, 0, 0, 0]]
    for name in ("tool_joint", "joint7"):
        with pytest.raises(RobotError) as caught:
            yam.positions([name], [0.0])
        assert caught.value.code is ErrorCode.UNKNOWN_JOINT


def test_a_mimic_joint_sets_its_leader_only_if_that_is_absent(yam: Robot) -> None:
    assert yam.positions(["right_finger_joint"], [0.04])[0, 6] == 0.04
    for names, values in (
        (["left_finger_joint", "right_finger_joint"], [0.01, 0.04]),
        (["right_finger_joint", "left_finger_joint"], [0.04, 0.01]),
    ):
        assert yam.positions(names, values)[0, 6] == 0.01


@pytest.mark.parametrize(
    ("names", "values", "fill", "complaint"),
    [
        (["joint1"], [[0.0, 1.0]], None, r"shape \(1, 2\) for 1 names"),
        (["joint1", "joint2"], [[0.0]], None, r"shape \(1, 1\) for 2 names"),
        (["joint1"], [[[0.0]]], None, "shape"),
        (["joint1", "joint1"], [[0.0, 1.0]], None, "joint1 are named more than once"),
        (["joint1"], [0.0], [0.0] * 6, r"fill has shape \(6,\)"),
    ],
)
def test_positions_that_do_not_fit(
    yam: Robot, names: list[str], values: list[float], fill: list[float] | None, complaint: str
) -> None:
    with pytest.raises(RobotError, match=complaint) as caught:
        yam.positions(names, values, fill)
    assert caught.value.code is ErrorCode.TRAJECTORY_BAD_SHAPE


def test_home_lies_within_the_limits(yam: Robot, primitive_arm: Robot) -> None:
    for robot in (yam, primitive_arm):
        for q in (robot.home_position(), *(robot.pose(name) for name in robot.poses)):
            assert np.all(q >= robot.lower)
            assert np.all(q <= robot.upper)


def test_from_vendor_replaces_the_finger_columns(yam: Robot) -> None:
    names = ("joint8", "joint1", "joint7", "joint2")
    values = np.array([[-0.02, 1.0, -0.02, 2.0], [-0.03, 1.5, -0.03, 2.5]])
    ours, table = yam.from_vendor(names, values)
    assert ours == ("joint1", "joint2", "left_finger_joint")
    np.testing.assert_allclose(table, [[1.0, 2.0, 0.02], [1.5, 2.5, 0.03]])
    same, untouched = yam.from_vendor(["joint1"], [[1.0]])
    assert same == ("joint1",)
    assert untouched.tolist() == [[1.0]]


def test_from_vendor_never_guesses(yam: Robot) -> None:
    with pytest.raises(RobotError, match="the gripper in one convention"):
        yam.from_vendor(["left_finger_joint", "joint7"], [[0.0, 0.0]])
    with pytest.raises(RobotError, match=r"shape \(1, 3\) for 2 names"):
        yam.from_vendor(["joint1", "joint7"], [[0.0, 0.0, 0.0]])
