"""Joints of the controllers, and plans that the controllers cannot follow as previewed."""

from __future__ import annotations

import numpy as np
import pytest

from kinema4d_ros.core.errors import ErrorCode, KinemaError
from kinema4d_ros.core.trajectory import JointTrajectory
from kinema4d_ros.robot import Robot
from kinema4d_ros.ros.nodes.controllers import controllers, require_covered
from kinema4d_ros.ros.params import ParameterError

SIX = tuple(f"joint{i}" for i in range(1, 7))


def test_joints_default_to_those_of_the_robot(yam: Robot) -> None:
    (alone,) = controllers(yam)
    assert alone.joints == (*SIX, "left_finger_joint")
    arm, gripper = controllers(yam, gripper="gripper_controller")
    assert (arm.joints, gripper.joints) == (SIX, ("left_finger_joint",))
    assert gripper.topic.name == "gripper_controller/joint_trajectory"
    assert gripper.action.name == "gripper_controller/follow_joint_trajectory"
    arm, hand = controllers(yam, ("joint1",), "hand", ("joint6", "left_finger_joint"))
    assert (arm.joints, hand.joints) == (("joint1",), ("joint6", "left_finger_joint"))


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ((("elbow",),), "'elbow' is not an actuated joint"),
        ((("right_finger_joint",),), "'right_finger_joint' is not an actuated joint"),
        ((("joint1", "joint1"),), "'joint1' is assigned twice"),
        ((SIX, "hand", ("joint6",)), "'joint6' is assigned twice"),
        (((), "", ("joint6",)), "its joints are: joint6"),
        (((), "no name!"), "'no name!'"),
        (((), "arm_controller"), "the arm's controller"),
    ],
)
def test_invalid_assignments_of_joints_are_refused(yam: Robot, given: tuple[object, ...], text: str) -> None:
    with pytest.raises(ParameterError) as caught:
        controllers(yam, *given)
    assert text in str(caught.value)


def swing(robot: Robot, names: tuple[str, ...], moved: str, by: str) -> JointTrajectory:
    tables = {what: np.zeros((3, len(names))) for what in ("positions", "velocities", "accelerations")}
    tables[by][1, names.index(moved)] = 0.01
    return JointTrajectory(names, [0.0, 1.0, 2.0], *tables.values())


@pytest.mark.parametrize(
    ("names", "moved", "covered"),
    [
        (SIX, "joint1", True),
        ((*SIX, "left_finger_joint"), "joint1", True),
        ((*SIX, "left_finger_joint"), "left_finger_joint", False),
        (("left_finger_joint",), "left_finger_joint", False),
        # The right finger mimics the left one; without the left one it would move it.
        ((*SIX, "left_finger_joint", "right_finger_joint"), "right_finger_joint", True),
        ((*SIX, "right_finger_joint"), "right_finger_joint", False),
    ],
)
@pytest.mark.parametrize("by", ["positions", "velocities", "accelerations"])
def test_a_joint_without_controller_must_not_move(
    yam: Robot, names: tuple[str, ...], moved: str, covered: bool, by: str
) -> None:
    plan = swing(yam, names, moved, by)
    arm = controllers(yam, SIX)
    if covered:
        require_covered(yam, arm, plan)
        return
    with pytest.raises(KinemaError, match=f"no controller for {moved}") as caught:
        require_covered(yam, arm, plan)
    assert caught.value.code == ErrorCode.UNKNOWN_JOINT


def test_a_plan_without_joints_of_a_controller_is_refused(yam: Robot) -> None:
    rest = JointTrajectory.from_positions(("left_finger_joint",), [[0.01], [0.01]], rate_hz=1.0)
    with pytest.raises(KinemaError, match="no controller for left_finger_joint"):
        require_covered(yam, controllers(yam, SIX), rest)
